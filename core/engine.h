/* The engine: what a tess is made of. Split over engine.c (open, close), shard.c, execute.c (the instructions), pass.c
 * (hooks), blocks.c, optimizer.c and ranges.c. */
#ifndef TESS_ENGINE_H
#define TESS_ENGINE_H
#include "advise.h"
#include "compile.h"
#include "control.h"
#include "heap.h"
#include "ledger.h"
#include "loader.h"
#include "measure.h"
#include "pool.h"
#include "program.h"
#include "queues.h"
#include "sums.h"
#include "trace.h"
#include "transfer.h"

#include <pthread.h>

enum { TESS__N_PROGRAMS = 8, TESS__MAX_USER = 256, TESS__RECENT_TAGS = 16 };

typedef struct { /* one arena, as obtained */
    tess_buffer memory;
    tess_comm *comm; /* that allocated it, and frees it; null: the device */
} tess__arena;

typedef struct { /* obtained on top of the arenas by a pass that departs */
    tess_buffer memory;
    uint32_t domain;
} tess__overflow;

typedef struct { /* what is in flight, per group; stow and unstow per block */
    tess_request *gather, *reduce;
    uint64_t gather_seq, reduce_seq;
    int64_t gather_ns, reduce_ns;    /* with a trace: when it was posted */
    uint64_t fetched, lowered;       /* tickets of the lanes (or queues) up and down; 0: none */
    uint64_t stepped;                /* with queues: ticket of the lane, which steps on the host */
    uint64_t stowed[2], unstowed[2]; /* 0: the saved buffer, 1: the output */
} tess__in_flight;

struct tess {
    tess_status error; /* the first one; sticky */
    char message[1024];
    char *selected[6]; /* by TESS_KIND_…: the text that chose the plugin */
    char *strategy, *optimizer;
    tess_options options; /* as given; texts not to be used */
    int strict, plan_only;
    int comm_picked; /* comm was "auto" */
    int32_t threads; /* compute threads of this rank */
    char threads_text[16];
    int64_t timeout_ns;

    tess__world world;
    tess__control *control;
    tess_host host;
    tess__plugin *plugins[6];
    tess__setup setup;
    tess__model model;
    tess__layout layout;
    tess__builder builder;
    int sharded;             /* tess_shard is done */
    tess__try_fn try_change; /* advise.h: for advice; null: what was declared is compiled again */
    void *try_user;
    tess__advice advice; /* after tess_shard was over its budget */

    const tess_comm_ops *comm;
    const tess_device_ops *dev;
    tess_device *device;
    tess_stream compute;
    tess_comm *comms[3];       /* world, shard group, replica group; the same pointer where they coincide */
    pthread_mutex_t comm_lock; /* held while comms[] changes or is aborted */
    int shard_rank, replica_rank;

    tess__program resident;
    tess__program programs[TESS__N_PROGRAMS];
    tess__arena arenas[3][4]; /* by domain, by arena */
    uint64_t arena_bytes[3][4];
    int32_t numa_node;           /* nearest the device; host memory's; -1: any */
    void **where[TESS__N_ROLES]; /* by role and index: where it lives now */
    uint8_t *booked[TESS__N_ROLES];
    uint64_t *taken[TESS__N_ROLES]; /* bytes on the ledger for it */
    tess__in_flight *state;         /* by group or block */
    tess__lane *up, *down;          /* transfers; null when nothing ever moves */
    tess__queues queues;            /* of a device that has its own; `up` is then null, `down` steps on the host only */
    tess__pool *host_pool;          /* of the work on the lane down */

    tess__trace *trace;  /* null: not recorded */
    int64_t *entered_ns; /* with a trace: by scope, forward at 2 * scope, backward at 2 * scope + 1 */
    int64_t comm_end_ns; /* of the collective that ended last */

