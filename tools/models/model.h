/* SPDX-License-Identifier: BSD-3-Clause */
/* The reference models as lists of parameters and blocks. A process makes a model once; the model states its needs
 * in bytes. It is then declared to the engine (model_declare) or run without it (direct.h). */
#ifndef TESS_MODELS_MODEL_H
#define TESS_MODELS_MODEL_H
#include "stored.h"

typedef struct {    /* decoders: low-rank adapters beside products; only the adapters are trained */
    int32_t rank;   /* 0: none */
    int32_t rooted; /* the adapter's result is scaled by alpha / sqrt(rank) instead of alpha / rank */
    float alpha;
    uint32_t matrices, tables; /* storage formats STORED_… of the products' matrices and of the token tables */
    /* The products, by their modules' names or the last parts of those, joined by ','; or "all-linear". */
    char targets[160];
} model_lora;
typedef struct { /* options of decoders; zero is the model's default */
    int32_t vocabulary, kv_heads, head_size, feed /* width of the feed-forward half */;
    int32_t positions; /* gpt2: rows of the table of positions; 0: the context */
    /* llama: the context before a stretch as in Llama 3.1. 0: positions are stretched evenly or not at all. */
    int32_t rope_positions;
    float norm_eps;
    double rope_theta, rope_factor, rope_low, rope_high; /* rope_factor 0: not stretched */
    double rope_fast, rope_slow, rope_attention;         /* YaRN if rope_attention, which scales lengths, is not 0 */
    double rope_local_theta;         /* theta of layers with a window, which are never stretched; 0: rope_theta */
    int32_t rope_whole;              /* YaRN's interpolation begins and ends at whole pairs */
    int32_t window;                  /* keys that a row sees, including itself; 0: all earlier ones */
    int32_t window_from;             /* the first layer with a window */
    int32_t window_every;            /* each window_every-th layer has no window; 0: all have one */
    double query_scalar;             /* scores are divided by its root; 0: the head size */
    double attention_cap, logit_cap; /* caps of scores and of logits; 0: none */
} model_decoder;
typedef struct {   /* zero is the model's default; a model ignores options that it does not use */
    int32_t batch; /* samples per rank and microbatch */
    int32_t layers, heads, width, context; /* gpt: 4, 4, 128, 64 */
    int32_t image_size, hidden;            /* convbn: 224, 128 */
    int32_t head_rows;                     /* decoders: rows per chunk of the head, at most; 0: chosen by size */
    int32_t untied;                        /* decoders: 1: the head has its own matrix */
    int32_t packs;                         /* decoders on a device: 1: batches may be packed */
    int32_t cudnn_attention;               /* decoders on a GPU in 16 bits: cuDNN computes attention */
    int32_t attention_products;            /* see ops_options */
    int32_t half_units;      /* decoders on the CPU: the halves of a layer are separate blocks and units */
    float dropout;           /* below 0: none; the default is 0.25 and 0.5 for mnist and none for gpt */
    float attention_dropout; /* a config may set it, but no model implements it, and training warns */
    model_decoder decoder;
    const char *frozen; /* patterns of parameters that are not trained, such as "embed.*", joined by ','; null: none */
    /* Patterns of optimizer groups: "a.*,b.*:…;c.*:…", where the models do not read what follows ':'. Null: none. */
    const char *groups;
    model_lora lora;
    uint32_t precision; /* dtype of the parameters: TESS_F32 (also 0), TESS_BF16 or TESS_F16 */
    uint32_t products;  /* decoders in bf16: TESS_F8E4M3: products of layers are in fp8; 0: in `precision` */
    int32_t threads;    /* compute threads, 0: 1; with oneDNN bits depend on it */
    uint64_t seed;
    const char *isa, *operators; /* see ops_options.isa and ops_find; null: the best available */
} model_options;

