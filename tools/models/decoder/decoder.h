/* SPDX-License-Identifier: BSD-3-Clause */
/* Decoders of GPT-2's and Llama's kind. A family is a table (decoders.c), a layer one walk (decoder_walk.c) over two
 * sets of operators: those of this folder for the CPU, and those of device.h for devices. Tensors between operators are
 * fp32 or, for bf16 parameters, bf16; operators compute in fp32 inside, products with fp32 sums. On the CPU a layer
 * works through its rows by chunks of whole samples, the head by chunks of rows, so that nothing wide exists whole but
 * what backward needs. */
#ifndef TESS_MODELS_DECODER_H
#define TESS_MODELS_DECODER_H
#include "tools/models/model.h"

typedef struct { /* a matrix [outputs, inputs] applied to one chunk of rows */
    ops_matmul *forward, *forward_add, *dx, *dx_add, *dw, *dw_add; /* …_add: what is there grows */
    uint64_t forward_bytes, backward_bytes;                        /* the most scratch they need */
    uint64_t wide_at, rows_at; /* there: decoder_lora.c's widened matrix, and the rows between its two products */
} decoder_linear;

enum { /* places of a layer's parameters; an absent one is at -1 */
       DECODER_NORM1_W,
       DECODER_NORM1_B,
       DECODER_Q_W, /* GPT-2: queries, keys and values in one */
       DECODER_Q_B,
       DECODER_K_W,
       DECODER_K_B,
       DECODER_V_W,
       DECODER_V_B,
       DECODER_QUERY_NORM_W, /* of every head */
       DECODER_KEY_NORM_W,
       DECODER_O_W,
       DECODER_O_B,
       DECODER_AFTER1_W, /* normalises what the half adds; so AFTER2 */
       DECODER_NORM2_W,  /* the first of the feed-forward half */
       DECODER_NORM2_B,
       DECODER_GATE_W,
       DECODER_UP_W,
       DECODER_UP_B,
       DECODER_DOWN_W,
       DECODER_DOWN_B,
       DECODER_AFTER2_W,
       DECODER_PLACES
};

enum { DECODER_FAR, DECODER_NEAR /* in a window */, DECODER_SIGHTS };   /* a layer is one of them */
enum { DECODER_WHOLE, DECODER_ATTENTION, DECODER_FEED, DECODER_PARTS }; /* halves of a layer can be blocks */

/* ---- families: decoders.c -------------------------------------------------------------------------------- */
enum { DECODER_NONE, DECODER_WIDTH, DECODER_Q, DECODER_KV, DECODER_QKV, DECODER_HIDDEN, DECODER_HEAD, DECODER_SIZES };
enum { DECODER_ZEROS, DECODER_ONES, DECODER_NORMAL, DECODER_RESIDUAL }; /* residual: less in deeper models */
typedef struct {                                                        /* a parameter of each layer */
    const char *leaf;
    int32_t place, rows, columns, init; /* DECODER_Q_W, …; DECODER_WIDTH, …; DECODER_ZEROS, … */
} decoder_param;
/* A family is said here and nowhere else. Its parameters say more: one with a gate has SwiGLU or GeGLU, others GELU;
 * one with keys apart has three products for attention, others one; a product has a bias, a head's queries and a half's
 * result are normalised, if there is a parameter for it. */
struct decoder_family {
    int32_t bytes;                                /* the batch's tokens are bytes */
    int32_t about_zero;                           /* normalises by the root of the mean square */
    int32_t one_more;                             /* gains are 1 + the parameter */
    int32_t gelu;                                 /* of the gate */
    int32_t scaled;                               /* embeddings, by the root of the width */
    const char *embed, *positions;                /* tables; positions null: queries and keys turn by them */
    const char *layer, *halves[DECODER_PARTS][2]; /* of a half the larger module, and its normalisation */
    const char *norm_w, *norm_b;                  /* of the head; norm_b null: none */
    const decoder_param *params;
    int32_t n_params;
};
typedef struct decoder_family decoder_family;

/* How a layer's queries see keys: each row those from decoder_first_key to itself. */
typedef struct {
    int64_t window;   /* so many, itself among them; 0: all */
    float scale, cap; /* of scores; cap: they become cap · tanh(score / cap); 0: as they are */
    float *turns;     /* on the CPU, where positions turn queries and keys: for each the cosines of its pairs, then the
                         sines */
} decoder_sight;

