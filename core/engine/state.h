/* SPDX-License-Identifier: BSD-3-Clause */
/* The engine: the parts of a tess, and what its files ask of each other. */
#ifndef TESS_ENGINE_H
#define TESS_ENGINE_H
#include "base/option_fields.h"
#include "checkpoint/manifest.h"
#include "checkpoint/settle.h"
#include "runtime/comms.h"
#include "runtime/graphs.h"
#include "guard.h"
#include "runtime/device.h"
#include "runtime/memory.h"
#include "optimize/scale.h"
#include "optimize/step.h"
#include "plan/plan.h"
#include "plugin/selection.h"
#include "readers/advise.h"
#include "recorder.h"
#include "kernels/microbatch_sum.h"
#include "runtime/side_thread.h"
#include "runtime/streams.h"
#include "transfers.h"

enum { TESS__NAN_STOP, TESS__NAN_SKIP, TESS__NAN_WARN };

typedef struct {              /* const after tess_open */
    tess_options options;     /* as given; texts not to be used */
    tess_group_options group; /* to which options.group points, unless it is null; a copy, as is its name */
    char group_name[32];
    tess__given given;          /* the same, for every read of an option */
    const tess__given *callers; /* of the thread in tess_shard, while it runs */
    char *strategy, *optimizer, *activations;
    char *ledger;                 /* file of digests; null: none */
    int digests_rest;             /* TESSERA_AT_REST_DIGESTS */
    int audit_recovers;           /* TESSERA_ON_AUDIT */
    char *detail, *detail_values; /* directory for one step's digests in detail; which tensor's elements too; or null */
    uint64_t detail_step;
    int strict, plan_only;
    int on_nan;   /* TESS__NAN_… */
    double spike; /* 0: none is looked for */
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
    uint64_t repeat; /* its number, of tess_run_repeat; 0: none */
    void **block_params, **block_grads;
    uint64_t n_recompiles;
} tess__pass_run;

typedef struct {
    uint64_t done, failures; /* since the engine was opened, of all ranks */
    uint64_t *inputs;        /* by block: digests of what forward has read, where backward's turn comes in this pass */
    int changed;             /* the block whose backward runs reads something else */
} tess__audit;

typedef struct {               /* recovery in memory */
    int64_t own[2];            /* the step of each of this rank's images; -1: none, or torn */
    int64_t copy[2];           /* the same of those that it keeps for another rank */
    int slot;                  /* that the next ones go to */
    uint64_t *digest[2][2];    /* with TESSERA_AT_REST_DIGESTS: of each part of own and kept images; null: none */
    int64_t taken;             /* step of the newest; -1: none in this group of ranks */
    int ready;                 /* the first ones are whole: from now on a lost rank is TESS_E_LOST */
    int gone;                  /* no image is left: the end, whoever else is lost */
    int joins;                 /* this process takes a lost rank's place, and has not come to tess_recover */
    int32_t rank;              /* this rank's number in the group that the images are of */
    struct tess__carry *carry; /* on the way to a smaller group: images of the one before; else null */
    uint64_t planned_peak[TESS__DOMAINS]; /* of the groups before */
} tess__mirror;
static inline void tess__mirror_reset(tess__mirror *m) { /* no image yet */
    m->own[0] = m->own[1] = m->copy[0] = m->copy[1] = m->taken = -1;
    m->slot = 0;
}

typedef struct { /* functions of the rooms above, which the engine calls and does not know */
    tess_status (*before_pass)(tess *, uint32_t pass_kind); /* [C] recovery: images, where they are due */
    void (*end_save)(tess *); /* waits for a save that is being written, or, with an error, lets it go */
    tess_status (*share_past)(
        tess *); /* [C] saving: a process in a lost rank's place learns whose checkpoints it writes */
    void (*end_recovery)(tess *);
    /* With digests: the gradient sums of a group, before its step, on that step's executor; after a pass, unless its
     * step follows at once; after a step, [C]; before the program reads values. The end, after end_save. */
    tess_status (*digest_gradient)(tess *, int32_t group, const tess__executor *);
    tess_status (*digest_pass)(tess *);
    tess_status (*digest_step)(tess *);
    tess_status (*check_rest)(tess *);
    tess_status (*digest_instr)(tess *, const tess__instr *); /* in detail: after each, and after the program's code */
    tess_status (*digest_event)(tess *, const tess__event *);
    void (*end_digests)(tess *);
    /* [C] Audits: an AUDIT_SEND or an AUDIT; before the first step, whether they can be done here. */
    tess_status (*audit_instr)(tess *, const tess__instr *);
    tess_status (*audit_check)(const tess *);
} tess__hooks;

