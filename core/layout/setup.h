/* SPDX-License-Identifier: BSD-3-Clause */
/* The setup of a run besides the model: the inputs of the layout and of the step compiler. */
#ifndef TESS_SETUP_H
#define TESS_SETUP_H
#include <tessera/plugin_helpers.h>
#include <tessera/tessera.h>

enum { TESS__OPT_PLUGIN = 99 };
enum { TESS__PASSES = 2 /* under way at once, with TESS_OPTIONS_LATE */ };
enum { TESS__VALUES_BYTES = 64 /* of tess_all_reduce_late */ };
enum { TESS__ACTIVATIONS_KEEP, TESS__ACTIVATIONS_RECOMPUTE, TESS__ACTIVATIONS_OFFLOAD, TESS__ACTIVATIONS_SELECTIVE };

typedef struct {
    const char *strategy;        /* as given to tess__setup_strategy, which it must outlive */
    int32_t nranks;              /* W */
    int32_t shard_ranks;         /* S: W for full and grad_op, 1 for none, K for hybrid:K */
    int32_t replicas;            /* W / S */
    int keep_forward;            /* grad_op: unsharded parameters stay from forward to backward */
    int32_t prefetch;            /* units gathered ahead */
    int prefetch_fixed;          /* the user chose it: it is not lowered to fit a budget */
    int32_t threads;             /* compute threads of a rank */
    int32_t accum;               /* K: microbatches per step */
    int32_t microbatches;        /* of all ranks, by which accum follows from their number; 0: accum stays */
    int sync_each;               /* K > 1: reduce each microbatch; else the sum, at the end */
    int deterministic;           /* microbatches add up in the tree too */
    int activations;             /* TESS__ACTIVATIONS_…, of all blocks; or */
    const char *activation_spec; /* a text that tells blocks apart, else null; and what the plan made of it: */
    const uint8_t *modes;        /* by block; null: `activations` */
    int step_in_pass, no_clip;   /* TESS_OPTIONS_STEP_IN_PASS, TESS_OPTIONS_NO_CLIP */
    int norm_first;              /* nothing is stepped before the host knows the norm, with clipping and without */
    int late, repeats;           /* TESS_OPTIONS_LATE, TESS_OPTIONS_REPEAT */
    int low_copy;                /* TESSERA_LOW_COPY: the step writes copies of the shards in 16 bits */
    int graphs;                  /* TESSERA_GRAPHS: a pass that repeats may be recorded */
    uint32_t optimizer; /* TESS_OPT_… where no plugin says it, TESS__OPT_PLUGIN; 0: none, or the program's own */
    int own_optimizer;
    int32_t n_states;     /* fp32, of each element, where no plugin says it */
    int with_momentum;    /* tess_options.momentum */
    int snapshot;         /* memory for asynchronous checkpoints is planned */
    int base_apart;       /* checkpoints hold no frozen parameters: TESS_OPTIONS_BASE_APART */
    int32_t mirror;       /* steps between images in memory; 0: none */
    int32_t ledger_every; /* steps between lines of the ledger of digests; 0: there is none */
    int32_t audit_every;  /* passes between two audits of the same work; 0: none */
    uint64_t input_bytes;
    uint64_t common_bytes; /* of the program's own, in images and checkpoints: tess_options.common */
    uint64_t granularity;  /* arenas are obtained in multiples of it */
    uint64_t align;        /* of every buffer: the device's, the comm's, at least 64 */
    uint64_t most_bytes;   /* the comm's limit of one collective on one rank; 0: none */
    int parts;             /* the comm offers all_to_all_v */
    tess_plan_env env;
    uint64_t disk_budget_bytes; /* per rank; 0: none */
    int32_t stride; /* of a plan: how far apart its ranks are among all of the run, for the simulator; 0: 1 */
    uint64_t hosts; /* the layout of hosts, as a hash; env has what plugins plan with. 0: one host */
    const tess_comm_ops *comm;
    const tess_device_ops *device;
    const tess_precision_ops *precision;
    const tess_offload_ops *offload;
    const tess_optimizer_ops *step; /* null: `optimizer` and `n_states` say it */
    void *comm_ctx, *device_ctx, *precision_ctx, *offload_ctx, *step_ctx;
    const char *offload_name, *step_name; /* for messages */
} tess__setup;

