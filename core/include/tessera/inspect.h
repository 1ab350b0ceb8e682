/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera/inspect.h: what an engine has chosen, planned, measured and done. C11 and C++17.
 *
 * The rules of tessera.h hold. Nothing here is needed for training, nothing is a collective. Calls on a const tess only
 * read: their errors do not end the engine. Before tess_shard all but the first section is TESS_E_INVALID. Structs are
 * the caller's, with struct_size set; texts in them last as long as the engine. Bytes are this rank's, times in s. */
/* The tables below are laid out by hand. */
/* clang-format off */
#ifndef TESSERA_INSPECT_H
#define TESSERA_INSPECT_H
#include <tessera/tessera.h>
#ifdef __cplusplus
extern "C" {
#endif

/* ---- what was chosen: from tess_open on -------------------------------------------------------- */
typedef struct { /* what was chosen, with "auto" resolved */
    uint32_t struct_size;
    uint32_t memory; /* TESS_MEM_…: what pointers to parameters, gradients and tess_alloc memory point to */
    const char *comm, *offload, *precision, *wrap, *strategy, *device, *optimizer, *activations;
    int32_t rank, ranks, local_rank;
    int32_t shard_ranks, replicas; /* ranks that share one copy of the parameters, and how many copies there are */
    int32_t threads, accum, prefetch;
    uint32_t sync_each, deterministic, strict, plan_only;
    int32_t n_states; /* optimizer states; of a plugin, the most of a parameter, after tess_shard */
    uint64_t device_memory_bytes, host_memory_bytes; /* budgets; 0: none */
    int32_t mirror;      /* steps between images in memory; 0: none are made */
    uint32_t joins;      /* 1: in the place of a lost rank: nothing collective but tess_shard, then tess_recover */
    uint64_t disk_memory_bytes; /* budget; 0: none */
} tess_info;
TESS_API tess_status tess_info_get(const tess *, tess_info *out);
/** The dtypes that the chosen precision gives a parameter: the dtype of the pointers that begin hands out, and of its
 * gradients (or null). It declares nothing. */
TESS_API tess_status tess_compute_dtype(const tess *, const tess_param_options *, uint32_t *dtype,
                                        uint32_t *grad_dtype_or_null);
/** The dtype that the chosen precision has the program's products round a parameter to: TESS_F8E4M3, which its
 * compute_dtypes must allow, or 0. It declares nothing. */
TESS_API tess_status tess_product_dtype(const tess *, const tess_param_options *, uint32_t *dtype);

/* ---- bytes and counts: from tess_shard on ------------------------------------------------------- */
typedef struct { /* bytes by domain (1 device, 2 host: index TESS_DOMAIN_…) */
    uint32_t struct_size;
    uint64_t peak_bytes[3], planned_peak_bytes[3]; /* measured: obtained from the device; planned: by the compiler */
    uint64_t live_bytes[3];                        /* booked now */
    uint64_t category_peak_bytes[3][16];           /* [domain][TESS_CAT_…], planned, at the planned peak */
    uint64_t resting_bytes[3];                     /* live between steps: shards, optimizer state, buffers */
    uint64_t n_recompiles, n_collectives, n_units, n_params;
    uint64_t param_elems, program_hash;
    uint64_t live_peak_bytes[3];               /* booked while running, at the fullest moment so far */
    uint64_t live_peak_category_bytes[3][16];  /* what was alive then */
    /* Memory that plugins take for themselves through their host table; in no other figure. Now, at most, and at most of
     * each category; and what the comm plugin states that it takes, of all it allocates. */
    uint64_t plugin_bytes[3], plugin_peak_bytes[3], plugin_category_bytes[3][16], plugin_stated_bytes;
    double grad_norm; /* of the last step, which clipped, before that: of the averaged gradient, after grad_scale; -1:
                       * none. A GPU clips by itself: then tess_stats_get waits for the norm */
    uint64_t n_skipped; /* steps that changed nothing: n_overflows, and those of TESSERA_ON_NAN=skip */
    double loss_scale;    /* of the next step; 0: losses are not scaled */
    uint64_t n_overflows; /* steps that the scale of losses was too large for, since the run began: checkpoints keep it */
    uint64_t n_audits, n_audit_failures; /* calls of blocks, on all ranks, that another rank repeated: TESSERA_AUDIT; and
                                          * those of which it made something else */
    /* The third domain is the disk, which holds what rests: obtained at most, planned, and booked now. */
    uint64_t disk_peak_bytes, planned_disk_peak_bytes, disk_live_bytes;
    uint64_t disk_category_bytes[16]; /* planned */
    uint64_t held_bytes, held_peak_bytes; /* the program's own, in no other figure (tess_ledger_held): now, and at most */
    uint64_t whole_peak_bytes; /* of the device: live_bytes and held_bytes at the same time, at most */
} tess_stats;
TESS_API tess_status tess_stats_get(const tess *, tess_stats *out);

/* ---- ledger: what is alive, by domain and category ---------------------------------------------- */
enum { /* the points at which a unit is looked at: before and after each of these */
    TESS_LEDGER_PRE_FORWARD = 1, /* its parameters are gathered; so in a recomputation */
    TESS_LEDGER_POST_FORWARD,    /* and released, unless they stay */
    TESS_LEDGER_PRE_BACKWARD,    /* gathered again; its gradient begins */
    TESS_LEDGER_POST_BACKWARD,   /* released; the reduction is on its way */
    TESS_LEDGER_OPTIMIZER,
    TESS_LEDGER_PEAK, /* of each domain since the last reset; not one instant when both domains are in use */
    TESS_LEDGER_AFTER = 256 /* flag */
};
typedef struct {
    uint32_t struct_size, point;
    uint64_t index;          /* in order of time, from 0 at the last reset, or in the plan */
    const char *pass, *name; /* of the pass: "train", "no_sync", "eval", "step", …; of the unit. Null: none */
    int32_t unit;            /* -1: none */
    uint64_t bytes[3][16];      /* [TESS_DOMAIN_…][TESS_CAT_…] of all units */
    uint64_t unit_bytes[3][16]; /* of this unit */
    uint64_t total_bytes[3];
    uint64_t backend_bytes; /* measured: what the device's libraries hold themselves; 0 where it cannot tell */
    uint64_t disk_bytes[16], disk_unit_bytes[16], disk_total_bytes; /* as these three, of the disk */
    uint64_t held_bytes;    /* measured: activations that the program holds itself (tess_ledger_held); beside `bytes` */
} tess_ledger_point;
/** `point` is valid during the call. Makes no call on the same tess but tess_ledger_unit and tess_stats_get. */
typedef void (*tess_ledger_fn)(void *user, const tess_ledger_point *point);
/** From now on `fn` is called at each point, on the thread that called in, in place of the one before; null ends it. */
TESS_API tess_status tess_ledger_hook(tess *, tess_ledger_fn fn, void *user);
TESS_API tess_status tess_ledger_peak(const tess *, tess_ledger_point *out);
/** Returns the bytes that the program holds beside the engine, in memory of the device's kind: activations that a library
 * allocates, say. `most`: the most since the call before. Called on the thread that is in the engine, whenever the ledger
 * changes or is read; makes no call on a tess. */
typedef uint64_t (*tess_held_fn)(void *user, uint64_t *most);
/** From tess_open on, `fn` books the program's own activations, which no plan has. `tessera plan` says so, and how much
 * rank 0 of the last run held at most: a run that ends without an error leaves that in the user's cache folder. Such a program
 * computes by itself on the rank's cores: where memory is the host's, ranks are on one host and TESSERA_PREFETCH is auto,
 * nothing is gathered ahead. Null ends it. */
TESS_API tess_status tess_ledger_held(tess *, tess_held_fn fn, void *user);
TESS_API tess_status tess_ledger_reset(tess *); /* the peak is now; points count from 0 */
enum {
    TESS_LEDGER_STEP = 1,     /* blocks: tess_run with its step; else as the next */
    TESS_LEDGER_STEP_APART,   /* all passes of a step, then tess_step */
    TESS_LEDGER_STEP_CLIPPED, /* the same with clipping */
    TESS_LEDGER_EVAL,
    TESS_LEDGER_NORM, /* all passes of a step, then tess_grad_norm */
    TESS_LEDGER_FULL  /* tess_each_full: no points, a peak */
};
/** The same from the plan: every point of one step in order of time, then one TESS_LEDGER_PEAK. Before the first step
 * too, and with plan_only. */
TESS_API tess_status tess_ledger_plan(const tess *, uint32_t of, tess_ledger_fn fn, void *user);
typedef struct { /* one unit, per rank; bytes as they are allotted, rounded up */
    uint32_t struct_size;
    int32_t n_params; /* tied ones once */
    const char *name;
    uint64_t elems;           /* without padding */
    uint64_t shard_bytes;     /* at rest; without copy_bytes */
    uint64_t unsharded_bytes; /* while gathered; 0: the shard, or its copy, is read in place */
    uint64_t gradient_bytes;  /* unsharded, local; 0: it grows in the shard's place, or there is none */
    uint64_t shard_gradient_bytes, state_bytes;
    uint64_t live_bytes[3][16]; /* now */
    uint64_t copy_bytes; /* of the shard in bf16, at rest (TESSERA_LOW_COPY); 0: none */
} tess_unit_info;
TESS_API tess_status tess_ledger_unit(const tess *, int32_t unit, tess_unit_info *out);

/* ---- what ran when ------------------------------------------------------------------------------ */
typedef struct {
    uint32_t struct_size;
    const char *lane; /* "compute", "communication", "transfer_up", "transfer_down", "host" */
    const char *op;   /* "forward", "all_gather", "wait_all_gather" … */
    const char *unit; /* or the scope; "" where there is none */
    uint64_t step;    /* optimizer steps done before */
    double start, seconds; /* start: from the first span of the step. A collective's end is seen by the wait for it */
    int32_t scope;         /* which it is about, in the order of declaration; -1: none */
    int32_t block;         /* of that scope, in the order of tess_block_add; -1: none */
    int32_t unit_index, wait; /* -1: none; wait 1: the engine's thread stands still for another lane */
} tess_span;
typedef tess_status (*tess_span_fn)(void *user, const tess_span *);
/** Records from here on, between passes: the last `spans` spans, in memory obtained here; 0 ends it. Off by default.
 * While on, each instruction costs two reads of the clock. */
TESS_API tess_status tess_trace(tess *, uint64_t spans);
/** Calls fn with each recorded span of the step before which `step` optimizer steps were done, in order of start. */
TESS_API tess_status tess_trace_each(tess *, uint64_t step, tess_span_fn fn, void *user);

#ifdef __cplusplus
}
#endif
#endif
