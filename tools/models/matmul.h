/* SPDX-License-Identifier: BSD-3-Clause */
/* A product of fp32 or bf16 tensors, built on an fp32 product: factors and result are widened in scratch. */
#ifndef TESS_MODELS_MATMUL_H
#define TESS_MODELS_MATMUL_H
#include "ops.h"

/** y (+)= a · b without bias, all fp32; a, b and y have the shape's strides. */
typedef tess_status (*matmul_wide_fn)(void *user, const float *a, const float *b, float *y, void *scratch);

/** Returns the scratch that matmul_run needs in addition to the scratch of its matmul_wide_fn. */
uint64_t matmul_scratch(const ops_matmul_shape *);
tess_status matmul_run(const ops *, const ops_matmul_shape *, const void *a, const void *b, const void *bias, void *y,
                       matmul_wide_fn, void *user, void *scratch);

tess_status ops_plain_matmul_create(ops *, const ops_matmul_shape *, ops_matmul **out, uint64_t *scratch_bytes);
void ops_plain_matmul_destroy(ops_matmul *);
tess_status ops_plain_matmul(ops_matmul *, const void *a, const void *b, const void *bias, void *y, void *scratch);
/** The plain product of fp32 tensors, for a table that has none. Scratch: GEMM_SCRATCH_BYTES for each thread. */
void ops_plain_matmul_wide(const ops *, const ops_matmul_shape *, const float *a, const float *b, float *y,
                           void *scratch);
#endif
