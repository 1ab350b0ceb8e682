/* SPDX-License-Identifier: BSD-3-Clause */
/* Widens blocks of 8 bits to f32 with AVX2 and AVX-512, into the caches and past them. */
#include "kernel_x86.h"
#if defined(TESS_HAVE_X86)
#include <immintrin.h>
#include <string.h>

/* ---- e4m3 by way of f16, of which it is 2^8 times as much: sign, 4 of 5 bits of exponent, 3 of 10 of mantissa -------
 */

/* NaN alone is another number there, which is no code of ours. */
TESS_TARGET_AVX2 static int holds_nan_256(const char *q) {
    __m256i size = _mm256_set1_epi8(0x7f), any = _mm256_setzero_si256();
    for (int i = 0; i < TESS_Q8_BLOCK; i += 32) {
        __m256i codes = _mm256_loadu_si256((const __m256i *)(const void *)(q + i));
        any = _mm256_or_si256(any, _mm256_cmpeq_epi8(_mm256_and_si256(codes, size), size));
    }
    return _mm256_movemask_epi8(any);
}

/* Codes in the upper bytes of 16 bits each. */
TESS_TARGET_AVX2 static inline __m256i f16_256(__m256i codes) {
    return _mm256_and_si256(_mm256_srai_epi16(codes, 1), _mm256_set1_epi16((short)0xbfff));
}
TESS_TARGET_AVX512 static inline __m512i f16_512(const char *q) {
    __m512i codes = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)q));
    __m512i halves = _mm512_srai_epi16(_mm512_slli_epi16(codes, 8), 1);
    return _mm512_and_si512(halves, _mm512_set1_epi16((short)0xbfff));
}

/* ---- a block, times its scale; `store` puts a vector into the caches or past them ----------------------------------
 */

#define WIDEN(name, store_256, store_512)                                                                              \
    TESS_TARGET_AVX2 static inline void e4m3_256##name(const char *q, float scale, float *out) {                       \
        __m256 s = _mm256_set1_ps(scale * 256);                                                                        \
        for (int i = 0; i < TESS_Q8_BLOCK; i += 32) {                                                                  \
            __m256i codes = _mm256_loadu_si256((const __m256i *)(const void *)(q + i));                                \
            __m256i low = f16_256(_mm256_unpacklo_epi8(_mm256_setzero_si256(), codes));                                \
            __m256i high = f16_256(_mm256_unpackhi_epi8(_mm256_setzero_si256(), codes));                               \
            store_256(out + i, _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(low)), s));                        \
            store_256(out + i + 8, _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(high)), s));                   \
            store_256(out + i + 16, _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(low, 1)), s));              \
            store_256(out + i + 24, _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(high, 1)), s));             \
        }                                                                                                              \
    }                                                                                                                  \
    TESS_TARGET_AVX512 static inline void e4m3_512##name(const char *q, float scale, float *out) {                     \
        __m512 s = _mm512_set1_ps(scale * 256);                                                                        \
        for (int i = 0; i < TESS_Q8_BLOCK; i += 32) {                                                                  \
            __m512i halves = f16_512(q + i);                                                                           \
            store_512(out + i, _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(halves)), s));                     \
            store_512(out + i + 16, _mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1)), s));          \
        }                                                                                                              \
    }                                                                                                                  \
    TESS_TARGET_AVX2 static inline void q8_256##name(const char *q, float scale, float *out) {                         \
        __m256 s = _mm256_set1_ps(scale);                                                                              \
        for (int i = 0; i < TESS_Q8_BLOCK; i += 8) {                                                                   \
            __m256i bytes = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(q + i)));             \
            store_256(out + i, _mm256_mul_ps(_mm256_cvtepi32_ps(bytes), s));                                           \
        }                                                                                                              \
    }                                                                                                                  \
    TESS_TARGET_AVX512 static inline void q8_512##name(const char *q, float scale, float *out) {                       \
        __m512 s = _mm512_set1_ps(scale);                                                                              \
        for (int i = 0; i < TESS_Q8_BLOCK; i += 16) {                                                                  \
            __m512i bytes = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(q + i)));             \
            store_512(out + i, _mm512_mul_ps(_mm512_cvtepi32_ps(bytes), s));                                           \
        }                                                                                                              \
    }
WIDEN(_store, _mm256_storeu_ps, _mm512_storeu_ps)
WIDEN(_stream, _mm256_stream_ps, _mm512_stream_ps)

/* Whole blocks; what is left, and blocks with a NaN, go to `plain`, which takes any. */
#define LOOP(name, target, has_nan, block)                                                                             \
    target static uint64_t name(const char *from, float *to, uint64_t elems, tess__cast_fn plain) {                    \
        uint64_t i = 0;                                                                                                \
        for (; i + TESS_Q8_BLOCK <= elems; i += TESS_Q8_BLOCK, from += TESS_Q8_BYTES) {                                \
            float scale;                                                                                               \
            memcpy(&scale, from, sizeof scale);                                                                        \
            if (__builtin_expect(has_nan, 0))                                                                          \
                plain(from, to + i, TESS_Q8_BLOCK);                                                                    \
            else                                                                                                       \
                block(from + 4, scale, to + i);                                                                        \
        }                                                                                                              \
        return i;                                                                                                      \
    }
#define LOOPS(name, target, has_nan, bytes)                                                                            \
    LOOP(name##_into, target, has_nan, name##_store)                                                                   \
    LOOP(name##_past, target, has_nan, name##_stream)                                                                  \
    target void tess__##name##_widen(const void *src, float *to, uint64_t elems, int stream, tess__cast_fn plain) {    \
        const char *from = src;                                                                                        \
        int past = stream && (uintptr_t)to % (bytes) == 0;                                                             \
        uint64_t done = past ? name##_past(from, to, elems, plain) : name##_into(from, to, elems, plain);              \
        if (past)                                                                                                      \
            _mm_sfence();                                                                                              \
        if (done < elems)                                                                                              \
            plain(from + done / TESS_Q8_BLOCK * TESS_Q8_BYTES, to + done, elems - done);                               \
    }
LOOPS(e4m3_256, TESS_TARGET_AVX2, holds_nan_256(from + 4), 32)
LOOPS(e4m3_512, TESS_TARGET_AVX512, holds_nan_256(from + 4), 64)
LOOPS(q8_256, TESS_TARGET_AVX2, 0, 32)
LOOPS(q8_512, TESS_TARGET_AVX512, 0, 64)

/* ---- bytes past the caches, in whole lines --------------------------------------------------------------------------
 */

enum { LINE = 64 };

TESS_TARGET_AVX2 void tess__copy_past(void *out, const void *from, uint64_t bytes) {
    char *to = out;
    const char *made = from;
    uint64_t i = (LINE - (uintptr_t)to % LINE) % LINE;
    if (i > bytes)
        i = bytes;
    memcpy(to, made, i);
    for (; i + LINE <= bytes; i += LINE) {
        __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)(made + i));
        __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(made + i + 32));
        _mm256_stream_si256((__m256i *)(void *)(to + i), low);
        _mm256_stream_si256((__m256i *)(void *)(to + i + 32), high);
    }
    memcpy(to + i, made + i, bytes - i);
}

void tess__copy_past_end(void) {
    _mm_sfence();
}
#else
typedef int tess__no_x86_blocks; /* a file is not empty in ISO C */
#endif
