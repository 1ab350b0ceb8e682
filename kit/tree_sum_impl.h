/* SPDX-License-Identifier: BSD-3-Clause */
/* The loops of tree_sum.h, compiled once for each instruction set that includes this file; all give the same bits. */
#include "tree_sum.h"

#include "formulas.h"

#include <tessera/plugin_helpers.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

/* ---- formats: how a value lies in memory, and the way to what it is summed in and back ------------ */

enum {
    SPAN = 64,    /* elements at a time */
    PARTIALS = 24 /* alive at once: one for each bit of the number of ranks */
};

#define SAME(x) (x)
#ifdef __F16C__
#define WIDEN_F16(x) _cvtsh_ss(x)
#define NARROW_F16(x) _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)
#else
#define WIDEN_F16(x) tess_f32_of_f16(x)
#define NARROW_F16(x) tess_f16_of_f32(x)
#endif
#define WIDEN_BF16(x) tess_f32_of_bf16(x)
#define NARROW_BF16(x) tess_bf16_of_f32(x)

/* ---- operations: a NaN on either side comes through; integers wrap -------------------------------- */

#define OP_MIN(T, a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define OP_MAX(T, a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define OP_SUM(T, a, b) ((a) + (b))
#define OP_WRAP_i8(T, a, b) ((T)((uint8_t)(a) + (uint8_t)(b)))
#define OP_WRAP_i32(T, a, b) ((T)((uint32_t)(a) + (uint32_t)(b)))
#define OP_WRAP_i64(T, a, b) ((T)((uint64_t)(a) + (uint64_t)(b)))
#define OP_WRAP_u8(T, a, b) ((T)((a) + (b)))

/* ---- one pass over memory: every contribution is read once and the result written once -------------- */

/* Addresses may be unaligned, so values are moved with memcpy, which costs nothing. */
#define LOAD(T, name, from, i)                                                                                         \
    T name;                                                                                                            \
    memcpy(&name, (const char *)(from) + (i) * sizeof name, sizeof name)
#define TIMES(A, x, s) ((x) * (A)(s))
#define AS_IS(A, x, s) (x)

/* Counts the elements before the first that begins a cache line. */
static inline uint64_t until_line(const void *at, uint64_t size, uint64_t elems) {
    uint64_t first = (64 - ((uintptr_t)at & 63)) % 64 / size;
    return first < elems ? first : elems;
}

/* Copies whole cache lines past the caches, to the beginning of a line. */
static inline void past_caches(void *to, const void *from, size_t bytes) {
#ifdef __AVX2__
    for (size_t i = 0; i < bytes; i += 32)
        _mm256_stream_si256((void *)((char *)to + i), _mm256_loadu_si256((const void *)((const char *)from + i)));
#else
    memcpy(to, from, bytes);
#endif
}

/* reduce_NAME sums m <= SPAN elements from `at` on through a binary counter: partial i holds the sum of weight[i]
 * neighbouring leaves. A span is so short that reading goes on while it is summed; its partial sums stay in the
 * first-level cache. rest_NAME sums what is shorter than a span; it is cold, as the compiler takes much longer over
 * loops of unknown length. S, A, O: stored, accumulation and output types. */
#define DEFINE_REDUCE(name, IN, OUT, REDOP, S, A, widen, OP, O, widen_out, narrow, PLUS, SCALE)                        \
    static inline __attribute__((always_inline)) void span_##name(const kit_reduction *r, const void *const *leaves,   \
                                                                  int n, uint64_t at, size_t m, void *out) {           \
        A part[PARTIALS][SPAN];                                                                                        \
        O end[SPAN];                                                                                                   \
        int weight[PARTIALS], depth = 0;                                                                               \
        for (int l = 0; l < n; l += 2) {                                                                               \
            const char *x = (const char *)leaves[l] + at * sizeof(S);                                                  \
            const char *y = l + 1 < n ? (const char *)leaves[l + 1] + at * sizeof(S) : NULL;                           \
            A *top = part[depth];                                                                                      \
            for (size_t i = 0; i < m && y; i++) {                                                                      \
                LOAD(S, sa, x, i);                                                                                     \
                LOAD(S, sb, y, i);                                                                                     \
                A a = widen(sa), b = widen(sb);                                                                        \
                top[i] = OP(A, a, b);                                                                                  \
            }                                                                                                          \
            for (size_t i = 0; i < m && !y; i++) {                                                                     \
                LOAD(S, a, x, i);                                                                                      \
                top[i] = widen(a);                                                                                     \
            }                                                                                                          \
            weight[depth++] = y ? 2 : 1;                                                                               \
            while (depth > 1 && (weight[depth - 1] == weight[depth - 2] || l + 2 >= n)) {                              \
                depth--;                                                                                               \
                weight[depth - 1] *= 2;                                                                                \
                for (size_t i = 0; i < m; i++)                                                                         \
                    part[depth - 1][i] = OP(A, part[depth - 1][i], part[depth][i]);                                    \
            }                                                                                                          \
        }                                                                                                              \
        for (size_t i = 0; i < m && r->add; i++) {                                                                     \
            LOAD(O, old, out, i);                                                                                      \
            A wide = widen_out(old);                                                                                   \
            part[0][i] = PLUS(A, wide, part[0][i]);                                                                    \
        }                                                                                                              \
        for (size_t i = 0; i < m; i++)                                                                                 \
            end[i] = narrow(SCALE(A, part[0][i], r->scale));                                                           \
        if (r->stream && m == SPAN)                                                                                    \
            past_caches(out, end, sizeof end);                                                                         \
        else                                                                                                           \
            memcpy(out, end, m * sizeof(O));                                                                           \
    }                                                                                                                  \
    static __attribute__((noinline, cold)) void rest_##name(const kit_reduction *r, const void *const *leaves, int n,  \
                                                            uint64_t at, size_t m, void *out) {                        \
        span_##name(r, leaves, n, at, m, out);                                                                         \
    }                                                                                                                  \
    static void reduce_##name(const kit_reduction *r, const void *const *leaves, int n, void *out, uint64_t elems) {   \
        uint64_t at = r->stream ? until_line(out, sizeof(O), elems) : 0;                                               \
        if (at > 0)                                                                                                    \
            rest_##name(r, leaves, n, 0, (size_t)at, out);                                                             \
        for (; elems - at >= SPAN; at += SPAN)                                                                         \
            span_##name(r, leaves, n, at, SPAN, (char *)out + at * sizeof(O));                                         \
        if (at < elems)                                                                                                \
            rest_##name(r, leaves, n, at, (size_t)(elems - at), (char *)out + at * sizeof(O));                         \
    }

