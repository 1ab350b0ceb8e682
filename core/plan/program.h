/* SPDX-License-Identifier: BSD-3-Clause */
/* The program: the compiled step. The runtime, the memory planner, the check between ranks, the simulator and the
 * pictures all read this one instruction list. */
#ifndef TESS_PROGRAM_H
#define TESS_PROGRAM_H
#include "layout/layout.h"
#include <tessera/inspect.h>

/* The role of a buffer; with an index (group, block, or 0) it names one place in memory. */
enum tess__role {
    /* resident: offsets never move */
    TESS__MASTER,     /* group: this rank's shard of the parameters */
    TESS__SHARD_GRAD, /* group: this rank's shard of the averaged gradient, fp32 */
    TESS__STATE0,     /* group: optimizer states */
    TESS__STATE1,
    TESS__STATE2,
    TESS__STATE3,
    TESS__LOW_COPY,  /* group: the same shard in the compute dtype, written by the optimizer */
    TESS__BUFFERS,   /* 0: all running statistics */
    TESS__STORE_OWN, /* 0: memory of the store itself */
    TESS__STAGE,     /* 0: tess_all_reduce's data on its way */
    TESS__STAGE_SCRATCH,
    TESS__DIGESTS,      /* 0: sums of the ledger of digests, its line, and a piece of a device's memory */
    TESS__SNAPSHOT,     /* 0: what a checkpoint that is being written holds of this rank */
    TESS__MIRROR,       /* 0: this rank's last two images, then those of the rank that it keeps copies for */
    TESS__MIRROR_STAGE, /* 0: a piece of an image on its way */
    TESS__MIRROR_SCRATCH,
    TESS__RESULT,      /* 0: a pass's result, in page-locked memory until the host waits for the pass */
    TESS__NORM_RESULT, /* 0: the limbs of the norm that a device clips with, the same */
    TESS__BATCH,       /* 0: a batch on its way to the device, the same */
    TESS__PREPARED,    /* 0: the optimizer's numbers of a step on their way there, the same */
    TESS__NUMBERS,     /* 0: and there, where its kernels read them */
    TESS__VALUES,      /* 0: what tess_all_reduce_late sends there and brings back, in page-locked memory */
    TESS__SUM0,        /* group: partial sums of microbatches; level l of the binary counter is TESS__SUM0 + l */
    TESS__SUM_LAST = TESS__SUM0 + 15,
    /* step: one region, reused */
    TESS__FULL,           /* group: unsharded parameters, compute dtype */
    TESS__GRAD,           /* group: unsharded gradient */
    TESS__WIRE,           /* group: unsharded gradient in the wire dtype */
    TESS__PART,           /* group: a reduced shard on its way into a sum */
    TESS__GATHER_SCRATCH, /* group */
    TESS__REDUCE_SCRATCH, /* group */
    TESS__OUTPUT,         /* block */
    TESS__SAVED,          /* block */
    TESS__OUTPUT_GRAD,    /* block */
    TESS__SCRATCH,        /* block */
    TESS__INPUT,          /* 0 */
    TESS__LIMBS,          /* 0: the exact norm's integer sums */
    TESS__LIMBS_SCRATCH,  /* 0 */
    TESS__KERNEL_SCRATCH, /* group */
    TESS__CHUNK,          /* 0: pieces of full parameters on their way to a callback */
    TESS__CHUNK_SCRATCH,  /* 0 */
    TESS__USER,           /* tess_alloc */
    TESS__FETCHED,        /* group: the shard, come up from the host ahead of its gather, compute dtype */
    TESS__OUTPUT_HOST,    /* block: activations that wait on the host for their backward */
    TESS__SAVED_HOST,     /* block */
    TESS__UPDATE, /* group: updates of its matrices, fp32, of all ranks or in parts of this rank's matrices; behind it
                   * states that travel with them */
    TESS__UPDATE_LAST = TESS__UPDATE + TESS__MAX_STATES,
    TESS__PARTS, /* group: the same of this rank's shard, by owner, where they travel in parts */
    TESS__PARTS_LAST = TESS__PARTS + TESS__MAX_STATES,
    TESS__MATRIX_SCRATCH,  /* group: of the optimizer */
    TESS__COLLECT_SCRATCH, /* group */
    TESS__RETURN_SCRATCH,  /* group */
    TESS__PACKED,          /* group: unsharded parameters as they travel, in blocks */
    TESS__ARRIVED,         /* group: all ranks' gradients of this rank's shard as they travel, in blocks */
    TESS__AUDIT_SENT,      /* block: what each rank has sent of it for its audit */
    TESS__AUDIT_WORK,      /* block: where it is computed again */
    TESS__AUDIT_FOUND,     /* block: the digests of all ranks */
    TESS__AUDIT_SCRATCH,   /* block */
    TESS__SHARD_WIRE,      /* group: the shard's gradient in blocks, as its replicas send and gather it */
    TESS__LANDED,          /* group: all replicas' blocks of this one's part of it */
    TESS__STAGED0,         /* group: optimizer states that rest in a store, while they are stepped */
    TESS__STAGED_LAST = TESS__STAGED0 + TESS__MAX_STATES - 1,
    TESS__STAGED_PARAM, /* group: the shard of the parameters, the same, and while it is gathered */
    TESS__STAGED_GRAD0, /* group: the sharded gradient, the same, and while it is summed; behind it partial sums */
    TESS__STAGED_GRAD_LAST = TESS__STAGED_GRAD0 + TESS__SUM_LAST - TESS__SUM0,
    TESS__N_ROLES
};

