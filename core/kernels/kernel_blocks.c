/* SPDX-License-Identifier: BSD-3-Clause */
/* Casts to and from blocks of 8 bits (plugin.h): 256 bytes, each behind their scale. A short last block is filled with
 * zeros. */
#include "kit/formulas.h"
#include "isa.h"
#include "kernel_x86.h"
#include "kernels.h"
#include <tessera/plugin_helpers.h>

/* The bits of the greatest magnitude of n elements; a constant 256 lets the compiler unroll. */
TESS_BODY uint32_t most_of(const float *x, uint64_t n) {
    uint32_t most = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t size = tess_f32_bits(x[i]) & 0x7fffffffu;
        most = size > most ? size : most;
    }
    return most;
}

TESS_BODY uint8_t byte_of(float y, float top) {
    return top == TESS_Q8_TOP ? tess_q8_of_f32(y) : tess_e4m3_of_block(y);
}

TESS_BODY uint8_t drawn_byte(float y, uint32_t draw, float top) {
    return top == TESS_Q8_TOP ? tess_q8_drawn(y, draw) : tess_e4m3_drawn(y, draw);
}

/* A block of f32 with `n` elements, of bytes whose greatest number is `top`, a constant. `draws` null: to nearest. */
TESS_BODY void pack_block(const float *x, char *out, uint64_t n, float top, const uint32_t *draws) {
    uint8_t *q = (uint8_t *)(out + 4);
    float scale = tess_block_scale(most_of(x, n), top), factor = tess_block_factor(scale);
    memcpy(out, &scale, sizeof scale);
    if (factor == 0.0f)
        memset(q, 0, TESS_Q8_BLOCK);
    else
        for (uint64_t i = 0; i < n; i++)
            q[i] = draws ? drawn_byte(x[i] * factor, draws[i], top) : byte_of(x[i] * factor, top);
    if (n < TESS_Q8_BLOCK)
        memset(q + n, 0, TESS_Q8_BLOCK - n);
}

TESS_BODY float value_of(uint8_t q, float top) {
    return top == TESS_Q8_TOP ? tess_f32_of_q8(q) : tess_f32_of_e4m3(q);
}

TESS_BODY float as_f32(float x) {
    return x;
}

/* Casts: whole blocks, then what is left. */
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

#define PACK(name, top)                                                                                                \
    TESS_BODY void name##_body(const void *src, void *dst, uint64_t elems) {                                           \
        const float *from = src;                                                                                       \
        char *to = dst;                                                                                                \
        EACH_BLOCK(pack_block(from + i, AT(to), TESS_Q8_BLOCK, top, NULL),                                             \
                   pack_block(from + i, AT(to), n, top, NULL));                                                        \
    }                                                                                                                  \
    PATHS(name)

/* One block, of which the first element has number `at` in the model. */
#define DRAW(name, top)                                                                                                \
    TESS_BODY void name##_body(const void *src, void *dst, uint64_t n, uint64_t at, const tess_rounding *r) {          \
        uint32_t draws[TESS_Q8_BLOCK];                                                                                 \
        for (uint64_t i = 0; i < TESS_Q8_BLOCK; i += 8)                                                                \
            tess_draws_of(at + i, r->step, r->draw, draws + i);                                                        \
        pack_block(src, dst, n, top, draws);                                                                           \
    }                                                                                                                  \
    DRAW_PATHS(name)

#define WIDEN(name, top, type, rounded)                                                                                \
    TESS_BODY void name##_block(const char *in, type *out, uint64_t n) {                                               \
        const uint8_t *q = (const uint8_t *)(in + 4);                                                                  \
        float scale;                                                                                                   \
        memcpy(&scale, in, sizeof scale);                                                                              \
        for (uint64_t i = 0; i < n; i++)                                                                               \
            out[i] = rounded(value_of(q[i], top) * scale);                                                             \
    }                                                                                                                  \
    TESS_BODY void name##_body(const void *src, void *dst, uint64_t elems) {                                           \
        const char *from = src;                                                                                        \
        type *to = dst;                                                                                                \
        EACH_BLOCK(name##_block(AT(from), to + i, TESS_Q8_BLOCK), name##_block(AT(from), to + i, n));                  \
    }                                                                                                                  \
    PATHS(name)

