/* SPDX-License-Identifier: BSD-3-Clause */
/* Sixteen fp32 elements side by side, as GCC's vectors: one AVX-512 register, two of AVX2 or four of SSE2, with the
 * same bits. Widening from bf16 or fp16 and rounding to them happen in registers, so a row is read and written once. */
#ifndef TESS_MODELS_LANES_H
#define TESS_MODELS_LANES_H
#include "ops_formulas.h"

enum { LANES = OPS_LANES };
typedef float lanes __attribute__((vector_size(64)));
typedef uint32_t lanes_bits __attribute__((vector_size(64)));
typedef int32_t lanes_mask __attribute__((vector_size(64)));
typedef uint16_t lanes_half __attribute__((vector_size(32)));
/* These types access memory at any address. */
typedef float lanes_there __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t lanes_half_there __attribute__((vector_size(32), aligned(2), may_alias));

TESS_FN lanes_bits lanes_to_bits(lanes x) {
    return (lanes_bits)x;
}
TESS_FN lanes lanes_of_bits(lanes_bits x) {
    return (lanes)x;
}
TESS_FN lanes lanes_fill(float x) {
    return (lanes){ x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x };
}
TESS_FN lanes lanes_select(lanes_mask which, lanes yes, lanes no) {
    return (lanes)(((lanes_mask)yes & which) | ((lanes_mask)no & ~which));
}

#define OPS_REAL lanes
#define OPS_NAME(name) lanes_##name
#define OPS_SELECT lanes_select
#define OPS_FILL lanes_fill
#define OPS_BITS lanes_to_bits
#define OPS_OF_BITS lanes_of_bits
#include "ops_formulas_body.h"
#undef OPS_REAL
#undef OPS_NAME
#undef OPS_SELECT
#undef OPS_FILL
#undef OPS_BITS
#undef OPS_OF_BITS

/** Keeps the first n lanes of x and takes the rest from `other`. */
TESS_FN lanes lanes_first(lanes x, int64_t n, lanes other) {
    const lanes_mask index = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    return n >= LANES ? x : lanes_select(index < (int32_t)n, x, other);
}
/** Keeps the lanes of x from n on and takes those before them from `other`. */
TESS_FN lanes lanes_from(lanes x, int64_t n, lanes other) {
    const lanes_mask index = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    return n <= 0 ? x : lanes_select(index < (int32_t)n, other, x);
}
TESS_FN lanes lanes_max(lanes x, lanes y) {
    return lanes_select(x > y, x, y);
}

/** Adds the lanes up in their order. */
TESS_FN double lanes_add_up(lanes x) {
    double sum = 0;
    for (int i = 0; i < LANES; i++)
        sum += x[i];
    return sum;
}

/* Sums and maxima combine quarters first, four elements side by side, then single elements. */
typedef float lanes_four __attribute__((vector_size(16)));
typedef union {
    lanes all;
    lanes_four four[4];
} lanes_quarters;

TESS_FN lanes_four lanes_four_max(lanes_four x, lanes_four y) {
    typedef int32_t mask __attribute__((vector_size(16)));
    mask which = x > y;
    return (lanes_four)(((mask)x & which) | ((mask)y & ~which));
}
TESS_FN float lanes_most(lanes x) {
    const lanes_quarters q = { x };
    lanes_four m = lanes_four_max(lanes_four_max(q.four[0], q.four[1]), lanes_four_max(q.four[2], q.four[3]));
    float a = m[0] > m[1] ? m[0] : m[1], b = m[2] > m[3] ? m[2] : m[3];
    return a > b ? a : b;
}
TESS_FN float lanes_sum(lanes x) {
    const lanes_quarters q = { x };
    lanes_four s = (q.four[0] + q.four[1]) + (q.four[2] + q.four[3]);
    return (s[0] + s[1]) + (s[2] + s[3]);
}

/* ---- memory ------------------------------------------------------------------------------------------ */
enum { LANES_F32, LANES_BF16, LANES_F16 }; /* the formats that `half` tells apart; the first is none */
/** Calls f with the format as a constant, so that each format has a loop of its own. */
#define BY_FORMAT(half, f, ...)                                                                                        \
    ((half) == LANES_BF16  ? f(LANES_BF16, __VA_ARGS__)                                                                \
     : (half) == LANES_F16 ? f(LANES_F16, __VA_ARGS__)                                                                 \
                           : f(LANES_F32, __VA_ARGS__))

