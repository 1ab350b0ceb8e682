/* SPDX-License-Identifier: BSD-3-Clause */
/* The layout of the exact sum of squares behind the gradient norm (kernels/norm.h): 32-bit digits in int64 limbs. For
 * host and device code. */
#ifndef TESS_NORM_LIMBS_H
#define TESS_NORM_LIMBS_H

#include "formulas.h"

enum {
    TESS__NORM_DIGITS = 14, /* 448 bits: squares end below bit 277, the rest is room for 2^120 of them and carries */
    TESS__NORM_NAN = 14,    /* counts of squares that are NaN, and that are infinite */
    TESS__NORM_INFINITE = 15,
    TESS__NORM_LIMBS = 16
};

TESS_FN void tess__norm_carry(int64_t *limb) {
    int64_t over = 0;
    for (int i = 0; i < TESS__NORM_DIGITS; i++) {
        over += limb[i];
        limb[i] = (int64_t)((uint64_t)over & 0xffffffffu);
        over >>= 32;
    }
}

TESS_FN int tess__leading_zeros(uint64_t bits) { /* of what is not 0 */
#if defined(__CUDA_ARCH__)
    return __clzll((long long)bits);
#else
    return __builtin_clzll(bits);
#endif
}

/* The digits' top 64 bits, the bit number of the lowest of them, and whether anything lies below. */
TESS_FN uint64_t tess__norm_top_bits(const int64_t *digit, int *lowest, int *below) {
    int top = TESS__NORM_DIGITS - 1;
    while (top > 0 && !digit[top])
        top--;
    uint64_t bits = (uint64_t)digit[top];
    int lead = bits ? tess__leading_zeros(bits) : 0, at = 32 * top - lead;
    bits <<= lead;
    *below = 0;
    for (int i = top - 1; i >= 0; i--) {
        int shift = 32 * i - at; /* where this digit starts in the 64 bits */
        if (shift >= 0) {
            bits |= (uint64_t)digit[i] << shift;
        } else if (shift > -32) {
            bits |= (uint64_t)digit[i] >> -shift;
            *below |= (digit[i] & ((INT64_C(1) << -shift) - 1)) != 0;
        } else {
            *below |= digit[i] != 0;
        }
    }
    *lowest = at;
    return bits;
}

/* The sum of squares, rounded once to fp64. NaN if any was, else infinity if any was. */
TESS_FN double tess__norm_square_of(const int64_t *limbs) {
    int64_t digit[TESS__NORM_LIMBS];
    for (int i = 0; i < TESS__NORM_LIMBS; i++)
        digit[i] = limbs[i];
    if (digit[TESS__NORM_NAN])
        return (double)NAN;
    if (digit[TESS__NORM_INFINITE])
        return (double)INFINITY;
    tess__norm_carry(digit);
    int lowest, below;
    uint64_t bits = tess__norm_top_bits(digit, &lowest, &below);
    if (!bits)
        return 0;
    /* 64 bits to 53: round to nearest even by hand, since what lies below the 64 counts too. */
    uint64_t whole = bits >> 11, rest = bits & 0x7ff;
    if (rest > 0x400 || (rest == 0x400 && (below || (whole & 1))))
        whole++;
    return ldexp((double)whole, lowest + 11 - 149);
}

/* min(1, max_norm / (norm + 1e-6)) in fp64, then f32. */
TESS_FN float tess__clip_of(double max_norm, double norm) {
    double coefficient = max_norm / (norm + 1e-6);
    return (float)(coefficient > 1 ? 1 : coefficient);
}
#endif