struct tess {
    const tess__hooks *hooks;
    tess_status error; /* the first one; sticky */
    char message[1024];
    int sharded;         /* tess_shard is done */
    int outside;         /* of the group that it was opened for: nobody gets this engine */
    int rest_changed;    /* so were masters or states since the last step, and copies may be new since then */
    int masters_changed; /* by anything but a step, which writes their low-precision copies too: these are old */
    tess__settings settings;
    tess__selection selection;
    tess__plan plan;
    tess__device device;
    tess__comms comms;
    tess__streams streams; /* of a device that has its own */
    tess__memory memory;
    tess__transfers transfers;
    tess__recorder recorder;
    tess__graphs graphs;
    tess__pass_run pass;
    tess__step step;
    tess__scaler scaler;
    tess__audit audit;
    tess__mirror mirror;
    struct tess__saver *saver; /* saving/saver.h; null: nothing was saved yet */
    struct tess__proof *proof; /* proof/proof.c; null: no ledger of digests is written */
    tess__past past;           /* what was loaded, and whose checkpoints this run writes; the same on all ranks */
    tess__side_thread saving;  /* reads frozen parameters where they lie, and the snapshot */
    tess__advice advice;       /* after tess_shard was over its budget */
    tess_buffer scratch;       /* of a group's collectives: what the largest so far needs */
};

/** errors.c: makes `status`, whose message is set, the engine's sticky error. Names a lost rank as the cause when
 * one was lost, tells the others and aborts the communicators. Returns the sticky status. */
tess_status tess__engine_fail(tess *, tess_status status);
/** Every public call starts with it: the sticky error again, or TESS_OK; TESS_E_INVALID without an engine. */
tess_status tess__engine_check(const tess *);
/** Does the whole of a public call: `body` runs unless an error is sticky, and its failure becomes sticky. */
#define TESS__PUBLIC(t, body)                                                                                          \
    do {                                                                                                               \
        tess_status public_status = tess__engine_check(t);                                                             \
        if (public_status)                                                                                             \
            return public_status;                                                                                      \
        public_status = (body);                                                                                        \
        return public_status ? tess__engine_fail(t, public_status) : TESS_OK;                                          \
    } while (0)
/** Names where a failure of the program's own function happened. The message stays when that function set one since
 * `before`, which is tess__fail_count() from ahead of the call. */
tess_status tess__callback_failed(tess_status, uint64_t before, const char *what, const char *name);

/** settings.c: reads the program's options and the environment. The plan comes first, as it decides whether anything
 * runs at all. */
tess_status tess__read_plan(tess *);
tess_status tess__read_options(tess *);
/** Takes options.group over. Refuses, before ranks meet, what no group can have. */
tess_status tess__read_group(tess *);
/** host.c: what the plugins of this engine may call. */
void tess__host_make(tess *);

/** Opens an engine with the hooks of the rooms above it, for tess_open. */
tess_status tess__engine_open(const tess_options *, const tess__hooks *, tess **out);
/** tables.c: the tables that parts keep of this plan, by scope, parameter and group. */
tess_status tess__tables_create(tess *);
void tess__tables_destroy(tess *); /* but the memory; never created is fine */
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

/** shard_work.c: what is done to a group's shard, wherever an executor does it. */
void *tess__own_slot(const tess *, int32_t group);                        /* this rank's place in the unsharded group */
tess_status tess__low_copy_make(tess *, int32_t group, tess__executor *); /* of the masters */
void *tess__gathered(const tess *, int32_t group);                        /* all ranks' places, as they travel */
tess_status tess__shard_to_slot(tess *, int32_t group, tess__executor *);
tess_status tess__widen(tess *, int32_t group, tess__executor *);       /* the gathered blocks */
tess_status tess__shard_fetch(tess *, int32_t group, tess__executor *); /* ahead of the gather */
tess_status tess__gradient_to_send(tess *, int32_t group, tess__executor *, void **source);
void *tess__reduce_target(const tess *, int32_t group);
/* How the group's blocks are rounded, from element `first` on; `draw`: 0 of parameters, 1 + g of microbatch g's leaf.
 * null: to nearest. *room is what it points to. */
