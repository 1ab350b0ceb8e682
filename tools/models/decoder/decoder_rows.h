/* SPDX-License-Identifier: BSD-3-Clause */
/* Elements of fp32 or bf16 tensors, sixteen at a time as fp32. */
#ifndef TESS_MODELS_DECODER_ROWS_H
#define TESS_MODELS_DECODER_ROWS_H
#include "decoder.h"
#include "tools/models/lanes.h"

/** The elements of x from i on, of which there are n; zeros behind them. */
TESS_FN lanes rows_of(int half, const void *x, int64_t i, int64_t n) {
    const char *at = (const char *)x + i * (half ? 2 : 4);
    float room[LANES] = { 0 };
    if (n >= LANES)
        return lanes_load(half, at);
    memcpy(room, at, (size_t)(n * (half ? 2 : 4)));
    return lanes_load(half, room);
}
/** The same for eight, of which there may be none. */
TESS_FN eight eight_at(int half, const void *x, int64_t i, int64_t n) {
    const char *at = (const char *)x + i * (half ? 2 : 4);
    float room[8] = { 0 };
    if (n >= 8)
        return eight_load(half, at);
    memcpy(room, at, n > 0 ? (size_t)(n * (half ? 2 : 4)) : 0);
    return eight_load(half, room);
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
#endif
