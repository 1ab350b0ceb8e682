/* SPDX-License-Identifier: BSD-3-Clause */
/* gpt and gpt2 on a device: what gpt.c and gpt_ends.c share. */
#ifndef TESS_MODELS_GPT_H
#define TESS_MODELS_GPT_H
#include "model.h"
#include "layer_ops.h"

typedef struct {
    model *m;
    int32_t index;
} gpt_layer;

typedef struct {
    const ops_layer_table *t;
    ops_attention_shape attention;
    ops_rows rows;
    uint64_t row_bytes, stats_bytes, lse_bytes, ids_bytes; /* row_bytes: rows × width factors */
    ops_scratch inner;                                     /* the most any operator of a layer needs */
    gpt_layer *layers;
    int32_t bytes; /* tokens are bytes */
    uint64_t vocabulary, positions;
    uint64_t pitch;     /* of a row of logits: whole vectors */
    uint64_t head_rows; /* of a chunk of the head */
} gpt;

static inline gpt *gpt_of(const model *m) {
    return m->own;
}
/** Takes the next `bytes` of a region. */
static inline void *gpt_cut(char **at, uint64_t bytes) {
    void *p = *at;
    *at += ops_align(bytes);
    return p;
}
static inline uint64_t gpt_most(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}
/** Bytes of factors. */
static inline uint64_t gpt_factors(const model *m, uint64_t elems) {
    return elems * (m->options.precision == TESS_BF16 ? sizeof(uint16_t) : sizeof(float));
}
static inline int gpt_has_dropout(const model *m, const tess_block_call *call) {
    return m->options.dropout > 0 && call->pass & TESS_PASS_TRAIN;
}

/* ---- gpt_ends.c: the first block and the last ----------------------------------------------------- */
/** Adds the parameter `module`.`leaf` with as many dimensions as are not 0. */
tess_status gpt_add_param(model *, const char *module, const char *leaf, int64_t rows, int64_t columns, uint32_t init,
                          double scale);
tess_status gpt_build_embed(model *);
/** `layer_scratch`: what a layer's backward takes; a chunk takes as much, or that of the least rows. */
tess_status gpt_build_head(model *, uint64_t layer_scratch);
/** Whether the host's batch has tokens of the vocabulary only: kernels trust them. */
tess_status gpt_check_batch(const model *, const void *batch);
#endif
