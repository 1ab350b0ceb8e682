/* SPDX-License-Identifier: BSD-3-Clause */
/* The engine: what a tess is made of, and what its files ask of each other. */
#ifndef TESS_ENGINE_H
#define TESS_ENGINE_H
#include "base/options.h"
#include "comms.h"
#include "graphs.h"
#include "guard.h"
#include "device.h"
#include "memory.h"
#include "plan/plan.h"
#include "plugin/selection.h"
#include "readers/advise.h"
#include "recorder.h"
#include "kernels/microbatch_sum.h"
#include "side_thread.h"
#include "streams.h"
#include "transfers.h"

typedef struct {                /* const after tess_open */
    tess_options options;       /* as given; texts not to be used */
    tess__given given;          /* the same, for every read of an option */
    const tess__given *callers; /* of the thread in tess_shard, while it runs */
    char *strategy, *optimizer, *activations;
    int strict, plan_only;
    char threads_text[16];
    char accum_text[48]; /* where accum > 1 comes from, for messages: " (TESSERA_ACCUM=4)" */
    int64_t timeout_ns;
} tess__settings;

typedef struct {                     /* the running pass */
    tess__program *program;          /* the running one */
    tess__program deviating_program; /* the one that a pass off the compiled order builds as it goes */
    int32_t pc;
    uint32_t kind; /* 0: none */
    int summoned;
    int32_t *entered;      /* by scope: begins without end, forward at 2 * scope, backward at 2 * scope + 1 */
    int32_t *begun;        /* the same: all begins of this pass */
    const char *ended_by;  /* the call that ended the last pass before its order was at its end; null: none */
    tess__guard *guard;    /* TESSERA_STRICT=1; else null */
    int32_t microbatch;    /* of this step, from 0 */
    int32_t pending_grads; /* gradients live: a step or a drop is due */
    const tess_run_options *run;
    void **block_params, **block_grads;
    uint64_t n_recompiles;
} tess__pass_run;

typedef struct { /* the optimizer's */
    const tess_optimizer_options *options;
    float grad_scale;
    tess_optimizer kernel;
    tess_segment *segments; /* of all groups */
    int32_t *first_segment; /* by group; n_groups + 1 entries */
    int32_t *segment_group; /* optimizer_group of each segment */
    uint64_t steps_done;
    int warned_lr;
    double norm;
    int has_norm;              /* of the last step: `norm` is its */
    const int64_t *norm_limbs; /* of the last step, which the device clipped: there after tess__norm_wait; else null */
    int more_follow;           /* the next work is another of this kind: TESS_KERNEL_MORE */
} tess__step;

typedef struct {               /* recovery in memory */
    int64_t own[2];            /* the step of each of this rank's images; -1: none, or torn */
    int64_t copy[2];           /* the same of those that it keeps for another rank */
    int slot;                  /* that the next ones go to */
    int64_t taken;             /* step of the newest; -1: none in this group of ranks */
    int ready;                 /* the first ones are whole: from now on a lost rank is TESS_E_LOST */
    int joins;                 /* this process takes a lost rank's place, and has not come to tess_recover */
    int32_t rank;              /* this rank's number in the group that the images are of */
    struct tess__carry *carry; /* on the way to a smaller group: images of the one before; else null */
    uint64_t planned_peak[3];  /* of the groups before, by domain */
} tess__mirror;

struct tess {
    tess_status error; /* the first one; sticky */
    char message[1024];
    int sharded;         /* tess_shard is done */
    int masters_changed; /* by anything but a step, which writes their low-precision copies too: these are old */
    tess__settings settings;
    tess__selection selection;
    tess__plan plan;
    tess__device device;
    tess__comms comms;
    tess__streams streams; /* of a device that has its own; transfers.up is then null */
    tess__memory memory;
    tess__transfers transfers;
    tess__recorder recorder;
    tess__graphs graphs;
    tess__pass_run pass;
    tess__step step;
    tess__mirror mirror;
    struct tess__saver *saver; /* checkpoint.c; null: nothing was saved yet */
    tess__side_thread saving;  /* reads frozen parameters where they lie, and the snapshot */
    tess__advice advice;       /* after tess_shard was over its budget */
};

