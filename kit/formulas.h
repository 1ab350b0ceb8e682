/* SPDX-License-Identifier: BSD-3-Clause */
/* One formula per elementwise kernel, for the host and for CUDA alike: each device's kernels are loops around these, so
 * the bits are the same everywhere (docs/numbers.md). Compile with -ffp-contract=off or --fmad=false: a fused
 * multiply-add happens where fma is written and nowhere else. Denormals are kept; division and square root are rounded
 * correctly. */
#ifndef TESS_FORMULAS_H
#define TESS_FORMULAS_H
#include <tessera/plugin.h>
#include "philox.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__CUDACC__)
#define TESS_FN static __host__ __device__ __forceinline__
#else
#define TESS_FN static inline __attribute__((always_inline))
#endif

TESS_FN uint32_t tess_f32_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
TESS_FN float tess_f32_of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ---- casts: round to nearest even; infinities stay; a NaN stays one, made quiet, its leading payload kept  */
TESS_FN uint16_t tess_bf16_of_f32_bits(uint32_t bits) {
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    uint32_t quiet = bits >> 16 | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}
TESS_FN uint16_t tess_bf16_of_f32(float x) {
    return tess_bf16_of_f32_bits(tess_f32_bits(x));
}
TESS_FN float tess_f32_of_bf16(uint16_t h) {
    return tess_f32_of_bits((uint32_t)h << 16);
}

/* e4m3: a sign, 4 bits of exponent, 3 of mantissa; no infinities. All that is greater than 448, infinity too, is 448; a
 * NaN is 0x7f and its sign. */
TESS_FN uint8_t tess_e4m3_of_f32(float x) { /* no branch, so that loops are wide */
    uint32_t bits = tess_f32_bits(x), size = bits & 0x7fffffffu, most = size > 0x43e00000u ? 0x43e00000u : size;
    uint32_t is_small = 0u - (uint32_t)(most < 0x3c800000u), least = most < 0x3c800000u ? 0x3c800000u : most; /* 2^-6 */
    float large = tess_f32_of_bits((least & 0x7f800000u) + (20u << 23)); /* its last bit is the last that stays */
    float y = (tess_f32_of_bits(most) + large) - large + tess_f32_of_bits(is_small & 0x3c800000u);
    uint32_t code = (tess_f32_bits(y) >> 20) - (120u << 3) - (is_small & 8u);
    return (uint8_t)((bits >> 24 & 0x80u) | code | (uint32_t)(size > 0x7f800000u)); /* 448's code is even */
}
/* The same of what a block holds: finite, and no more than a cut scale adds above 448. Added to a number whose last bit
 * is the last that stays, y leaves its steps in the low bits; a step is as large below 2^-6. 8 steps are one exponent,
 * and that number's low bits are those of its exponent, less 121 exponents (56 modulo 128). They are even, so that ties
 * stay ties. */
TESS_FN uint8_t tess_e4m3_of_block(float y) {
    uint32_t bits = tess_f32_bits(y), size = bits & 0x7fffffffu, least = size < 0x3c800000u ? 0x3c800000u : size;
    uint32_t exponent = least & 0x7f800000u, large = exponent + (exponent >> 20) + (20u << 23) + 56u;
    uint32_t code = tess_f32_bits(tess_f32_of_bits(size) + tess_f32_of_bits(large));
    return (uint8_t)((bits >> 24 & 0x80u) | (code & 0x7fu));
}
TESS_FN float tess_f32_of_e4m3(uint8_t code) { /* a denormal is 2^-6 and what it is, less 2^-6 */
    uint32_t size = code & 0x7fu, is_small = 0u - (uint32_t)(size < 8u);
    uint32_t bits = (size << 20) + (120u << 23) + (is_small & 1u << 23);
    float x = tess_f32_of_bits(size == 0x7fu ? 0x7fc00000u : bits) - tess_f32_of_bits(is_small & 0x3c800000u);
    return tess_f32_of_bits((uint32_t)(code & 0x80u) << 24 | tess_f32_bits(x));
}

/* Blocks of 8 bits: the scale is the greatest magnitude / `top`, the greatest number of a byte, cut to 17 bits. So
 * bytes times it are exact, and a block that is read and made again is the same. `most` are the bits of that magnitude:
 * as integers, NaN is above infinity, and that above all numbers. A block that is not finite is NaN throughout; one
 * whose scale would be no normal number is 0. */
