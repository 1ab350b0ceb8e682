/* SPDX-License-Identifier: BSD-3-Clause */
/* Kernels for rotary positions, normalised heads and SwiGLU, which layers like Llama's have and GPT-2's do not. */
#ifndef TESS_MODELS_CUDA_KERNELS_LLAMA_H
#define TESS_MODELS_CUDA_KERNELS_LLAMA_H
#include "kernels_layer.h"

/* ---- rotary positions: the two halves of a head are real and imaginary parts -------------------------------- */
enum { OPS_ROTATE_MOST = 256 /* pairs of a head */, OPS_ROTATE_HEADS = 4 /* heads per thread */ };
typedef struct { /* in place: row r is at position first + r mod time; its pair p turns by that position times turns[p]
                  */
    void *x;
    uint64_t rows, time, first, pitch; /* pitch: elements from row to row */
    uint32_t heads, pairs, back; /* heads: the number that turns, at the start of each row; back: turns the other way */
    int32_t half;
    float scale;  /* factor of the turned elements */
    float *table; /* null: not written; otherwise cosine and sine of each pair for the first `time` rows */
    double turns[OPS_ROTATE_MOST]; /* the unit is a turn of a circle */
} ops_args_rotate;
TESS_FN void ops_rotate_head(const ops_args_rotate *a, uint64_t at, uint64_t n, const float *c, const float *s) {
    int vector = ops_is_vector(a->pairs) && ops_is_vector(a->pitch);
    float re[8], im[8];
    ops_get_eight(a->x, at, n, a->half, vector, re);
    ops_get_eight(a->x, at + a->pairs, n, a->half, vector, im);
    for (int k = 0; k < 8; k++) {
        float x = re[k], y = im[k];
        re[k] = x * c[k] - y * s[k];
        im[k] = y * c[k] + x * s[k];
    }
    ops_put_eight(a->x, at, n, a->half, vector, re);
    ops_put_eight(a->x, at + a->pairs, n, a->half, vector, im);
}
OPS_BODY(rotate) {
    uint64_t i = (uint64_t)block * OPS_BLOCK + thread, eights = (a->pairs + 7) / 8;
    uint64_t groups = (a->heads + OPS_ROTATE_HEADS - 1) / OPS_ROTATE_HEADS;
    uint64_t pair = ops_mod(i, eights) * 8, group = ops_mod(ops_div(i, eights), groups);
    uint64_t r = ops_div(ops_div(i, eights), groups), n = a->pairs - pair;
    float c[8], s[8];
    OPS_ONE_PHASE;
    if (r >= a->rows)
        return;
    for (int k = 0; k < 8; k++) {
        double turns = (uint64_t)k < n ? a->turns[pair + (uint64_t)k] : 0;
        ops_turned(turns * (double)(a->first + ops_mod(r, a->time)), &c[k], &s[k]);
        c[k] *= a->scale;
        s[k] *= a->back ? -a->scale : a->scale;
    }
    for (int k = 0; k < 8; k++) {
        uint64_t at = 2 * (r * a->pairs + pair + (uint64_t)k);
        if (a->table && group == 0 && r < a->time && (uint64_t)k < n)
            a->table[at] = c[k], a->table[at + 1] = s[k];
    }
    for (uint64_t h = group * OPS_ROTATE_HEADS; h < (group + 1) * OPS_ROTATE_HEADS && h < a->heads; h++)
        ops_rotate_head(a, r * a->pitch + h * 2 * a->pairs + pair, n, c, s);
}

/* ---- heads of queries and keys, normalised about zero ------------------------------------------------------ */
typedef struct {    /* each row of x starts with heads + kv_heads heads of `size`; a row of lanes handles one head */
    void *x, *kept; /* kept: [rows, heads + kv_heads, size], which backward reads; in backward x holds gradients */
    const void *query_w, *key_w;
    float *stats; /* first all query heads, then the key heads: 0 and 1 / σ */
    uint64_t rows, pitch;
    uint32_t heads, kv_heads, size;
    int32_t half, one_more;
    double eps;
} ops_args_head_norm;
typedef ops_args_head_norm ops_args_head_norm_slopes;
typedef struct {
    uint64_t at, kept, stats; /* offsets of the head in x, in kept, and in stats */
    const void *w;
} ops_head_place;
TESS_FN ops_head_place ops_head_of(const ops_args_head_norm *a, uint64_t i) {
    uint64_t all = a->heads + a->kv_heads, r = ops_div(i, all), h = ops_mod(i, all), of = h - a->heads;
    ops_head_place p = { r * a->pitch + h * a->size, i * a->size, 2 * (r * a->heads + h), a->query_w };
    if (h >= a->heads)
        p.stats = 2 * (a->rows * a->heads + r * a->kv_heads + of), p.w = a->key_w;
    return p;
}
OPS_BODY(head_norm) {
    OPS_ROW;
    if (r >= a->rows * (a->heads + a->kv_heads))
        return;
    ops_head_place p = ops_head_of(a, r);
    if (phase == 0) {
        float sum = 0;
        for (uint64_t c = lane; c < a->size; c += OPS_LANES) {
            float x = ops_get(a->x, p.at + c, a->half);
            sum += x * x;
        }
        room[thread] = (double)sum;
        return;
    }
    float rsigma = ops_rsigma_with(ops_add_lanes(room, within) / (double)a->size, a->eps);
    for (uint64_t c = lane; c < a->size; c += OPS_LANES) {
        float x = ops_get(a->x, p.at + c, a->half);
        ops_put(a->kept, p.kept + c, a->half, x);
        ops_put(a->x, p.at + c, a->half, ops_norm_of(x, 0, rsigma, ops_gain(p.w, c, a->half, a->one_more), 0));
    }
    if (lane == 0) {
        a->stats[p.stats] = 0;
        a->stats[p.stats + 1] = rsigma;
    }
}
OPS_BODY(head_norm_slopes) {
    OPS_ROW;
    if (r >= a->rows * (a->heads + a->kv_heads))
        return;
    ops_head_place p = ops_head_of(a, r);
    float rsigma = a->stats[p.stats + 1], dot = 0;
    if (phase == 0) {
        for (uint64_t c = lane; c < a->size; c += OPS_LANES)
            dot += ops_get(a->x, p.at + c, a->half) * ops_gain(p.w, c, a->half, a->one_more) *
                   (ops_get(a->kept, p.kept + c, a->half) * rsigma);
        room[thread] = (double)dot;
        return;
    }
    dot = (float)(ops_add_lanes(room, within) / (double)a->size);
    for (uint64_t c = lane; c < a->size; c += OPS_LANES) {
        float g = ops_get(a->x, p.at + c, a->half) * ops_gain(p.w, c, a->half, a->one_more);
        ops_put(a->x, p.at + c, a->half,
                ops_layernorm_slope_of(ops_get(a->kept, p.kept + c, a->half), 0, rsigma, g, 0, dot));
    }
}

