/* SPDX-License-Identifier: BSD-3-Clause */
/* The reference models as lists of parameters and blocks. A model is made once per process, says what it needs in
 * bytes, and is then declared to the engine (model_declare) or run without it (direct.h). */
#ifndef TESS_MODELS_MODEL_H
#define TESS_MODELS_MODEL_H
#include "stored.h"

typedef struct {    /* decoders: low-rank adapters beside products, which are trained alone */
    int32_t rank;   /* 0: none */
    int32_t rooted; /* their sum is scaled by alpha / sqrt(rank), not by alpha / rank */
    float alpha;
    uint32_t matrices, tables; /* storage format of the products' matrices and of the token tables: STORED_… */
    char targets[160]; /* the products, by their modules' names or the ends of them, joined by ','; "all-linear" */
} model_lora;
typedef struct { /* decoders; zero is the model's default */
    int32_t vocabulary, kv_heads, head_size, feed /* width of the feed-forward half */;
    int32_t positions;      /* gpt2: rows of the table of positions; 0: the context */
    int32_t rope_positions; /* llama: the context before it was stretched as in Llama 3.1; 0: evenly or not at all */
    float norm_eps;
    double rope_theta, rope_factor, rope_low, rope_high; /* factor 0: not stretched */
    double rope_fast, rope_slow, rope_attention;         /* YaRN, if rope_attention is not 0; it scales lengths */
    double rope_local_theta;                             /* for layers with a window, never stretched; 0: rope_theta */
    int32_t rope_whole;                                  /* YaRN begins and ends at whole pairs */
    int32_t window;                                      /* keys that a row sees, including itself; 0: all before it */
    int32_t window_from;                                 /* the first layer with a window */
    int32_t window_every;            /* every so manieth layer has none all the same; 0: each has one */
    double query_scalar;             /* scores are divided by its root; 0: the heads' size */
    double attention_cap, logit_cap; /* caps of scores and of logits; 0: none */
} model_decoder;
typedef struct {   /* zero is the model's default; a model ignores options that it does not use */
    int32_t batch; /* samples per rank and microbatch */
    int32_t layers, heads, width, context; /* gpt: 4, 4, 128, 64 */
    int32_t image_size, hidden;            /* convbn: 224, 128 */
    int32_t head_rows;                     /* decoders on a device: of a chunk of the head; 0: by their size */
    int32_t untied;                        /* decoders: 1: the head has a matrix of its own */
    int32_t packs;                         /* decoders on a device: batches may be packed */
    int32_t half_units;      /* decoders on the CPU: the halves of a layer are blocks, and units, of their own */
    float dropout;           /* below 0: none; mnist has 0.25 and 0.5, gpt none unless set */
    float attention_dropout; /* a config may ask for it; no model has it, and training warns */
    model_decoder decoder;
    const char *frozen; /* parameters not trained: patterns as "embed.*", joined by ','; null: none */
    model_lora lora;
    uint32_t precision; /* dtype of the parameters: TESS_F32 (also 0) or TESS_BF16 */
    int32_t threads;    /* compute threads, 0: 1. Bits depend on it with oneDNN */
    uint64_t seed;
    const char *isa, *operators; /* see ops_options.isa and ops_find; null: the best available */
} model_options;

enum { MODEL_NAME = 48, MODEL_DIMS = 4, MODEL_BLOCK_PARAMS = 32 };
enum { MODEL_UNIFORM = 1 /* in ± scale */, MODEL_NORMAL /* σ = scale */, MODEL_CONSTANT /* scale */, MODEL_GRID };

typedef struct {
    char name[MODEL_NAME], alias_of[MODEL_NAME]; /* alias_of "": a parameter of its own */
    int64_t shape[MODEL_DIMS], elems;
    int32_t ndim;
    int32_t is_frozen;       /* not trained: neither gradient nor state */
    uint32_t stored;         /* storage format of a frozen matrix, STORED_…; shape and elems are the matrix's */
    int32_t is_adapter;      /* belongs to model_lora */
    int32_t is_buffer;       /* running statistics: fp32, not trained */
    int32_t optimizer_group; /* gpt: 0 matrices, 1 biases and normalisations (no decay); else 0 */
    uint32_t init;           /* MODEL_UNIFORM, … */
    float scale;
} model_param;
typedef struct {
    char name[MODEL_NAME], also[MODEL_NAME]; /* also: a second module of its parameters, or "" */
    int32_t first_param, n_params;           /* in the order the block gets them */
    uint64_t output_bytes, saved_bytes, forward_scratch_bytes, backward_scratch_bytes;
    uint64_t remake_scratch_bytes; /* this and the next as in tess_block_options */
    uint64_t selective_saved_bytes, selective_scratch_bytes;
    uint32_t flags; /* TESS_BLOCK_… */
    int32_t
        chunks; /* from 2: forward and backward take the samples in this many parts, and scratch is for one: chunks.c */
    tess_block_fn forward, backward;
    void *user;
    /* For bf16, where the above describes the fp32 computation inside: */
    uint64_t saved_floats_bytes; /* first part of `saved`, stored in bf16 */
    uint32_t products;           /* bit i: parameter i only goes into linear and conv operators, which take bf16 */
    int32_t reads_output;        /* backward reads `output` */
} model_block;
typedef struct {
    int32_t n_params, n_blocks, n_scopes;
    model_param *params;
    model_block *blocks;
    char (*scopes)[MODEL_NAME];         /* modules within blocks that are units of their own */
    uint64_t input_bytes, result_bytes; /* a batch; the last block's result, which begins with a model_result */
} model_desc;