enum { MODEL_NAME = 48, MODEL_DIMS = 4, MODEL_BLOCK_PARAMS = 32 };
enum { MODEL_UNIFORM = 1 /* ± scale */, MODEL_NORMAL /* σ = scale */, MODEL_CONSTANT /* scale */, MODEL_GRID };

typedef struct {
    char name[MODEL_NAME], alias_of[MODEL_NAME]; /* alias_of "": not an alias */
    int64_t shape[MODEL_DIMS], elems;
    int32_t ndim;
    int32_t is_frozen;       /* not trained: it has neither gradient nor optimizer state */
    uint32_t stored;         /* storage format of a frozen matrix, STORED_…; shape and elems are the matrix's */
    int32_t is_adapter;      /* belongs to model_lora */
    int32_t in_fp8;          /* products round it to fp8 */
    int32_t is_buffer;       /* running statistics: fp32, not trained */
    int32_t optimizer_group; /* twice the group of model_options.groups, 0: none; 1 more for a decoder's vectors */
    uint32_t init;           /* MODEL_UNIFORM, … */
    float scale;
} model_param;
typedef struct {
    char name[MODEL_NAME], also[MODEL_NAME]; /* also: a second module whose parameters the block has, or "" */
    int32_t first_param, n_params;           /* parameters in the order of the block's call */
    uint64_t output_bytes, saved_bytes, forward_scratch_bytes, backward_scratch_bytes;
    uint64_t remake_scratch_bytes; /* this and the next two mean the same as in tess_block_options */
    uint64_t selective_saved_bytes, selective_scratch_bytes;
    uint32_t flags; /* TESS_BLOCK_… */
    /* From 2: forward and backward split the samples into this many chunks, and scratch holds one chunk (chunks.c). */
    int32_t chunks;
    tess_block_fn forward, backward;
    void *user;
    /* For bf16 and fp16; there the fields above describe the fp32 computation inside. */
    uint64_t saved_floats_bytes; /* bytes of the first part of `saved`, which is stored in 2 bytes each */
    uint32_t products;           /* bit i: only linear and conv operators, which read bf16, use parameter i */
    int32_t reads_output;        /* backward reads `output` */
} model_block;
typedef struct {
    int32_t n_params, n_blocks, n_scopes;
    model_param *params;
    model_block *blocks;
    char (*scopes)[MODEL_NAME]; /* modules inside blocks that are separate units */
    uint64_t input_bytes,
        result_bytes; /* bytes of a batch, and of the last block's result, a model_result at its start */
} model_desc;

typedef struct { /* the start of every result */
    /* Sum over `count` samples (mnist), tokens (gpt), rows (linear) or batches (convbn), so that ranks' sums can be
     * added. */
    double loss;
    uint64_t correct, count;
    double divisor; /* the batch's divisor; 0 unless the model is a decoder */
} model_result;

typedef struct model_ops model_ops;
typedef struct model {
    const model_ops *t;
    model_options options; /* defaults are filled in */
    model_desc desc;
    ops *o;
    char operators[128];      /* names all that bits depend on, for printing and hashes */
    void *own;                /* the model's operators */
    int32_t matrices, in_fp8; /* decoders: matrices of a layer, and those whose products are in fp8 */
    int32_t may_store;        /* may_store: its kernels can store gradients; stores_grads: it was declared so */
    int32_t stores_grads;
    struct model_half *halves;     /* per block if parameters are bf16; otherwise null */
    struct model_chunked *chunked; /* per block; null without chunks */
    int32_t first_sample;          /* first sample of the chunk that a block works on; 0 without chunks */
    const void *host_batch; /* host copy of the batch, which model_run sets if the host cannot read call->batch */
} model;
struct model_ops {
    const char *name;
    model_options defaults;
    int32_t optimizer_groups;
    /* Not null for decoders (decoder/decoder.h), which handle bf16 themselves. */
    const struct decoder_family *decoder;
    tess_status (*check)(const model_ops *, const model_options *); /* may be null */
    /** Null: nothing to check. A device's kernels trust the batch, so TESS_E_DATA names values that they must not
     * read. */
    tess_status (*check_batch)(const model *, const void *batch);
    /* Makes operators, parameters and blocks; after a failure release undoes what was made. */
    tess_status (*build)(model *);
    void (*release)(model *);
};
extern const model_ops model_mnist, model_gpt, model_gpt2, model_llama, model_qwen2, model_qwen3, model_mistral,
    model_gemma2, model_gemma3, model_linear, model_convbn;
