/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera/tessera.h: fully sharded data parallel training for programs written in C. C11 and C++17.
 *
 * Rules for every function here:
 *  - 0 is success, negative fails; outputs are written only on success. Nothing exits or aborts the program.
 *  - The first error on a tess is sticky: every later call returns it and does nothing but tess_close. The
 *    message is in tess_last_error().
 *  - One thread at a time may call on one tess, never from inside an OpenMP parallel region; pointers handed
 *    out may be used by any thread.
 *  - [C] marks a collective: every rank calls it, in the same order, with the same arguments unless said.
 *  - Every struct begins with its size (the caller sets it); a zero field is the default.
 * Stability: functions and fields are only added.
 *
 * Beside this header, and including it: tessera/inspect.h, what an engine has chosen, planned and measured;
 * tessera/gpu.h, what keeps a GPU at work. tessera/plugin.h is for plugins. */
/* The tables below are laid out by hand. */
/* clang-format off */
#ifndef TESSERA_TESSERA_H
#define TESSERA_TESSERA_H
#include <tessera/plugin.h> /* the shared words: tess_status, dtypes, memory kinds */
#ifdef __cplusplus
extern "C" {
#endif
#ifndef TESS_API
#define TESS_API __attribute__((visibility("default")))
#endif

/** The version of this header. */
#define TESS_VERSION_MAJOR 0
#define TESS_VERSION_MINOR 9
#define TESS_VERSION_PATCH 0

typedef int32_t tess_scope; /* handles: small integers, valid until tess_close */
typedef int32_t tess_param; /* slice i of a stack has handle first + i */
typedef struct tess tess;

enum { TESS_AVG = 4 /* beside TESS_SUM, TESS_MIN, TESS_MAX, in tess_all_reduce */ };
enum {
    TESS_PASS_TRAIN = 1,
    TESS_PASS_EVAL = 2,     /* forward only, no gradient, buffers not updated */
    TESS_PASS_NO_SYNC = 256 /* flag on TRAIN: accumulate, communicate in a later pass */
};
enum { TESS_OF_PARAM = 1, TESS_OF_GRAD, TESS_OF_MOMENT1, TESS_OF_MOMENT2, TESS_OF_WRITE = 256 /* flag: take data back */ };
enum {
    TESS_FROZEN = 1,         /* no gradient, no optimizer state; still sharded and gathered. It rests in its dtype: bf16 and
                              * f16 take two bytes an element, TESS_U8 is opaque bytes, say of 4-bit blocks */
    TESS_GRAD_OVERWRITE = 2, /* kernels store, do not add: one use per microbatch, none tied to it, not with sync=end */
    TESS_BUFFER = 4          /* not trained, replicated, saved, outside the digest: running statistics */
};

#ifndef __cplusplus
/** Options where they are needed, size and all: tess_param_add(t, TESS_WITH(tess_param_options, .name = "a.b", …), NULL). */
#define TESS_WITH(options, ...) (&(options){ .struct_size = sizeof(options), __VA_ARGS__ })
#endif

/* ---- open ------------------------------------------------------------------------------------- */
typedef struct { /* one option by its name in docs/variables.md: { "timeout", "30" } is TESSERA_TIMEOUT=30 */
    const char *key, *value;
} tess_setting;
/** Plans this program with other settings, for advice on a plan that is over its budget: opens an engine with plan_only
 * and `settings`, declares, calls tess_shard, and writes planned_peak_bytes of tess_stats (inspect.h) to `bytes`, with
 * planned_disk_peak_bytes in bytes[0]. "ranks" may be among the settings. `seconds` of a step stays -1 when it is not known. A failure means that these settings cannot
 * be had. */
typedef tess_status (*tess_plan_fn)(void *user, const tess_setting *settings, uint32_t n, uint64_t bytes[3],
                                    double *seconds);
typedef struct { /* an audit that failed (TESSERA_AUDIT): another rank makes something else of the same inputs */
    uint32_t struct_size;
    uint32_t backward;  /* of the block; 0: forward */
    uint64_t step;      /* from 1 */
    const char *block, *unit, *kind; /* kind of what differs, in words: "output", "gradient of its input" … */
    int32_t rank, auditor; /* whose work, and who repeated it; as messages count ranks */
    int32_t referee;    /* a third that repeated it too; -1: there was none */
    int32_t wrong;      /* who disagrees with the two others; -1: nobody knows */
    uint64_t digest, digest_again;
} tess_audit_failure;
/** Called on every rank before the engine ends by the failure, inside tess_run. Makes no call on the tess. */
typedef void (*tess_audit_fn)(void *user, const tess_audit_failure *);
enum { /* tess_options.flags */
    TESS_OPTIONS_WIN = 1,         /* what is set there wins over the environment, as a command line does */
    TESS_OPTIONS_STEP_IN_PASS = 2, /* blocks, one microbatch per step: each training pass is a tess_run with its step.
                                    * Nothing is planned that would see gradients between them; another pass is refused */
    TESS_OPTIONS_NO_CLIP = 4,      /* and without clipping, which is then refused: a sharded gradient is planned from its
                                    * reduction to the step of its unit, not for the whole step. More flags: gpu.h */
    TESS_OPTIONS_LOSS_SCALE = 32, /* backward multiplies the gradient of the loss by tess_loss_scale, or by loss_scale of
                                   * tess_block_call. Without it a precision that scales losses (fp16) is refused */
    TESS_OPTIONS_BASE_APART = 64 /* each save names files of the frozen parameters (tess_checkpoint_options.base), so a
                                  * snapshot has no room for them. One that does not is refused. Needs xxHash: a build
                                  * without has the room, and saves them */
};
typedef struct { /* which ranks form a group; those of others may form theirs in the same call */
    uint32_t struct_size;
    int32_t color; /* ranks with the same one are a group; negative: this rank is in none */
    int32_t key;   /* numbers the ranks of a group from 0, in its order, then in that of their numbers */
    int32_t ranks; /* that the group must have; 0: as many as come. A plan needs it */
    const char *name; /* the same on all ranks, for messages; null: none. At most 31 bytes */
} tess_group_options;
typedef struct { /* the environment wins over these, unless flags say otherwise: docs/variables.md */
    uint32_t struct_size;
    uint32_t pointer_mem; /* 1 << TESS_MEM_…: memory my code can read; 0: host only. Another device is refused */
    const char *comm, *offload, *precision, *wrap, *strategy, *device; /* as in TESSERA_COMM and so on; null: default */
    const char *optimizer; /* "sgd", "adam", "adamw" (default), "adadelta", a plugin, "own", "none": decides the planned state */
    float momentum;        /* sgd: not 0 plans a momentum state */
    int32_t accum;         /* microbatches per step and rank, 0: 1; or give `microbatches` */
    uint64_t device_memory_bytes; /* budget per rank; 0: none */
    uint64_t input_bytes;  /* blocks: bytes of one microbatch's input */
    void *stream;          /* a GPU's: cudaStream_t that my kernels run on; null: the default stream */
    uint32_t plan_only;    /* 1: no ranks, no data: tess_shard plans for `ranks` and allocates nothing */
    uint32_t flags;        /* TESS_OPTIONS_… */
    int32_t ranks;
    int32_t own_states;    /* optimizer "own": fp32 states per element that tess_update keeps, 0 to 2 */
    const char *activations, *sync, *prefetch, *log; /* as in TESSERA_ACTIVATIONS and so on; log is the process's */
    uint64_t host_memory_bytes;      /* budget per rank; 0: none */
    int32_t threads;                 /* compute threads per rank; 0: the default */
    int32_t deterministic, strict;   /* 1 on, -1 off; 0: the default, off */
    uint32_t n_settings;
    const tess_setting *settings;    /* any option by its name, also of plugins: { "gloo-interface", "eth0" }. One that is
                                      * a field too wins over it, and the last of a name over those before */
    tess_plan_fn plan_alternative;   /* for advice; null: what was declared is planned again */
    void *plan_user;
    uint32_t checkpoint; /* 1: tess_checkpoint_save will be called, so that a snapshot is planned */
    uint32_t recover;    /* 1: the program calls tess_recover, so that TESSERA_MIRROR=K is heeded */
    int32_t mirror;      /* K: steps between images in memory; 0: none */
    int32_t microbatches; /* per step over all ranks, in place of accum, which then follows from the number of ranks: a
                           * step stays what it is on another number. One that does not divide them is refused */
    const tess_group_options *group; /* null: all ranks. Else the engine is over this rank's group, and tess_rank and
                           * tess_ranks are of that. All ranks of the run call tess_open; one in no group gets a null
                           * engine. Several may be open at once. Not with recover; messages count all ranks of the run */
    const char *audit, *on_audit; /* as in TESSERA_AUDIT and TESSERA_ON_AUDIT. It needs blocks with TESS_BLOCK_AUDIT */
    tess_audit_fn audit_failed;   /* null: nobody is called */
    void *audit_user;
    void *common; /* memory of the program's own that belongs to a step's state, the same on all ranks: a position in the
                   * data, random numbers. Images (TESSERA_MIRROR) and checkpoints hold its bytes; tess_recover and
                   * tess_checkpoint_load give them back. Images take them where the first pass of a step begins: what a
                   * batch changes, change after that. Null: none */
    uint64_t common_bytes; /* at most TESS_CHECKPOINT_BYTES */
} tess_options;
/** [C] Options and environment → comm, device, … Texts are copied. A process may open several engines, one after the other
 * or at once, in the same order on all ranks and used by one thread. Each has its own budgets: what they take adds up. */
TESS_API tess_status tess_open(const tess_options *or_null, tess **out);
/** Ends in order when no error stands, else locally; never hangs; null is fine. Frees all the engine allocated. */
TESS_API tess_status tess_close(tess *);
TESS_API const char *tess_last_error(void); /* of this thread; "" if none; valid until this thread's next failure */
/** For callbacks and for errors of the program's own: sets this thread's last error message and returns `status`. The
 * engine keeps the message of a callback that fails. */
TESS_API tess_status tess_fail(tess_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
TESS_API int tess_exit_code(tess_status);   /* 0 ok, 1 check failed, 2 usage, 3 configuration, 4 memory, 5 peer, 6 data */
TESS_API int32_t tess_rank(const tess *);   /* for the data loader: 0 … tess_ranks()-1 */
TESS_API int32_t tess_ranks(const tess *);
/** [C] The worst news of all ranks: the status of the lowest rank for which `mine` is not TESS_OK, with that rank's
 * message, on every rank; TESS_OK when all are well. For errors before communicators exist, of a data loader say, and
 * at any later time between passes. Ends no engine. */
TESS_API tess_status tess_agree(tess *, tess_status mine);
/** Ends this engine by an error of the program's own, whose message tess_fail has set: an exception between a begin and its
 * end, say. It stays like any other, and the other ranks hear of it. Local, also inside a pass. Returns `status`. */
TESS_API tess_status tess_give_up(tess *, tess_status status);

/** Says what this run is, in words "key=value" with blanks between: seed, data, rates. The ledger of digests has them at
 * its head (TESSERA_LEDGER), so that another run does not go on with its file. Copied; before the first training pass. */
TESS_API tess_status tess_proof_words(tess *, const char *words);

/* ---- describe: local, same on all ranks ------------------------------------------------------- */
typedef struct {
    uint32_t struct_size, dtype, flags; /* dtype: f32, f64, bf16, f16; u8 with TESS_FROZEN alone */
    uint32_t compute_dtypes; /* 1 << dtype: what my kernels can read; 0: dtype only. Precision outside it is refused.
                              * 1 << TESS_F8E4M3: they can also round it to that in products (tess_product_dtype) */
    const char *name;        /* copied. "h.*.fc.weight" with stack = L describes L parameters, * = 0 … L-1 */
    int64_t stack;           /* 0: not stacked */
    const int64_t *shape;    /* of one slice; copied. Null with ndim 0: one element */
    int32_t ndim;
    int32_t optimizer_group; /* index into tess_optimizer_options.groups */
    uint64_t tag;            /* mine; comes back in every tess_range */
} tess_param_options;
/** A scope is a module the program will enter. Declared in forward order; backward is the reverse. A parameter
 * belongs to the scope whose name is its longest dotted prefix. Stacked like parameters. */
TESS_API tess_status tess_scope_add(tess *, const char *name, int64_t stack, tess_scope *first);
TESS_API tess_status tess_param_add(tess *, const tess_param_options *, tess_param *first_or_null);
/** alias is one more parameter of its scope: it counts in the `n` of begin and comes last there when it is declared last.
 * Its gradient is the gradient of `of`. */
TESS_API tess_status tess_param_tie(tess *, const char *alias, const char *of);

/* ---- ranges: how values get in and out without the whole model anywhere ------------------------ */
typedef struct {
    uint32_t struct_size;
    int32_t param;
    uint64_t tag;
    int64_t slice; /* index in the stack, else 0 */
    uint64_t slice_elems, first_elem, elems; /* this range lies in one slice */
    const char *name;
    uint64_t stacked_first; /* slice * slice_elems + first_elem: the place in the whole stacked tensor */
} tess_range;
/** Called on the thread that called in, one range at a time, ascending in declaration order, only for what
 * this rank owns; `data` is host memory, fp32 unless the parameter is f64 or u8, valid during the call. */
typedef tess_status (*tess_range_fn)(void *user, const tess_range *, void *data);
TESS_API tess_status tess_shard(tess *, tess_range_fn fill, void *user);          /* [C] compile, plan, hash, allocate, fill */
TESS_API tess_status tess_each_owned(tess *, uint32_t of, tess_range_fn fn, void *user); /* [C] only in that a failure on one rank fails all */
/** [C] Like tess_each_owned, but every rank sees every element: pieces of at most 64 Ki elements in declaration order
 * (tied parameters once, at the first name). For saving and for digests. */
TESS_API tess_status tess_each_full(tess *, uint32_t of, tess_range_fn fn, void *user);
/** [C] The full parameters of a scope, between passes; read-only, in the compute dtype. `n` as in tess_forward_begin. */
TESS_API tess_status tess_summon_begin(tess *, tess_scope, void *params, int32_t n);
TESS_API tess_status tess_summon_end(tess *, tess_scope); /* [C] */

/* ---- hooks: one pass --------------------------------------------------------------------------- */
/** [C] Starts a pass. It ends with the next call that needs it to have ended: tess_pass, tess_step, tess_update,
 * tess_grad_norm, tess_grad_drop, tess_each_owned, tess_each_full, tess_summon_begin, tess_trace or tess_close. tess_all_reduce,
 * tess_barrier and everything that only reads may be called inside one. */
TESS_API tess_status tess_pass(tess *, uint32_t kind);
/** K of the running step: TESSERA_ACCUM, or tess_options.accum, or tess_options.microbatches by the number of ranks. */
TESS_API int32_t tess_accum(const tess *);
/** The global number of this rank's microbatch k, which counts from 0 over all steps: in a step s = k / K with j = k % K it
 * is s * K * W plus rank * K + j with sync=end, or j * W + rank with sync=each. Batches picked by it are the same data
 * whatever W and K, as long as W * K is the same. */
TESS_API uint64_t tess_microbatch(const tess *, uint64_t k);
/** Blocking until the scope's parameters are in place. Fills n pointers in declaration order into an array or a
 * struct of pointers (copied bytewise). They hold until the matching end and not beyond (poisoned under
 * TESSERA_STRICT=1); parameters are read-only. Scopes may nest; an outer scope's pointers stay valid. With n = -slots
 * they go into a table of as many slots, each at its parameter's tag: a stack is one slot, and an alias is the slot of
 * its parameter. Other slots stay as they are. */
TESS_API tess_status tess_forward_begin(tess *, tess_scope, void *params, int32_t n); /* [C] */
TESS_API tess_status tess_forward_end(tess *, tess_scope);                            /* [C] never blocks on the network */
/** grads: add into them. Zero on the first begin of a pass; a tied parameter's later scopes see the earlier sum.
 * Reduced once, after the last scope that holds it; frozen parameters give null. */
TESS_API tess_status tess_backward_begin(tess *, tess_scope, void *params, void *grads, int32_t n); /* [C] */
TESS_API tess_status tess_backward_end(tess *, tess_scope);                                         /* [C] */

/** How many pointers *p has room for: a struct or an array of pointers alone, which the compiler checks. */
#define TESS_SLOTS(p) \
    ((int32_t)(sizeof *(p) / sizeof(void *) + 0 * sizeof(char[sizeof *(p) % sizeof(void *) ? -1 : 1])))
/** The begins with `n` by the type of *params, which is that of *grads too. */
#define TESS_FORWARD_BEGIN(t, scope, params) tess_forward_begin(t, scope, params, TESS_SLOTS(params))
#define TESS_BACKWARD_BEGIN(t, scope, params, grads) \
    tess_backward_begin(t, scope, params, grads, TESS_SLOTS(1 ? (params) : (grads)))

/* ---- blocks: the engine runs the pass and owns the activations --------------------------------- */
typedef struct { /* one call of a block; pointers hold during the call */
    uint32_t struct_size;
    uint32_t pass; /* TESS_PASS_… */
    uint32_t recompute;     /* 1: this forward runs again, for the backward that follows or for an audit; no side effects */
    uint32_t compute_dtype; /* of params: TESS_F32, TESS_BF16 or TESS_F16 */
    uint64_t step;        /* optimizer steps done before this one */
    uint64_t microbatch;  /* global index of the microbatch in the step: same for the same data whatever W and K */
    const void *const *params; /* the block's parameters in declaration order, compute dtype */
    void *const *grads;        /* backward: same order, add into them; null for frozen ones and buffers */
    int32_t n_params, threads; /* threads: how many the block may use */
    const void *batch;    /* the pass's input: tess_options.input_bytes */
    const void *input;    /* the previous block's output; null in the first block */
    void *output;         /* forward: write; backward: as written, read-only; null with TESS_BLOCK_DROP_OUTPUT. With
                           * TESS_BLOCK_LATE_RESULT backward writes it */
    void *saved;          /* forward: write what backward needs; null in an evaluation */
    void *scratch;        /* forward_scratch_bytes or backward_scratch_bytes, contents undefined */
    const void *grad_output; /* backward: of output; null in the last block */
    void *grad_input;        /* backward: write (not add); null in the first block */
    uint32_t selective;      /* training: 1: `saved` has selective_saved_bytes */
    float loss_scale;        /* backward of the block that has the loss: multiplies its gradient. 1 unless losses are scaled */
} tess_block_call;
typedef tess_status (*tess_block_fn)(void *user, const tess_block_call *);
enum {
    TESS_BLOCK_KEEP = 1,         /* what it saves is kept until backward, whatever TESSERA_ACTIVATIONS says */
    TESS_BLOCK_DROP_OUTPUT = 2,  /* backward does not read the block's output: it is null there, and its memory free */
    TESS_BLOCK_GRAD_IN_PLACE = 4, /* grad_input may be grad_output: backward reads no element there that it has written
                                  * over. Heeded where the block's output has the size of its input */
    TESS_BLOCK_AUDIT = 8, /* another rank may run it again (TESSERA_AUDIT): to the last bit and byte, what training's
                          * forward and backward write follows from the call and the parameters, not from TESS_BUFFER ones */
    TESS_BLOCK_LATE_RESULT = 16 /* of the last block, whose backward follows its forward: in training backward writes the
                                 * output, and may do forward's work too. An evaluation's forward writes it as ever */
};
typedef struct {
    uint32_t struct_size, flags; /* TESS_BLOCK_… */
    const char *name; /* its module: the block reads every parameter below that name (and its aliases); copied */
    uint64_t output_bytes;  /* handed to the next block; of the last block: the pass's result, copied to the caller */
    uint64_t saved_bytes;   /* from forward to backward, beside input and output, which are kept */
    uint64_t forward_scratch_bytes, backward_scratch_bytes;
    tess_block_fn forward, backward;
    void *user;
    /* 0, or: backward can do without `saved` (null) and make it again by itself, in this much scratch. Then recomputation
     * runs no forward again, and training's forward gets null for `saved` too. */
    uint64_t remake_scratch_bytes;
    /* 0, or: activations=selective lets it save this much, what is dear to make, and backward makes the rest again in
     * selective_scratch_bytes. */
    uint64_t selective_saved_bytes, selective_scratch_bytes;
    /* The weights of activations=auto: the work of one forward, and of what a selective backward makes again, in one unit for all
     * blocks. 0: the elements of its parameters, and half of forward_work. */
    double forward_work, selective_work;
    const char *also; /* null, or: a second module whose parameters the block reads as its own; copied */
} tess_block_options;
/** Blocks run in the order they are added; each is a scope of its own. Local, before tess_shard. */
TESS_API tess_status tess_block_add(tess *, const tess_block_options *, tess_scope *or_null);

/* ---- optimizer --------------------------------------------------------------------------------- */
typedef struct { float weight_decay, lr_scale; } tess_optimizer_group; /* lr_scale 0 means 1 */
typedef struct {
    uint32_t struct_size;
    float lr, beta1, beta2, eps, rho, momentum; /* 0: PyTorch's default of each, but lr and momentum */
    float grad_scale;   /* multiplies the gradient first; 0 means 1 */
    float clip_norm;    /* largest gradient norm (of the averaged gradient, after grad_scale); 0: no clipping */
    int32_t n_groups;
    const tess_optimizer_group *groups; /* null: one group, no decay, scale 1 */
    uint64_t step;      /* from 1; 0: the engine counts */
    const float *group_lr; /* null: lr times lr_scale. Else the rate of each of `groups`, 0 included; lr is not read */
} tess_optimizer_options;
/** [C] One step of the optimizer chosen at open on the averaged gradients; then the gradients are gone. TESS_E_NOT_FINITE
 * with TESSERA_ON_NAN=stop, the default, when the gradient's norm, or without clipping what the step leaves, is not finite. A
 * GPU's step is looked at when the next one begins, or when a checkpoint is saved. With skip such a step changes nothing,
 * and counts as done. */
TESS_API tess_status tess_step(tess *, const tess_optimizer_options *);
TESS_API tess_status tess_grad_norm(tess *, float *out); /* [C] of the averaged gradient, same bits everywhere */
TESS_API tess_status tess_grad_drop(tess *);             /* [C] skip this update */
/** Returns the factor that backward gives the gradient of the loss, where the precision scales losses (fp16): a power of
 * two, the same on all ranks; else 1. It changes in tess_step and tess_update alone, by the rules of PyTorch's GradScaler.
 * All that the engine shows of gradients is unscaled: what tess_step and an optimizer of one's own see, norms, TESS_OF_GRAD. A
 * step whose gradients are not finite changes nothing but the scale, and counts as done, but not in bias corrections. */
TESS_API float tess_loss_scale(const tess *);
/** Optimizer steps done, which bias correction counts. A checkpoint saves it with the moments; set it after tess_shard
 * on every rank alike, or a resumed run begins its bias correction anew. */
TESS_API uint64_t tess_steps_done(const tess *);
TESS_API tess_status tess_steps_set(tess *, uint64_t steps); /* [C], between steps */
enum { /* tess_schedule.kind; `done` runs from 0 after warm-up to 1 at the end, and p is `least` */
    TESS_SCHEDULE_CONSTANT, /* 1 */
    TESS_SCHEDULE_LINEAR, /* p + (1 - p) (1 - done): get_linear_schedule_with_warmup of transformers, where p is 0 */
    TESS_SCHEDULE_COSINE, /* p + (1 - p) (1 + cos(pi done)) / 2: PyTorch's CosineAnnealingLR with eta_min = p rate */
    TESS_SCHEDULE_WSD,    /* 1, in the last `decay` steps the line to p: get_wsd_schedule of transformers, decay "linear" */
    TESS_SCHEDULE_STEP    /* gamma to the power of step / every, a whole number: PyTorch's StepLR */
};
typedef struct { /* a learning rate over the steps of a run */
    uint32_t struct_size, kind;
    double rate;            /* the highest */
    double least;           /* linear, cosine, wsd: the lowest, as a part of it, 0 to 1 */
    uint64_t steps, warmup; /* of the whole run; of these the first, in which the rate rises */
    uint64_t decay;         /* wsd: steps in which it falls; 0: a tenth of `steps` */
    uint64_t every;         /* step: steps between two falls */
    double gamma;           /* step: what each multiplies by */
} tess_schedule;
/** The rate of step n, which counts from 0: `rate` times what `kind` says. Before that, in warm-up, it is rate (n + 1) /
 * (warmup + 1), so that no step has rate 0. From `steps` on the lowest holds. A pure function: a resumed run has the same
 * rates. A group with a schedule of its own has its rate in tess_optimizer_options.group_lr. NaN, with tess_last_error, for a kind that is
 * none, `least` outside 0 to 1, or `every` 0 with TESS_SCHEDULE_STEP; tess_step refuses NaN. */
TESS_API double tess_schedule_rate(const tess_schedule *, uint64_t n);
/** As tess_range_fn, for an optimizer of one's own: change `param` and the states in place. `grad` is the averaged
 * gradient, fp32; state[i] are the fp32 states planned with tess_options.own_states, zero at first. */
typedef tess_status (*tess_update_fn)(void *user, const tess_range *, void *param, const float *grad, float *const *state);
/** [C] One step of the program's own optimizer (tess_options.optimizer "own"): calls fn for every range that this rank
 * owns; then the gradients are gone and one more step is done. States are TESS_OF_MOMENT1 and TESS_OF_MOMENT2. */
TESS_API tess_status tess_update(tess *, tess_update_fn fn, void *user);

typedef struct { /* one pass over the blocks */
    uint32_t struct_size, kind;
    const void *batch; /* host memory, input_bytes; read before the call returns */
    void *result;      /* host memory, the last block's output_bytes; may be null */
    uint64_t microbatch;
    const tess_optimizer_options *step; /* not null: step each unit as its gradient arrives, within this pass */
} tess_run_options;
TESS_API tess_status tess_run(tess *, const tess_run_options *); /* [C] */

/* ---- the rest ---------------------------------------------------------------------------------- */
/** [C] Losses and counts; also inside a pass, between an end and the next begin. */
TESS_API tess_status tess_all_reduce(tess *, void *host, uint64_t elems, uint32_t dtype, uint32_t op);
TESS_API tess_status tess_barrier(tess *);                                                             /* [C] */
/** Activations and other buffers of my own, booked and budgeted; before tess_shard they are in the plan. Host or
 * device memory as pointer_mem says. Freed by tess_close. */
TESS_API tess_status tess_alloc(tess *, const char *label, uint64_t bytes, void **out);

/* ---- groups of ranks: docs/mesh.md --------------------------------------------------------------- */
/** For a program's own tensor, pipeline, context or expert parallelism. Its collectives work on the program's memory, of
 * the device's kind, and are done when they return. A failure ends every engine and group of the process; a lost rank is
 * named in all, also of groups it is not in. Ranks that come to their engines and groups in orders in which they wait for
 * each other learn of it: TESS_E_MISMATCH names the waits. */
typedef struct tess_group tess_group;
/** [C] of all ranks of the run. Of the options it heeds group (null: all ranks), comm, device, stream, pointer_mem and
 * settings. One in no group gets null. */
TESS_API tess_status tess_group_open(const tess_options *or_null, tess_group **out);
TESS_API tess_status tess_group_close(tess_group *); /* as tess_close */
TESS_API int32_t tess_group_rank(const tess_group *);
TESS_API int32_t tess_group_ranks(const tess_group *);
/** [C] of the group, as all below: in place; op is TESS_SUM, TESS_MIN, TESS_MAX or TESS_AVG. The sum's order is that of
 * docs/numbers.md on backends that keep it. */
TESS_API tess_status tess_group_all_reduce(tess_group *, void *data, uint64_t elems, uint32_t dtype, uint32_t op);
/** `elems` of each rank; all: as many for every rank, in their order. In place: mine == all + rank * elems. */
TESS_API tess_status tess_group_all_gather(tess_group *, const void *mine, void *all, uint64_t elems, uint32_t dtype);
TESS_API tess_status tess_group_broadcast(tess_group *, void *data, uint64_t elems, uint32_t dtype, int32_t root);
/** send: `elems` for every rank, in their order; recv: as many from every rank. Never in place. */
TESS_API tess_status tess_group_exchange(tess_group *, const void *send, void *recv, uint64_t elems, uint32_t dtype);
/** This rank's group along a dimension of TESSERA_MESH, "tp" in dp=4,tp=2, or along several, "dp,cp". A dimension that is not
 * in the mesh has one rank; without a mesh "dp" has all. Writes color, key, ranks and name, which is `dimensions` itself.
 * Local; needs no engine. */
TESS_API tess_status tess_mesh_group(const char *dimensions, tess_group_options *out);

/* ---- checkpoints: docs/checkpoints.md ------------------------------------------------------------ */
enum {
    TESS_CHECKPOINT_SKIP = 1,   /* save: while the one before is still being written, do nothing; else it is waited for */
    TESS_CHECKPOINT_PARAMS = 2, /* load: parameters and buffers only; the optimizer and the count of steps begin anew */
    TESS_CHECKPOINT_PREPARE = 4, /* save: nothing yet; rank 0 takes the directory, and what it would refuse is refused now */
    TESS_CHECKPOINT_IF_ANY = 8, /* load: where `path` is not there, or has no checkpoint yet, TESS_OK and nothing is loaded */
    TESS_CHECKPOINT_BYTES = 4096 /* of the program's own, most of each kind */
};
typedef struct {
    uint32_t struct_size, flags;
    const char *dir;      /* in which DIR/step-000020 appears. One run at a time holds it; rank 0 makes it */
    uint64_t keep;        /* after this one, as many stay in all; 0: all do */
    const void *common, *own; /* bytes of the program's: rank 0's for all, and each rank's; copied. `common` null: those of
                               * tess_options */
    uint64_t common_bytes, own_bytes;
    const char *on_newer; /* "stop", "aside"; null: TESSERA_ON_NEWER, else stop. What is done, at the first save after the
                             start or a load, when DIR has checkpoints that this run does not go on from */
    const double *score;  /* rank 0's: how good this one is, a validation loss say; null: not known. The one of the run with
                             the lowest stays beside the newest `keep` */
    const char *const *base; /* rank 0's: files that the frozen parameters were filled from, null at the end. Then those
                             are left out, and the manifest names the files by checksums of all of each, which rank 0
                             makes once. Null, or a build without xxHash: they are saved */
} tess_checkpoint_options;
/** [C] Saves parameters, optimizer state, buffers, the count of steps and the program's bytes, between steps. Where a
 * snapshot was planned (tess_options.checkpoint, TESSERA_CHECKPOINT=async) it returns when that is taken and the files
 * are written beside training; else when they are on disk. What the disk refuses is TESS_E_DATA on every rank and not
 * sticky: the checkpoints before stay, training can go on. So is that DIR has steps newer than the one that this run has
 * loaded, or another run's: aside moves them to DIR/aside-1, stop refuses. */
TESS_API tess_status tess_checkpoint_save(tess *, const tess_checkpoint_options *);
typedef struct {
    uint32_t struct_size;
    int32_t ranks;         /* that saved it */
    uint64_t step, microbatches; /* done; of one step, over all ranks */
    uint64_t common_bytes, own_bytes; /* load: of the program's bytes, those that were saved for this rank */
    uint64_t bytes;        /* save: this rank wrote */
    double stall_seconds, write_seconds; /* save: for which the call held training up; of writing */
} tess_checkpoint_info;
/** [C] Until the last save is on disk: its outcome, once, and TESS_OK when there is none. `info` may be null. */
TESS_API tess_status tess_checkpoint_wait(tess *, tess_checkpoint_info *info);
typedef struct {
    uint32_t struct_size, flags;
    const char *path; /* DIR: the newest that verifies of the lineage written last; or DIR/step-000020; or a file
                       * *.safetensors of whole tensors with this program's names, of parameters and buffers alone */
    void *common, *own; /* room for the program's bytes. `common` null: that of tess_options, unless TESS_CHECKPOINT_PARAMS
                         * is set; else not wanted */
    uint64_t common_bytes, own_bytes; /* of that room */
    const char *const *base; /* as in tess_checkpoint_options: what tess_shard's fill has read */
    const char *const *others; /* tensors that such a file may have besides, null at the end. Any other name, and one that
                              * is missing, is TESS_E_DATA */
} tess_checkpoint_load_options;
/** [C] After tess_shard (its fill may be null): whatever the number of ranks, strategy, wrap, offload and precision of
 * the run that saved. Buffers are those of its rank 0; a rank beyond its number finds no bytes of its own. Every byte is
 * held against its checksum; a file has none, its step is 0, its floats may be of another width, and TESS_CHECKPOINT_IF_ANY
 * does not excuse that it is missing. TESS_E_DATA: no checkpoint, damaged, of another model or optimizer, or beside another base.
 * Another number of microbatches in a step is a warning; under TESSERA_DETERMINISTIC=1, on another number of ranks,
 * TESS_E_INVALID. */
TESS_API tess_status tess_checkpoint_load(tess *, const tess_checkpoint_load_options *, tess_checkpoint_info *info);
/** Calls fn with each complete checkpoint in DIR, oldest first. Local; needs no engine. */
typedef tess_status (*tess_checkpoint_fn)(void *user, const char *path, const tess_checkpoint_info *);
TESS_API tess_status tess_checkpoint_list(const char *dir, tess_checkpoint_fn fn, void *user);

/* ---- recovery in memory: docs/checkpoints.md ------------------------------------------------------ */
typedef struct {
    uint32_t struct_size;
    int32_t recovered;   /* 0: nothing was lost */
    uint64_t step;       /* done, in the state that all ranks are in now: the one to repeat is the next */
    uint64_t steps_lost; /* of those that this rank had done */
    uint32_t recoveries; /* of this run so far */
    double seconds;      /* that the call took */
} tess_recovery;
/** [C] With tess_options.recover, TESSERA_MIRROR=K and `tessera run`, calls return TESS_E_LOST when another rank has been
 * lost. This call then waits for the process that takes its place, forms the group anew and takes all ranks back to the
 * newest step of which every shard is left. Call it after tess_shard too: in a process that takes a lost rank's place it
 * joins the others; else it does nothing. Pointers of tess_alloc stay; gradients are gone; a checkpoint that was being
 * written is given up. TESS_E_PEER: no step is left whole. */
TESS_API tess_status tess_recover(tess *, tess_recovery *out);

#ifdef __cplusplus
}
#endif
#endif
