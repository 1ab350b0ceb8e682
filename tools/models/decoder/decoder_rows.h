/* SPDX-License-Identifier: BSD-3-Clause */
/* Rows of fp32 or bf16 tensors as fp32: the tensor itself, or a widened copy in `room`. */
#ifndef TESS_MODELS_DECODER_ROWS_H
#define TESS_MODELS_DECODER_ROWS_H
#include "decoder.h"
#include "core/kit/formulas.h"

static inline const float *rows_in(const decoder *d, const void *x, int64_t first, int64_t elems, float *room) {
    const uint16_t *half = (const uint16_t *)x + first;
    if (!d->half)
        return (const float *)x + first;
    for (int64_t i = 0; i < elems; i++)
        room[i] = tess_f32_of_bf16(half[i]);
    return room;
}

/** Where to compute elements that rows_out then stores. */
static inline float *rows_for(const decoder *d, void *y, int64_t first, float *room) {
    return d->half ? room : (float *)y + first;
}

static inline void rows_out(const decoder *d, const float *v, void *y, int64_t first, int64_t elems) {
    uint16_t *half = (uint16_t *)y + first;
    for (int64_t i = 0; d->half && i < elems; i++)
        half[i] = tess_bf16_of_f32(v[i]);
}
#endif
