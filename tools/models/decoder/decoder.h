/* SPDX-License-Identifier: BSD-3-Clause */
/* Decoders of GPT-2's and Llama's kind. A family is a table (decoders.c). decoder_walk.c calls a layer's operators
 * in order; this folder has two sets of them, for the CPU and for devices (device.h). Tensors between operators are
 * fp32, or of 16 bits if the parameters are. Operators compute in fp32 inside, and products sum in fp32.
 *
 * On the CPU a layer works through its rows in chunks of whole samples, and the head in chunks of rows. So only
 * tensors that backward needs exist whole. */
#ifndef TESS_MODELS_DECODER_H
#define TESS_MODELS_DECODER_H
#include "tools/models/fp8.h"
#include "tools/models/model.h"

typedef struct { /* a matrix [outputs, inputs] applied to one chunk of rows */
    ops_matmul *forward, *forward_add, *dx, *dx_add, *dw, *dw_add; /* …_add: y += the product */
    uint64_t forward_bytes, backward_bytes;                        /* the most scratch that one of them needs */
    /* Offsets in that scratch: decoder_lora.c's widened matrix, and the rows between an adapter's two products. */
    uint64_t wide_at, rows_at;
    int64_t rows, inputs, outputs;
    int32_t fp8;     /* its products are in fp8, */
    uint64_t fp8_at; /* and two of x, w and dy are rounded into scratch from this offset on */
} decoder_linear;

enum { /* indices of a layer's parameters; at[] is -1 for an absent one */
       DECODER_NORM1_W,
       DECODER_NORM1_B,
       DECODER_Q_W, /* GPT-2: queries, keys and values in one matrix */
       DECODER_Q_B,
       DECODER_K_W,
       DECODER_K_B,
       DECODER_V_W,
       DECODER_V_B,
       DECODER_QUERY_NORM_W, /* normalises each head */
       DECODER_KEY_NORM_W,
       DECODER_O_W,
       DECODER_O_B,
       DECODER_AFTER1_W, /* normalises the attention half's result; AFTER2: the feed-forward half's */
       DECODER_NORM2_W,  /* the first parameter of the feed-forward half */
       DECODER_NORM2_B,
       DECODER_GATE_W,
       DECODER_UP_W,
       DECODER_UP_B,
       DECODER_DOWN_W,
       DECODER_DOWN_B,
       DECODER_AFTER2_W,
       DECODER_PLACES
};

enum { DECODER_FAR, DECODER_NEAR /* the layer has a window */, DECODER_SIGHTS }; /* each layer is far or near */
enum { DECODER_WHOLE, DECODER_ATTENTION, DECODER_FEED, DECODER_PARTS }; /* the halves of a layer can be blocks */

/* ---- families: decoders.c -------------------------------------------------------------------------------- */
enum { DECODER_NONE, DECODER_WIDTH, DECODER_Q, DECODER_KV, DECODER_QKV, DECODER_HIDDEN, DECODER_HEAD, DECODER_SIZES };
/* DECODER_RESIDUAL: the scale decreases with the number of layers. */
enum { DECODER_ZEROS, DECODER_ONES, DECODER_NORMAL, DECODER_RESIDUAL };
typedef struct { /* a parameter of each layer */
    const char *leaf;
    /* place: DECODER_Q_W, …; rows, columns: DECODER_WIDTH, …; init: DECODER_ZEROS, … */
    int32_t place, rows, columns, init;
} decoder_param;
/* All that distinguishes a family. Its parameters imply the rest: a gate means SwiGLU or GeGLU, otherwise GELU.
 * Separate keys mean three products for attention, otherwise one. A product has a bias if there is a parameter for
 * it. The same holds for the normalisations of heads and of a half's result. */