/* ---- SwiGLU and GeGLU: a row holds the gates and then the values that they scale ------------------------------- */
/* A thread handles eight elements of one row. */
#define OPS_ROW_EIGHT(r, c)                                                                                            \
    uint64_t i_ = (uint64_t)block * OPS_BLOCK + thread, eights_ = (a->width + 7) / 8;                                  \
    uint64_t r = ops_div(i_, eights_), c = ops_mod(i_, eights_) * 8
typedef struct { /* y[rows, width] from x[rows, 2 · width] */
    const void *x;
    void *y;
    uint64_t rows, width;
    int32_t half, gelu;
    ops_found found; /* of y */
} ops_args_swiglu;
TESS_FN void ops_swiglu_eight(const ops_args_swiglu *a, uint64_t r, uint64_t c, uint32_t thread, double *room,
                              uint64_t n, int vector) {
    float gate[8], up[8];
    ops_get_eight(a->x, r * 2 * a->width + c, n, a->half, vector, gate);
    ops_get_eight(a->x, (r * 2 + 1) * a->width + c, n, a->half, vector, up);
    for (int k = 0; k < 8; k++)
        up[k] = a->gelu ? ops_gelu_of(gate[k]) * up[k] : ops_swiglu_of(gate[k], up[k]);
    ops_put_eight(a->y, r * a->width + c, n, a->half, vector, up);
    ops_found_add(&a->found, 0, thread, up, room);
}
OPS_BODY(swiglu) {
    OPS_ROW_EIGHT(r, c);
    if (phase) {
        ops_found_end(&a->found, block, thread, phase - 1, room);
        return;
    }
    ops_found_begin(&a->found, thread, room);
    if (r < a->rows)
        OPS_KNOWN(ops_is_vector(a->width), a->width - c, ops_swiglu_eight, a, r, c, thread, room);
}

typedef struct { /* dx of x[rows, 2 · width], and y computed again; y may be dy */
    const void *x, *dy;
    void *dx, *y;
    uint64_t rows, width;
    int32_t half, gelu;
    ops_found found; /* of dx and y */
} ops_args_swiglu_slopes;
TESS_FN void ops_swiglu_slopes_eight(const ops_args_swiglu_slopes *a, uint64_t r, uint64_t c, uint32_t thread,
                                     double *room, uint64_t n, int vector) {
    float gate[8], up[8], dy[8], dup[8];
    uint64_t at = r * 2 * a->width + c;
    ops_get_eight(a->x, at, n, a->half, vector, gate);
    ops_get_eight(a->x, at + a->width, n, a->half, vector, up);
    ops_get_eight(a->dy, r * a->width + c, n, a->half, vector, dy);
    for (int k = 0; k < 8; k++) {
        float g = gate[k], u = up[k];
        dup[k] = a->gelu ? dy[k] * ops_gelu_of(g) : ops_swiglu_up_slope_of(g, dy[k]);
        gate[k] = a->gelu ? ops_gelu_slope_of(g, dy[k] * u) : ops_swiglu_gate_slope_of(g, u, dy[k]);
        up[k] = a->gelu ? ops_gelu_of(g) * u : ops_swiglu_of(g, u);
    }
    ops_put_eight(a->dx, at, n, a->half, vector, gate);
    ops_put_eight(a->dx, at + a->width, n, a->half, vector, dup);
    ops_put_eight(a->y, r * a->width + c, n, a->half, vector, up);
    ops_found_add(&a->found, 0, thread, gate, room);
    ops_found_add(&a->found, 0, thread, dup, room);
    ops_found_add(&a->found, 1, thread, up, room);
}
OPS_BODY(swiglu_slopes) {
    OPS_ROW_EIGHT(r, c);
    if (phase) {
        ops_found_end(&a->found, block, thread, phase - 1, room);
        return;
    }
    ops_found_begin(&a->found, thread, room);
    if (r < a->rows)
        OPS_KNOWN(ops_is_vector(a->width), a->width - c, ops_swiglu_slopes_eight, a, r, c, thread, room);
}
#endif
