/* SPDX-License-Identifier: BSD-3-Clause */
/* One formula per elementwise operator, for the CPU's loops and for CUDA's kernels alike: the same bits on both, where
 * an operator is one formula per element (docs/numbers.md). Beside core/kit/formulas.h, which has the engine's. */
#ifndef TESS_MODELS_OPS_FORMULAS_H
#define TESS_MODELS_OPS_FORMULAS_H
#include "core/kit/formulas.h"

enum { OPS_LANES = 16 }; /* partial sums of a normalised row: element c belongs to lane c mod 16 */

/** exp by Cody and Waite's reduction and a polynomial of degree 7; only lane-wise operations, so it vectorises.
 * Relative error below 2e-7. */
TESS_FN float ops_exp(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float n = x * 1.44269504f + 12582912.0f; /* adding 1.5 · 2^23 rounds to an integer, in the low bits */
    float whole = n - 12582912.0f;
    float r = (x - whole * 0.693359375f) - whole * -2.12194440e-4f;
    float p = 1.98412698e-4f;
    p = p * r + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    float power = tess_f32_of_bits((tess_f32_bits(n) - 0x4B400000u + 127u) << 23);
    return (p * (r * r) + r + 1.0f) * power;
}

/** 0.5 (1 + tanh(u)) is the logistic function of 2u, which keeps its relative precision where tanh is near -1. */
TESS_FN float ops_gelu_gate(float x) {
    float u2 = 1.595769122f * (x + 0.044715f * x * x * x);
    return 1.0f / (1.0f + ops_exp(-u2));
}
TESS_FN float ops_gelu_of(float x) {
    return x * ops_gelu_gate(x);
}
TESS_FN float ops_gelu_slope_of(float x, float dy) {
    float gate = ops_gelu_gate(x), slope = 1.595769122f * (1.0f + 3.0f * 0.044715f * x * x);
    return dy * (gate + x * gate * (1.0f - gate) * slope);
}

TESS_FN float ops_relu_slope_of(float y, float dy, float scale) {
    return y > 0 ? dy * scale : 0;
}
TESS_FN float ops_bias_relu_of(float y, const float *b_or_null, uint64_t column, int32_t relu) {
    float v = b_or_null ? y + b_or_null[column] : y;
    return relu && !(v > 0) ? 0 : v;
}

/** A normalised element, scaled and shifted; and the gradient of its input. */
TESS_FN float ops_norm_of(float x, float mean, float rsigma, float w, float b) {
    return (x - mean) * rsigma * w + b;
}
TESS_FN float ops_layernorm_slope_of(float x, float mean, float rsigma, float g, float g_mean, float g_dot) {
    return rsigma * (g - g_mean - (x - mean) * rsigma * g_dot);
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
