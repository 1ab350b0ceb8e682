/* SPDX-License-Identifier: BSD-3-Clause */
/* Sums of two with AVX2 and AVX-512: of f32 past the caches, and of blocks of 8 bits through a block, which stays in
 * registers. */
#include "kernel_x86.h"
#if defined(TESS_HAVE_X86)
#include "kit/formulas.h"

#include <immintrin.h>
#include <string.h>

TESS_TARGET_AVX2 void tess__add_past(void *out, const void *a, const void *b, uint64_t elems) {
    float *to = out;
    const float *x = a, *y = b;
    uint64_t i = 0;
    if ((uintptr_t)to % 32 == 0)
        for (; i + 8 <= elems; i += 8)
            _mm256_stream_ps(to + i, _mm256_add_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
    for (; i < elems; i++)
        to[i] = x[i] + y[i];
}

enum { LANES = 16, VECTORS = TESS_Q8_BLOCK / LANES };

/* 16 numbers of a block, less its scale. */
TESS_TARGET_AVX512 static inline __m512 wide_q8(const char *q) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)q)));
}
TESS_TARGET_AVX512 static inline __m512 wide_e4m3(const char *q) { /* f16 has 2^-8 of it: see kernel_blocks_x86.c */
    __m256i codes = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)q)), 8);
    return _mm512_cvtph_ps(_mm256_and_si256(_mm256_srai_epi16(codes, 1), _mm256_set1_epi16((short)0xbfff)));
}

/* y rounded to a number of the format, even of two. */
TESS_TARGET_AVX512 static inline __m512 round_q8(__m512 y) {
    return _mm512_cvtepi32_ps(_mm512_cvtps_epi32(y));
}
/* Added to 2^20 times its power of two, at least 2^-6, y keeps the three bits that stay; a zero keeps its sign. */
TESS_TARGET_AVX512 static inline __m512 round_e4m3(__m512 y) {
    __m512 least = _mm512_range_ps(y, _mm512_set1_ps(0x1p-6f), 3); /* the greater magnitude, with y's sign */
    __m512 power = _mm512_and_ps(least, _mm512_castsi512_ps(_mm512_set1_epi32((int)0xff800000)));
    __m512 large = _mm512_mul_ps(power, _mm512_set1_ps(0x1p20f));
    __m512 rounded = _mm512_sub_ps(_mm512_add_ps(y, large), large);
    return _mm512_or_ps(rounded, _mm512_and_ps(y, _mm512_set1_ps(-0.0f)));
}

TESS_TARGET_AVX512 static inline int nan_codes(const char *q) {
    __m512i size = _mm512_set1_epi8(0x7f);
    __mmask64 any = 0;
    for (int i = 0; i < TESS_Q8_BLOCK; i += 64)
        any |= _mm512_cmpeq_epi8_mask(_mm512_and_si512(_mm512_loadu_si512(q + i), size), size);
    return any != 0;
}

TESS_TARGET_AVX512 static inline uint32_t most_of(const __m512 *v) {
    __m512i size = _mm512_set1_epi32(0x7fffffff), most = _mm512_setzero_si512();
    for (int k = 0; k < VECTORS; k++)
        most = _mm512_max_epu32(most, _mm512_and_si512(_mm512_castps_si512(v[k]), size));
    return _mm512_reduce_max_epu32(most);
}

/* The sum of a block and a block, 0 where it is not of numbers alone. */
#define PAIR(name, top, unit, wide, rounded, has_nan)                                                                  \
    TESS_TARGET_AVX512 static inline int name##_block(const char *a, const char *b, float *out, int past) {            \
        __m512 sums[VECTORS];                                                                                          \
        float scale_a, scale_b;                                                                                        \
        memcpy(&scale_a, a, sizeof scale_a);                                                                           \
        memcpy(&scale_b, b, sizeof scale_b);                                                                           \
        if (has_nan(a + 4) || has_nan(b + 4))                                                                          \
            return 0;                                                                                                  \
        __m512 by_a = _mm512_set1_ps(scale_a * (unit)), by_b = _mm512_set1_ps(scale_b * (unit));                       \
        for (int k = 0; k < VECTORS; k++)                                                                              \
            sums[k] = _mm512_add_ps(_mm512_mul_ps(wide(a + 4 + k * LANES), by_a),                                      \
                                    _mm512_mul_ps(wide(b + 4 + k * LANES), by_b));                                     \
        uint32_t most = most_of(sums);                                                                                 \
        float scale = tess_block_scale(most, top), factor = tess_block_factor(scale);                                  \
        if (factor == 0)                                                                                               \
            return 0;                                                                                                  \
        __m512 by = _mm512_set1_ps(scale), of = _mm512_set1_ps(factor);                                                \
        for (int k = 0; k < VECTORS; k++) {                                                                            \
            __m512 x = _mm512_mul_ps(rounded(_mm512_mul_ps(sums[k], of)), by);                                         \
            if (past)                                                                                                  \
                _mm512_stream_ps(out + k * LANES, x);                                                                  \
            else                                                                                                       \
                _mm512_storeu_ps(out + k * LANES, x);                                                                  \
        }                                                                                                              \
        return 1;                                                                                                      \
    }                                                                                                                  \
    TESS_TARGET_AVX512 int tess__##name(const void *a, const void *b, void *out, uint64_t elems, int past) {           \
        const char *x = a, *y = b;                                                                                     \
        float *to = out;                                                                                               \
        if (elems % TESS_Q8_BLOCK)                                                                                     \
            return 0;                                                                                                  \
        past = past && (uintptr_t)out % 64 == 0;                                                                       \
        for (uint64_t i = 0; i < elems; i += TESS_Q8_BLOCK, x += TESS_Q8_BYTES, y += TESS_Q8_BYTES)                    \
            if (!(past ? name##_block(x, y, to + i, 1) : name##_block(x, y, to + i, 0)))                               \
                return 0;                                                                                              \
        return 1;                                                                                                      \
    }
#define NEVER(q) ((void)(q), 0)
PAIR(pair_q8_512, TESS_Q8_TOP, 1, wide_q8, round_q8, NEVER)
PAIR(pair_e4m3_512, TESS_E4M3_TOP, 256, wide_e4m3, round_e4m3, nan_codes)
#else
typedef int tess__no_x86_sums; /* a file is not empty in ISO C */
#endif
