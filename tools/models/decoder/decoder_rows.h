/* SPDX-License-Identifier: BSD-3-Clause */
/* Access to elements of fp32, bf16 or fp16 tensors, sixteen at a time as fp32. */
#ifndef TESS_MODELS_DECODER_ROWS_H
#define TESS_MODELS_DECODER_ROWS_H
#include "decoder.h"
#include "tools/models/lanes.h"

/** Reads the elements of x from i on; if fewer than 16 remain (n), zeros follow. */
TESS_FN lanes rows_of(int half, const void *x, int64_t i, int64_t n) {
    const char *at = (const char *)x + i * (half ? 2 : 4);
    float room[LANES] = { 0 };
    if (n >= LANES)
        return lanes_load(half, at);
    memcpy(room, at, (size_t)(n * (half ? 2 : 4)));
    return lanes_load(half, room);
}
TESS_FN lanes rows_at(const decoder *d, const void *x, int64_t i, int64_t n) {
    return rows_of(d->half, x, i, n);
}
TESS_FN lanes floats_at(const float *x, int64_t i, int64_t n) {
    return rows_of(0, x, i, n);
}

TESS_FN void rows_to(int half, lanes v, void *x, int64_t i, int64_t n) {
    char *at = (char *)x + i * (half ? 2 : 4);
    float room[LANES];
    if (n >= LANES) {
        lanes_store(half, v, at);
        return;
    }
    lanes_store(half, v, room);
    memcpy(at, room, (size_t)(n * (half ? 2 : 4)));
}
TESS_FN void rows_put(const decoder *d, lanes v, void *x, int64_t i, int64_t n) {
    rows_to(d->half, v, x, i, n);
}
TESS_FN void floats_put(lanes v, float *x, int64_t i, int64_t n) {
    rows_to(0, v, x, i, n);
}
TESS_FN void floats_add(float *x, int64_t i, int64_t n, lanes v) {
    floats_put(floats_at(x, i, n) + v, x, i, n);
}

/* ---- thirty-two elements, for operators in which order does not matter ----------------------------------- */
enum { PAIR = 2 * LANES };
/** Reads the elements of x from i on in lanes_pair's order. */
TESS_FN lanes_pair pair_of(int half, const void *x, int64_t i) {
    return lanes_pair_load(half, (const char *)x + i * (half ? 2 : 4));
}
TESS_FN void pair_to(int half, lanes_pair v, void *x, int64_t i) {
    lanes_pair_store(half, v, (char *)x + i * (half ? 2 : 4));
}

/* ---- sums over rows ----------------------------------------------------------------------------------- */
/* A column adds up ROWS_TOGETHER rows in fp32 and those sums in double, both in the order of rows. A tile's columns
 * are stored PAIR at a time in the order of lanes_pair_place, and the rest one by one. */
enum { ROWS_TOGETHER = 16, TILE = 1024 /* columns */ };

TESS_FN float one_of(int half, const void *x, int64_t i) {
    return half == LANES_F16 ? tess_f32_of_f16(((const uint16_t *)x)[i])
           : half            ? tess_f32_of_bf16(((const uint16_t *)x)[i])
                             : ((const float *)x)[i];
}
TESS_FN void pair_add(double *sums, lanes_pair part) {
    float room[PAIR];
    lanes_store(0, part.a, room);
    lanes_store(0, part.b, room + LANES);
    for (int k = 0; k < PAIR; k++)
        sums[k] += room[k];
}
/** Adds each column's sum to out[c]. */
TESS_FN void sums_to(int half, const double *sums, int64_t columns, float *out) {
    for (int64_t c = 0; c < columns; c++) {
        int64_t first = c / PAIR * PAIR;
        out[first + PAIR <= columns ? first + lanes_pair_place(half, c - first) : c] += (float)sums[c];
    }
}
#endif
