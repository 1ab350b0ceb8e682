/* SPDX-License-Identifier: BSD-3-Clause */
/* Decoders of GPT-2's and Llama's kind on the CPU: what the files of this folder share. Tensors between operators are
 * fp32 or, for bf16 parameters, bf16; operators compute in fp32 inside, products with fp32 sums. A layer works through
 * its rows by chunks of whole samples, the head by chunks of rows, so that nothing wide exists whole but what backward
 * needs. */
#ifndef TESS_MODELS_DECODER_H
#define TESS_MODELS_DECODER_H
#include "tools/models/model.h"

typedef struct {                                          /* a matrix [outputs, inputs] applied to one chunk of rows */
    ops_matmul *forward, *forward_add, *dx, *dx_add, *dw; /* …_add: what is there grows */
    uint64_t forward_bytes, backward_bytes;               /* the most scratch they need */
} decoder_linear;

enum { /* places of a layer's parameters; an absent one is at -1 */
       DECODER_NORM1_W,
       DECODER_NORM1_B,
       DECODER_Q_W, /* GPT-2: queries, keys and values in one */
       DECODER_Q_B,
       DECODER_K_W,
       DECODER_V_W,
       DECODER_O_W,
       DECODER_O_B,
       DECODER_NORM2_W,
       DECODER_NORM2_B,
       DECODER_GATE_W,
       DECODER_UP_W,
       DECODER_UP_B,
       DECODER_DOWN_W,
       DECODER_DOWN_B,
       DECODER_PLACES
};

enum { DECODER_WHOLE, DECODER_ATTENTION, DECODER_FEED, DECODER_PARTS }; /* halves of a layer can be blocks */

/* ---- families: decoders.c -------------------------------------------------------------------------------- */
enum { DECODER_NONE, DECODER_WIDTH, DECODER_Q, DECODER_KV, DECODER_QKV, DECODER_HIDDEN, DECODER_SIZES };
enum { DECODER_ZEROS, DECODER_ONES, DECODER_NORMAL, DECODER_RESIDUAL }; /* residual: less in deeper models */
typedef struct {                                                        /* a parameter of each layer */
    const char *leaf;
    int32_t place, rows, columns, init; /* DECODER_Q_W, …; DECODER_WIDTH, …; DECODER_ZEROS, … */
} decoder_param;
/* A family is said here and nowhere else. Its parameters say more: one with a gate has SwiGLU, others GELU; one with
 * keys apart has three products for attention, others one; a product has a bias if there is a parameter for it. */
struct decoder_family {
    int32_t bytes;                 /* the batch's tokens are bytes */
    int32_t about_zero;            /* normalises by the root of the mean square */
    const char *embed, *positions; /* tables; positions null: queries and keys turn by them */
    const char *layer, *halves[DECODER_PARTS][2] /* of a half the larger module, and its normalisation */;
    const char *norm_w, *norm_b; /* of the head; norm_b null: none */
    const decoder_param *params;
    int32_t n_params;
};
typedef struct decoder_family decoder_family;

typedef struct decoder decoder;
typedef struct { /* a block */
    decoder *d;
    int32_t index, part;
    int32_t first; /* of its parameters among the layer's */
} decoder_layer;
typedef struct decoder_tiles decoder_tiles;
typedef struct decoder_sequence decoder_sequence;

struct decoder {
    model *m;
    const ops *o;
    const decoder_family *family;
    int32_t about_zero; /* as in the family */
    int32_t rotary, gated;
    int32_t behind; /* queries, keys and values of a chunk lie behind each other; else beside each other in every row */
    int32_t half;   /* tensors are bf16 */
    uint32_t dtype;
    uint64_t elem; /* bytes of one element */
    int64_t batch, time, rows, width, heads, kv_heads, size, q_width, kv_width, qkv_width, hidden, vocabulary;
    int64_t chunk_samples, chunk_rows, head_rows;
    float eps;
    int32_t at[DECODER_PLACES];
    decoder_linear q, k, v, out, up, down, head; /* the gate has the shape of `up` */
    uint64_t attention_bytes;                    /* scratch of all threads */
    decoder_tiles *tiles;
    decoder_sequence *sequence; /* null: none is being written */
    float *turns;               /* Llama: for each position the cosines of its pairs, then the sines */
    decoder_layer *layers;      /* [layer][part] */
};