#define TESS_Q8_TOP 127.0f
#define TESS_E4M3_TOP 448.0f
TESS_FN float tess_block_scale(uint32_t most, float top) {
    uint32_t bits = tess_f32_bits(tess_f32_of_bits(most) / top) & ~0x7fu;
    if (most >= 0x7f800000u)
        return tess_f32_of_bits(0x7fc00000u);
    return bits < 0x00800000u ? 0.0f : tess_f32_of_bits(bits);
}
TESS_FN float tess_block_factor(float scale) { /* 0: all bytes are 0 */
    return scale > 0.0f ? 1.0f / scale : 0.0f;
}
/* A byte of a block, of x times its factor: the nearest, even of two. */
TESS_FN uint8_t tess_q8_of_f32(float y) { /* 1.5 * 2^23 leaves the rounded integer in the low bits */
    return (uint8_t)tess_f32_bits(y + 12582912.0f);
}
/* Rounds by a draw of 12 bits, up with the probability of the part that is cut off. A number of the format stays, also
 * if its last bits are off. */
TESS_FN uint8_t tess_q8_drawn(float y, uint32_t draw) {
    y = y > TESS_Q8_TOP ? TESS_Q8_TOP : y < -TESS_Q8_TOP ? -TESS_Q8_TOP : y;
    return tess_q8_of_f32(y + ((float)(int32_t)draw - 2047.5f) * 0x1p-12f);
}
TESS_FN uint8_t tess_e4m3_drawn(float y, uint32_t draw) {
    uint32_t bits = tess_f32_bits(y), size = bits & 0x7fffffffu, is_small = 0u - (uint32_t)(size < 0x3c800000u);
    uint32_t from = tess_f32_bits(tess_f32_of_bits(size) + tess_f32_of_bits(is_small & 0x3c800000u));
    uint32_t code = ((from + (draw << 8) + 0x80u) >> 20) - (120u << 3) - (is_small & 8u);
    return (uint8_t)((bits >> 24 & 0x80u) | (code > 0x7eu ? 0x7eu : code));
}
/* The draws of a run of 8 elements of the model, of which the first is number `at`. */
TESS_FN void tess_draws_of(uint64_t at, uint32_t step, uint32_t draw, uint32_t out[8]) {
    uint64_t n = at / 8;
    philox_block b = philox(0, (uint32_t)n, (uint32_t)PHILOX_ROUND << 24 | (uint32_t)(n >> 32 & 0xffffff), step, draw);
    for (int i = 0; i < 4; i++) {
        out[2 * i] = b.v[i] >> 4 & 0xfffu;
        out[2 * i + 1] = b.v[i] >> 20;
    }
}
TESS_FN float tess_f32_of_q8(uint8_t q) {
    return (float)(int8_t)q;
}

TESS_FN uint16_t tess_f16_of_f32(float x) {
    uint32_t bits = tess_f32_bits(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (size >> 13 & 0x3ffu));
    if (size >= 0x477ff000u) /* 65520, halfway to the first value that is no f16 */
        return (uint16_t)(sign | 0x7c00u);
    if (size >= 0x38800000u) /* normal: 2^-14 and up */
        return (uint16_t)(sign | (((size + 0xfffu + (size >> 13 & 1u)) >> 13) - 0x1c000u));
    if (size <= 0x33000000u) /* 2^-25, halfway to the least denormal: even is zero */
        return (uint16_t)sign;
    uint32_t shift = 126u - (size >> 23), mantissa = (size & 0x7fffffu) | 0x800000u;
    uint32_t whole = mantissa >> shift, rest = mantissa & ((1u << shift) - 1u), half = 1u << (shift - 1u);
    return (uint16_t)(sign | (whole + (rest > half || (rest == half && (whole & 1u)))));
}
TESS_FN float tess_f32_of_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31u, mantissa = h & 0x3ffu;
    if (exponent == 31u)
        return tess_f32_of_bits(sign | 0x7f800000u | (mantissa ? 0x400000u : 0u) | mantissa << 13);
    if (exponent == 0u) /* zero and denormals: mantissa * 2^-24, exact */
        return tess_f32_of_bits(sign | tess_f32_bits((float)mantissa * 0x1p-24f));
    return tess_f32_of_bits(sign | (exponent + 112u) << 23 | mantissa << 13);
}

/* An f64 that goes to 16 bits is first rounded to odd in f32, so that it is rounded once in effect. */
TESS_FN float tess_f32_to_odd_of_f64(double x) {
    float near = (float)x;
    double back = (double)near, size = x < 0 ? -x : x, back_size = back < 0 ? -back : back;
    if (x != x || back == x)
        return near;
    uint32_t bits = tess_f32_bits(near);
    if (back_size > size)
        bits--;
    return tess_f32_of_bits(bits | 1u);
}

