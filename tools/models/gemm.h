/* SPDX-License-Identifier: BSD-3-Clause */
/* A plain matrix product for any strides. Each output is one sum over k in a fixed order (ascending chunks of 256).
 * So its bits depend on neither threads nor instruction set nor on how rows are divided. */
#ifndef TESS_MODELS_GEMM_H
#define TESS_MODELS_GEMM_H
#include "ops.h"

typedef struct { /* c[i, j] (+)= scale · sum over k of a[i, k] · b[k, j] */
    int64_t rows, columns, depth;
    const float *a, *b;
    float *c;
    int64_t a_row, a_depth, b_depth, b_column, c_row; /* strides in elements; c's columns are contiguous */
    int32_t accumulate;                               /* 0: c is overwritten */
    int32_t reserved;
    float scale; /* 0: 1 */
} gemm_task;

enum { GEMM_SCRATCH_BYTES = (256 * 256 + 256 * 6 + 16) * 4 }; /* bytes per thread, a multiple of 64 */

/** Computes on the calling thread. */
void gemm(const gemm_task *, void *scratch);
/** Divides rows or columns over the context's threads; scratch holds GEMM_SCRATCH_BYTES for each thread. */
void gemm_parallel(const ops *, const gemm_task *, void *scratch);
#endif