/** errors.c: makes `status`, whose message is set, the engine's sticky error: names a lost rank as the cause when one
 * was lost, tells the others, aborts the communicators. Returns the sticky status. */
tess_status tess__engine_fail(tess *, tess_status status);
/** Every public call starts with it: the sticky error again, or TESS_OK; TESS_E_INVALID without an engine. */
tess_status tess__engine_check(const tess *);
/** The whole of a public call: `body` runs unless an error is sticky, and its failure becomes sticky. */
#define TESS__PUBLIC(t, body)                                                                                          \
    do {                                                                                                               \
        tess_status public_status = tess__engine_check(t);                                                             \
        if (public_status)                                                                                             \
            return public_status;                                                                                      \
        public_status = (body);                                                                                        \
        return public_status ? tess__engine_fail(t, public_status) : TESS_OK;                                          \
    } while (0)
/** Copies a struct of the program's to one of ours as far as both go; the rest is zero, which means the default.
 * TESS_E_INVALID, naming the call, when it is missing or its struct_size cannot be. */
tess_status tess__copy_options(const char *call, void *own, uint32_t own_bytes, uint32_t least, const void *given);
/** Bytes of a struct up to a field of its first release, below which none is taken. */
#define TESS__UP_TO(type, field) ((uint32_t)(offsetof(type, field) + sizeof(((type *)0)->field)))
/** For a failure that came out of the program's own function: names where, unless that function set a message since
 * `before`, which is tess__fail_count() from ahead of the call. */
tess_status tess__callback_failed(tess_status, uint64_t before, const char *what, const char *name);

/** checkpoint.c: waits for a save that is being written, or, with an error, lets it go. */
void tess__saver_end(tess *);

/** mirror.c: [C] before a training pass: images of this step, where they are due. */
tess_status tess__mirror_step(tess *, uint32_t pass_kind);
/** [C] Images of the state now. */
tess_status tess__mirror_take(tess *);
/** [C] The newest step of which every shard is left somewhere; all ranks go back to it. TESS_E_PEER: there is none. */
tess_status tess__mirror_restore(tess *, int64_t *step);
void tess__mirror_reset(tess__mirror *); /* no image yet */

/** fewer.c: tells the launcher with how many ranks the group could go on. */
tess_status tess__fewer_announce(tess *);
void tess__fewer_end(tess *); /* what is carried over goes; nothing without it */
/** smaller.c: [C] The group has formed anew with fewer ranks: plans, obtains and connects for it. TESS_E_PEER: of a
 * shard no image is left. */
tess_status tess__smaller_join(tess *);
/** [C] All go back to the newest images of the group before. */
tess_status tess__smaller_restore(tess *, int64_t *step);
tess_status tess__smaller_finish(tess *); /* [C] there are images of this group now */

/** settings.c: from the program's options and the environment. The plan first: whether anything is to run at all. */
tess_status tess__read_plan(tess *);
tess_status tess__read_options(tess *);
/** host.c: what the plugins of this engine may call. */
void tess__host_make(tess *);

/** shard.c: what the engine keeps by scope, parameter and group, and the tables of its memory. */
tess_status tess__make_tables(tess *);
/** open.c: which device is this rank's. */
int32_t tess__device_index(const tess *);
tess_status tess__find_hosts(tess *); /* [C] how many ranks share a host */
void tess__drop_requests(tess *);     /* they end before the memory that they use goes */
void tess__close_comms(tess *);       /* every communicator is aborted before any is freed */

/** handshake.c: [C] plugins, threads and instruction sets are the same everywhere. */
tess_status tess__handshake_identity(tess *);
/** handshake.c: [C] the model and the programs are the same everywhere; names the first declaration or instruction
 * that differs and the ranks. Programs without instructions are left out. */