struct decoder_family {
    int32_t bytes;                                /* the batch's tokens are bytes */
    int32_t about_zero;                           /* normalises by the root of the mean square */
    int32_t one_more;                             /* gains are 1 + the parameter */
    int32_t gelu;                                 /* the gate's activation is GELU, otherwise SiLU */
    int32_t scaled;                               /* embeddings are multiplied by the root of the width */
    const char *embed, *positions;                /* tables; positions null: rotary positions turn queries and keys */
    const char *layer, *halves[DECODER_PARTS][2]; /* the larger module of each half, and its normalisation */
    const char *norm_w, *norm_b;                  /* the head's normalisation; norm_b null: none */
    const decoder_param *params;
    int32_t n_params;
};
typedef struct decoder_family decoder_family;

/* A query sees the keys from decoder_first_key to itself. */
typedef struct {
    int64_t window;   /* number of keys, including itself; 0: all */
    float scale, cap; /* scale: factor of scores; cap: scores become cap · tanh(score / cap); 0: no cap */
    /* On the CPU with rotary positions: per position the cosines of its pairs, then the sines. */
    float *turns;
} decoder_sight;

/** Returns the first key that query row `row` of a sample sees. */
static inline int64_t decoder_first_key(const decoder_sight *s, int64_t row) {
    return s->window > 0 && row >= s->window ? row - s->window + 1 : 0;
}

typedef struct decoder decoder;
typedef struct { /* one block */
    decoder *d;
    int32_t index, part;
    int32_t first; /* index of its first parameter among the layer's */
} decoder_layer;
typedef struct decoder_operators decoder_operators;
typedef struct decoder_tiles decoder_tiles;
typedef struct decoder_sequence decoder_sequence;
enum { DECODER_LINEARS = 7 };
typedef struct { /* products on the CPU; null ones are absent; the gate has the shape of `up` */
    decoder_linear q, k, v, out, up, down, head;
    /* Each product's adapters: to the rank and from it. */
    decoder_linear down_to[DECODER_LINEARS], up_from[DECODER_LINEARS];
} decoder_linears;

struct decoder {
    model *m;
    const ops *o;
    const decoder_operators *t;
    const decoder_family *family;
    int32_t about_zero, one_more, gelu; /* as in the family */
    int32_t rotary, gated;
    int32_t head_norms, after_norms; /* queries and keys are normalised per head; a half's result is normalised */
    float embed_scale, logit_cap;    /* 0: 1, and no cap */
    int32_t beside;                  /* a row holds the results of several products side by side, as devices do */
    int32_t behind;                  /* a chunk's queries are stored first, then its keys, then its values */
    int32_t half;                    /* tensors are bf16 or fp16: LANES_… */
    int32_t fp8;                     /* products are in fp8 if decoder_in_fp8 says so */
    uint32_t dtype;
    uint64_t elem; /* bytes of one element */
    int64_t batch, time, rows, width, heads, kv_heads, size, q_width, kv_width, qkv_width, hidden, vocabulary;
    int64_t chunk_samples, chunk_rows, head_rows /* of a chunk of the head */;
    uint64_t turned_bytes; /* bytes of the angles that a layer saves */
    float eps;
    decoder_sight sights[DECODER_SIGHTS];
    int32_t at[DECODER_PLACES], adapter[DECODER_PLACES]; /* adapter: index of its two parameters; -1: none */
    float adapter_scale;
    uint32_t table;           /* storage format of the table of tokens; STORED_F32: the dtype of tensors */
    decoder_layer *layers;    /* [layer][part] */
    int64_t filled, position; /* the sequence's number of positions so far, and the current one */
    /* Only on the CPU: */
    decoder_linears p;
    uint64_t attention_bytes; /* scratch of all threads */
    decoder_tiles *tiles;
    decoder_sequence *sequence; /* null: no sequence is generated */
};

static inline void *decoder_cut(char **at, uint64_t bytes) {
    void *p = *at;
    *at += ops_align(bytes);
    return p;
}
static inline uint64_t decoder_bytes(const decoder *d, int64_t rows, int64_t width) {
    return ops_align((uint64_t)(rows * width) * d->elem);
}
/** Returns the address of element `i` of a tensor. */
static inline void *decoder_at(const decoder *d, const void *x, int64_t i) {
    return (char *)(uintptr_t)x + (uint64_t)i * d->elem;
}

static inline int decoder_has(const decoder *d, int place) {
    return d->at[place] >= 0;
}

