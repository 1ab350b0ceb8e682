/* SPDX-License-Identifier: BSD-3-Clause */
/* Exact sums of f32 squares, a block at a time. Squares within 2^29 of the block's largest are shifted into one 64-bit
 * sum, the next 2^29 into another; both shifts drop nothing, so the sums are exact. What is smaller yet is rare and
 * goes one by one. A mantissa has 24 bits, a shift is 28 at most, and 2^11 elements add 11 bits: 63 in all. */
#include "kernel_x86.h"
#if defined(TESS_HAVE_X86)
#include "kit/formulas.h"
#include <immintrin.h>

enum { WINDOW = 29, MANTISSA = 0x7fffff, HIDDEN = 0x800000 };

/* Where the windows lie for a block whose largest square has this exponent; 1 is the least, of normal numbers. */
static uint32_t below(uint32_t exponent, uint32_t by) {
    return exponent > by ? exponent - by : 1;
}
static void place_windows(uint32_t top_bits, uint32_t *base, uint32_t *low_base, tess__square_block *out) {
    *base = below(top_bits >> 23, WINDOW - 1);
    *low_base = below(*base, WINDOW);
    *out = (tess__square_block){ .high_bit = *base - 1, .low_bit = *low_base - 1 };
}

/* Adds the lanes of one vector that fit no window. */
static void one_by_one(const float *squares, uint32_t lanes, void (*rest)(void *, float square), void *user) {
    for (; lanes; lanes &= lanes - 1)
        rest(user, squares[__builtin_ctz(lanes)]);
}

/* The first pass over a block waits for memory, the second computes: so the second fetches for the next block's first.
 */
static inline void next_block(uintptr_t address) {
    _mm_prefetch((const char *)address, _MM_HINT_T0);
}

/* The largest square's bits, from the largest |x|: squaring keeps the order. */
static uint32_t square_bits(uint32_t size_bits, float scale) {
    float scaled = tess_f32_of_bits(size_bits) * scale, square = scaled * scaled;
    return tess_f32_bits(square) & 0x7fffffffu;
}

TESS_TARGET_AVX512 static inline __m512i squares_512(const float *x, __m512 scale) {
    __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(x), scale);
    return _mm512_castps_si512(_mm512_mul_ps(scaled, scaled));
}

/* sum + (mantissa << (exponent - base)) of f32 values that lie in the low halves of 64-bit lanes, the rest of which is
 * zero. A negative shift is a huge one and gives 0. */
TESS_TARGET_AVX512 static inline __m512i add_shifted_512(__m512i sum, __m512i value, __m512i base) {
    __m512i shift = _mm512_sub_epi64(_mm512_srli_epi64(value, 23), base);
    __m512i mantissa = _mm512_ternarylogic_epi64(value, _mm512_set1_epi64(MANTISSA), _mm512_set1_epi64(HIDDEN), 0xea);
    return _mm512_add_epi64(sum, _mm512_sllv_epi64(mantissa, shift));
}
TESS_TARGET_AVX512 static inline __m512i add_both_512(__m512i sum, __m512i values, __m512i base) {
    sum = add_shifted_512(sum, _mm512_srli_epi64(values, 32), base);
    return add_shifted_512(sum, _mm512_and_si512(values, _mm512_set1_epi64(0xffffffffll)), base);
}

TESS_TARGET_AVX512 int tess__square_block_avx512(const float *x, uint64_t elems, float scale, tess__square_block *out,
                                                 void (*rest)(void *, float square), void *user) {
    __m512 factor = _mm512_set1_ps(scale);
    __m512i top = _mm512_setzero_si512(), high = top, low = top;
    uint32_t base, low_base;
    for (uint64_t i = 0; i < elems; i += 16)
        top = _mm512_max_epu32(top, _mm512_and_si512(_mm512_loadu_si512(x + i), _mm512_set1_epi32(0x7fffffff)));
    uint32_t top_bits = square_bits(_mm512_reduce_max_epu32(top), scale);
    if (top_bits >= 0x7f800000u)
        return 0;
    place_windows(top_bits, &base, &low_base, out);
    __m512i base_v = _mm512_set1_epi64(base), low_v = _mm512_set1_epi64(low_base);
    __m512i edge = _mm512_set1_epi32((int)(base << 23)), low_edge = _mm512_set1_epi32((int)(low_base << 23));
    for (uint64_t i = 0; i < elems; i += 16) {
        __m512i s = squares_512(x + i, factor);
        next_block((uintptr_t)(x + i) + elems * sizeof *x);
        high = add_both_512(high, s, base_v);
        __mmask16 small = _mm512_mask_cmplt_epu32_mask(_mm512_test_epi32_mask(s, s), s, edge);
        if (__builtin_expect(small, 0)) {
            low = add_both_512(low, _mm512_maskz_mov_epi32(small, s), low_v);
            __mmask16 tiny = _mm512_mask_cmplt_epu32_mask(small, s, low_edge);
            float squares[16];
            _mm512_storeu_si512(squares, s);
            one_by_one(squares, tiny, rest, user);
        }
    }
    out->high = (uint64_t)_mm512_reduce_add_epi64(high);
    out->low = (uint64_t)_mm512_reduce_add_epi64(low);
    return 1;
}