tess_status tess__handshake_programs(tess *, const tess__program *, int32_t n);

/** shard_work.c: work on a group's shard, with kernels of the device or, on a lane's thread, of the host. */
tess_status tess__engine_kernel(void *engine, tess_kernel *); /* of the device, on its compute stream */
/** The source of a gather, and its dtype: the low-precision copy of the shard, or the masters. */
const void *tess__gather_source(const tess *, int32_t group, uint32_t *dtype);
tess_status tess__low_copy_make(tess *, int32_t group, tess__kernel_fn); /* of the masters */
tess_status tess__shard_to_slot(tess *, int32_t group, void *slot, tess__kernel_fn);
tess_status tess__gradient_to_send(tess *, int32_t group, tess__kernel_fn, void **source);
void *tess__reduce_target(const tess *, int32_t group);
float tess__mean_scale(const tess *); /* one over ranks times microbatches */
tess__microbatch_sum tess__microbatch_sum_of(const tess *, int32_t group, int shards);
tess_status tess__reduce_single_rank(tess *, int32_t group,
                                     tess__kernel_fn); /* one rank: no network, the same rounding */
tess_status tess__sum_shard(tess *, int32_t group, int32_t microbatch, tess__kernel_fn);
/** `flags`: of tess_kernel. On the lane none: step.more_follow is the engine's thread's. */
tess_status tess__optimize(tess *, int32_t group, uint32_t flags, tess__kernel_fn);

/** shard_work.c: the kind of memory that something rests in; copies, and waits for it. */
uint32_t tess__rest_mem(const tess *, const tess__rest *);
tess_status tess__copy_now(tess *, void *dst, uint32_t dst_mem, const void *src, uint32_t src_mem, uint64_t bytes);

/** transfers.c: the lanes, which do some of that beside the engine's thread, and move things between device and host.
 */
tess_status tess__moves_start(tess *); /* where the plan has work for them */
void tess__moves_end(tess *);          /* waits for what is in flight */
tess_status tess__move_gather(tess *, int32_t group);
tess_status tess__move_reduce(tess *, int32_t group);
tess_status tess__move_sum(tess *, int32_t group);
tess_status tess__move_optimize(tess *, int32_t group);
tess_status tess__move(tess *, const tess__instr *); /* PREFETCH … RELOAD_WAIT */
tess_status tess__move_up_wait(tess *, uint64_t *ticket);
tess_status tess__move_down_wait(tess *, uint64_t *ticket);
/** Where masters have changed since: before anything reads the copies. */
tess_status tess__low_copies_refresh(tess *);
tess_status tess__optimize_now(tess *, int32_t group);  /* OPTIMIZE without ASYNC */
int tess__steps_on_host(const tess *, int32_t group);   /* of a device with streams */
int tess__steps_on_device(const tess *, int32_t group); /* and it has something to do there */

/** execute.c */
enum { TESS__TO_END, TESS__TO_EVENT /* the next ENTER or LEAVE */, TESS__TO_WAIT /* or anything that may block */ };
tess_status tess__execute(tess *, int32_t *pc, int how_far);
tess_status tess__run_program(tess *, tess__program *);
/** The running pass's part of what is on its way between host and device; `bytes` of each. */
static inline void *tess__of_pass(const tess *t, int role, uint64_t bytes) {
    char *at = tess__address(&t->memory, role, 0);
    return at + (uint64_t)t->streams.pass * tess__round_up(bytes, t->plan.setup.align);
}
int tess__device_clips(const tess *t);
static inline void tess__pass_over(tess *t, int train) {
    t->pass.run = NULL;
    t->pass.kind = t->comms.pass_kind = 0;
    t->pass.microbatch += train;
    t->pass.pending_grads |= train;
}