typedef struct { /* the start of every result */
    double loss; /* sum over `count` samples (mnist), tokens (gpt), rows (linear) or batches (convbn): sums of ranks can
                    be added */
    uint64_t correct, count;
    double divisor; /* the batch's; models that are no decoder: 0 */
} model_result;

typedef struct model_ops model_ops;
typedef struct model {
    const model_ops *t;
    model_options options; /* with the defaults filled in */
    model_desc desc;
    ops *o;
    char operators[128]; /* names all that bits depend on, for printing and hashing */
    void *own;           /* the model's operators */
    int32_t may_store;   /* its kernels can store gradients; stores_grads: they were declared to do so */
    int32_t stores_grads;
    struct model_half *halves;     /* per block, when parameters come in bf16 */
    struct model_chunked *chunked; /* per block */
    int32_t first_sample;          /* first sample of the chunk that a block works on; otherwise 0 */
    const void *host_batch;        /* host copy if the host cannot read call->batch (model_run) */
} model;
struct model_ops {
    const char *name;
    model_options defaults;
    int32_t optimizer_groups;
    const struct decoder_family
        *decoder; /* decoder/decoder.h, bf16 throughout by itself; null: another kind of model */
    tess_status (*check)(const model_ops *, const model_options *); /* may be null */
    /** Null: none. A device's kernels trust the host's batch: TESS_E_DATA names what they must not see. */
    tess_status (*check_batch)(const model *, const void *batch);
    tess_status (*build)(model *); /* operators, parameters, blocks; release undoes a partial one */
    void (*release)(model *);
};
extern const model_ops model_mnist, model_gpt, model_gpt2, model_llama, model_qwen2, model_qwen3, model_mistral,
    model_gemma2, model_gemma3, model_linear, model_convbn;
extern const model_ops *const model_table[]; /* ends with null */

/** Makes the model `name`; TESS_E_INVALID names what is wrong with an option. Local. */
tess_status model_create(const char *name, const model_options *, model **out);
void model_destroy(model *); /* after tess_close; null is fine */
/** Declares parameters, ties and blocks; before tess_shard. The parameter's index is its tag. The engine must have been
 * opened with input_bytes = desc.input_bytes. */
tess_status model_declare(tess *, model *);
/** Calls `fill`, which gives fp32, for a range of any parameter, and converts it for parameters stored in blocks. */
tess_status model_fill_stored(const model *, const tess_range *, void *data, tess_range_fn fill, void *user);
/** The compute dtype that the engine's precision gives the parameters, for model_options.precision. It is called
 * between tess_open and model_declare; the model may have been made for either. TESS_E_UNSUPPORTED: for something the
 * models do not compute in. */
tess_status model_precision(tess *, const model *, uint32_t *out);
/** Binds operators of a device to the engine's device and compute stream. Call it after tess_open. */
tess_status model_start(tess *, model *);
/** Replaces tess_run; needed if the operators' memory is not the host's. */
tess_status model_run(tess *, model *, const tess_run_options *);
/** Does the same without tess_run_wait. If may_repeat is 0, it calls the blocks instead of replaying a recording. */
tess_status model_run_late(tess *, model *, const tess_run_options *, int may_repeat);
/** A tess_range_fn, `user` the model: initial values, each a function of seed, parameter and element. */
tess_status model_fill(void *user, const tess_range *, void *data);

/** Keeps keys and values of one sequence from pass to pass, so that a token costs one position: model_batch.position.
 * Positions follow one another; an earlier one may come again, and forgets those after it. The memory, *bytes, is
 * the model's own, beside the engine's plan. TESS_E_UNSUPPORTED for all but decoders. */
tess_status model_sequence_begin(model *, uint64_t *bytes);
void model_sequence_end(model *);

/* ---- work: cost.c ---------------------------------------------------------------------------------- */
typedef struct {                          /* the cost of one call of a block */
    double forward_flops, backward_flops; /* in products and convolutions; a multiply-add counts two */
    double forward_bytes, backward_bytes; /* bytes that all other operators read and write */
    int32_t forward_kernels, backward_kernels;
} model_cost;
/** [pure] */
model_cost model_block_cost(const model *, int32_t block);
/** [pure] Of products that a selective backward makes again. */
double model_selective_flops(const model *, int32_t block);
/** [pure] Of one microbatch's forward and backward, without what activations=recompute and selective do again. */
double model_step_flops(const model *);
/** Floating-point operations per second of a product of 512 x 512 matrices, in the model's dtype and with its threads,
 * the best of some; takes about 20 ms. 0: these operators have no such product. */