enum { TESS__DOMAINS = TESS_DOMAIN_DISK + 1 /* of arrays by domain, from 1 on */ };
enum {
    TESS__RESIDENT = 1,
    TESS__STEP,
    TESS__PAGEABLE /* resident too: what the page-locked budget leaves out; host domain only */
};                 /* arenas */

typedef struct {
    uint8_t role, domain, arena, category;
    int32_t index, unit; /* unit -1: none */
    uint64_t bytes, offset;
    int32_t first, last; /* instructions between which it lives; STEP buffers only */
} tess__buffer;

enum tess__op {
    TESS__ALLOC = 1, /* buffer: from here on it lives */
    TESS__FREE,      /* buffer: no longer */
    TESS__INPUT_COPY,
    TESS__RESULT_COPY,
    TESS__GATHER,      /* group: cast the shard into its slot, post the all-gather */
    TESS__GATHER_WAIT, /* group */
    TESS__ENTER,       /* event: the program's own code runs from here … */
    TESS__LEAVE,       /* … to here */
    TESS__CAST_WIRE,   /* group: unsharded gradient to the wire dtype */
    TESS__SUM_FULL,    /* group: this microbatch's unsharded gradient into the partial sums */
    TESS__REDUCE,      /* group: post the reduce-scatter within the shard group; of blocks an all-to-all */
    TESS__REDUCE_WAIT,
    TESS__REPLICATE, /* group: post the all-reduce across replicas; of blocks an all-to-all, then an all-gather */
    TESS__REPLICATE_WAIT,
    TESS__SUM_SHARD,  /* group: the reduced part into the sharded gradient */
    TESS__NORM_GROUP, /* group: add its squares to the limbs */
    TESS__NORM_REDUCE,
    TESS__NORM_FINISH,
    TESS__OPTIMIZE,      /* group */
    TESS__SHARE_BUFFERS, /* rank 0's running statistics, for an evaluation */
    TESS__PREFETCH,      /* group: the shard begins to come up from the host */
    TESS__PREFETCH_WAIT, /* group */
    TESS__HOST_WAIT,     /* group: what goes on in host memory with its gradient has ended */
    TESS__OFFLOAD,       /* block: output or saved buffer begins to go down to the host */
    TESS__OFFLOAD_WAIT,
    TESS__RELOAD, /* block: and to come back */
    TESS__RELOAD_WAIT,
    TESS__UPDATE_MAKE, /* group of matrices: the updates of this rank's shard */
    TESS__COLLECT,     /* group: post their way to the owners */
    TESS__COLLECT_WAIT,
    TESS__MATRIX, /* group: the owner's work */
    TESS__RETURN, /* group: post the way of the results back to the shards */
    TESS__RETURN_WAIT,
    TESS__UPDATE_APPLY, /* group: the step of the shard with them */
    TESS__WIDEN,        /* group: unsharded parameters from blocks to the compute dtype */
    TESS__SUM_ARRIVED,  /* group: the sum of the shard's gradients, which came in blocks */
    TESS__AUDIT_SEND,   /* block: if its turn has come, gives its inputs to all ranks */
    TESS__AUDIT,        /* block: computes it again for another rank, compares */
    TESS__PACK_SUM,     /* group: the sum of microbatches to blocks */
    TESS__SUM_LANDED,   /* group: the sum of this replica's part, which came in blocks, to blocks */
    TESS__WIDEN_SUM,    /* group: the sums of all parts from blocks */
    TESS__STATES_FETCH, /* group: states begin to come from the store */
    TESS__STATES_FETCH_WAIT,
    TESS__STATES_STORE, /* group: and, stepped, to go back there */
    TESS__STATES_STORE_WAIT,
    TESS__GRAD_FETCH, /* group: the sharded gradient, or sums of microbatches, the same */
    TESS__GRAD_FETCH_WAIT,
    TESS__GRAD_STORE,
    TESS__GRAD_STORE_WAIT,
};