/* Every combination: X(name, dtype in, out, redop, S, A, widen, operation, O, widen_out, narrow, PLUS, SCALE) */
#define EACH_OPERATION(X, in, IN, out, OUT, S, A, widen, O, widen_out, narrow, PLUS, SCALE)                            \
    X(in##_##out##_sum, IN, OUT, TESS_SUM, S, A, widen, PLUS, O, widen_out, narrow, PLUS, SCALE)                       \
    X(in##_##out##_min, IN, OUT, TESS_MIN, S, A, widen, OP_MIN, O, widen_out, narrow, PLUS, SCALE)                     \
    X(in##_##out##_max, IN, OUT, TESS_MAX, S, A, widen, OP_MAX, O, widen_out, narrow, PLUS, SCALE)
#define SAME_FORMAT(X, name, DTYPE, S, A, widen, narrow, PLUS, SCALE)                                                  \
    EACH_OPERATION(X, name, DTYPE, name, DTYPE, S, A, widen, S, widen, narrow, PLUS, SCALE)
#define CAST(X, in, IN, S, widen, out, OUT, O, widen_out, narrow)                                                      \
    EACH_OPERATION(X, in, IN, out, OUT, S, float, widen, O, widen_out, narrow, OP_SUM, TIMES)
#define REDUCTIONS(X)                                                                                                  \
    SAME_FORMAT(X, f32, TESS_F32, float, float, SAME, SAME, OP_SUM, TIMES)                                             \
    SAME_FORMAT(X, f64, TESS_F64, double, double, SAME, SAME, OP_SUM, TIMES)                                           \
    SAME_FORMAT(X, bf16, TESS_BF16, uint16_t, float, WIDEN_BF16, NARROW_BF16, OP_SUM, TIMES)                           \
    SAME_FORMAT(X, f16, TESS_F16, uint16_t, float, WIDEN_F16, NARROW_F16, OP_SUM, TIMES)                               \
    SAME_FORMAT(X, u8, TESS_U8, uint8_t, uint8_t, SAME, SAME, OP_WRAP_u8, AS_IS)                                       \
    SAME_FORMAT(X, i8, TESS_I8, int8_t, int8_t, SAME, SAME, OP_WRAP_i8, AS_IS)                                         \
    SAME_FORMAT(X, i32, TESS_I32, int32_t, int32_t, SAME, SAME, OP_WRAP_i32, AS_IS)                                    \
    SAME_FORMAT(X, i64, TESS_I64, int64_t, int64_t, SAME, SAME, OP_WRAP_i64, AS_IS)                                    \
    CAST(X, bf16, TESS_BF16, uint16_t, WIDEN_BF16, f32, TESS_F32, float, SAME, SAME)                                   \
    CAST(X, f16, TESS_F16, uint16_t, WIDEN_F16, f32, TESS_F32, float, SAME, SAME)                                      \
    CAST(X, f32, TESS_F32, float, SAME, bf16, TESS_BF16, uint16_t, WIDEN_BF16, NARROW_BF16)                            \
    CAST(X, f32, TESS_F32, float, SAME, f16, TESS_F16, uint16_t, WIDEN_F16, NARROW_F16)                                \
    CAST(X, bf16, TESS_BF16, uint16_t, WIDEN_BF16, f16, TESS_F16, uint16_t, WIDEN_F16, NARROW_F16)                     \
    CAST(X, f16, TESS_F16, uint16_t, WIDEN_F16, bf16, TESS_BF16, uint16_t, WIDEN_BF16, NARROW_BF16)
REDUCTIONS(DEFINE_REDUCE)

static kit_tree_sum_fn *tree_sum_find(uint32_t in, uint32_t out, uint32_t redop) {
#define ENTRY(name, IN, OUT, REDOP, ...) { IN, OUT, REDOP, reduce_##name },
    static const struct {
        uint32_t in, out, redop;
        kit_tree_sum_fn *fn;
    } table[] = { REDUCTIONS(ENTRY) };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].in == in && table[i].out == out && table[i].redop == redop)
            return table[i].fn;
    return NULL;
}