    /* the pass */
    tess__program *program, departed; /* the running one; the one a departing pass builds as it goes */
    tess__heap heap;
    tess__overflow *overflow; /* step buffers that did not fit while departing */
    int32_t n_overflow, cap_overflow;
    tess_request *loose; /* of a collective that has no other home; set only until its end */
    int32_t pc;
    uint32_t pass; /* 0: none */
    int departing, summoned;
    int32_t *entered;      /* by scope: begins without end, forward at 2 * scope, backward at 2 * scope + 1 */
    int32_t microbatch;    /* of this step, from 0 */
    int32_t pending_grads; /* gradients live: a step or a drop is due */
    const tess_run_options *run;
    const tess_optimizer_options *step_options;
    float grad_scale;
    tess_optimizer step_kernel;
    tess_segment *segments; /* of all groups */
    int32_t *first_segment; /* by group; n_groups + 1 entries */
    int32_t *segment_group; /* optimizer_group of each segment */
    void **block_params, **block_grads;
    uint64_t steps_done;
    double norm;
    char doing[2][256];
    int doing_now;

    void *user_memory[TESS__MAX_USER];
    tess_buffer user_buffers[TESS__MAX_USER];
    int32_t n_user;

    tess__ledger ledger; /* measured */
    tess__needs needs;
    int32_t next_point; /* in the running program */
    tess_ledger_fn ledger_hook;
    void *ledger_user;
    tess_ledger_point *kept; /* by unit and point; null: not asked for */
    uint64_t obtained[3], obtained_peak[3];
    uint64_t n_recompiles, n_collectives, exchange_count;
    uint64_t recent_tags[TESS__RECENT_TAGS]; /* of the collectives posted last, by number modulo */
};

enum { TESS__WORLD, TESS__SHARD, TESS__REPLICA };
enum {
    TESS__P_TRAIN,
    TESS__P_NO_SYNC,
    TESS__P_EVAL,
    TESS__P_FUSED,
    TESS__P_STEP,
    TESS__P_NORM,
    TESS__P_CLIP,
    TESS__P_FULL
};

/** Makes `status`, whose message is set, the engine's sticky error: names a lost rank as the cause when one was lost,
 * tells the others, aborts the communicators. Returns the sticky status. */
tess_status tess__engine_fail(tess *, tess_status status);
/** Every public call starts with it: the sticky error again, or TESS_OK. */
tess_status tess__engine_check(tess *);
void tess__engine_abort_comms(tess *, tess_status why);
/** Copies a struct of the program's to one of ours as far as both go; the rest is zero, which means the default.
 * TESS_E_INVALID, naming the call, when it is missing or its struct_size cannot be. */
tess_status tess__take(const char *call, void *own, uint32_t own_bytes, const void *given);
/** For a failure that came out of the program's own function: names where, unless that function set a message since
 * `before`, which is tess__fail_count() from ahead of the call. */
tess_status tess__callback_failed(tess_status, uint64_t before, const char *what, const char *name);
/** Exchanges `bytes` with all ranks under a key that no other exchange has; [C]. */
tess_status tess__engine_exchange(tess *, const char *what, const void *mine, uint64_t bytes, void *out);
/** handshake.c: [C] plugins, threads and instruction sets are the same everywhere. */
tess_status tess__handshake_identity(tess *);
/** handshake.c: [C] the model and the programs are the same everywhere; names the first declaration or instruction
 * that differs and the ranks. Programs without instructions are left out. */
tess_status tess__handshake_programs(tess *, const tess__program *, int32_t n);

/** shard.c */
tess_status tess__compile_all(tess *);
/** Wraps, lays out, compiles and checks the budget of a model that is finished. */
tess_status tess__plan_units(tess *);
tess_status tess__arena_obtain(tess *, uint32_t domain, uint32_t arena, uint64_t bytes);
void tess__arena_release(tess *, uint32_t domain, uint32_t arena);
/** Whether the device has room for `bytes` more, counting what the comm plugin allocated of it; else TESS_E_NOMEM. */
tess_status tess__device_has_room(const tess *, uint64_t bytes, tess_error *);
/** What planning and allocating would take in all, by domain; TESS_E_BUDGET with the bytes by category when over. */
tess_status tess__check_budget(tess *);
uint64_t tess__planned_bytes(const tess *, uint32_t domain);