#define VARIANT(name, isa, target, params, args)                                                                       \
    target static void name##_##isa params {                                                                           \
        name##_body args;                                                                                              \
    }
#if defined(TESS_HAVE_X86)
#define VARIANTS(name, params, args)                                                                                   \
    VARIANT(name, c, , params, args)                                                                                   \
    VARIANT(name, avx2, TESS_TARGET_AVX2, params, args)                                                                \
    VARIANT(name, avx512, TESS_TARGET_AVX512, params, args)
#define LIST(name)                                                                                                     \
    { name##_c, name##_avx2, name##_avx512 }
#else
#define VARIANTS(name, params, args) VARIANT(name, c, , params, args)
#define LIST(name)                                                                                                     \
    { name##_c, name##_c, name##_c }
#endif
#define PATHS(name) VARIANTS(name, (const void *src, void *dst, uint64_t elems), (src, dst, elems))
#define DRAW_PATHS(name)                                                                                               \
    VARIANTS(name, (const void *src, void *dst, uint64_t n, uint64_t at, const tess_rounding *r), (src, dst, n, at, r))

PACK(f32_to_q8, TESS_Q8_TOP)
WIDEN(q8_to_f32, TESS_Q8_TOP, float, as_f32)
WIDEN(q8_to_bf16, TESS_Q8_TOP, uint16_t, tess_bf16_of_f32)
WIDEN(q8_to_f16, TESS_Q8_TOP, uint16_t, tess_f16_of_f32)
DRAW(draw_q8, TESS_Q8_TOP)
DRAW(draw_e4m3, TESS_E4M3_TOP)
PACK(f32_to_e4m3, TESS_E4M3_TOP)
WIDEN(e4m3_to_f32, TESS_E4M3_TOP, float, as_f32)
WIDEN(e4m3_to_bf16, TESS_E4M3_TOP, uint16_t, tess_bf16_of_f32)
WIDEN(e4m3_to_f16, TESS_E4M3_TOP, uint16_t, tess_f16_of_f32)

static void copy_blocks(const void *src, void *dst, uint64_t elems) {
    memcpy(dst, src, tess_dtype_span(TESS_Q8, elems));
}

#if defined(TESS_HAVE_X86)
/* By hand: into the caches and past them. */
#define WIDEN_X86(name, isa, widen)                                                                                    \
    static void name##_##isa##_into(const void *src, void *dst, uint64_t elems) {                                      \
        widen(src, dst, elems, 0, name##_##isa);                                                                       \
    }                                                                                                                  \
    static void name##_##isa##_past(const void *src, void *dst, uint64_t elems) {                                      \
        widen(src, dst, elems, 1, name##_##isa);                                                                       \
    }
WIDEN_X86(e4m3_to_f32, avx2, tess__e4m3_256_widen)
WIDEN_X86(e4m3_to_f32, avx512, tess__e4m3_512_widen)
WIDEN_X86(q8_to_f32, avx2, tess__q8_256_widen)
WIDEN_X86(q8_to_f32, avx512, tess__q8_512_widen)

/* A few blocks at a time, which are whole lines together, made in the nearest cache and copied past the others. */
#define PACK_X86(name, isa)                                                                                            \
    static void name##_##isa##_past(const void *src, void *dst, uint64_t elems) {                                      \
        enum { AT_ONCE = 16 * TESS_Q8_BLOCK };                                                                         \
        _Alignas(64) char made[16 * TESS_Q8_BYTES];                                                                    \
        const float *from = src;                                                                                       \
        char *to = dst;                                                                                                \
        for (uint64_t i = 0; i < elems; i += AT_ONCE) {                                                                \
            uint64_t n = elems - i < AT_ONCE ? elems - i : AT_ONCE;                                                    \
            name##_##isa(from + i, made, n);                                                                           \
            tess__copy_past(AT(to), made, tess_dtype_span(TESS_Q8, n));                                                \
        }                                                                                                              \
        tess__copy_past_end();                                                                                         \
    }
PACK_X86(f32_to_q8, avx2)
PACK_X86(f32_to_q8, avx512)
PACK_X86(f32_to_e4m3, avx2)
PACK_X86(f32_to_e4m3, avx512)

/* By way of f32, a few blocks at a time, which stay in the nearest cache. */
#define NARROW_X86(name, isa, target, widen, rounded)                                                                  \
    target static void name##_##isa##_narrow(const void *src, void *dst, uint64_t elems) {                             \
        enum { AT_ONCE = 4 * TESS_Q8_BLOCK };                                                                          \
        _Alignas(64) float wide[AT_ONCE];                                                                              \
        const char *from = src;                                                                                        \
        uint16_t *to = dst;                                                                                            \
        for (uint64_t i = 0; i < elems; i += AT_ONCE) {                                                                \
            uint64_t n = elems - i < AT_ONCE ? elems - i : AT_ONCE;                                                    \
            widen(from + i / TESS_Q8_BLOCK * TESS_Q8_BYTES, wide, n);                                                  \
            for (uint64_t k = 0; k < n; k++)                                                                           \
                to[i + k] = rounded(wide[k]);                                                                          \
        }                                                                                                              \
    }
