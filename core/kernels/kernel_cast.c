/* SPDX-License-Identifier: BSD-3-Clause */
#include "kit/formulas.h"
#include "kernel_x86.h"
#include <tessera/plugin_helpers.h>

/* One cast: the plain loop, and the same loop compiled for wider registers. */
#define CAST(name, from_type, to_type, formula)                                                                        \
    TESS_BODY void name##_body(const void *src, void *dst, uint64_t elems) {                                           \
        const from_type *restrict from = src;                                                                          \
        to_type *restrict to = dst;                                                                                    \
        for (uint64_t i = 0; i < elems; i++)                                                                           \
            to[i] = formula(from[i]);                                                                                  \
    }                                                                                                                  \
    static void name##_c(const void *src, void *dst, uint64_t elems) {                                                 \
        name##_body(src, dst, elems);                                                                                  \
    }                                                                                                                  \
    CAST_WIDE(name)
#if defined(TESS_HAVE_X86)
#define CAST_WIDE(name)                                                                                                \
    TESS_TARGET_AVX2 static void name##_avx2(const void *src, void *dst, uint64_t elems) {                             \
        name##_body(src, dst, elems);                                                                                  \
    }                                                                                                                  \
    TESS_TARGET_AVX512 static void name##_avx512(const void *src, void *dst, uint64_t elems) {                         \
        name##_body(src, dst, elems);                                                                                  \
    }
#define PATHS(name)                                                                                                    \
    { name##_c, name##_avx2, name##_avx512 }
#else
#define CAST_WIDE(name)
#define PATHS(name)                                                                                                    \
    { name##_c, name##_c, name##_c }
#endif

CAST(f32_to_bf16, float, uint16_t, tess_bf16_of_f32)
CAST(bf16_to_f32, uint16_t, float, tess_f32_of_bf16)
CAST(f32_to_f16, float, uint16_t, tess_f16_of_f32)
CAST(f16_to_f32, uint16_t, float, tess_f32_of_f16)
CAST(f64_to_f32, double, float, tess_f32_of_f64)
CAST(f32_to_f64, float, double, tess_f64_of_f32)
CAST(f64_to_bf16, double, uint16_t, tess_bf16_of_f64)
CAST(bf16_to_f64, uint16_t, double, tess_f64_of_bf16)
CAST(f64_to_f16, double, uint16_t, tess_f16_of_f64)
CAST(f16_to_f64, uint16_t, double, tess_f64_of_f16)
CAST(f16_to_bf16, uint16_t, uint16_t, tess_bf16_of_f16)
CAST(bf16_to_f16, uint16_t, uint16_t, tess_f16_of_bf16)

static void copy_1(const void *src, void *dst, uint64_t elems) {
    memcpy(dst, src, elems);
}
static void copy_2(const void *src, void *dst, uint64_t elems) {
    memcpy(dst, src, elems * 2);
}
static void copy_4(const void *src, void *dst, uint64_t elems) {
    memcpy(dst, src, elems * 4);
}
static void copy_8(const void *src, void *dst, uint64_t elems) {
    memcpy(dst, src, elems * 8);
}

static const struct {
    uint32_t from, to;
    tess__cast_fn paths[3]; /* plain C, AVX2, AVX-512 */
} casts[] = {
    { TESS_F32, TESS_BF16, PATHS(f32_to_bf16) }, { TESS_BF16, TESS_F32, PATHS(bf16_to_f32) },
    { TESS_F32, TESS_F16, PATHS(f32_to_f16) },   { TESS_F16, TESS_F32, PATHS(f16_to_f32) },
    { TESS_F64, TESS_F32, PATHS(f64_to_f32) },   { TESS_F32, TESS_F64, PATHS(f32_to_f64) },
    { TESS_F64, TESS_BF16, PATHS(f64_to_bf16) }, { TESS_BF16, TESS_F64, PATHS(bf16_to_f64) },
    { TESS_F64, TESS_F16, PATHS(f64_to_f16) },   { TESS_F16, TESS_F64, PATHS(f16_to_f64) },
    { TESS_F16, TESS_BF16, PATHS(f16_to_bf16) }, { TESS_BF16, TESS_F16, PATHS(bf16_to_f16) },
};

tess__cast_fn tess__cast_find(uint32_t from, uint32_t to, int stream) {
    if (tess_dtype_is_blocks(from) || tess_dtype_is_blocks(to))
        return tess__cast_find_blocks(from, to, stream);
    static const tess__cast_fn copies[] = { NULL, copy_1, copy_2, NULL, copy_4, NULL, NULL, NULL, copy_8 };
    if (from == to)
        return copies[tess_dtype_bytes(from)];
    int isa = tess__isa(), path = isa >= TESS_ISA_AVX512 ? 2 : isa == TESS_ISA_AVX2 ? 1 : 0;
#if defined(TESS_HAVE_X86)
    tess__cast_fn wide = tess__cast_find_x86(from, to, stream, isa);
    if (wide)
        return wide;
#endif
    (void)stream;
    for (size_t i = 0; i < sizeof casts / sizeof casts[0]; i++)
        if (casts[i].from == from && casts[i].to == to)
            return casts[i].paths[path];
    return NULL;
}

typedef struct {
    tess__cast_fn fn;
    const char *src;
    char *dst;
    uint32_t from, to; /* dtypes */
} cast_job;

static void cast_part(void *user, uint64_t first, uint64_t elems) {
    const cast_job *job = user;
    job->fn(job->src + tess_dtype_span(job->from, first), job->dst + tess_dtype_span(job->to, first), elems);
}

void tess__kernel_cast(const tess_kernel *k, tess__pool *pool) {
    if (tess__kernel_draws(k)) {
        tess__kernel_draw(k, pool);
        return;
    }
    int stream = tess_dtype_span(k->in_dtype, k->elems) + tess_dtype_span(k->out_dtype, k->elems) >= 16u << 20;
    cast_job job = { tess__cast_find(k->in_dtype, k->out_dtype, stream), k->in[0], k->out, k->in_dtype, k->out_dtype };
    tess__pool_run(pool, k->elems, TESS__KERNEL_LEAST_ELEMS, cast_part, &job);
}
