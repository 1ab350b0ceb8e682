/* SPDX-License-Identifier: BSD-3-Clause */
/* Casts between f32 and the 16-bit floats with AVX2, AVX-512 and AVX-512 BF16, storing past the caches when asked to.
 */
#include "kernel_x86.h"
#if defined(TESS_HAVE_X86)
#include "kit/formulas.h"
#include <immintrin.h>

/* ---- the conversions: 16 lanes (AVX-512) and 8 lanes (AVX2) ------------------------------------- */
TESS_TARGET_AVX512 static inline __m256i bf16_512(__m512 x) {
    __m512i bits = _mm512_castps_si512(x), high = _mm512_srli_epi32(bits, 16);
    __m512i even = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), even);
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    rounded = _mm512_srli_epi32(rounded, 16);
    return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40)));
}
TESS_TARGET_AVX512 static inline __m512i bf16_pair_512(const float *from) {
    __m256i low = bf16_512(_mm512_loadu_ps(from)), high = bf16_512(_mm512_loadu_ps(from + 16));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/* The instruction takes denormals for zero, so vectors that hold one go the other way. */
TESS_TARGET_AVX512_BF16 static inline __mmask16 denormals(__m512i bits) {
    __mmask16 no_exponent = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7f800000));
    return _mm512_mask_test_epi32_mask(no_exponent, bits, _mm512_set1_epi32(0x7fffff));
}
TESS_TARGET_AVX512_BF16 static inline __m512i bf16_pair_hardware(const float *from) {
    __m512 low = _mm512_loadu_ps(from), high = _mm512_loadu_ps(from + 16);
    if (__builtin_expect(denormals(_mm512_castps_si512(low)) | denormals(_mm512_castps_si512(high)), 0))
        return bf16_pair_512(from);
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

TESS_TARGET_AVX512 static inline __m512i f16_pair_512(const float *from) {
    __m256i low = _mm512_cvtps_ph(_mm512_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256i high = _mm512_cvtps_ph(_mm512_loadu_ps(from + 16), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

TESS_TARGET_AVX2 static inline __m256i bf16_256(__m256 x) { /* each in the low half of 32 bits */
    __m256i bits = _mm256_castps_si256(x), high = _mm256_srli_epi32(bits, 16);
    __m256i even = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), even);
    __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_srli_epi32(rounded, 16), quiet, nan);
}
TESS_TARGET_AVX2 static inline __m256i bf16_pair_256(const float *from) {
    __m256i packed = _mm256_packus_epi32(bf16_256(_mm256_loadu_ps(from)), bf16_256(_mm256_loadu_ps(from + 8)));
    return _mm256_permute4x64_epi64(packed, 0xd8); /* pack works within halves */
}
TESS_TARGET_AVX2 static inline __m256i f16_pair_256(const float *from) {
    __m128i low = _mm256_cvtps_ph(_mm256_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m128i high = _mm256_cvtps_ph(_mm256_loadu_ps(from + 8), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

TESS_TARGET_AVX512 static inline __m512i wide_bf16_512(const uint16_t *from) {
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from)), 16);
}
TESS_TARGET_AVX512 static inline __m512i wide_f16_512(const uint16_t *from) {
    return _mm512_castps_si512(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from)));
}
TESS_TARGET_AVX2 static inline __m256i wide_bf16_256(const uint16_t *from) {
    return _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from)), 16);
}
TESS_TARGET_AVX2 static inline __m256i wide_f16_256(const uint16_t *from) {
    return _mm256_castps_si256(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from)));
}

/* ---- the loops ---------------------------------------------------------------------------------- */
/* One cast as two functions, storing into the caches and past them. `bytes` is a vector's size; single elements lead to
 * an aligned store and finish the rest. An output whose elements lie across vectors is never aligned: plain stores. */