double model_peak_flops(const model *);
/** Names all that a block's time depends on beside the machine: "gpt batch=6 width=128 heads=4 context=64 threads=1
 * f32". */
void model_key(const model *, char *out, size_t n);

/* ---- batches: 64 bytes of header, then each array at a multiple of 64 ------------------------------ */
typedef struct {
    uint32_t count; /* samples (gpt: target positions, row by row) that count; the rest is padding, e.g. at the end of a
                       test set. Padding must be initialised all the same */
    uint32_t want_logits, logits_row; /* gpt, evaluation: also hand back the logits of position logits_row */
    uint32_t position; /* evaluation, between model_sequence_begin and _end: 1 + the position of the batch's first
                          token, the only one that is computed; its logits are handed back. 0: a whole batch */
    double divisor;    /* decoders: the loss and its gradient are divided by it; 0: by the targets that count */
    uint32_t packed;   /* documents share a sample (LM_BEGINS); on a device with the option `packs` */
    uint32_t reserved[9];
} model_batch;
/* mnist: int32_t labels[batch]; float images[batch][28 · 28], normalised */
static inline int32_t *mnist_labels(void *batch) {
    return (int32_t *)((char *)batch + sizeof(model_batch));
}
static inline float *mnist_images(void *batch, int32_t samples) {
    return (float *)((char *)batch + sizeof(model_batch) + ops_align((uint64_t)samples * sizeof(int32_t)));
}
/* gpt: uint8_t text[batch][context + 1]: position t reads text[t] and predicts text[t + 1] */
static inline uint8_t *gpt_text(void *batch) {
    return (uint8_t *)batch + sizeof(model_batch);
}
typedef struct {
    model_result sum;
    float logits[256]; /* zeros unless wanted */
} gpt_result;
/* other decoders: int32_t tokens[batch][context + 1], as gpt's text. A token may be marked: as a target it does not
 * count; in a packed batch, a document begins, which no later one sees. */
enum { LM_IGNORED = 1 << 29, LM_BEGINS = 1 << 30 };
static inline int32_t lm_token(int32_t marked) {
    return marked < 0 ? marked : marked & ~(LM_IGNORED | LM_BEGINS);
}
static inline int32_t *lm_tokens(void *batch) {
    return (int32_t *)((char *)batch + sizeof(model_batch));
}
/** The result of every decoder: a model_result, then the logits of the wanted position, zeros unless wanted. */
static inline float *lm_logits(void *result) {
    return (float *)((char *)result + sizeof(model_result));
}
/* convbn: float images[batch][size][size][3] */
static inline float *convbn_images(void *batch) {
    return (float *)((char *)batch + sizeof(model_batch));
}
/* linear: float x[batch][3] */
static inline float *linear_input(void *batch) {
    return (float *)((char *)batch + sizeof(model_batch));
}
typedef struct {
    model_result sum;
    float output[3]; /* output of the first row */
    float reserved;
} linear_result;

/** linear's input for global sample `sample`: quarters, so that sums of a few thousand are exact. */
void linear_fill_input(uint64_t sample, float x[3]);
/** The closed form: initial weight, output of the first row x, and the weight after one SGD step on the average over
 * `ranks` ranks of `batch` samples each, rank r holding samples r·batch …. */
void linear_expect(int32_t ranks, int32_t batch, double lr, const float x[3], double weight[9], double output[3],
                   double updated[9]);

/* ---- for the models ------------------------------------------------------------------------------- */
/** Adds a parameter to the block that model__add_block will add next. Dims end at the first 0. */
tess_status model__add_param(model *, const char *name, const int64_t shape[MODEL_DIMS], uint32_t init, float scale);
tess_status model__add_alias(model *, const char *name, const char *of);
/** Whether backward stores parameter i's gradient, so that it need not be zeroed. */
int model__stores_grad(const model *, int32_t i);
/** Running statistics: all elements start as `value`. */
tess_status model__add_buffer(model *, const char *name, int64_t elems, float value);
tess_status model__add_scope(model *, const char *name);
tess_status model__add_block(model *, const model_block *); /* first_param and n_params are filled in here */
/** Converts the blocks, so that parameters, outputs and gradients between blocks are bf16 (bf16.c). */
tess_status model__make_halves(model *);
/** Blocks with `chunks` become ones that loop over them; after model__make_halves. */
tess_status model__make_chunked(model *);
/** Samples of one chunk: few on the CPU, the whole batch where it has no small divisor and on devices. */
int32_t model__chunk_samples(const model *);
/** The batch of this call, for the host to look at; call->batch is for operators. */
static inline const model_batch *model__batch(const model *m, const tess_block_call *call) {
    return m->host_batch ? m->host_batch : call->batch;
}
/** The result's start, for the operators that make one. */
static inline ops_loss *model__loss(const tess_block_call *call) {
    return call->output;
}
/** The dropout mask of layer `layer` in this call. */
ops_dropout model__dropout(const model *, const tess_block_call *, uint32_t layer, float rate);
#endif
