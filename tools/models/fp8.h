/* SPDX-License-Identifier: BSD-3-Clause */
/* Products in fp8 on the CPU. A factor is rounded to what fp8 can hold and stays a bf16 tensor, which is exact: 4 bits
 * of mantissa, and a scale that is a power of two. A product of bf16 tensors with fp32 sums is then that of fp8. */
#ifndef TESS_MODELS_FP8_H
#define TESS_MODELS_FP8_H
#include "ops.h"

/** All sides of a product, and its number of rows, are multiples of this; other products stay in bf16. It is what
 * tensor cores ask for: rows of whole vectors of 16 bytes, as stored and turned. */
enum { FP8_SIDES = 16 };
typedef struct { /* the largest magnitudes of a tensor on a device, left by the kernel that wrote it: one of each block
                  */
    void *at;    /* fp8_found_need bytes; null: not wanted */
    uint32_t n;  /* set by the call that writes; 0: none, and the tensor is read for them */
} fp8_found;

/** Returns the bits of the larger of `most` and of the largest finite magnitude in x. */
uint32_t fp8_most(const ops *, const uint16_t *x, int64_t elems, uint32_t most);
/** Writes the nearest numbers that e4m3, or e5m2, has with this scale. NaN and infinity become NaN. */
void fp8_round(const ops *, const uint16_t *x, uint16_t *y, int64_t elems, float scale, int e5m2);
#endif