#define CAST(name, target, from_type, to_type, bytes, vector, vector_fn, store_fn, stream_fn, formula)                 \
    target static void name##_store(const void *src, void *dst, uint64_t elems) {                                      \
        const from_type *from = src;                                                                                   \
        to_type *to = dst;                                                                                             \
        const uint64_t step = (bytes) / sizeof *to;                                                                    \
        uint64_t i = 0;                                                                                                \
        for (; i + step <= elems; i += step)                                                                           \
            store_fn((vector *)(void *)(to + i), vector_fn(from + i));                                                 \
        for (; i < elems; i++)                                                                                         \
            to[i] = formula(from[i]);                                                                                  \
    }                                                                                                                  \
    target static void name##_stream(const void *src, void *dst, uint64_t elems) {                                     \
        const from_type *from = src;                                                                                   \
        to_type *to = dst;                                                                                             \
        const uint64_t step = (bytes) / sizeof *to;                                                                    \
        uint64_t i = 0;                                                                                                \
        for (; i < elems && (uintptr_t)(to + i) % (bytes); i++)                                                        \
            to[i] = formula(from[i]);                                                                                  \
        if ((uintptr_t)(to + i) % (bytes) == 0) {                                                                      \
            for (; i + step <= elems; i += step)                                                                       \
                stream_fn((vector *)(void *)(to + i), vector_fn(from + i));                                            \
            _mm_sfence();                                                                                              \
        }                                                                                                              \
        for (; i < elems; i++)                                                                                         \
            to[i] = formula(from[i]);                                                                                  \
    }
#define CAST_512(name, target, from_type, to_type, vector_fn, formula)                                                 \
    CAST(name, target, from_type, to_type, 64, __m512i, vector_fn, _mm512_storeu_si512, _mm512_stream_si512, formula)
#define CAST_256(name, from_type, to_type, vector_fn, formula)                                                         \
    CAST(name, TESS_TARGET_AVX2, from_type, to_type, 32, __m256i, vector_fn, _mm256_storeu_si256, _mm256_stream_si256, \
         formula)

CAST_512(f32_bf16_hardware, TESS_TARGET_AVX512_BF16, float, uint16_t, bf16_pair_hardware, tess_bf16_of_f32)
CAST_512(f32_bf16_512, TESS_TARGET_AVX512, float, uint16_t, bf16_pair_512, tess_bf16_of_f32)
CAST_512(f32_f16_512, TESS_TARGET_AVX512, float, uint16_t, f16_pair_512, tess_f16_of_f32)
CAST_512(bf16_f32_512, TESS_TARGET_AVX512, uint16_t, float, wide_bf16_512, tess_f32_of_bf16)
CAST_512(f16_f32_512, TESS_TARGET_AVX512, uint16_t, float, wide_f16_512, tess_f32_of_f16)
CAST_256(f32_bf16_256, float, uint16_t, bf16_pair_256, tess_bf16_of_f32)
CAST_256(f32_f16_256, float, uint16_t, f16_pair_256, tess_f16_of_f32)
CAST_256(bf16_f32_256, uint16_t, float, wide_bf16_256, tess_f32_of_bf16)
CAST_256(f16_f32_256, uint16_t, float, wide_f16_256, tess_f32_of_f16)

static const struct {
    uint32_t from, to;
    int isa;
    tess__cast_fn store, stream;
} casts[] = { /* best first */
              { TESS_F32, TESS_BF16, TESS_ISA_AVX512_BF16, f32_bf16_hardware_store, f32_bf16_hardware_stream },
              { TESS_F32, TESS_BF16, TESS_ISA_AVX512, f32_bf16_512_store, f32_bf16_512_stream },
              { TESS_F32, TESS_BF16, TESS_ISA_AVX2, f32_bf16_256_store, f32_bf16_256_stream },
              { TESS_BF16, TESS_F32, TESS_ISA_AVX512, bf16_f32_512_store, bf16_f32_512_stream },
              { TESS_BF16, TESS_F32, TESS_ISA_AVX2, bf16_f32_256_store, bf16_f32_256_stream },
              { TESS_F32, TESS_F16, TESS_ISA_AVX512, f32_f16_512_store, f32_f16_512_stream },
              { TESS_F32, TESS_F16, TESS_ISA_AVX2, f32_f16_256_store, f32_f16_256_stream },
              { TESS_F16, TESS_F32, TESS_ISA_AVX512, f16_f32_512_store, f16_f32_512_stream },
              { TESS_F16, TESS_F32, TESS_ISA_AVX2, f16_f32_256_store, f16_f32_256_stream }
};

tess__cast_fn tess__cast_find_x86(uint32_t from, uint32_t to, int stream, int isa) {
    for (size_t i = 0; i < sizeof casts / sizeof casts[0]; i++)
        if (casts[i].from == from && casts[i].to == to && casts[i].isa <= isa)
            return stream ? casts[i].stream : casts[i].store;
    return NULL;
}
#else
typedef int tess__no_x86_casts; /* a file is not empty in ISO C */
#endif