/** The first key that query row `row` of a sample sees. */
static inline int64_t decoder_first_key(const decoder_sight *s, int64_t row) {
    return s->window > 0 && row >= s->window ? row - s->window + 1 : 0;
}

typedef struct decoder decoder;
typedef struct { /* a block */
    decoder *d;
    int32_t index, part;
    int32_t first; /* of its parameters among the layer's */
} decoder_layer;
typedef struct decoder_operators decoder_operators;
typedef struct decoder_tiles decoder_tiles;
typedef struct decoder_sequence decoder_sequence;
enum { DECODER_LINEARS = 7 };
typedef struct { /* products on the CPU, null where there is none; the gate has the shape of `up` */
    decoder_linear q, k, v, out, up, down, head;
    decoder_linear down_to[DECODER_LINEARS], up_from[DECODER_LINEARS]; /* adapters of each, to the rank and from it */
} decoder_linears;

struct decoder {
    model *m;
    const ops *o;
    const decoder_operators *t;
    const decoder_family *family;
    int32_t about_zero, one_more, gelu; /* as in the family */
    int32_t rotary, gated;
    int32_t head_norms, after_norms; /* queries and keys are normalised by heads; what a half adds is */
    float embed_scale, logit_cap;    /* 0: none */
    int32_t beside; /* several products of the same rows lie beside each other in every row, as on a device */
    int32_t behind; /* queries, keys and values of a chunk lie behind each other */
    int32_t half;   /* tensors are bf16 */
    uint32_t dtype;
    uint64_t elem; /* bytes of one element */
    int64_t batch, time, rows, width, heads, kv_heads, size, q_width, kv_width, qkv_width, hidden, vocabulary;
    int64_t chunk_samples, chunk_rows, head_rows;
    uint64_t turned_bytes; /* of the angles that a layer saves */
    float eps;
    decoder_sight sights[DECODER_SIGHTS];
    int32_t at[DECODER_PLACES], adapter[DECODER_PLACES]; /* adapter: its two; -1: none */
    float adapter_scale;
    uint32_t table;           /* how the table of tokens comes: STORED_F32 is as tensors are */
    decoder_layer *layers;    /* [layer][part] */
    int64_t filled, position; /* of a sequence: positions that are there, and that of the running pass */
    /* On the CPU: */
    decoder_linears p;
    uint64_t attention_bytes; /* scratch of all threads */
    decoder_tiles *tiles;
    decoder_sequence *sequence; /* null: none is being written */
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
/** DECODER_FAR or DECODER_NEAR. */
int decoder_nearness(const decoder *, int32_t layer);
static inline const decoder_sight *decoder_sight_of(const decoder_layer *l) {
    return &l->d->sights[decoder_nearness(l->d, l->index)];
}
/** Radians that pair `pair` of a head's elements is turned by for each position in a layer of this nearness. */
double decoder_frequency(const decoder *, int nearness, int64_t pair);
/** The factor by which turning makes queries and keys longer. */
double decoder_turn_scale(const decoder *, int nearness);
/** Both nearnesses turn by the same angles. */
int decoder_turns_alike(const decoder *);
tess_status decoder_embed_params(model *);
int decoder_is_in(const decoder_param *, int part);
tess_status decoder_layer_params(model *, const char *layer, int part);
tess_status decoder_head_params(model *);
typedef struct { /* parameters of a block that is no layer, and in backward their gradients; null: there is none */
    const void *table, *positions, *norm_w, *norm_b, *head;
    float *dtable, *dpositions, *norm_dw, *norm_db, *dhead;
} decoder_ends;
decoder_ends decoder_ends_of(const decoder *, const tess_block_call *, int is_head);
uint64_t decoder_input_bytes(const decoder *);
/** TESS_E_DATA: more targets than positions, or a token beyond the vocabulary. */
tess_status decoder_batch_check(const model *, const void *batch);
tess_status decoder_token_check(const decoder *, int32_t token);
/** The factor of the slopes of every row's loss. */
float decoder_loss_scale(const model_batch *);
/** Begins a pass over one position. TESS_E_INVALID: there is none before it. */
tess_status decoder_position_enter(decoder *, const model_batch *);

/* ---- a layer ------------------------------------------------------------------------------------------ */
typedef struct { /* from forward to backward */
    void *qkv, *attended, *middle /* the input plus what attention adds */, *gate, *up;
    float *stats1, *stats2, *lse;
    float *turned; /* null: not kept */
    void *heads;   /* queries and then keys, as decoder_q and decoder_k have them, before they are normalised */
    float *head_stats;
    void *after1, *after2; /* what the halves add, before that */
    float *after1_stats, *after2_stats;
} decoder_kept;

typedef struct {        /* scratch */
    char *normal;       /* normalised rows; in backward on the CPU gradients as wide, too */
    char *wide;         /* the activation's result; the gradient of up, and that of queries, keys and values */
    char *inner;        /* of operators */
    char *early, *late; /* of those that run while `normal` is free, and while `up` is */
    char *up;           /* where attention may work instead; null: nowhere */
    char *dropped;      /* a gradient behind dropout */
    char *dfeed, *d1, *d2, *dmiddle, *masked1, *masked2; /* a device's: gradients that stay to the layer's end */
    const void *dy, *dattention;                         /* of what the halves add */
} decoder_rooms;

typedef struct { /* rows of a layer in one call: what its operators work on */
    const decoder *d;
    const decoder_layer *l;
    const tess_block_call *call;
    const decoder_linears *p;
    int64_t first, rows;
    decoder_kept k;
    decoder_rooms z;
} decoder_chunk;

/* The operators of a layer, in the order in which decoder_walk.c calls them. `half`: DECODER_ATTENTION or DECODER_FEED.
 */
struct decoder_operators {
    uint64_t bytes;                 /* of the model's own, which begins with a decoder */
    int32_t flags;                  /* of a layer's block */
    int32_t remakes;                /* backward makes again what was not saved, and a layer may be two blocks */
    tess_status (*create)(model *); /* after the sizes; after a failure too: destroy */
    void (*destroy)(model *);
    void (*measure_embed)(const decoder *, model_block *);
    void (*measure_head)(decoder *, model_block *);
    /* Scratch of a part's operators beside what the walk places; backward's with its rooms. */
    uint64_t (*forward_need)(const decoder *, int part);
    uint64_t (*backward_need)(const decoder *, int part);
    void (*place_rooms)(decoder_chunk *, char *at);
    /** The places of a pass over one position; null: those of a whole batch. */
    decoder_chunk (*position)(const decoder_layer *, const tess_block_call *);
    /* forward */
    tess_status (*norm)(decoder_chunk *, int half);    /* the half's input → normal */
    tess_status (*project)(decoder_chunk *, int half); /* normal → qkv, or gate and up */
    tess_status (*attend)(decoder_chunk *);            /* qkv, turned by their positions → attended */
    tess_status (*join)(decoder_chunk *, int half);    /* attended → middle, or wide → output: the half's sum */
    tess_status (*activate)(decoder_chunk *);          /* gate, up → wide */
    tess_status (*remake_after)(decoder_chunk *);      /* wide → after2; null: no remaking */
    /* backward: each with the gradients of the parameters that its forward reads */
    tess_status (*activate_backward)(decoder_chunk *);          /* from the output to gate and up */
    tess_status (*attend_backward)(decoder_chunk *);            /* from the middle to qkv */
    tess_status (*project_backward)(decoder_chunk *, int half); /* from there to the half's input */
    tess_status (*sequence_begin)(model *, uint64_t *bytes);    /* as model_sequence_begin */
    void (*sequence_end)(model *);
};
extern const decoder_operators decoder_on_host;   /* decoder_layer.c */
extern const decoder_operators decoder_on_device; /* device_layer.c */

/** A parameter of the layer, and its gradient; null: there is none. */
static inline const void *decoder_weight(const decoder_chunk *c, int place) {
    int32_t at = place < 0 ? -1 : c->d->at[place];
    return at < 0 ? NULL : c->call->params[at - c->l->first];
}
static inline float *decoder_grad(const decoder_chunk *c, int place) {
    int32_t at = place < 0 ? -1 : c->d->at[place];
    return at < 0 ? NULL : c->call->grads[at - c->l->first];
}
/** The chunk's rows of a tensor as wide as the layer. */
static inline void *decoder_rows_of(const decoder_chunk *c, const void *x) {
    return decoder_at(c->d, x, c->first * c->d->width);
}
/** Two masks per layer, after those of the embedding. */
static inline ops_dropout decoder_drop(const decoder_chunk *c, int half) {
    uint32_t at = 1 + 2 * (uint32_t)c->l->index + (half == DECODER_FEED);
    return model__dropout(c->d->m, c->call, at, c->d->m->options.dropout);
}

/* ---- decoder_lora.c: adapters, and matrices that rest in another dtype than they are read in --------- */
/** Whether they do. A matrix that the engine hands out in the dtype of tensors needs no widening. */
static inline int decoder_widens(const decoder *d, uint32_t stored) {
    return d->m->options.lora.rank && stored != STORED_F32 && !(stored == STORED_BF16 && d->half);
}
/** Finds the targets, and a place for each half's adapters behind its parameters. TESS_E_INVALID: the family has no
 * such product. */
tess_status decoder_lora_find(decoder *);
tess_status decoder_lora_params(model *, const char *layer, int half);
/** The products of adapters, and room in all products' scratch; after those are made. */
tess_status decoder_lora_linears(const decoder *, int64_t rows, int64_t head_rows, int trains, decoder_linears *);
/** The matrix at `place` as products read it, in `scratch` if it rests otherwise. */
const void *decoder_matrix(const decoder_chunk *, const decoder_linear *, int place, char *scratch);
const void *decoder_table(const decoder *, const decoder_linear *, const void *table, char *scratch);
/** y += what the adapter at `place` makes of x. No adapter: nothing; so the next two. */
tess_status decoder_adapt(const decoder_chunk *, const decoder_linear *, int place, const void *x, void *y,
                          char *scratch);
/** The gradients of its parameters. */
tess_status decoder_adapt_weights(const decoder_chunk *, const decoder_linear *, int place, const void *x,
                                  const void *dy, char *scratch);
/** dx += its part of x's. */
tess_status decoder_adapt_input(const decoder_chunk *, const decoder_linear *, int place, const void *dy, void *dx,
                                char *scratch);

/* ---- decoder_build.c: blocks --------------------------------------------------------------------------- */
tess_status decoder_build(model *);
void decoder_release(model *);

/* ---- decoder_walk.c: a layer forward and backward, on the CPU and on devices ---------------------------- */
void decoder_measure_layer(const decoder *, int part, model_block *);
tess_status decoder_layer_forward(void *layer, const tess_block_call *);
tess_status decoder_layer_backward(void *layer, const tess_block_call *);

/* ---- decoder_host.c, decoder_layer.c, decoder_ends.c: on the CPU ----------------------------------------- */
/** Products of these rows; trains 0: of a forward only. */
tess_status decoder_linears_create(const decoder *, int64_t rows, int64_t head_rows, int trains, decoder_linears *);
void decoder_linears_destroy(const decoder *, const decoder_linears *);
/** The most scratch that one of them takes forward. */
uint64_t decoder_linears_forward_bytes(const decoder_linears *);
tess_status decoder_host_create(model *);
void decoder_host_destroy(model *);
void decoder_host_embed(const decoder *, model_block *);
void decoder_host_head(decoder *, model_block *);

/** Whether the kernels store a gradient, and do not add to it, in the first chunk. */
static inline int decoder_stores(const decoder *d, int64_t first) {
    return d->m->stores_grads && first == 0;
}
/** The gradient of `elems`, zeroed where it would be stored: for those that are small or mostly zeros. */
float *decoder_sum(const decoder *, float *grad, int64_t elems, int64_t first);

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
/** Queries, keys and values of samples · time rows → y[samples · time, q_width]; lse[samples, heads, time]. `packed`:
 * as decoder_packed. */
tess_status decoder_attention(const decoder *, const decoder_sight *, int64_t samples, const int32_t *packed,
                              const void *qkv, void *y, float *lse, const decoder_attention_scratch *);
tess_status decoder_attention_backward(const decoder *, const decoder_sight *, int64_t samples, const int32_t *packed,
                                       const void *qkv, const void *y, const float *lse, const void *dy, void *dqkv,
                                       const decoder_attention_scratch *);
/** The tokens of the samples from row `first` on, where documents share them; null: each sample is one document. */
static inline const int32_t *decoder_packed(const decoder *d, const tess_block_call *call, int64_t first) {
    void *batch = (void *)(uintptr_t)call->batch;
    return ((model_batch *)batch)->packed ? lm_tokens(batch) + first / d->time * (d->time + 1) : NULL;
}
/** Where in sample `b` the document of position `at` begins. */
static inline int64_t decoder_begin(const decoder *d, const int32_t *packed, int64_t b, int64_t at) {
    int64_t begin = packed ? at : 0;
    while (begin > 0 && !(packed[b * (d->time + 1) + begin] & LM_BEGINS))
        begin--;
    return begin;
}

/* ---- decoder_sequence.c: a pass over one position, where the batch has one --------------------------- */
tess_status decoder_sequence_begin(model *, uint64_t *bytes); /* as model_sequence_begin */
void decoder_sequence_end(model *);
decoder_chunk decoder_sequence_chunk(const decoder_layer *, const tess_block_call *);
tess_status decoder_sequence_attend(const decoder_chunk *);
tess_status decoder_sequence_embed(decoder *, const tess_block_call *);
tess_status decoder_sequence_head(decoder *, const tess_block_call *);
/** The sequence whose position this call computes; null: it is one over a whole batch. */
static inline decoder_sequence *decoder_one_position(const decoder *d, const tess_block_call *call) {
    return d->sequence && ((const model_batch *)call->batch)->position ? d->sequence : NULL;
}

/* ---- decoder_norm.c, decoder_ops.c: the rest, on rows ------------------------------------------------ */
typedef struct { /* rows of `width` */
    int64_t rows, width;
    const void *x, *w, *b;
    float *stats; /* mean (0 for Llama) and 1/σ per row: forward makes them */
} decoder_norm_of;
void decoder_norm(const decoder *, const decoder_norm_of *, void *y);
/** dx = the norm's gradient + dy_beside (null: 0); it may be dy. dw and db are added to; null: not computed. */
void decoder_norm_backward(const decoder *, const decoder_norm_of *, const void *dy, const void *dy_beside, void *dx,
                           float *dw, float *db);
/** GELU of `up`, or SiLU or GELU of `gate` times `up`; `y` may be `up`. */
void decoder_act(const decoder *, const void *gate, const void *up, void *y, int64_t elems);
/** dy → dup in place; dgate is written where there is a gate, and may be the gate. */
void decoder_act_backward(const decoder *, const void *gate, const void *up, void *dy_dup, void *dgate, int64_t elems);
void decoder_add(const decoder *, const void *x, void *y, int64_t elems); /* y += x */
/** db += the sum of dy's rows; null: nothing. */
void decoder_bias_backward(const decoder *, const void *dy, float *db, int64_t rows, int64_t width);
void decoder_dropout(const decoder *, void *x, int64_t samples, int64_t elems, const ops_dropout *);
/** Turns queries and keys by their positions; `back`: the other way. */
void decoder_rope(const decoder *, const decoder_sight *, void *qkv, int64_t samples, int back);
/** The same for one row, which is at `position`. */
void decoder_rope_one(const decoder *, const decoder_sight *, void *qkv, int64_t position);
/** position null: none; they begin again with each document of a packed batch. */
void decoder_embedding(const decoder *, const int32_t *ids, const int32_t *packed, const void *table,
                       const void *position, void *y);
void decoder_embedding_one(const decoder *, int32_t id, int64_t at, const void *table, const void *position, void *y);
void decoder_embedding_backward(const decoder *, const int32_t *ids, const int32_t *packed, const void *dy,
                                float *dtable, float *dposition);
/** Logits become cap · tanh(logit / cap), where there is a cap. */
void decoder_cap(const decoder *, float *logits, int64_t rows);
/** logits[rows, vocabulary] and the rows' labels → each row's loss, and whether its label is the most likely; of a
 * label of -1 neither. */
void decoder_loss(const decoder *, const float *logits, const int32_t *labels, int64_t rows, double *loss,
                  uint8_t *correct);
/** logits → their gradient times `scale`, in fp32 or, where tensors are bf16, into `halves`. Rows from `count` and
 * those with a label of -1: zeros. */
void decoder_loss_backward(const decoder *, float *logits, const int32_t *labels, int64_t rows, int64_t count,
                           float scale, uint16_t *halves);
#endif