/** strategy is "full", "grad_op", "none", "hybrid:K" or "hybrid_grad_op:K"; sets shard_ranks, replicas, keep_forward.
 */
tess_status tess__setup_strategy(tess__setup *, const char *strategy);

/** How many groups of ranks keep images for each other. Without replicas, ranks form groups of two, one of them of
 * three when W is odd. Members are W / 2 ranks apart, most likely on different hosts. 1: nobody keeps any. */
static inline int32_t tess__copy_groups(const tess__setup *s) {
    return s->mirror && s->replicas == 1 && s->nranks > 1 ? s->nranks / 2 : 0;
}
static inline int32_t tess__copy_members(const tess__setup *s, int32_t group) {
    return s->nranks % 2 && group == 0 ? 3 : 2;
}

/** Whether so many ranks can share the `all` microbatches of a step, `accum` each. Under deterministic mode the bits
 * must stay, which may need another `sync_each` (docs/numbers.md, "Sums"). */
static inline int tess__divide_microbatches(uint64_t all, uint64_t ranks, int deterministic, int *sync_each,
                                            uint64_t *accum) {
    uint64_t share = all / ranks;
    int each = (ranks & (ranks - 1)) == 0, end = (share & (share - 1)) == 0;
    if (all % ranks || (deterministic && !each && !end))
        return 0;
    *accum = share;
    if (deterministic && !(*sync_each ? each : end))
        *sync_each = each;
    return 1;
}

/** Levels of the binary counter that sums microbatches: 1 when they add up in order. */
int32_t tess__sum_levels(const tess__setup *);

/** Whether device and host have the same memory: the core's own threads can then work on the device's, and a collective
 * may end in the host's. */
static inline int tess__one_memory(const tess__setup *s) {
    return s->env.mem == TESS_MEM_HOST;
}

/** Whether the device has streams of its own, and memory that the host may not touch. */
static inline int tess__has_streams(const tess_device_ops *device, uint32_t mem) {
    return mem != TESS_MEM_HOST && TESS_CAN(tess_device_ops, device, stream_create);
}

/** Whether work in a stream can be recorded, and a step's own numbers come by memory. */
static inline int tess__records(const tess_device_ops *device) {
    return TESS_CAN(tess_device_ops, device, record_begin) && TESS_CAN(tess_device_ops, device, optimizer_prepare);
}

/** Whether collectives can be recorded. */
static inline int tess__comm_records(const tess__setup *s) {
    tess_comm_caps caps = { .struct_size = sizeof caps };
    return s->nranks == 1 || (s->comm->query(s->comm_ctx, NULL, &caps) == TESS_OK && caps.caps & TESS_COMM_RECORDS);
}

/** Whether reductions have a communicator of their own, since the plugin gains by it. */
static inline int tess__sums_apart(const tess__setup *s) {
    tess_comm_caps caps = { .struct_size = sizeof caps };
    return s->shard_ranks > 1 && TESS_CAN(tess_comm_ops, s->comm, split) &&
           s->comm->query(s->comm_ctx, NULL, &caps) == TESS_OK && (caps.caps & TESS_COMM_APART);
}

/** How many communicators a rank has: of all ranks, of its group's, of replicas, of the ranks that keep its images. */
static inline int32_t tess__n_communicators(const tess__setup *s) {
    int32_t shard = s->shard_ranks > 1 && s->shard_ranks < s->nranks;
    int32_t replicas = s->replicas > 1 && s->replicas < s->nranks;
    return 1 + shard + tess__sums_apart(s) + replicas + (tess__copy_groups(s) > 1);
}

static inline int tess__may_record(const tess__setup *s) {
    return s->repeats && s->graphs && s->late && tess__records(s->device) && tess__comm_records(s);
}

enum { TESS__PROOF_CHUNK = 1 << 19 }; /* bytes: a piece of a device's memory on its way to be digested */
enum { TESS__PROOF_HEX = 16, TESS__PROOF_LINE = 256 }; /* bytes in a line of the ledger: a digest, and all else */
enum { TESS__SNAPSHOT_ALIGN = 4096 }; /* of its beginning: the disk takes whole blocks from it without a copy */

static inline int tess__activations_of(const tess__setup *s, int32_t block) {
    return s->modes ? s->modes[block] : s->activations;
}

static inline uint64_t tess__round_up(uint64_t n, uint64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}
#endif