/* Widens as tess_f32_of_f16, lane by lane; the upper half of each lane of h is 0. */
TESS_FN lanes lanes_of_f16(lanes_bits h) {
    lanes_bits size = (h & 0x7fffu) << 13, sign = (h & 0x8000u) << 16;
    lanes_mask is_small = (lanes_mask)size < 0x800000, is_special = (lanes_mask)size >= 31 << 23;
    lanes_bits quiet = (lanes_bits)((lanes_mask)size > 31 << 23) & 0x400000u;
    lanes small = (lanes)(size | 0x38800000u) - 0x1p-14f, special = (lanes)((size + (224u << 23)) | quiet);
    lanes x = lanes_select(is_special, special, (lanes)(size + (112u << 23)));
    return (lanes)((lanes_bits)lanes_select(is_small, small, x) | sign);
}

/* Rounds as tess_f16_of_f32, lane by lane; the result is in the lower half of each lane. */
TESS_FN lanes_bits lanes_to_f16(lanes x) {
    lanes_bits size = (lanes_bits)x & 0x7fffffffu, sign = (lanes_bits)x >> 16 & 0x8000u;
    lanes_bits normal = ((size + 0xfffu + (size >> 13 & 1u)) >> 13) - 0x1c000u;
    lanes_bits small = (lanes_bits)((lanes)size + 0.5f) - 0x3f000000u;
    lanes_bits none = (lanes_bits)((lanes_mask)size > 0x7f800000) & (0x200u | (size >> 13 & 0x3ffu));
    lanes h = lanes_select((lanes_mask)size < 0x38800000, (lanes)small, (lanes)normal);
    h = lanes_select((lanes_mask)size >= 0x477ff000, (lanes)(none | 0x7c00u), h);
    return (lanes_bits)h | sign;
}

/** Loads 16 elements; with `half` they are bf16 or fp16. */
TESS_FN lanes lanes_load(int half, const void *x) {
    if (!half)
        return *(const lanes_there *)x;
    lanes_bits bits = __builtin_convertvector(*(const lanes_half_there *)x, lanes_bits);
    return half == LANES_F16 ? lanes_of_f16(bits) : (lanes)(bits << 16);
}

/* Rounds as tess_bf16_of_f32, lane by lane; the result is in the upper half of each lane. */
TESS_FN lanes_bits lanes_round(lanes x) {
    lanes_bits bits = (lanes_bits)x, rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    return (lanes_bits)lanes_select(x != x, (lanes)(bits | 0x400000u), (lanes)rounded);
}

TESS_FN void lanes_store(int half, lanes v, void *x) {
    if (half == LANES_F16)
        *(lanes_half_there *)x = __builtin_convertvector(lanes_to_f16(v), lanes_half);
    else if (half)
        *(lanes_half_there *)x = __builtin_convertvector(lanes_round(v) >> 16, lanes_half);
    else
        *(lanes_there *)x = v;
}

/* ---- pairs: thirty-two elements, for operators in which order within a row does not matter -------------- */
/* A pair of bf16 or fp16 vectors holds the elements at even places in `a` and the others in `b`, because shifts
 * separate them. A pair of fp32 vectors holds the first sixteen in `a` and the next in `b`. */
typedef struct {
    lanes a, b;
} lanes_pair;
typedef uint32_t lanes_bits_there __attribute__((vector_size(64), aligned(2), may_alias));

TESS_FN lanes_pair lanes_pair_load(int half, const void *x) {
    if (!half)
        return (lanes_pair){ lanes_load(0, x), lanes_load(0, (const float *)x + LANES) };
    lanes_bits both = *(const lanes_bits_there *)x;
    if (half == LANES_F16)
        return (lanes_pair){ lanes_of_f16(both & 0xffffu), lanes_of_f16(both >> 16) };
    return (lanes_pair){ (lanes)(both << 16), (lanes)(both & 0xffff0000u) };
}

TESS_FN void lanes_pair_store(int half, lanes_pair v, void *x) {
    if (half == LANES_F16) {
        *(lanes_bits_there *)x = lanes_to_f16(v.a) | lanes_to_f16(v.b) << 16;
        return;
    }
    if (half) {
        *(lanes_bits_there *)x = lanes_round(v.a) >> 16 | (lanes_round(v.b) & 0xffff0000u);
        return;
    }
    lanes_store(0, v.a, x);
    lanes_store(0, v.b, (float *)x + LANES);
}

/** Returns which of the thirty-two elements lane k of the pair holds; k from LANES on counts the lanes of b. */
TESS_FN int64_t lanes_pair_place(int half, int64_t k) {
    return !half ? k : k < LANES ? 2 * k : 2 * (k - LANES) + 1;
}
#endif