static inline void *decoder_cut(char **at, uint64_t bytes) {
    void *p = *at;
    *at += ops_align(bytes);
    return p;
}
static inline uint64_t decoder_bytes(const decoder *d, int64_t rows, int64_t width) {
    return ops_align((uint64_t)(rows * width) * d->elem);
}
/** Element `i` of a tensor. */
static inline void *decoder_at(const decoder *d, const void *x, int64_t i) {
    return (char *)(uintptr_t)x + (uint64_t)i * d->elem;
}

static inline int decoder_has(const decoder *d, int place) {
    return d->at[place] >= 0;
}

/* Queries, keys and values of some rows lie as their products make them, each without a gap. */
typedef struct {
    int64_t at, stride; /* elements */
} decoder_part;
static inline decoder_part decoder_q(const decoder *d) {
    return (decoder_part){ 0, d->behind ? d->q_width : d->qkv_width };
}
static inline decoder_part decoder_k(const decoder *d, int64_t rows) {
    return d->behind ? (decoder_part){ rows * d->q_width, d->kv_width } : (decoder_part){ d->q_width, d->qkv_width };
}
static inline decoder_part decoder_v(const decoder *d, int64_t rows) {
    decoder_part k = decoder_k(d, rows);
    return (decoder_part){ k.at + (d->behind ? rows : 1) * d->kv_width, k.stride };
}

/* ---- decoder_shape.c: what a decoder is like wherever it runs; `own` of these models begins with a decoder -- */
void decoder_sizes(model *, decoder *);
/** Radians that pair `pair` of a head's elements is turned by for each position. */
double decoder_frequency(const decoder *, int64_t pair);
tess_status decoder_embed_params(model *);
tess_status decoder_layer_params(model *, const char *layer, int part);
tess_status decoder_head_params(model *);
void decoder_layer_name(const decoder *, int32_t layer, char name[MODEL_NAME]);
uint64_t decoder_input_bytes(const decoder *);
/** TESS_E_DATA: more targets than positions, or a token beyond the vocabulary. */
tess_status decoder_batch_check(const model *, const void *batch);
tess_status decoder_token_check(const decoder *, int32_t token);

/* ---- decoder_build.c: operators and blocks ----------------------------------------------------------- */
tess_status decoder_build(model *);
void decoder_release(model *);
tess_status decoder_sequence_begin(model *, uint64_t *bytes); /* as model_sequence_begin */
void decoder_sequence_end(model *);

/* ---- decoder_layer.c, decoder_ends.c: the blocks ----------------------------------------------------- */
/** Bytes that a part saves, and those that backward makes again of one chunk. */
uint64_t decoder_layer_saved(const decoder *, int part, int selective);
uint64_t decoder_layer_unsaved(const decoder *, int part, int selective);
/** The latter when it saves nothing. */
uint64_t decoder_layer_kept(const decoder *, int part);
uint64_t decoder_layer_forward_scratch(const decoder *, int part);
uint64_t decoder_layer_backward_scratch(const decoder *, int part);
tess_status decoder_layer_forward(void *layer, const tess_block_call *);
tess_status decoder_layer_backward(void *layer, const tess_block_call *);
uint64_t decoder_embed_scratch(const decoder *);
tess_status decoder_embed_forward(void *model, const tess_block_call *);
tess_status decoder_embed_backward(void *model, const tess_block_call *);
uint64_t decoder_head_forward_scratch(const decoder *);
uint64_t decoder_head_backward_scratch(const decoder *);
tess_status decoder_head_forward(void *model, const tess_block_call *);
tess_status decoder_head_backward(void *model, const tess_block_call *);