/* Describes where queries, keys or values of some rows lie: behind each other, or side by side in each row. */
typedef struct {
    int64_t at, stride; /* both in elements */
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

/* ---- decoder_shape.c: sizes for the CPU and for devices; `own` of these models begins with a decoder -- */
void decoder_sizes(model *, decoder *);
/** Returns DECODER_FAR or DECODER_NEAR. */
int decoder_nearness(const decoder *, int32_t layer);
static inline const decoder_sight *decoder_sight_of(const decoder_layer *l) {
    return &l->d->sights[decoder_nearness(l->d, l->index)];
}
/** Returns the angle per position, in radians, by which a layer of this nearness turns pair `pair` of a head's
 * elements. */
double decoder_frequency(const decoder *, int nearness, int64_t pair);
/** Returns the factor by which turning lengthens queries and keys. */
double decoder_turn_scale(const decoder *, int nearness);
/** Returns whether both nearnesses turn by the same angles. */
int decoder_turns_alike(const decoder *);
tess_status decoder_embed_params(model *);
/** Returns whether the products of the matrix at `place` with this number of rows are in fp8. */
int decoder_in_fp8(const decoder *, int place, int64_t rows);
int decoder_is_in(const decoder_param *, int part);
tess_status decoder_layer_params(model *, const char *layer, int part);
tess_status decoder_head_params(model *);
typedef struct { /* parameters of a block that is not a layer, and their gradients in backward; null: none */
    const void *table, *positions, *norm_w, *norm_b, *head;
    float *dtable, *dpositions, *norm_dw, *norm_db, *dhead;
} decoder_ends;
decoder_ends decoder_ends_of(const decoder *, const tess_block_call *, int is_head);
uint64_t decoder_input_bytes(const decoder *);
/** TESS_E_DATA: there are more targets than positions, or a token is beyond the vocabulary. */
tess_status decoder_batch_check(const model *, const void *batch);
tess_status decoder_token_check(const decoder *, int32_t token);
/** Returns the factor of each row's gradient, with the scale of losses. */
float decoder_loss_scale(const tess_block_call *);
/** Begins a pass over one position. TESS_E_INVALID: an earlier position is missing. */
tess_status decoder_position_enter(decoder *, const model_batch *);

/* ---- a layer ------------------------------------------------------------------------------------------ */
typedef struct { /* values that forward keeps for backward */
    void *qkv, *attended, *middle /* the input plus attention's result */, *gate, *up;
    float *stats1, *stats2, *lse;
    float *turned; /* null: not kept */
    void *heads;   /* queries and keys before their normalisation, stored as decoder_q and decoder_k say */
    float *head_stats;
    void *after1, *after2; /* results of the halves before their normalisation */
    float *after1_stats, *after2_stats;
} decoder_kept;

typedef struct {  /* parts of scratch */
    char *normal; /* normalised rows; in backward on the CPU also gradients of that width */
    char *wide;   /* the activation's result; then the gradient of up, and that of queries, keys and values */
    char *inner;  /* scratch of operators */
    /* Scratch of operators: `early` for those that run while `normal` is free, `late` for those while `up` is. */
    char *early, *late;
    char *up;                                            /* a place that attention may use instead; null: none */
    char *dropped;                                       /* a gradient after dropout's backward */
    char *dfeed, *d1, *d2, *dmiddle, *masked1, *masked2; /* devices: gradients that are kept until the layer ends */
    const void *dy, *dattention;                         /* gradients of the halves' results */
    /* Devices, products in fp8: of normalised rows, in backward of gradients; of the activation's result, and of rows
     * that backward computes again. */
    fp8_found found, found_too;
} decoder_rooms;

typedef struct { /* the rows of a layer on which one call of its operators works */
    const decoder *d;
    const decoder_layer *l;
    const tess_block_call *call;
    const decoder_linears *p;
    int64_t first, rows;
    decoder_kept k;
    decoder_rooms z;
} decoder_chunk;

/* The operators of a layer, in the order in which decoder_walk.c calls them. `half` is DECODER_ATTENTION or
 * DECODER_FEED. */
struct decoder_operators {
    uint64_t bytes;                 /* size of model.own, which begins with a decoder */
    int32_t flags;                  /* flags of a layer's block */
    int32_t remakes;                /* backward recomputes unsaved values, and a layer may be two blocks */
    tess_status (*create)(model *); /* called after decoder_sizes; destroy follows even a failure */
    void (*destroy)(model *);
    void (*measure_embed)(const decoder *, model_block *);
    void (*measure_head)(decoder *, model_block *);
    /* Scratch of a part's operators beyond what the walk places; backward's includes its rooms. */
    uint64_t (*forward_need)(const decoder *, int part);
    uint64_t (*backward_need)(const decoder *, int part);
    void (*place_rooms)(decoder_chunk *, char *at);
    /** Returns the chunk for a pass over one position; null: the chunk of a whole batch serves. */
    decoder_chunk (*position)(const decoder_layer *, const tess_block_call *);
    /* forward */
    tess_status (*norm)(decoder_chunk *, int half);    /* input of the half → normal */
    tess_status (*project)(decoder_chunk *, int half); /* normal → qkv, or gate and up */
    tess_status (*attend)(decoder_chunk *);            /* qkv, turned by positions → attended */
    tess_status (*join)(decoder_chunk *, int half); /* adds the half's result: attended → middle, or wide → output */
    tess_status (*activate)(decoder_chunk *);       /* gate, up → wide */
    tess_status (*remake_after)(decoder_chunk *);   /* wide → after2; null: backward recomputes nothing */
    /* Backward operators. Each also computes the gradients of the parameters that its forward reads. */
    tess_status (*activate_backward)(decoder_chunk *);          /* gradient of the output → gate and up */
    tess_status (*attend_backward)(decoder_chunk *);            /* gradient of the middle → qkv */
    tess_status (*project_backward)(decoder_chunk *, int half); /* gradient of the half's input */
    tess_status (*sequence_begin)(model *, uint64_t *bytes);    /* as model_sequence_begin */
    void (*sequence_end)(model *);
};
extern const decoder_operators decoder_on_host;   /* decoder_layer.c */
extern const decoder_operators decoder_on_device; /* device_layer.c */

/** Returns a parameter of the layer; decoder_grad returns its gradient. Null: there is none. */
static inline const void *decoder_weight(const decoder_chunk *c, int place) {
    int32_t at = place < 0 ? -1 : c->d->at[place];
    return at < 0 ? NULL : c->call->params[at - c->l->first];
}
static inline float *decoder_grad(const decoder_chunk *c, int place) {
    int32_t at = place < 0 ? -1 : c->d->at[place];
    return at < 0 ? NULL : c->call->grads[at - c->l->first];
}
/** Returns the chunk's rows of a tensor that has the layer's width. */
static inline void *decoder_rows_of(const decoder_chunk *c, const void *x) {
    return decoder_at(c->d, x, c->first * c->d->width);
}
/** A layer has two masks, numbered after the embedding's. */
static inline ops_dropout decoder_drop(const decoder_chunk *c, int half) {
    uint32_t at = 1 + 2 * (uint32_t)c->l->index + (half == DECODER_FEED);
    return model__dropout(c->d->m, c->call, at, c->d->m->options.dropout);
}

/* ---- decoder_lora.c: adapters, and matrices that are stored in another dtype than products read ------------ */
/** Returns whether a matrix is. One that the engine provides in the dtype of tensors needs no widening. */
static inline int decoder_widens(const decoder *d, uint32_t stored) {
    return d->m->options.lora.rank && stored != STORED_F32 && stored_dtype(stored) != d->dtype;
}
/** Finds the targets, and numbers each half's adapters after its parameters. TESS_E_INVALID: the family has no such
 * product. */
tess_status decoder_lora_find(decoder *);
tess_status decoder_lora_params(model *, const char *layer, int half);
/** Makes the products of adapters and enlarges the scratch of all products, which must have been made. */
tess_status decoder_lora_linears(const decoder *, int64_t rows, int64_t head_rows, int trains, decoder_linears *);
/** Returns the matrix at `place` as products read it; it is widened into `scratch` if it is stored otherwise. */
const void *decoder_matrix(const decoder_chunk *, const decoder_linear *, int place, char *scratch);
const void *decoder_table(const decoder *, const decoder_linear *, const void *table, char *scratch);
/** y += the result of the adapter at `place` for x. Without an adapter this and the next two do nothing. */
tess_status decoder_adapt(const decoder_chunk *, const decoder_linear *, int place, const void *x, void *y,
                          char *scratch);
/** Computes the gradients of the adapter's parameters. */
tess_status decoder_adapt_weights(const decoder_chunk *, const decoder_linear *, int place, const void *x,
                                  const void *dy, char *scratch);
/** Adds the adapter's part to dx. */
tess_status decoder_adapt_input(const decoder_chunk *, const decoder_linear *, int place, const void *dy, void *dx,
                                char *scratch);

/* ---- decoder_build.c: blocks --------------------------------------------------------------------------- */
tess_status decoder_build(model *);
void decoder_release(model *);

/* ---- decoder_walk.c: forward and backward of a layer, on the CPU and on devices --------------------------- */
void decoder_measure_layer(const decoder *, int part, model_block *);
tess_status decoder_layer_forward(void *layer, const tess_block_call *);
tess_status decoder_layer_backward(void *layer, const tess_block_call *);

/* ---- decoder_host.c, decoder_layer.c, decoder_ends.c: on the CPU ----------------------------------------- */
/** Makes products for this number of rows; trains 0: only those of forward. */
tess_status decoder_linears_create(const decoder *, int64_t rows, int64_t head_rows, int trains, decoder_linears *);
void decoder_linears_destroy(const decoder *, const decoder_linears *);
/** Returns the most scratch that one of them needs forward. */
uint64_t decoder_linears_forward_bytes(const decoder_linears *);
tess_status decoder_host_create(model *);
void decoder_host_destroy(model *);
void decoder_host_embed(const decoder *, model_block *);
void decoder_host_head(decoder *, model_block *);

/** Returns whether kernels store a gradient instead of adding to it, which they do in the first chunk. */
static inline int decoder_stores(const decoder *d, int64_t first) {
    return d->m->stores_grads && first == 0;
}
/** Returns the gradient of `elems` elements for kernels that add, zeroed if they would have to store. It is for
 * gradients that are small or mostly zeros. */
float *decoder_sum(const decoder *, float *grad, int64_t elems, int64_t first);

/* ---- decoder_attention.c ----------------------------------------------------------------------------- */
/** Makes the products of one tile for each thread. */
tess_status decoder_tiles_create(decoder *);
void decoder_tiles_destroy(decoder_tiles *);
typedef struct {
    char *first; /* scratch of as many threads as fit into first_bytes; null: none */
    uint64_t first_bytes;
    char *rest; /* scratch of the other threads: decoder_attention_rest bytes */
} decoder_attention_scratch;
/** Returns the scratch that remains if `first_bytes` lie elsewhere. */
uint64_t decoder_attention_rest(const decoder *, uint64_t first_bytes);
/** Reads queries, keys and values of samples · time rows, and writes y[samples · time, q_width] and lse[samples,
 * heads, time]. `packed` is decoder_packed's result. */
tess_status decoder_attention(const decoder *, const decoder_sight *, int64_t samples, const int32_t *packed,
                              const void *qkv, void *y, float *lse, const decoder_attention_scratch *);
tess_status decoder_attention_backward(const decoder *, const decoder_sight *, int64_t samples, const int32_t *packed,
                                       const void *qkv, const void *y, const float *lse, const void *dy, void *dqkv,
                                       const decoder_attention_scratch *);
/** Returns the samples' tokens from row `first` on if documents share samples; null: each sample is one document. */
static inline const int32_t *decoder_packed(const decoder *d, const tess_block_call *call, int64_t first) {
    void *batch = (void *)(uintptr_t)call->batch;
    return ((model_batch *)batch)->packed ? lm_tokens(batch) + first / d->time * (d->time + 1) : NULL;
}
/** Returns the position in sample `b` at which the document of position `at` begins. */
static inline int64_t decoder_begin(const decoder *d, const int32_t *packed, int64_t b, int64_t at) {
    int64_t begin = packed ? at : 0;
    while (begin > 0 && !(packed[b * (d->time + 1) + begin] & LM_BEGINS))
        begin--;
    return begin;
}

/* ---- decoder_sequence.c: a pass over one position, if the batch asks for one ---------------------------- */
tess_status decoder_sequence_begin(model *, uint64_t *bytes); /* as model_sequence_begin */
void decoder_sequence_end(model *);
decoder_chunk decoder_sequence_chunk(const decoder_layer *, const tess_block_call *);
tess_status decoder_sequence_attend(const decoder_chunk *);
tess_status decoder_sequence_embed(decoder *, const tess_block_call *);
tess_status decoder_sequence_head(decoder *, const tess_block_call *);
/** Returns the sequence whose position this call computes; null: the call computes a whole batch. */
static inline decoder_sequence *decoder_one_position(const decoder *d, const tess_block_call *call) {
    return d->sequence && ((const model_batch *)call->batch)->position ? d->sequence : NULL;
}

/* ---- decoder_norm.c, decoder_act.c, decoder_ops.c, decoder_loss.c: other operators on rows --------------- */
typedef struct { /* rows of `width` */
    int64_t rows, width;
    const void *x, *w, *b;
    float *stats; /* per row mean (0 for Llama) and 1/σ, written by forward */
} decoder_norm_of;
void decoder_norm(const decoder *, const decoder_norm_of *, void *y);
/** dx = the normalisation's gradient + dy_beside (null: 0); dx may be dy. dw and db are added to; a null one is not
 * computed. */
void decoder_norm_backward(const decoder *, const decoder_norm_of *, const void *dy, const void *dy_beside, void *dx,
                           float *dw, float *db);
/** y = GELU of `up`, or SiLU or GELU of `gate` times `up`; `y` may be `up`. */
void decoder_act(const decoder *, const void *gate, const void *up, void *y, int64_t elems);
/** Replaces dy by dup. dgate is written if there is a gate, and may be the gate. */
void decoder_act_backward(const decoder *, const void *gate, const void *up, void *dy_dup, void *dgate, int64_t elems);
void decoder_add(const decoder *, const void *x, void *y, int64_t elems); /* y += x */
/** db += the sum of dy's rows; does nothing if db is null. */
void decoder_bias_backward(const decoder *, const void *dy, float *db, int64_t rows, int64_t width);
void decoder_dropout(const decoder *, void *x, int64_t samples, int64_t elems, const ops_dropout *);
/** Turns queries and keys by their positions; `back` reverses the direction. */
void decoder_rope(const decoder *, const decoder_sight *, void *qkv, int64_t samples, int back);
/** Turns one row, which is at `position`. */
void decoder_rope_one(const decoder *, const decoder_sight *, void *qkv, int64_t position);
/** A null position adds none. In a packed batch positions start again with each document. */
void decoder_embedding(const decoder *, const int32_t *ids, const int32_t *packed, const void *table,
                       const void *position, void *y);
void decoder_embedding_one(const decoder *, int32_t id, int64_t at, const void *table, const void *position, void *y);
void decoder_embedding_backward(const decoder *, const int32_t *ids, const int32_t *packed, const void *dy,
                                float *dtable, float *dposition);
/** Replaces logits by cap · tanh(logit / cap) if there is a cap. */
void decoder_cap(const decoder *, float *logits, int64_t rows);
/** Reads logits[rows, vocabulary] and labels; writes each row's loss, and whether its label is the most likely. A
 * label of -1 has neither. */
void decoder_loss(const decoder *, const float *logits, const int32_t *labels, int64_t rows, double *loss,
                  uint8_t *correct);
/** Replaces logits by their gradient times `scale`, in fp32, or writes it into `halves` if tensors are bf16. Rows
 * from `count` on and those with a label of -1 become zeros. */
void decoder_loss_backward(const decoder *, float *logits, const int32_t *labels, int64_t rows, int64_t count,
                           float scale, uint16_t *halves);
#endif