NARROW_X86(e4m3_to_bf16, avx2, TESS_TARGET_AVX2, e4m3_to_f32_avx2_into, tess_bf16_of_f32)
NARROW_X86(e4m3_to_bf16, avx512, TESS_TARGET_AVX512, e4m3_to_f32_avx512_into, tess_bf16_of_f32)
NARROW_X86(e4m3_to_f16, avx2, TESS_TARGET_AVX2, e4m3_to_f32_avx2_into, tess_f16_of_f32)
NARROW_X86(e4m3_to_f16, avx512, TESS_TARGET_AVX512, e4m3_to_f32_avx512_into, tess_f16_of_f32)

static const struct {
    uint32_t from, to;
    struct {
        tess__cast_fn into, past;
    } paths[2]; /* AVX2, AVX-512 */
} by_hand[] = {
    { TESS_F32, TESS_Q8, { { f32_to_q8_avx2, f32_to_q8_avx2_past }, { f32_to_q8_avx512, f32_to_q8_avx512_past } } },
    { TESS_F32,
      TESS_Q8E4M3,
      { { f32_to_e4m3_avx2, f32_to_e4m3_avx2_past }, { f32_to_e4m3_avx512, f32_to_e4m3_avx512_past } } },
    { TESS_Q8,
      TESS_F32,
      { { q8_to_f32_avx2_into, q8_to_f32_avx2_past }, { q8_to_f32_avx512_into, q8_to_f32_avx512_past } } },
    { TESS_Q8E4M3,
      TESS_F32,
      { { e4m3_to_f32_avx2_into, e4m3_to_f32_avx2_past }, { e4m3_to_f32_avx512_into, e4m3_to_f32_avx512_past } } },
    { TESS_Q8E4M3,
      TESS_BF16,
      { { e4m3_to_bf16_avx2_narrow, e4m3_to_bf16_avx2_narrow },
        { e4m3_to_bf16_avx512_narrow, e4m3_to_bf16_avx512_narrow } } },
    { TESS_Q8E4M3,
      TESS_F16,
      { { e4m3_to_f16_avx2_narrow, e4m3_to_f16_avx2_narrow },
        { e4m3_to_f16_avx512_narrow, e4m3_to_f16_avx512_narrow } } },
};