/* ---- decoder_attention.c ----------------------------------------------------------------------------- */
/** The products of one tile, for each thread. */
tess_status decoder_tiles_create(decoder *);
void decoder_tiles_destroy(decoder_tiles *);
typedef struct {
    char *first; /* as many threads' scratch as fit in first_bytes; null: none */
    uint64_t first_bytes;
    char *rest; /* the other threads': decoder_attention_rest */
} decoder_attention_scratch;
/** Scratch that is left when `first_bytes` lie elsewhere. */
uint64_t decoder_attention_rest(const decoder *, uint64_t first_bytes);
/** Queries, keys and values of samples · time rows → y[samples · time, q_width]; lse[samples, heads, time]. */
tess_status decoder_attention(const decoder *, int64_t samples, const void *qkv, void *y, float *lse,
                              const decoder_attention_scratch *);
tess_status decoder_attention_backward(const decoder *, int64_t samples, const void *qkv, const void *y,
                                       const float *lse, const void *dy, void *dqkv, const decoder_attention_scratch *);

/* ---- decoder_sequence.c: a pass over one position, where the batch has one --------------------------- */
tess_status decoder_sequence_create(decoder *, decoder_sequence **out);
void decoder_sequence_destroy(decoder_sequence *); /* null is fine */
uint64_t decoder_sequence_bytes(const decoder_sequence *);
tess_status decoder_sequence_embed(decoder_sequence *, const tess_block_call *);
tess_status decoder_sequence_layer(decoder_sequence *, const decoder_layer *, const tess_block_call *);
tess_status decoder_sequence_head(decoder_sequence *, const tess_block_call *);
/** The sequence whose position this call computes; null: it is one over a whole batch. */
static inline decoder_sequence *decoder_one_position(const decoder *d, const tess_block_call *call) {
    return ((const model_batch *)call->batch)->position ? d->sequence : NULL;
}

/* ---- decoder_norm.c, decoder_ops.c: the rest, on rows ------------------------------------------------ */
/** stats: mean (0 for Llama) and 1/σ per row. */
void decoder_norm(const decoder *, const void *x, const void *w, const void *b, void *y, float *stats, int64_t rows);
/** dx = the norm's gradient + dy_beside (null: 0). dw and db are added to; null: not computed. */
void decoder_norm_backward(const decoder *, const void *x, const void *w, const float *stats, const void *dy,
                           const void *dy_beside, void *dx, float *dw, float *db, int64_t rows);
/** GELU of `up`, or SiLU of `gate` times `up`; `y` may be `up`. */
void decoder_act(const decoder *, const void *gate, const void *up, void *y, int64_t elems);
/** dy → dup in place; dgate is written where there is a gate, and may be the gate. */
void decoder_act_backward(const decoder *, const void *gate, const void *up, void *dy_dup, void *dgate, int64_t elems);
void decoder_add(const decoder *, const void *x, void *y, int64_t elems); /* y += x */
/** db += the sum of dy's rows; null: nothing. */
void decoder_bias_backward(const decoder *, const void *dy, float *db, int64_t rows, int64_t width);
void decoder_dropout(const decoder *, void *x, int64_t samples, int64_t elems, const ops_dropout *);
/** Turns queries and keys by their positions; `back`: the other way. */
void decoder_rope(const decoder *, void *qkv, int64_t samples, int back);
/** The same for one row, which is at `position`. */
void decoder_rope_one(const decoder *, void *qkv, int64_t position);
/** position null: none. */
void decoder_embedding(const decoder *, const int32_t *ids, const void *table, const void *position, void *y);
void decoder_embedding_one(const decoder *, int32_t id, int64_t at, const void *table, const void *position, void *y);
void decoder_embedding_backward(const decoder *, const int32_t *ids, const void *dy, float *dtable, float *dposition);
/** logits[rows, vocabulary] and the rows' labels → each row's loss, and whether its label is the most likely. */
void decoder_loss(const decoder *, const float *logits, const int32_t *labels, int64_t rows, double *loss,
                  uint8_t *correct);
/** logits → their gradient times `scale`, in fp32 or, where tensors are bf16, into `halves`. Rows from `count`: zeros.
 */
void decoder_loss_backward(const decoder *, float *logits, const int32_t *labels, int64_t rows, int64_t count,
                           float scale, uint16_t *halves);
#endif
