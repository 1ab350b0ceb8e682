/* SPDX-License-Identifier: BSD-3-Clause */
/* The exact sum of squares behind the gradient norm (docs/numbers.md, "Norm"). Squares are rounded to f32; their sum is
 * a fixed-point integer in units of 2^-149, kept as 32-bit digits in int64 limbs, least first, so that it does not
 * depend on the order or on how elements are spread over ranks. Digits come out of a kernel below 2^32: up to 2^20
 * ranks' limbs may be added as int64 (one all_reduce, TESS_I64, TESS_SUM) before tess__norm_result. */
#ifndef TESS_NORM_H
#define TESS_NORM_H
#include "kit/norm_limbs.h"

#include <stdint.h>

/** Adds `limbs` to `sum`, digit by digit, and carries until every digit is below 2^32 again. */
void tess__norm_add(int64_t *sum, const int64_t *limbs);
/** The sum of squares, rounded once to fp64. NaN if any was, else infinity if any was. */
double tess__norm_square(const int64_t *limbs);
/** The norm: its square root. */
double tess__norm_result(const int64_t *limbs);
/** min(1, max_norm / (norm + 1e-6)) in fp64, then f32: the formula of PyTorch's clip_grad_norm_. A NaN norm gives NaN,
 * an infinite one 0. */
float tess__clip_coefficient(double max_norm, double norm);
#endif