static tess__cast_fn find_by_hand(uint32_t from, uint32_t to, int stream, int path) {
    for (size_t i = 0; path > 0 && i < sizeof by_hand / sizeof by_hand[0]; i++)
        if (by_hand[i].from == from && by_hand[i].to == to)
            return stream ? by_hand[i].paths[path - 1].past : by_hand[i].paths[path - 1].into;
    return NULL;
}
#else
static tess__cast_fn find_by_hand(uint32_t from, uint32_t to, int stream, int path) {
    (void)from, (void)to, (void)stream, (void)path;
    return NULL;
}
#endif

static const struct {
    uint32_t from, to;
    tess__cast_fn paths[3]; /* plain C, AVX2, AVX-512 */
} casts[] = {
    { TESS_F32, TESS_Q8, LIST(f32_to_q8) },         { TESS_Q8, TESS_F32, LIST(q8_to_f32) },
    { TESS_Q8, TESS_BF16, LIST(q8_to_bf16) },       { TESS_Q8, TESS_F16, LIST(q8_to_f16) },
    { TESS_F32, TESS_Q8E4M3, LIST(f32_to_e4m3) },   { TESS_Q8E4M3, TESS_F32, LIST(e4m3_to_f32) },
    { TESS_Q8E4M3, TESS_BF16, LIST(e4m3_to_bf16) }, { TESS_Q8E4M3, TESS_F16, LIST(e4m3_to_f16) },
};

tess__cast_fn tess__cast_find_blocks(uint32_t from, uint32_t to, int stream) {
    int isa = tess__isa(), path = isa >= TESS_ISA_AVX512 ? 2 : isa == TESS_ISA_AVX2 ? 1 : 0;
    if (from == to)
        return copy_blocks;
    tess__cast_fn hand = find_by_hand(from, to, stream, path);
    if (hand)
        return hand;
    for (size_t i = 0; i < sizeof casts / sizeof casts[0]; i++)
        if (casts[i].from == from && casts[i].to == to)
            return casts[i].paths[path];
    return NULL;
}

/* ---- stochastic rounding: a block after the other, since each has a place of its own in the model ---- */

typedef void (*draw_fn)(const void *src, void *dst, uint64_t n, uint64_t at, const tess_rounding *);
typedef struct {
    draw_fn fn;
    const tess_kernel *kernel;
} draw_job;

static const tess_place *run_of(const tess_rounding *r, uint64_t elem) {
    uint32_t low = 0, high = r->n_runs;
    while (low < high) { /* the first that ends behind it */
        uint32_t middle = low + (high - low) / 2;
        if (r->runs[middle].first + r->runs[middle].elems > elem)
            high = middle;
        else
            low = middle + 1;
    }
    return low < r->n_runs && r->runs[low].first <= elem ? &r->runs[low] : NULL;
}

static void draw_part(void *user, uint64_t first, uint64_t elems) {
    const draw_job *job = user;
    const tess_rounding *r = job->kernel->rounding;
    const float *from = job->kernel->in[0];
    char *to = job->kernel->out;
    for (uint64_t i = first; i < first + elems; i += TESS_Q8_BLOCK) {
        uint64_t left = first + elems - i, n = left < TESS_Q8_BLOCK ? left : TESS_Q8_BLOCK;
        const tess_place *run = run_of(r, r->first + i);
        if (run)
            job->fn(from + i, to + i / TESS_Q8_BLOCK * TESS_Q8_BYTES, n, run->at + (r->first + i - run->first), r);
        else
            memset(to + i / TESS_Q8_BLOCK * TESS_Q8_BYTES, 0, TESS_Q8_BYTES);
    }
}

void tess__kernel_draw(const tess_kernel *k, tess__pool *pool) {
    static const draw_fn q8[3] = LIST(draw_q8), e4m3[3] = LIST(draw_e4m3);
    int isa = tess__isa(), path = isa >= TESS_ISA_AVX512 ? 2 : isa == TESS_ISA_AVX2 ? 1 : 0;
    draw_job job = { k->out_dtype == TESS_Q8 ? q8[path] : e4m3[path], k };
    tess__pool_run(pool, k->elems, TESS__KERNEL_LEAST_ELEMS, draw_part, &job);
}