enum {                        /* flags */
       TESS__ZERO = 1,        /* ALLOC: filled with zeros */
       TESS__ASYNC = 2,       /* GATHER, REDUCE, SUM_SHARD, OPTIMIZE, …_STORE: by a transfer lane; a wait follows */
       TESS__OUTPUTS = 4,     /* OFFLOAD and so on: the block's output; else its saved buffer */
       TESS__OF_BACKWARD = 8, /* AUDIT, AUDIT_SEND, and ALLOC of what they need; else of forward */
       TESS__BACK = 8,        /* REPLICATE: the way back, of sums */
       TESS__PIECE_SHIFT = 4  /* COLLECT, RETURN and their waits: above it, 0 for the update, 1 + k for state k */
};

typedef struct {
    uint8_t op, flags;
    int32_t index;      /* group, or event for ENTER and LEAVE, or 0 */
    int32_t buffer;     /* ALLOC, FREE */
    int32_t collective; /* that it posts; -1: none */
    uint64_t tag;       /* of that collective; 0: none */
} tess__instr;

enum { /* communicators */
       TESS__WORLD,
       TESS__SHARD,
       TESS__REPLICA,
       TESS__COPY,       /* copies of images */
       TESS__SHARD_SUMS, /* the shard group again, for reductions beside its gathers; SHARD itself where none gains */
       TESS__N_COMMS
};

typedef struct {       /* decided once, by the compiler; all other readers take it from here (but measure.c) */
    uint8_t op, redop; /* TESS_ALL_GATHER …, TESS_SUM … */
    uint8_t which;     /* TESS__WORLD … */
    uint8_t is_mean;   /* the sum is divided by ranks times microbatches */
    uint32_t send_dtype, recv_dtype;
    int32_t members; /* ranks that take part; 1: nothing is sent */
    int32_t scratch; /* buffer for the plugin; -1: none */
    uint64_t count;  /* as in tess_collective */
} tess__planned_collective;

enum {
    TESS__FORWARD_BEGIN = 1,
    TESS__FORWARD_END,
    TESS__BACKWARD_BEGIN,
    TESS__BACKWARD_END,
    TESS__RECOMPUTE_BEGIN,
    TESS__RECOMPUTE_END
};
typedef struct {
    uint8_t type;
    int32_t scope;
} tess__event; /* RECOMPUTE: forward run again for the backward that follows (activation checkpointing) */

/* A ledger point: reached when all instructions before `at` have run. */
typedef struct {
    int32_t at, unit;
    uint32_t point; /* TESS_LEDGER_…, with TESS_LEDGER_AFTER */
} tess__point;

typedef struct {
    uint32_t kind; /* TESS_PASS_… or TESS__PASS_… */
    tess__instr *instrs;
    tess__buffer *buffers;
    tess__event *events;
    tess__point *points;                   /* in order of time; no part of the hash */
    tess__planned_collective *collectives; /* in the hash by their instructions' tags */
    int32_t n_instrs, n_buffers, n_events, n_points, n_collectives, cap_instrs, cap_buffers, cap_events, cap_points,
        cap_collectives;
    uint64_t step_bytes[TESS__DOMAINS]; /* size of the step arena it needs, by domain; of tess__resident: of the
                                           resident arena */
    uint64_t pageable_bytes;            /* of tess__resident */
    uint64_t hash;
    int32_t peak_instr[TESS__DOMAINS]; /* where most is alive, by domain */
    uint64_t live_peak_bytes[TESS__DOMAINS];
    uint64_t category_bytes[TESS__DOMAINS][16]; /* alive there, resident ones included */
} tess__program;

enum { TESS__STAGE_BYTES = 4096 /* of tess_all_reduce */, TESS__MIRROR_CHUNK = 1 << 20 };
enum {
    TESS__PASS_STEP = 16,
    TESS__PASS_NORM,
    TESS__PASS_CLIP /* norm, then step */,
    TESS__PASS_FULL /* tess_each_full */
};

tess_status tess__program_instr(tess__program *, uint8_t op, uint8_t flags, int32_t index, int32_t buffer,
                                uint64_t tag);
/** An instruction that posts a collective, whose tag also depends on `ordinal`, its number in the program. */
tess_status tess__program_collective(tess__program *, uint8_t op, uint8_t flags, int32_t index, uint64_t ordinal,
                                     const tess__planned_collective *);
tess_status tess__program_buffer(tess__program *, const tess__buffer *, int32_t *index);
tess_status tess__program_event(tess__program *, uint8_t type, int32_t scope);
/** A ledger point of `unit`, here. */
tess_status tess__program_point(tess__program *, uint32_t point, int32_t unit);
void tess__program_clear(tess__program *); /* empties it, keeps the memory */
void tess__program_free(tess__program *);
/** Hash of the whole: instructions, buffers with offsets. */
uint64_t tess__program_hash(const tess__program *);
/** One line of text for instruction i: "all_gather of unit h.0 (f32, 12288 elements)". */
void tess__program_text(const tess__program *, const tess__model *, const tess__layout *, int32_t i, char *out,
                        size_t n);
/** A TESS_CAT_… in words. */
const char *tess__category_name(uint32_t category);
#endif
