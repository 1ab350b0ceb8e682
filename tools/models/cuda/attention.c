/* SPDX-License-Identifier: BSD-3-Clause */
/* Causal attention by blocks of query rows, for fp32, and for 16 bits with heads too large for kernels_attend.h. Only
 * one block's scores exist at a time; they are small enough to stay in the GPU's cache. Backward computes them again
 * from the saved log-sum-exp.
 *
 * The five products are batches over the heads of a sample. Where heads share keys and values, a batch takes one
 * head of each share. So no two products of a batch add to the same gradient. */
#include "cuda_ops.h"

#include <math.h>

enum { QUERIES = 256 };

typedef struct { /* state of a call, with the sample and block that it works on */
    const cuda_ops *c;
    const ops_attention_shape *s;
    const char *x, *y, *dy;  /* tensors of factors: of 16 bits or fp32 */
    uint64_t elem;           /* bytes of one element */
    int64_t kv_heads, share; /* share: heads that share keys and values */
    int64_t width, pitch;    /* elements of a row of y, and of a row of x */
    int64_t first, rows, columns;
    float *scores, *dp;
    uint16_t *half_p, *half_ds; /* null in fp32 */
    void *workspace;
} attend;

static uint64_t block_elems(const ops_attention_shape *s) {
    int64_t rows = s->time < QUERIES ? s->time : QUERIES;
    return (uint64_t)s->heads * (uint64_t)rows * (uint64_t)s->time;
}
static int32_t kv_heads(const ops_attention_shape *s) {
    return s->kv_heads ? s->kv_heads : s->heads;
}
static uint64_t x_elems(const ops_attention_shape *s) {
    return (uint64_t)s->batch * (uint64_t)s->time * (uint64_t)(s->heads + 2 * kv_heads(s)) * (uint64_t)s->size;
}
static uint64_t workspace_bytes(const ops_attention_shape *s) {
    return ops_cuda_workspace(s->time < QUERIES ? s->time : QUERIES, s->time, s->size, s->heads);
}

void ops_cuda_attention_need(const ops *o, const ops_attention_shape *s, ops_scratch *need) {
    uint64_t scores = ops_align(block_elems(s) * sizeof(float)), half = ops_align(block_elems(s) * sizeof(uint16_t));
    uint64_t wide = ops_align(x_elems(s) * sizeof(float));
    need->forward_bytes = scores + (ops_halves(o) ? half : 0) + workspace_bytes(s);
    need->backward_bytes = 2 * scores + (ops_halves(o) ? wide + 2 * half : 0) + workspace_bytes(s);
}

static void *cut(char **at, uint64_t bytes) {
    void *p = *at;
    *at += ops_align(bytes);
    return p;
}

/* dy is null in forward. *wide: room for dx in fp32, from which 16 bits are rounded. */
static attend prepare(const cuda_ops *c, const ops_attention_shape *s, const void *x, const void *y, const void *dy,
                      char *at, float **wide) {
    attend a = {
        .c = c, .s = s, .x = x, .y = y, .dy = dy, .elem = ops_halves(&c->base) ? sizeof(uint16_t) : sizeof(float)
    };
    a.kv_heads = kv_heads(s), a.share = s->heads / a.kv_heads;
    a.width = (int64_t)s->heads * s->size, a.pitch = a.width + 2 * a.kv_heads * s->size;
    a.scores = cut(&at, block_elems(s) * sizeof(float));
    if (dy)
        a.dp = cut(&at, block_elems(s) * sizeof(float));
    if (ops_halves(&c->base))
        a.half_p = cut(&at, block_elems(s) * sizeof(uint16_t));
    if (ops_halves(&c->base) && dy) {
        a.half_ds = cut(&at, block_elems(s) * sizeof(uint16_t));
        *wide = cut(&at, x_elems(s) * sizeof(float));
    }
    a.workspace = at;
    return a;
}

/* Offsets of row `row` of sample n in [time, heads + 2 kv_heads, size]; part: 0 queries, 1 keys, 2 values. */
static int64_t part_at(const attend *a, int64_t part) {
    return part ? a->width + (part - 1) * a->kv_heads * a->s->size : 0;
}
static const void *x_at(const attend *a, int64_t n, int64_t row, int64_t part) {
    return a->x + (uint64_t)((n * a->s->time + row) * a->pitch + part_at(a, part)) * a->elem;
}
static const void *row_at(const attend *a, const char *y, int64_t n, int64_t row) {
    return y + (uint64_t)((n * a->s->time + row) * a->width) * a->elem;
}