const tess_rounding *tess__rounding_of(const tess *, int32_t group, uint64_t first, uint32_t draw, tess_rounding *room);
float tess__mean_scale(const tess *); /* one over ranks times microbatches */
tess__microbatch_sum tess__microbatch_sum_of(const tess *, int32_t group, int shards);
/** Reduces on one rank, without a network and with the same rounding. */
tess_status tess__reduce_single_rank(tess *, int32_t group, tess__executor *);
tess_status tess__sum_arrived(tess *, int32_t group, tess__executor *); /* ranks' blocks of this rank's shard */
void *tess__replica_wire(const tess *,
                         int32_t group); /* the shard's gradient in blocks, and this replica's part of it: */
void *tess__replica_slot(const tess *, int32_t group);
tess_status tess__sum_landed(tess *, int32_t group, tess__executor *); /* replicas' blocks of that part */
tess_status tess__widen_sum(tess *, int32_t group, tess__executor *);  /* the sums of all parts */
tess_status tess__sum_shard(tess *, int32_t group, int32_t microbatch, tess__executor *);
tess_status tess__optimize(tess *, int32_t group, tess__executor *);
int tess__rests_on_host(const tess *, int32_t group);
int tess__plugin_steps_on_device(const tess *, int32_t group);     /* by a step of its own */
static inline tess_status tess__compute(tess *t, tess_kernel *k) { /* on the compute stream */
    return tess__device_kernel(&t->device, k, NULL);
}

/** shard_work.c: tells in which kind of memory something rests; copies, and waits for it. */
uint32_t tess__rest_mem(const tess *, const tess__rest *);
tess_status tess__copy_now(tess *, void *dst, uint32_t dst_mem, const void *src, uint32_t src_mem, uint64_t bytes);

/** transfers.c: the executors beside the compute stream, which do some of that and move things between device and host.
 */
tess_status tess__transfers_create(tess *); /* what is in flight: nothing */
void tess__transfers_destroy(tess *);
void tess__transfers_forget(tess *);                       /* what was in flight in a group of ranks that broke off */
tess_status tess__transfers_start(tess *, int32_t device); /* where the plan has work for them; its index */
void tess__transfers_end(tess *);                          /* waits for what is in flight */
/** GATHER, REDUCE, SUM_SHARD, OPTIMIZE, PREFETCH, OFFLOAD, RELOAD: does the work, or hands it over. */
tess_status tess__work(tess *, const tess__instr *);
/** Waits for work that was handed over: each instruction whose name ends in WAIT. */
tess_status tess__work_wait(tess *, const tess__instr *);
static inline int tess__is_beside(const tess__instr *in) { /* handed over: a wait follows */
    return in->flags & TESS__ASYNC || in->op == TESS__PREFETCH || in->op == TESS__OFFLOAD || in->op == TESS__RELOAD ||
           in->op == TESS__STATES_FETCH || in->op == TESS__STATES_STORE || in->op == TESS__GRAD_FETCH ||
           in->op == TESS__GRAD_STORE;
}
/** states.c: runs a STATES_… or GRAD_… instruction: a group's states, or its gradient, on their way from their store to
 * memory, and back. */
tess_status tess__states_instr(tess *, const tess__instr *);
/** Hands what a lane has stepped or summed to the store: STATES_STORE, GRAD_STORE. On the lane's thread, too. */
tess_status tess__states_job(tess *, const tess__job *);
/** Brings the shard of a group's parameters from its store to where a gather reads it; nothing where it rests
 * elsewhere. Any thread. */
tess_status tess__param_fetch(tess *, int32_t group);
/** Waits for what is on its way, whatever becomes of it. */
void tess__states_forget(tess *);
/** Refreshes copies whose masters have changed, before anything reads them. */
tess_status tess__low_copies_refresh(tess *);
int tess__steps_on_host(const tess *, int32_t group);   /* of a device with streams */
int tess__steps_on_device(const tess *, int32_t group); /* and it has something to do there */

/** execute.c */
enum {
    TESS__TO_END,
    TESS__TO_EVENT /* the next ENTER, LEAVE or audit */,
    TESS__TO_WAIT /* or anything that may block */
};
tess_status tess__execute(tess *, int32_t *pc, int how_far);
tess_status tess__run_program(tess *, tess__program *);
/** The running pass's part of memory that is on its way between host and device; `bytes` of each. */
static inline void *tess__of_pass(const tess *t, int role, uint64_t bytes) {
    char *at = tess__address(&t->memory, role, 0);
    return at + (uint64_t)t->streams.pass * tess__round_up(bytes, t->plan.setup.align);
}
int tess__device_clips(const tess *t);
/** Posts the instruction's collective, whose scratch has that role. The compute stream, or the host, waits for it. */
tess_status tess__run_planned(tess *, const tess__instr *, const void *send, void *recv, int scratch,
                              const char *doing);

