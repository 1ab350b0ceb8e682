/* SPDX-License-Identifier: BSD-3-Clause */
/* One formula per elementwise operator, for the CPU's loops and for CUDA's kernels alike: the same bits on both, where
 * an operator is one formula per element (docs/numbers.md). Beside core/kit/formulas.h, which has the engine's. */
#ifndef TESS_MODELS_OPS_FORMULAS_H
#define TESS_MODELS_OPS_FORMULAS_H
#include "core/kit/formulas.h"

enum { OPS_LANES = 16 }; /* partial sums of a normalised row: element c belongs to lane c mod 16 */

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

/** A normalised element, scaled and shifted. */
TESS_FN float ops_norm_of(float x, float mean, float rsigma, float w, float b) {
    return (x - mean) * rsigma * w + b;
}
TESS_FN float ops_batchnorm_slope_of(float x, float mean, float rsigma, float w, float g, float g_mean, float g_dot) {
    float rest = g - g_mean - (x - mean) * rsigma * g_dot;
    return w * rsigma * rest;
}
TESS_FN float ops_rsigma_of(double variance) {
    return (float)(1.0 / sqrt(variance + 1e-5));
}

/** Index in NHWC of place `which` of the 2 × 2 window at (row, column) of an image. */
TESS_FN int64_t ops_window_place(int64_t width, int64_t channels, int64_t row, int64_t column, int which) {
    return ((row * 2 + which / 2) * width + column * 2 + which % 2) * channels;
}
#endif