/* A product over one head of each share. The next two functions are the strides from share to share, of queries and
 * of scores. */
static ops_product over_shares(const attend *a) {
    return (ops_product){ .n = (int32_t)a->kv_heads, .halves = ops_halves(&a->c->base), .alpha = 1 };
}
static int64_t heads_step(const attend *a) {
    return a->share * a->s->size;
}
static int64_t scores_of(const attend *a) {
    return a->rows * a->s->time;
}
/* Returns the address `elems` elements of `elem` bytes behind x. */
static void *behind(const void *x, int64_t elems, uint64_t elem) {
    return (char *)(uintptr_t)x + (uint64_t)elems * elem;
}

/* out[rows, columns] = scale · left[rows, size] · keys or values[columns, size]^T */
static tess_status score(const attend *a, const void *left, int64_t left_pitch, const void *right, float scale,
                         float *out) {
    ops_product p = over_shares(a);
    p.rows = a->rows, p.columns = a->columns, p.depth = a->s->size, p.alpha = scale;
    p.a_pitch = left_pitch, p.a_step = heads_step(a);
    p.b = right, p.b_turned = 1, p.b_pitch = a->pitch, p.b_step = a->s->size;
    p.c_pitch = a->s->time, p.c_step = a->share * scores_of(a);
    for (int64_t j = 0; j < a->share; j++) {
        p.a = behind(left, j * a->s->size, a->elem);
        p.c = out + j * scores_of(a);
        OPS_TRY(ops_cuda_product(a->c, &p, a->workspace));
    }
    return TESS_OK;
}

/* out[rows, size] = weights[rows, columns] · keys or values[columns, size]; half: out is of 16 bits. */
static tess_status collect(const attend *a, const void *weights, const void *right, void *out, int64_t out_pitch,
                           int half) {
    ops_product p = over_shares(a);
    p.rows = a->rows, p.columns = a->s->size, p.depth = a->columns;
    p.a_pitch = a->s->time, p.a_step = a->share * scores_of(a);
    p.b = right, p.b_pitch = a->pitch, p.b_step = a->s->size;
    p.c_pitch = out_pitch, p.c_step = heads_step(a), p.half_c = half;
    for (int64_t j = 0; j < a->share; j++) {
        p.a = behind(weights, j * scores_of(a), a->elem);
        p.c = behind(out, j * a->s->size, half ? sizeof(uint16_t) : sizeof(float));
        OPS_TRY(ops_cuda_product(a->c, &p, a->workspace));
    }
    return TESS_OK;
}

/* out[columns, size] of keys or values += weights[rows, columns] turned · right[rows, size] of queries. */
static tess_status spread(const attend *a, const void *weights, const void *right, int64_t right_pitch, float *out) {
    ops_product p = over_shares(a);
    p.rows = a->columns, p.columns = a->s->size, p.depth = a->rows, p.beta = 1;
    p.a_turned = 1, p.a_pitch = a->s->time, p.a_step = a->share * scores_of(a);
    p.b_pitch = right_pitch, p.b_step = heads_step(a);
    p.c = out, p.c_pitch = a->pitch, p.c_step = a->s->size;
    for (int64_t j = 0; j < a->share; j++) {
        p.a = behind(weights, j * scores_of(a), a->elem);
        p.b = behind(right, j * a->s->size, a->elem);
        OPS_TRY(ops_cuda_product(a->c, &p, a->workspace));
    }
    return TESS_OK;
}

static void take_block(attend *a, int64_t first) {
    a->first = first;
    a->rows = a->s->time - first < QUERIES ? a->s->time - first : QUERIES;
    a->columns = first + a->rows;
}

float ops_cuda_attention_scale(const ops_attention_shape *s) {
    return s->scale > 0 ? s->scale : (float)(1.0 / sqrt(s->size));
}

static const int32_t *places_of(const ops_attention_shape *s, int64_t n) {
    return s->places ? s->places + n * s->time : NULL;
}