extern const model_ops *const model_table[]; /* ends with null */

/** Makes the model `name`. TESS_E_INVALID names the option that is wrong. It does not communicate. */
tess_status model_create(const char *name, const model_options *, model **out);
void model_destroy(model *); /* called after tess_close; null is fine */
/** Declares parameters, ties and blocks; call it before tess_shard. A parameter's tag is its index. The engine must
 * have been opened with input_bytes = desc.input_bytes. */
tess_status model_declare(tess *, model *);
/** Calls `fill`, which writes fp32, for a range of any parameter, and converts the values if the parameter is stored
 * in blocks. */
tess_status model_fill_stored(const model *, const tess_range *, void *data, tess_range_fn fill, void *user);
/** Writes the compute dtype that the engine's precision gives the parameters, and that of products, into `out`. Call it
 * between tess_open and model_declare; the model may have been made for either dtype. TESS_E_UNSUPPORTED: the
 * models do not compute in that dtype. */
tess_status model_precision(tess *, const model *, model_options *out);
/** Binds a device's operators to the engine's device and compute stream. Call it after tess_open. */
tess_status model_start(tess *, model *);
/** Replaces tess_run; it is required if the operators' memory is not the host's. */
tess_status model_run(tess *, model *, const tess_run_options *);
/** Does the same without tess_run_wait. If may_repeat is 0 it calls the blocks instead of replaying a recording. */
tess_status model_run_late(tess *, model *, const tess_run_options *, int may_repeat);
/** A tess_range_fn whose `user` is the model. It writes initial values, each a function of seed, parameter and
 * element. */
tess_status model_fill(void *user, const tess_range *, void *data);

/** Keeps the keys and values of one sequence between passes, so that a token costs one position
 * (model_batch.position). Positions must follow one another. An earlier position may come again, and discards those
 * after it. The model owns the memory, *bytes, which the engine's plan does not contain. TESS_E_UNSUPPORTED: the
 * model is not a decoder. */
tess_status model_sequence_begin(model *, uint64_t *bytes);
void model_sequence_end(model *);

/* ---- cost.c: estimates of work --------------------------------------------------------------------------- */
typedef struct {                          /* the cost of one call of a block */
    double forward_flops, backward_flops; /* operations of products and convolutions; a multiply-add is two */
    double forward_fp8, backward_fp8;     /* those of them whose factors are rounded to fp8 */
    double forward_bytes, backward_bytes; /* bytes that all other operators read and write */
    int32_t forward_kernels, backward_kernels;
} model_cost;
/** [pure] Returns the cost of one call of a block. */
model_cost model_block_cost(const model *, int32_t block);
/** [pure] Returns the operations of the products that a selective backward repeats. */
double model_selective_flops(const model *, int32_t block);
/** [pure] Returns the operations of one microbatch's forward and backward. It excludes those that
 * activations=recompute and selective repeat. */
double model_step_flops(const model *);
/** [pure] Returns in how many chunks a decoder's head works, and their rows; 0: the model is no decoder. */
int64_t model_head_chunks(const model *, int64_t *rows);
/** Measures the operations per second of a product of 512 x 512 matrices, with the model's dtype and threads. It
 * returns the best of several runs, which take about 20 ms. 0: these operators have no such product. */
double model_peak_flops(const model *);
/** Names all that a block's time depends on except the machine: "gpt batch=6 width=128 heads=4 context=64 threads=1
 * f32". */
void model_key(const model *, char *out, size_t n);

