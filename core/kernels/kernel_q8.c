/* SPDX-License-Identifier: BSD-3-Clause */
/* Casts to and from q8 (plugin.h): blocks of 256 signed bytes, each behind its scale. A short last block is filled with
 * zeros. */
#include "kit/formulas.h"
#include "isa.h"
#include "kernels.h"
#include <tessera/plugin_helpers.h>

/* A block of f32 with `n` elements; a constant 256 lets the compiler unroll. */
TESS_BODY void pack_block(const float *x, char *out, uint64_t n) {
    int8_t *q = (int8_t *)(out + 4);
    uint32_t most = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t size = tess_f32_bits(x[i]) & 0x7fffffffu;
        most = size > most ? size : most;
    }
    float scale = tess_q8_scale(most), factor = tess_q8_factor(most);
    memcpy(out, &scale, sizeof scale);
    if (factor == 0.0f)
        memset(q, 0, TESS_Q8_BLOCK);
    else
        for (uint64_t i = 0; i < n; i++)
            q[i] = tess_q8_of_f32(x[i], factor);
    if (n < TESS_Q8_BLOCK)
        memset(q + n, 0, TESS_Q8_BLOCK - n);
}

TESS_BODY void widen_block(const char *in, float *out, uint64_t n) {
    const int8_t *q = (const int8_t *)(in + 4);
    float scale;
    memcpy(&scale, in, sizeof scale);
    for (uint64_t i = 0; i < n; i++)
        out[i] = (float)q[i] * scale;
}

/* One cast: whole blocks, then what is left. */
#define EACH_BLOCK(whole, rest)                                                                                        \
    do {                                                                                                               \
        uint64_t i = 0, n = TESS_Q8_BLOCK;                                                                             \
        for (; i + n <= elems; i += n)                                                                                 \
            whole;                                                                                                     \
        n = elems - i;                                                                                                 \
        if (n)                                                                                                         \
            rest;                                                                                                      \
    } while (0)
#define AT(base) ((base) + i / TESS_Q8_BLOCK * TESS_Q8_BYTES)

TESS_BODY void f32_to_q8_body(const void *src, void *dst, uint64_t elems) {
    const float *from = src;
    char *to = dst;
    EACH_BLOCK(pack_block(from + i, AT(to), TESS_Q8_BLOCK), pack_block(from + i, AT(to), n));
}

TESS_BODY void q8_to_f32_body(const void *src, void *dst, uint64_t elems) {
    const char *from = src;
    float *to = dst;
    EACH_BLOCK(widen_block(AT(from), to + i, TESS_Q8_BLOCK), widen_block(AT(from), to + i, n));
}

/* Rounds the block's values once more, to 16 bits. */
#define TO_16(name, formula)                                                                                           \
    TESS_BODY void name##_block(const char *in, uint16_t *out, uint64_t n) {                                           \
        float wide[TESS_Q8_BLOCK];                                                                                     \
        widen_block(in, wide, n);                                                                                      \
        for (uint64_t i = 0; i < n; i++)                                                                               \
            out[i] = formula(wide[i]);                                                                                 \
    }                                                                                                                  \
    TESS_BODY void name##_body(const void *src, void *dst, uint64_t elems) {                                           \
        const char *from = src;                                                                                        \
        uint16_t *to = dst;                                                                                            \
        EACH_BLOCK(name##_block(AT(from), to + i, TESS_Q8_BLOCK), name##_block(AT(from), to + i, n));                  \
    }
TO_16(q8_to_bf16, tess_bf16_of_f32)
TO_16(q8_to_f16, tess_f16_of_f32)

#if defined(TESS_HAVE_X86)
#define PATHS(name)                                                                                                    \
    static void name##_c(const void *src, void *dst, uint64_t elems) {                                                 \
        name##_body(src, dst, elems);                                                                                  \
    }                                                                                                                  \
    TESS_TARGET_AVX2 static void name##_avx2(const void *src, void *dst, uint64_t elems) {                             \
        name##_body(src, dst, elems);                                                                                  \
    }                                                                                                                  \
    TESS_TARGET_AVX512 static void name##_avx512(const void *src, void *dst, uint64_t elems) {                         \
        name##_body(src, dst, elems);                                                                                  \
    }
#define LIST(name)                                                                                                     \
    { name##_c, name##_avx2, name##_avx512 }
#else
#define PATHS(name)                                                                                                    \
    static void name##_c(const void *src, void *dst, uint64_t elems) {                                                 \
        name##_body(src, dst, elems);                                                                                  \
    }
#define LIST(name)                                                                                                     \
    { name##_c, name##_c, name##_c }
#endif
PATHS(f32_to_q8)
PATHS(q8_to_f32)
PATHS(q8_to_bf16)
PATHS(q8_to_f16)

static void copy_q8(const void *src, void *dst, uint64_t elems) {
    memcpy(dst, src, tess_dtype_span(TESS_Q8, elems));
}

tess__cast_fn tess__cast_find_q8(uint32_t from, uint32_t to) {
    static const tess__cast_fn pack[3] = LIST(f32_to_q8), f32[3] = LIST(q8_to_f32), bf16[3] = LIST(q8_to_bf16),
                               f16[3] = LIST(q8_to_f16);
    int isa = tess__isa(), path = isa >= TESS_ISA_AVX512 ? 2 : isa == TESS_ISA_AVX2 ? 1 : 0;
    if (from != TESS_Q8)
        return from == TESS_F32 ? pack[path] : NULL;
    switch (to) {
    case TESS_Q8: return copy_q8;
    case TESS_F32: return f32[path];
    case TESS_BF16: return bf16[path];
    case TESS_F16: return f16[path];
    default: return NULL;
    }
}
