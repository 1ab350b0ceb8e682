/* SPDX-License-Identifier: BSD-3-Clause */
/* The 8 bits of products in fp8, for the CPU and for a GPU. e4m3 and e5m2 are those of "FP8 Formats for Deep Learning"
 * (Micikevicius et al., 2022). A tensor has one scale, the largest power of two that keeps its largest finite magnitude
 * within the format. So x times the scale is exact, and rounding to the format is all that is lost. */
#ifndef TESS_MODELS_FP8_FORMULAS_H
#define TESS_MODELS_FP8_FORMULAS_H
#include "kit/formulas.h"

/* The formats differ in their largest number and smallest normal one, here as bits, and in their steps. */
enum { FP8_E4M3, FP8_E5M2 };
#define FP8_TOP(e5m2) ((e5m2) ? 0x47600000u : 0x43e00000u)    /* 57344, 448 */
#define FP8_NORMAL(e5m2) ((e5m2) ? 0x38800000u : 0x3c800000u) /* 2^-14, 2^-6 */
#define FP8_LARGE(e5m2) ((e5m2) ? 21u << 23 : 20u << 23)
enum { FP8_EXPONENTS = 62, FP8_NAN = 0x7f };

/* `most`: bits of the largest finite magnitude. The scale's exponent is cut to ±62, so that the product of two scales
 * is a normal number. Zeros have 1. */
TESS_FN float fp8_scale(uint32_t most, int e5m2) {
    int32_t top = e5m2 ? 15 : 8, exponent = top - ((int32_t)(most >> 23) - 127) - ((most & 0x7fffffu) > 0x600000u);
    exponent = exponent > FP8_EXPONENTS ? FP8_EXPONENTS : exponent < -FP8_EXPONENTS ? -FP8_EXPONENTS : exponent;
    return tess_f32_of_bits(most ? (uint32_t)(exponent + 127) << 23 : 0x3f800000u);
}
/** Gives 1 / a scale, exactly. */
TESS_FN float fp8_inverse(float scale) {
    return tess_f32_of_bits((254u << 23) - tess_f32_bits(scale));
}

/* The bits that decide `most`: 0 of what is not finite. */
TESS_FN uint32_t fp8_size(uint32_t bits) {
    uint32_t size = bits & 0x7fffffffu;
    return size < 0x7f800000u ? size : 0;
}

/* The magnitude of the nearest number of the format, even of two. Added to a number whose last bit is the last that
 * stays, y is rounded there. What is greater than the largest, which only a cut scale leaves, becomes that. */
TESS_FN float fp8_nearest(float y, int e5m2) {
    uint32_t size = tess_f32_bits(y) & 0x7fffffffu, top = FP8_TOP(e5m2), normal = FP8_NORMAL(e5m2);
    uint32_t most = size < top ? size : top, least = most > normal ? most : normal;
    float large = tess_f32_of_bits((least & 0x7f800000u) + FP8_LARGE(e5m2));
    return (tess_f32_of_bits(most) + large) - large;
}
/** The code of x times its scale. NaN and infinity become NaN. */
TESS_FN uint8_t fp8_code(float x, float scale, int e5m2) {
    uint32_t bits = tess_f32_bits(x), sign = bits >> 24 & 0x80u, normal = FP8_NORMAL(e5m2);
    uint32_t size = tess_f32_bits(fp8_nearest(x * scale, e5m2)), is_small = 0u - (uint32_t)(size < normal);
    /* A denormal's code is that of the sum with the smallest normal number, without its exponent. */
    uint32_t sum = tess_f32_bits(tess_f32_of_bits(size) + tess_f32_of_bits(is_small & normal));
    uint32_t code = e5m2 ? (sum >> 21) - (112u << 2) - (is_small & 4u) : (sum >> 20) - (120u << 3) - (is_small & 8u);
    return (uint8_t)(sign | ((bits & 0x7fffffffu) < 0x7f800000u ? code : (uint32_t)FP8_NAN));
}
/** The number that a code means, without its tensor's scale. */
TESS_FN float fp8_value(uint8_t code, int e5m2) {
    uint32_t size = code & 0x7fu, shift = e5m2 ? 21 : 20, bias = e5m2 ? 112u << 23 : 120u << 23;
    uint32_t is_small = 0u - (uint32_t)(size < (e5m2 ? 4u : 8u)), is_nan = size > (e5m2 ? 0x7cu : 0x7eu);
    uint32_t bits = (size << shift) + bias + (is_small & 1u << 23);
    bits = is_nan ? 0x7fc00000u : e5m2 && size == 0x7cu ? 0x7f800000u : bits;
    float x = tess_f32_of_bits(bits) - tess_f32_of_bits(is_small & FP8_NORMAL(e5m2));
    return tess_f32_of_bits((uint32_t)(code & 0x80u) << 24 | tess_f32_bits(x));
}
/** The number that x becomes: its code's value divided by the scale. A bf16 holds it. */
TESS_FN float fp8_rounded(float x, float scale, float inverse, int e5m2) {
    uint32_t bits = tess_f32_bits(x), size = tess_f32_bits(fp8_nearest(x * scale, e5m2) * inverse);
    return tess_f32_of_bits((bits & 0x80000000u) | ((bits & 0x7fffffffu) < 0x7f800000u ? size : 0x7fc00000u));
}
#endif