TESS_TARGET_AVX2 static inline __m256i squares_256(const float *x, __m256 scale) {
    __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(x), scale);
    return _mm256_castps_si256(_mm256_mul_ps(scaled, scaled));
}
TESS_TARGET_AVX2 static inline __m256i add_shifted_256(__m256i sum, __m256i value, __m256i base) {
    __m256i shift = _mm256_sub_epi64(_mm256_srli_epi64(value, 23), base);
    __m256i mantissa =
        _mm256_or_si256(_mm256_and_si256(value, _mm256_set1_epi64x(MANTISSA)), _mm256_set1_epi64x(HIDDEN));
    return _mm256_add_epi64(sum, _mm256_sllv_epi64(mantissa, shift));
}
TESS_TARGET_AVX2 static inline __m256i add_both_256(__m256i sum, __m256i values, __m256i base) {
    sum = add_shifted_256(sum, _mm256_srli_epi64(values, 32), base);
    return add_shifted_256(sum, _mm256_and_si256(values, _mm256_set1_epi64x(0xffffffffll)), base);
}
TESS_TARGET_AVX2 static inline uint32_t max_256(__m256i x) {
    uint32_t lane[8], top = 0;
    _mm256_storeu_si256((__m256i *)lane, x);
    for (int i = 0; i < 8; i++)
        top = lane[i] > top ? lane[i] : top;
    return top;
}
TESS_TARGET_AVX2 static inline uint64_t sum_256(__m256i x) {
    uint64_t lane[4];
    _mm256_storeu_si256((__m256i *)lane, x);
    return lane[0] + lane[1] + lane[2] + lane[3];
}

TESS_TARGET_AVX2 int tess__square_block_avx2(const float *x, uint64_t elems, float scale, tess__square_block *out,
                                             void (*rest)(void *, float square), void *user) {
    __m256 factor = _mm256_set1_ps(scale);
    __m256i top = _mm256_setzero_si256(), high = top, low = top, zero = top;
    uint32_t base, low_base;
    for (uint64_t i = 0; i < elems; i += 8)
        top = _mm256_max_epu32(top, _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(const void *)(x + i)),
                                                     _mm256_set1_epi32(0x7fffffff)));
    uint32_t top_bits = square_bits(max_256(top), scale);
    if (top_bits >= 0x7f800000u)
        return 0;
    place_windows(top_bits, &base, &low_base, out);
    __m256i base_v = _mm256_set1_epi64x(base), low_v = _mm256_set1_epi64x(low_base);
    __m256i edge = _mm256_set1_epi32((int)(base << 23)), low_edge = _mm256_set1_epi32((int)(low_base << 23));
    for (uint64_t i = 0; i < elems; i += 8) {
        __m256i s = squares_256(x + i, factor);
        next_block((uintptr_t)(x + i) + elems * sizeof *x);
        high = add_both_256(high, s, base_v);
        __m256i small = _mm256_andnot_si256(_mm256_cmpeq_epi32(s, zero), _mm256_cmpgt_epi32(edge, s));
        if (__builtin_expect(_mm256_movemask_epi8(small), 0)) {
            low = add_both_256(low, _mm256_and_si256(small, s), low_v);
            __m256i tiny = _mm256_and_si256(small, _mm256_cmpgt_epi32(low_edge, s));
            float squares[8];
            _mm256_storeu_ps(squares, _mm256_castsi256_ps(s));
            one_by_one(squares, (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(tiny)), rest, user);
        }
    }
    out->high = sum_256(high);
    out->low = sum_256(low);
    return 1;
}
#else
typedef int tess__no_x86_norm; /* a file is not empty in ISO C */
#endif