/* ---- batches: a header of 64 bytes, then each array at a multiple of 64 -------------------------------- */
typedef struct {
    /* Samples (gpt: target positions, row by row) that count. The rest is padding, for example at the end of a test
     * set; it must be initialised too. */
    uint32_t count;
    /* gpt, evaluation: if want_logits is set, the result also has the logits of position logits_row. */
    uint32_t want_logits, logits_row;
    /* Evaluation between model_sequence_begin and _end: 1 + the position of the batch's first token. Only that token
     * is computed, and the result has its logits. 0: a whole batch. */
    uint32_t position;
    double divisor;  /* decoders: loss and gradient are divided by it; 0: by the number of targets that count */
    uint32_t packed; /* documents share a sample (LM_BEGINS); on a device only with the option `packs` */
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
/* Other decoders have int32_t tokens[batch][context + 1], used as gpt's text is. A marked token (LM_IGNORED) does
 * not count as a target. In a packed batch a token marked LM_BEGINS starts a document, which later documents do not
 * see. */
enum { LM_IGNORED = 1 << 29, LM_BEGINS = 1 << 30 };
static inline int32_t lm_token(int32_t marked) {
    return marked < 0 ? marked : marked & ~(LM_IGNORED | LM_BEGINS);
}
static inline int32_t *lm_tokens(void *batch) {
    return (int32_t *)((char *)batch + sizeof(model_batch));
}
/** Returns the logits of any decoder's result. They follow the model_result, and are those of the wanted position,
 * or zeros. */
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

/** Fills linear's input for global sample `sample` with multiples of a quarter, so that sums of a few thousand are
 * exact. */
void linear_fill_input(uint64_t sample, float x[3]);
/** Computes the closed form: initial weight, output of the first row x, and the weight after one SGD step. The step
 * averages over `ranks` ranks of `batch` samples each; rank r holds samples r·batch …. */
void linear_expect(int32_t ranks, int32_t batch, double lr, const float x[3], double weight[9], double output[3],
                   double updated[9]);

/** Names the operators, and the products in fp8, in model.operators. */
void model__describe(model *);

/* ---- functions that the models call -------------------------------------------------------------------- */
/** Adds a parameter to the block that the next model__add_block adds. Dimensions end at the first 0. */
tess_status model__add_param(model *, const char *name, const int64_t shape[MODEL_DIMS], uint32_t init, float scale);
tess_status model__add_alias(model *, const char *name, const char *of);
/** Returns whether backward stores parameter i's gradient, so that it need not be zeroed. */
int model__stores_grad(const model *, int32_t i);
/** Adds running statistics whose elements all start as `value`. */
tess_status model__add_buffer(model *, const char *name, int64_t elems, float value);
tess_status model__add_scope(model *, const char *name);
tess_status model__add_block(model *, const model_block *); /* model__add_block fills in first_param and n_params */
/** Wraps the blocks so that parameters, outputs and gradients between blocks are bf16 (bf16.c). */
tess_status model__make_halves(model *);
/** Wraps blocks with `chunks` in loops over their chunks; call it after model__make_halves. */
tess_status model__make_chunked(model *);
/** Returns the samples of one chunk: few on the CPU. On devices, and if the batch has no small divisor, it is the
 * whole batch. */
int32_t model__chunk_samples(const model *);
/** Returns this call's batch for the host to read; call->batch is for operators. */
static inline const model_batch *model__batch(const model *m, const tess_block_call *call) {
    return m->host_batch ? m->host_batch : call->batch;
}
/** Returns the start of the result, for operators that write a loss. */
static inline ops_loss *model__loss(const tess_block_call *call) {
    return call->output;
}
/** Returns what the gradient of the loss is multiplied by. */
static inline float model__loss_scale(const tess_block_call *call) {
    return call->loss_scale > 0 ? call->loss_scale : 1;
}
/** Returns the dropout mask of layer `layer` in this call. */
ops_dropout model__dropout(const model *, const tess_block_call *, uint32_t layer, float rate);
#endif
