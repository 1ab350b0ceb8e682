/* SPDX-License-Identifier: BSD-3-Clause */
/* The decoders on a device, in the operators of layer_ops.h, so that everything between them is bf16 where the model
 * is. decoder/ has them on the CPU, and says what they are like. One block per layer; what is cheap to make again
 * (normalised rows, the activation's result, attention probabilities) is not saved. */
#ifndef TESS_MODELS_GPT_H
#define TESS_MODELS_GPT_H
#include "decoder/decoder.h"
#include "layer_ops.h"

typedef struct {
    model *m;
    int32_t index;
} gpt_layer;

typedef struct gpt_sequence gpt_sequence;
typedef struct {
    decoder d; /* first: sizes and places of parameters */
    const ops_layer_table *t;
    ops_attention_shape attention;
    ops_rows rows;
    uint64_t row_bytes, q_bytes, qkv_bytes, hidden_bytes, feed_bytes; /* rows of factors; feed: before the activation */
    uint64_t stats_bytes, lse_bytes, ids_bytes, turned_bytes; /* turned: Llama's angles, where backward reads them */
    ops_scratch inner;                                        /* the most any operator of a layer needs */
    double eps;                                               /* of normalisations */
    double *turns;                                            /* Llama's, for each pair of a head's elements */
    gpt_layer *layers;
    uint64_t pitch;         /* of a row of logits: whole vectors */
    uint64_t head_rows;     /* of a chunk of the head */
    gpt_sequence *sequence; /* null: none is being written */
} gpt;

static inline gpt *gpt_of(const model *m) {
    return m->own;
}

/* Takes the next `bytes` of a region. */
static inline void *gpt_cut(char **at, uint64_t bytes) {
    void *p = *at;
    *at += ops_align(bytes);
    return p;
}

static inline uint64_t gpt_most(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}
static inline int gpt_has_dropout(const model *m, const tess_block_call *call) {
    return m->options.dropout > 0 && call->pass & TESS_PASS_TRAIN;
}

/* ---- products: with weights [outputs, inputs] ---------------------------------------------------- */
static inline ops_factors gpt_linear_factors(uint64_t rows, const void *x, const void *w, int64_t inputs,
                                             int64_t outputs, void *y) {
    ops_factors f = { .rows = (int64_t)rows, .columns = outputs, .depth = inputs, .a = x, .b = w, .y = y };
    f.turn_b = 1;
    return f;
}

static inline tess_status gpt_multiply(const model *m, const ops_factors *f, void *workspace) {
    return gpt_of(m)->t->product(m->o, f, workspace);
}

static inline tess_status gpt_linear(const model *m, uint64_t rows, const void *x, const void *w, int64_t inputs,
                                     int64_t outputs, void *y, int32_t add, void *workspace) {
    ops_factors f = gpt_linear_factors(rows, x, w, inputs, outputs, y);
    f.add = add;
    return gpt_multiply(m, &f, workspace);
}

static inline ops_factors gpt_input_factors(const model *m, const void *dy, const void *w, int64_t inputs,
                                            int64_t outputs, void *dx) {
    ops_factors f = { .rows = (int64_t)gpt_of(m)->rows.rows, .columns = inputs, .depth = outputs, .a = dy, .b = w };
    f.y = dx;
    return f;
}

static inline tess_status gpt_input_gradient(const model *m, const void *dy, const void *w, int64_t inputs,
                                             int64_t outputs, void *dx, void *workspace) {
    ops_factors f = gpt_input_factors(m, dy, w, inputs, outputs, dx);
    return gpt_multiply(m, &f, workspace);
}

/* dy_pitch: of a row of dy; 0: outputs. */
static inline tess_status gpt_weight_gradient(const model *m, const void *x, const void *dy, int64_t inputs,
                                              int64_t outputs, int64_t dy_pitch, void *dw, int32_t add,
                                              void *workspace) {
    ops_factors f = { .rows = outputs, .columns = inputs, .depth = (int64_t)gpt_of(m)->rows.rows, .a = dy, .b = x };
    f.y = dw, f.turn_a = 1, f.a_pitch = dy_pitch, f.wide = 1, f.add = add;
    return dw ? gpt_multiply(m, &f, workspace) : TESS_OK;
}

/* ---- gpt_ends.c: the first block and the last ----------------------------------------------------- */
tess_status gpt_build_embed(model *);
/** `layer_scratch`: what a layer's backward takes; a chunk takes as much, or that of the least rows. */
tess_status gpt_build_head(model *, uint64_t layer_scratch);

/* ---- gpt.c: all of it ---------------------------------------------------------------------------- */
tess_status gpt_build(model *); /* after a failure too: gpt_release */
void gpt_release(model *);

/* ---- gpt_layer.c --------------------------------------------------------------------------------- */
uint64_t gpt_layer_saved(const gpt *);
uint64_t gpt_layer_forward_scratch(const gpt *);  /* beside what operators need */
uint64_t gpt_layer_backward_scratch(const gpt *); /* likewise */
int64_t gpt_layer_feed_width(const decoder *);    /* of rows before the activation */
tess_status gpt_layer_forward(void *layer, const tess_block_call *);
tess_status gpt_layer_backward(void *layer, const tess_block_call *);

/* ---- gpt_sequence.c: a pass over one position, where the batch has one ----------------------------- */
tess_status gpt_sequence_begin(model *, uint64_t *bytes); /* as model_sequence_begin */
void gpt_sequence_end(model *);
/** Whether this call computes one position of a sequence, and not a whole batch. */
int gpt_one_position(const model *, const tess_block_call *);
/** The rows that a forward computes. */
ops_rows gpt_rows_of(const model *, const tess_block_call *);
/** The position of the first of them. */
uint64_t gpt_first_position(const model *, const tess_block_call *);
/** The first block begins the pass, the last one ends it; nothing where it is one over a whole batch. TESS_E_INVALID:
 * there is no position before this one. */
tess_status gpt_sequence_enter(const model *, const tess_block_call *);
void gpt_sequence_leave(const model *, const tess_block_call *);
typedef struct { /* what attention takes */
    ops_attention_shape shape;
    void *all, *rows; /* queries, keys and values of all positions; of this call's */
} gpt_view;
/** qkv: those of a whole batch. */
gpt_view gpt_view_of(const gpt_layer *, const tess_block_call *, void *qkv);
#endif