TESS_FN float tess_f32_of_f64(double x) {
    return (float)x;
}
TESS_FN double tess_f64_of_f32(float x) {
    return (double)x;
}
TESS_FN uint16_t tess_bf16_of_f64(double x) {
    return tess_bf16_of_f32(tess_f32_to_odd_of_f64(x));
}
TESS_FN uint16_t tess_f16_of_f64(double x) {
    return tess_f16_of_f32(tess_f32_to_odd_of_f64(x));
}
TESS_FN double tess_f64_of_bf16(uint16_t h) {
    return (double)tess_f32_of_bf16(h);
}
TESS_FN double tess_f64_of_f16(uint16_t h) {
    return (double)tess_f32_of_f16(h);
}
TESS_FN uint16_t tess_bf16_of_f16(uint16_t h) {
    return tess_bf16_of_f32(tess_f32_of_f16(h));
}
TESS_FN uint16_t tess_f16_of_bf16(uint16_t h) {
    return tess_f16_of_f32(tess_f32_of_bf16(h));
}

/* ---- optimizers ---------------------------------------------------------------------------------------------------
 * The order of operations is that of torch.optim's single-tensor, non-fused functions as PyTorch's CPU kernels round
 * them: add(x, alpha) and lerp and the last step of addcmul are fused, all else is rounded at each step; scalars are
 * computed in fp64 and rounded once to the parameters' type. Square roots are correctly rounded here and on CUDA
 * (PyTorch on the CPU calls a library whose roots are up to an ulp off). */
typedef struct { /* what the host computes once per segment and step, in fp64 */
    double grad_scale, minus_lr, weight_decay, momentum;
    double shrink;                                                   /* AdamW: 1 - lr * weight_decay */
    double one_minus_beta1, beta2, one_minus_beta2, eps, bias2_root; /* Adam, AdamW; bias2_root: (1 - beta2^t)^0.5 */
    double minus_step;                                               /* -lr / (1 - beta1^t) */
    double rho, one_minus_rho;
    uint32_t optimizer, decays; /* decays: weight_decay is not 0 */
    int64_t step;
} tess_step_constants;

#define TESS_REAL float
#define TESS_NAME(name) name##_f32
#define TESS_FMA fmaf
#define TESS_SQRT sqrtf
#include "formulas_optimizer.h"
#undef TESS_REAL
#undef TESS_NAME
#undef TESS_FMA
#undef TESS_SQRT
#define TESS_REAL double
#define TESS_NAME(name) name##_f64
#define TESS_FMA fma
#define TESS_SQRT sqrt
#include "formulas_optimizer.h"
#undef TESS_REAL
#undef TESS_NAME
#undef TESS_FMA
#undef TESS_SQRT

/* Hyperparameters travel as float and stand for the shortest decimal that rounds to them: 0.999f means 0.999, as a
 * PyTorch script has it, not 0.99900001287. Host only. */
static inline double tess_decimal_of_f32(float x) {
    char text[40];
    if (x == 0) /* as its text: most steps have a decay, momentum or rho of 0 */
        return (double)x;
    for (int digits = 1; digits < 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)x);
        double read = strtod(text, NULL);
        if ((float)read == x)
            return read;
    }
    return (double)x;
}

/* Everything that does not depend on the element. The step counts from 1. Host only. */
static inline void tess_step_prepare(const tess_optimizer *o, const tess_segment *s, tess_step_constants *out) {
    double lr = tess_decimal_of_f32(s->lr), weight_decay = tess_decimal_of_f32(s->weight_decay);
    double beta1 = tess_decimal_of_f32(o->beta1), beta2 = tess_decimal_of_f32(o->beta2);
    memset(out, 0, sizeof *out);
    out->optimizer = o->optimizer;
    out->decays = weight_decay != 0;
    out->grad_scale = o->grad_scale; /* computed, not typed in: taken as it is */
    out->minus_lr = -lr;
    out->weight_decay = weight_decay;
    out->momentum = tess_decimal_of_f32(s->momentum);
    out->shrink = 1 - lr * weight_decay;
    out->eps = tess_decimal_of_f32(o->eps);
    out->one_minus_beta1 = 1 - beta1;
    out->beta2 = beta2;
    out->one_minus_beta2 = 1 - beta2;
    out->minus_step = -(lr / (1 - pow(beta1, (double)o->step)));
    out->bias2_root = pow(1 - pow(beta2, (double)o->step), 0.5);
    out->rho = tess_decimal_of_f32(o->rho);
    out->one_minus_rho = 1 - out->rho;
    out->step = (int64_t)o->step;
}
#endif