/** repeat.c: the pass that has started: run again as it was recorded, or by `calls`, recorded or not. */
typedef tess_status tess__pass_fn(tess *, const tess_run_options *);
tess_status tess__repeat_pass(tess *, const tess_run_options *, tess__pass_fn *calls);

/** The program's own code runs now: for the messages on other ranks, should this one be lost in it. */
void tess__doing_event(tess *, const tess__event *);
/** ranges.c: names for the device's profiler from here on; nothing where none listens. Each has its end. */
void tess__range_instr(const tess *, const tess__instr *);
void tess__range_event(const tess *, const tess__event *);
void tess__range_end(const tess *);
void tess__event_text(const tess *, const tess__event *, char *out, size_t bytes);
/** Takes the program's live step buffers and sharded gradients off the books. */
tess_status tess__free_all(tess *, const tess__program *);

/** recorder.c: what the engine does, written down when tess_trace asked for it. */
static inline int64_t tess__tracing_begin(const tess *t) {
    return t->recorder.trace ? tess__trace_now() : 0;
}
/** The same on the engine's thread, where the compute stream is. */
tess__mark tess__tracing_mark(tess *, const tess__instr *or_null);
void tess__tracing_instr(tess *, const tess__instr *, tess__mark begin);
/** A collective was posted, for which a stream will wait. */
tess_status tess__tracing_posted(tess *, const tess__instr *, tess_request *);
void tess__tracing_comm(tess *, const tess__instr *wait, int64_t posted_ns);
void tess__tracing_job(tess *, uint32_t track, uint8_t op, int32_t index, int64_t begin_ns);
void tess__tracing_event(tess *, const tess__event *, tess__mark begin);
tess_status tess__tracing_start(tess *, uint64_t spans);
void tess__tracing_end(tess *);
/** Takes off, and puts back, whoever looks at what the engine does. */
tess__watchers tess__recorder_hide(tess *);
void tess__recorder_show(tess *, const tess__watchers *);
/** The running program has come to a point of the ledger. */
void tess__ledger_reach(tess *, const tess__point *);
enum { TESS__KEPT_POINTS = 2 * TESS_LEDGER_OPTIMIZER }; /* of a unit, in last_points */
int tess__kept_slot(uint32_t point);

/** pass.c */
/** Pointers of a scope's parameters and, where `grads` is not null, gradients, in declaration order. */
tess_status tess__scope_pointers(tess *, int32_t scope, void *params, void *grads);
/** Their end, in `call`; what TESSERA_STRICT=1 finds wrong with them. */
tess_status tess__take_back(tess *, int32_t scope, int backward, const char *call);
tess_status tess__pass_finish(tess *); /* ends the running pass, if any */

/** misuse.c: what a program that means well does not do; each names the scope or parameter and the call. */
/** The first scope whose forward or backward is missing in the running pass, as a sentence; "" when none is. */
void tess__missing_scope(const tess *, char *out, size_t n);
tess_status tess__check_backward(const tess *); /* of the training pass that ends */
tess_status tess__check_step_options(tess *, const tess_optimizer_options *);
tess_status tess__check_activations(const tess *); /* strict: they need blocks */
tess_status tess__check_overwrite(const tess__plan *);
void tess__say_unused(
    const tess *); /* variables that this program cannot use or that took the place of its own, once */
tess_status tess__pass_start(tess *, tess__program *, uint32_t kind);

/** optimizer.c */
tess_status tess__make_segments(tess *);
tess_status tess__step_begin(tess *, const tess_optimizer_options *);
tess_status tess__step_end(tess *);
tess_status tess__step_run(tess *, const tess_optimizer_options *);
/** All passes of the step have run, so that there are gradients; `call` is named where not. */
tess_status tess__step_ready(tess *, const char *call);
tess_status tess__grad_release(tess *); /* takes the sharded gradients off the books */

static inline void *tess__address_of(const tess *t, int role, int32_t index) {
    return tess__address(&t->memory, role, index);
}
#endif
