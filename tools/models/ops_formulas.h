/* SPDX-License-Identifier: BSD-3-Clause */
/* One formula per elementwise operator, shared by the CPU's loops and CUDA's kernels. If an operator is one formula
 * per element, its bits are the same on both (docs/numbers.md). kit/formulas.h has the engine's formulas. */
#ifndef TESS_MODELS_OPS_FORMULAS_H
#define TESS_MODELS_OPS_FORMULAS_H
#include "kit/formulas.h"

enum { OPS_LANES = 16 }; /* number of partial sums of a normalised row: element c belongs to lane c mod 16 */

#define OPS_REAL float
#define OPS_NAME(name) ops_##name
#define OPS_SELECT(which, yes, no) ((which) ? (yes) : (no))
#define OPS_FILL(x) (x)
#define OPS_BITS tess_f32_bits
#define OPS_OF_BITS tess_f32_of_bits
#include "ops_formulas_body.h"
#undef OPS_REAL
#undef OPS_NAME
#undef OPS_SELECT
#undef OPS_FILL
#undef OPS_BITS
#undef OPS_OF_BITS

TESS_FN float ops_relu_slope_of(float y, float dy, float scale) {
    return y > 0 ? dy * scale : 0;
}
TESS_FN float ops_bias_relu_of(float y, const float *b_or_null, uint64_t column, int32_t relu) {
    float v = b_or_null ? y + b_or_null[column] : y;
    return relu && !(v > 0) ? 0 : v;
}

/** Normalises an element, then scales and shifts it. */
TESS_FN float ops_norm_of(float x, float mean, float rsigma, float w, float b) {
    return (x - mean) * rsigma * w + b;
}
TESS_FN float ops_batchnorm_slope_of(float x, float mean, float rsigma, float w, float g, float g_mean, float g_dot) {
    float rest = g - g_mean - (x - mean) * rsigma * g_dot;
    return w * rsigma * rest;
}
TESS_FN float ops_rsigma_with(double variance, double eps) {
    return (float)(1.0 / sqrt(variance + eps));
}
TESS_FN float ops_rsigma_of(double variance) {
    return ops_rsigma_with(variance, 1e-5);
}

/** Computes cosine and sine of `turns` circles by series about the nearest quarter turn. Errors are below 1e-12, so
 * the rounded values almost always equal a library's. Libraries are avoided because a GPU's cosine differs from the
 * CPU's. */
TESS_FN void ops_turned(double turns, float *cosine, float *sine) {
    double quarter = floor(turns * 4 + 0.5), x = (turns - quarter * 0.25) * 6.283185307179586, z = x * x;
    double s = 1 + z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880 - z * (1.0 / 39916800)))));
    double c = 1 + z * (-0.5 + z * (1.0 / 24 + z * (-1.0 / 720 + z * (1.0 / 40320 - z * (1.0 / 3628800)))));
    double left = quarter - 4 * floor(quarter * 0.25);
    s = x * (s + z * z * z * z * z * z * (1.0 / 6227020800.0));
    c = c + z * z * z * z * z * z * (1.0 / 479001600.0);
    *cosine = (float)(left == 0 ? c : left == 1 ? -s : left == 2 ? -c : s);
    *sine = (float)(left == 0 ? s : left == 1 ? c : left == 2 ? -s : -c);
}

/** Returns the index in NHWC of place `which` of the 2 × 2 window at (row, column) of an image. */
TESS_FN int64_t ops_window_place(int64_t width, int64_t channels, int64_t row, int64_t column, int which) {
    return ((row * 2 + which / 2) * width + column * 2 + which % 2) * channels;
}
#endif