/** moves.c: work on a group's shard, with kernels of the device or, on a lane's thread, of the host. */
tess_status tess__device_kernel(void *engine, tess_kernel *);
tess_status tess__shard_to_slot(tess *, int32_t group, void *slot, tess__kernel_fn);
tess_status tess__find_source(tess *, int32_t group, tess__kernel_fn, void **source, uint32_t *dtype);
void *tess__reduced_at(const tess *, int32_t group);
double tess__reduce_scale(const tess *);
tess__counter tess__counter_of(const tess *, int32_t group, int shards);
tess_status tess__reduce_alone(tess *, int32_t group, tess__kernel_fn); /* one rank: no network, the same rounding */
tess_status tess__sum_shard(tess *, int32_t group, int32_t microbatch, tess__kernel_fn);
tess_status tess__optimize(tess *, int32_t group, tess__kernel_fn);

/** moves.c: the lanes, which do some of that beside the engine's thread, and move things between device and host. */
tess_status tess__moves_start(tess *); /* where the plan has work for them */
void tess__moves_end(tess *);          /* waits for what is in flight */
tess_status tess__move_gather(tess *, int32_t group);
tess_status tess__move_reduce(tess *, int32_t group);
tess_status tess__move_sum(tess *, int32_t group);
tess_status tess__move_optimize(tess *, int32_t group);
tess_status tess__move(tess *, const tess__instr *); /* FETCH … UNSTOW_WAIT */
tess_status tess__move_up_wait(tess *, uint64_t *ticket);
tess_status tess__move_down_wait(tess *, uint64_t *ticket);
tess_status tess__optimize_now(tess *, int32_t group); /* OPTIMIZE without ASYNC */

/** execute.c */
enum { TESS__TO_END, TESS__TO_EVENT /* the next ENTER or LEAVE */, TESS__TO_WAIT /* or anything that may block */ };
tess_status tess__execute(tess *, int32_t *pc, int how_far);
tess_status tess__comm_run(tess *, int which, const tess_collective *, const char *doing);
/** Blocks until the request has ended, listening for what befalls other ranks. */
tess_status tess__comm_wait(tess *, int which, tess_request *, uint64_t seq);
/** Onto the ledger, with what the place must hold (measure.h); `in`: the instruction that books it, or null. */
void tess__book(tess *, const tess__buffer *, const tess__instr *in);
void tess__unbook(tess *, const tess__buffer *);
tess_status tess__run_program(tess *, tess__program *);
/** The program's own code runs now: for the messages on other ranks, should this one be lost in it. */
void tess__doing_event(tess *, const tess__event *);
/** Takes the program's live step buffers and sharded gradients off the books. */
tess_status tess__free_all(tess *, const tess__program *);

/** tracing.c: what the engine does, written down when tess_trace asked for it. */
static inline int64_t tess__tracing_begin(const tess *t) {
    return t->trace ? tess__trace_now() : 0;
}
void tess__tracing_instr(tess *, const tess__instr *, int64_t begin_ns);
void tess__tracing_comm(tess *, const tess__instr *wait, int64_t posted_ns);
void tess__tracing_job(tess *, uint32_t lane, uint8_t op, int32_t index, int64_t begin_ns);
void tess__tracing_event(tess *, const tess__event *, int64_t begin_ns);
void tess__tracing_end(tess *);

/** waiting.c */
/** Tells the other ranks where this one waits. */
tess_status tess__waiting_say(tess *, int in_exchange, const char *what);
/** In a long wait for collective number `seq`: TESS_E_MISMATCH, naming both sides, when a rank waits elsewhere and so
 * can never come. */
tess_status tess__waiting_check(tess *, uint64_t seq, const char *what);

/** pass.c */
/** Pointers of a scope's parameters and, where `grads` is not null, gradients, in declaration order. */
void tess__hand_out(const tess *, int32_t scope, void *params, void *grads);
tess_status tess__pass_finish(tess *); /* ends the running pass, if any */
tess_status tess__pass_start(tess *, tess__program *, uint32_t kind);

/** optimizer.c */
tess_status tess__step_begin(tess *, const tess_optimizer_options *);
tess_status tess__step_end(tess *);
tess_status tess__step(tess *, const tess_optimizer_options *);

/** Whether the host alone reads what lies in a domain, so that it may be poisoned while it is free. A device's queues
 * still read host memory after the engine's thread has gone on. */
static inline int tess__host_reads(const tess *t, uint32_t domain) {
    (void)domain;
    return t->setup.env.mem == TESS_MEM_HOST;
}
static inline void *tess__at(const tess *t, int role, int32_t index) {
    return t->where[role][index];
}
#endif