static tess_status forward_block(const attend *a, int64_t n, float *lse) {
    const ops_attention_shape *s = a->s;
    uint64_t rows = (uint64_t)s->heads * (uint64_t)a->rows;
    OPS_TRY(score(a, x_at(a, n, a->first, 0), a->pitch, x_at(a, n, 0, 1), ops_cuda_attention_scale(s), a->scores));
    OPS_TRY(OPS_LAUNCH(a->c, attention_softmax, ops_blocks_rows(rows), .scores = a->scores,
                       .lse = lse + n * s->heads * s->time, .half = a->half_p, .heads = (uint64_t)s->heads,
                       .rows = (uint64_t)a->rows, .first = (uint64_t)a->first, .columns = (uint64_t)a->columns,
                       .pitch = (uint64_t)s->time, .time = (uint64_t)s->time, .window = (uint64_t)s->window,
                       .places = places_of(s, n), .cap = s->cap));
    return collect(a, a->half_p ? (void *)a->half_p : a->scores, x_at(a, n, 0, 2),
                   (void *)(uintptr_t)row_at(a, a->y, n, a->first), a->width, a->half_p != NULL);
}

tess_status ops_cuda_attention(const cuda_ops *c, const ops_attention_shape *s, const void *qkv, void *y, float *lse,
                               void *scratch) {
    attend a = prepare(c, s, qkv, y, NULL, scratch, NULL);
    for (int64_t n = 0; n < s->batch; n++)
        for (int64_t first = 0; first < s->time; first += QUERIES) {
            take_block(&a, first);
            OPS_TRY(forward_block(&a, n, lse));
        }
    return TESS_OK;
}

static tess_status backward_block(const attend *a, int64_t n, const float *lse, float *dx) {
    const ops_attention_shape *s = a->s;
    int64_t row = n * s->time;
    uint64_t rows = (uint64_t)s->heads * (uint64_t)a->rows;
    float *dq = dx + (row + a->first) * a->pitch, *dk = dx + row * a->pitch + part_at(a, 1);
    float *dv = dx + row * a->pitch + part_at(a, 2);
    OPS_TRY(score(a, x_at(a, n, a->first, 0), a->pitch, x_at(a, n, 0, 1), ops_cuda_attention_scale(s), a->scores));
    OPS_TRY(score(a, row_at(a, a->dy, n, a->first), a->width, x_at(a, n, 0, 2), 1, a->dp));
    OPS_TRY(OPS_LAUNCH(a->c, attention_slopes, ops_blocks_rows(rows), .scores = a->scores, .dp = a->dp,
                       .half_p = a->half_p, .half_ds = a->half_ds, .lse = lse + n * s->heads * s->time,
                       .y = row_at(a, a->y, n, 0), .dy = row_at(a, a->dy, n, 0), .heads = (uint64_t)s->heads,
                       .rows = (uint64_t)a->rows, .first = (uint64_t)a->first, .columns = (uint64_t)a->columns,
                       .pitch = (uint64_t)s->time, .time = (uint64_t)s->time, .size = (uint64_t)s->size,
                       .window = (uint64_t)s->window, .places = places_of(s, n), .scale = ops_cuda_attention_scale(s),
                       .cap = s->cap, .half = a->half_p != NULL));
    const void *p = a->half_p ? (void *)a->half_p : a->scores, *ds = a->half_ds ? (void *)a->half_ds : a->dp;
    OPS_TRY(collect(a, ds, x_at(a, n, 0, 1), dq, a->pitch, 0));
    OPS_TRY(spread(a, ds, x_at(a, n, a->first, 0), a->pitch, dk));
    return spread(a, p, row_at(a, a->dy, n, a->first), a->width, dv);
}

tess_status ops_cuda_attention_backward(const cuda_ops *c, const ops_attention_shape *s, const void *qkv, const void *y,
                                        const float *lse, const void *dy, void *dqkv, void *scratch) {
    float *wide = dqkv;
    attend a = prepare(c, s, qkv, y, dy, scratch, &wide);
    OPS_TRY(ops_cuda_zero_in(c, wide, x_elems(s) * sizeof(float))); /* several blocks add to keys and values */
    for (int64_t n = 0; n < s->batch; n++)
        for (int64_t first = 0; first < s->time; first += QUERIES) {
            take_block(&a, first);
            OPS_TRY(backward_block(&a, n, lse, wide));
        }
    return wide == dqkv ? TESS_OK : ops_cuda_narrow_in(c, wide, dqkv, x_elems(s));
}