/** block_call.c: what all calls of a block in the running pass have alike. */
tess_block_call tess__block_call_of(const tess *, int32_t block);
static inline void tess__pass_over(tess *t, int train) {
    t->pass.run = NULL;
    t->pass.kind = t->comms.pass_kind = 0;
    t->pass.microbatch += train;
    t->pass.pending_grads |= train;
}

/** repeat.c: runs the pass that has started, again as it was recorded, or by `calls`, recorded or not. */
typedef tess_status tess__pass_fn(tess *, const tess_run_options *);
tess_status tess__repeat_pass(tess *, const tess_run_options *, tess__pass_fn *calls);

uint32_t tess__scope_dtype(const tess *, int32_t scope); /* block_call.c: in which its kernels compute */
/** Notes that the program's own code runs now, for messages on other ranks if this one is lost in it. */
void tess__doing_event(tess *, const tess__event *);
/** ranges.c: begins a named range of the device's profiler; does nothing when none listens. Each has its end. */
void tess__range_instr(const tess *, const tess__instr *);
void tess__range_event(const tess *, const tess__event *);
void tess__range_end(const tess *);
void tess__event_text(const tess *, const tess__event *, char *out, size_t bytes);
/** Takes the program's live step buffers and sharded gradients off the books. */
tess_status tess__free_all(tess *, const tess__program *);

/** recorder.c: writes down what the engine does when tess_trace asked for it. */
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

/** pass.c */
/** Pointers of a scope's parameters and, where `grads` is not null, gradients, in declaration order. */
tess_status tess__scope_pointers(tess *, int32_t scope, void *params, void *grads, int32_t n);
/** Where a parameter's local gradient lies; null: it has none. */
void *tess__grad_at(const tess *, const tess__param *);
/** Ends these pointers in `call`, and reports what TESSERA_STRICT=1 finds wrong with them. */
tess_status tess__take_back(tess *, int32_t scope, int backward, const char *call);
tess_status tess__pass_create(tess *);
void tess__pass_destroy(tess *);
void tess__pass_forget(tess *);        /* the running one, when its group of ranks broke off */
tess_status tess__pass_finish(tess *); /* ends the running pass, if any */
/** deviate.c: the running pass comes to an event that its program does not have next; scope -1: to its end. */
tess_status tess__deviate(tess *, uint8_t type, int32_t scope);
/** [C] The order just seen becomes the compiled one, in `slot`. */
tess_status tess__recompile_pass(tess *, uint32_t pass_kind, tess__program *slot);

/** misuse.c: finds mistakes of a program; each message names the scope or parameter and the call. */
/** The first scope whose forward or backward is missing in the running pass, as a sentence; "" when none is. */
void tess__missing_scope(const tess *, char *out, size_t n);
tess_status tess__check_backward(const tess *); /* of the training pass that ends */
tess_status tess__check_step_options(tess *, const tess_optimizer_options *);
tess_status tess__check_activations(const tess *); /* strict: they need blocks */
tess_status tess__check_overwrite(const tess__plan *);
void tess__say_unused(const tess *); /* options without effect here, or in the place of the program's own */
tess_status tess__pass_start(tess *, tess__program *, uint32_t kind);
/** The part of that which follows what the device does before a pass: the pass is at its beginning, on the books too.
 */
void tess__pass_begins(tess *, tess__program *, uint32_t kind);

/** optimizer.c */
void tess__step_forget(tess *); /* the running one */
tess_status tess__step_begin(tess *, const tess_optimizer_options *);
tess_status tess__step_end(tess *);
tess_status tess__step_run(tess *, const tess_optimizer_options *);
int tess__step_needs_norm(const tess *, const tess_optimizer_options *); /* before anything is stepped */
/** Checks that all passes of the step have run, so that there are gradients; else fails, naming `call`. */
tess_status tess__step_ready(tess *, const char *call);
tess_status tess__grad_release(tess *); /* takes the sharded gradients off the books */

/** By which checkpoints know it: the plugin's, whatever was asked for. */
static inline const char *tess__optimizer_name(const tess *t) {
    const tess__plugin *p = t->selection.plugins[TESS_KIND_OPTIMIZER];
    return p ? p->name : t->settings.optimizer;
}

static inline void *tess__address_of(const tess *t, int role, int32_t index) {
    return tess__address(&t->memory, role, index);
}
#endif
