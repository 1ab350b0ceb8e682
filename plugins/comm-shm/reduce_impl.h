/* The loops of reduce.h, compiled once for each instruction set that includes this file; all give the same bits. */
#include "reduce.h"

#include <string.h>
#include <tessera/plugin.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

/* ---- formats: how a value lies in memory, and the way to what it is summed in and back ------------ */

static inline float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
#define SAME(x) (x)

static inline float widen_bf16(uint16_t x) {
    return float_of((uint32_t)x << 16);
}
static inline uint16_t narrow_bf16(float x) { /* to nearest, ties to even; NaN stays NaN */
    uint32_t bits = bits_of(x), rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded);
}

#ifdef __F16C__
static inline float widen_f16(uint16_t x) {
    return _cvtsh_ss(x);
}
static inline uint16_t narrow_f16(float x) {
    return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
}
#else
static inline float widen_f16(uint16_t x) {
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, exponent = (x >> 10) & 31, mantissa = x & 0x3ff;
    if (exponent == 31)
        return float_of(sign | 0x7f800000 | (mantissa << 13) | (mantissa != 0 ? 0x400000 : 0));
    if (exponent != 0)
        return float_of(sign | ((exponent + 112) << 23) | (mantissa << 13));
    float value = (float)mantissa * 0x1p-24f; /* exact */
    return sign != 0 ? -value : value;
}
static inline uint16_t narrow_f16(float x) {
    uint32_t bits = bits_of(x), sign = (bits >> 16) & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | ((rest >> 13) & 0x3ff));
    if (rest >= 0x477ff000)
        return (uint16_t)(sign | 0x7c00); /* rounds past the largest finite number */
    if (rest < 0x38800000) /* below the normal range: adding 0.5 puts the last kept bit at the end of the mantissa */
        return (uint16_t)(sign | (bits_of(float_of(rest) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | ((rest - 0x38000000 + 0xfff + ((rest >> 13) & 1)) >> 13));
}
#endif

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

/* Elements before the first that begins a cache line. */
static inline uint64_t until_line(const void *at, uint64_t size, uint64_t elems) {
    uint64_t first = (64 - ((uintptr_t)at & 63)) % 64 / size;
    return first < elems ? first : elems;
}

/* Whole lines to the beginning of a line. */
static inline void past_caches(void *to, const void *from, size_t bytes) {
#ifdef __AVX2__
    for (size_t i = 0; i < bytes; i += 32)
        _mm256_stream_si256((void *)((char *)to + i), _mm256_loadu_si256((const void *)((const char *)from + i)));
#else
    memcpy(to, from, bytes);
#endif
}

/* reduce_NAME sums m <= SHM_SPAN elements from `at` on through a binary counter: partial i holds the sum of weight[i]
 * neighbouring leaves. A span is so short that reading goes on while it is summed; its partial sums stay in the
 * first-level cache. S, A, O: stored, accumulation and output types. */
#define DEFINE_REDUCE(name, IN, OUT, REDOP, S, A, widen, OP, O, widen_out, narrow, PLUS, SCALE)                        \
    static inline __attribute__((always_inline)) void span_##name(                                                     \
        const struct shm_reduction *r, const void *const *leaves, int n, uint64_t at, size_t m, void *out) {           \
        A part[SHM_PARTIALS][SHM_SPAN];                                                                                \
        O end[SHM_SPAN];                                                                                               \
        int weight[SHM_PARTIALS], depth = 0;                                                                           \
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
        if (r->stream && m == SHM_SPAN)                                                                                \
            past_caches(out, end, sizeof end);                                                                         \
        else                                                                                                           \
            memcpy(out, end, m * sizeof(O));                                                                           \
    }                                                                                                                  \
    static void reduce_##name(const struct shm_reduction *r, const void *const *leaves, int n, void *out,              \
                              uint64_t elems) {                                                                        \
        uint64_t at = r->stream ? until_line(out, sizeof(O), elems) : 0;                                               \
        if (at > 0)                                                                                                    \
            span_##name(r, leaves, n, 0, (size_t)at, out);                                                             \
        for (; elems - at >= SHM_SPAN; at += SHM_SPAN)                                                                 \
            span_##name(r, leaves, n, at, SHM_SPAN, (char *)out + at * sizeof(O));                                     \
        if (at < elems)                                                                                                \
            span_##name(r, leaves, n, at, (size_t)(elems - at), (char *)out + at * sizeof(O));                         \
    }

/* Every combination: X(name, dtype in, out, redop, S, A, widen, operation, O, widen_out, narrow, PLUS, SCALE) */
#define EACH_OPERATION(X, in, IN, out, OUT, S, A, widen, O, widen_out, narrow, PLUS, SCALE)                            \
    X(in##_##out##_sum, IN, OUT, TESS_SUM, S, A, widen, PLUS, O, widen_out, narrow, PLUS, SCALE)                       \
    X(in##_##out##_min, IN, OUT, TESS_MIN, S, A, widen, OP_MIN, O, widen_out, narrow, PLUS, SCALE)                     \
    X(in##_##out##_max, IN, OUT, TESS_MAX, S, A, widen, OP_MAX, O, widen_out, narrow, PLUS, SCALE)
#define SAME_FORMAT(X, name, DTYPE, S, A, widen, narrow, PLUS, SCALE)                                                  \
    EACH_OPERATION(X, name, DTYPE, name, DTYPE, S, A, widen, S, widen, narrow, PLUS, SCALE)
#define TO_F32(X, name, DTYPE, widen)                                                                                  \
    EACH_OPERATION(X, name, DTYPE, f32, TESS_F32, uint16_t, float, widen, float, SAME, SAME, OP_SUM, TIMES)
#define REDUCTIONS(X)                                                                                                  \
    SAME_FORMAT(X, f32, TESS_F32, float, float, SAME, SAME, OP_SUM, TIMES)                                             \
    SAME_FORMAT(X, f64, TESS_F64, double, double, SAME, SAME, OP_SUM, TIMES)                                           \
    SAME_FORMAT(X, bf16, TESS_BF16, uint16_t, float, widen_bf16, narrow_bf16, OP_SUM, TIMES)                           \
    SAME_FORMAT(X, f16, TESS_F16, uint16_t, float, widen_f16, narrow_f16, OP_SUM, TIMES)                               \
    TO_F32(X, bf16, TESS_BF16, widen_bf16)                                                                             \
    TO_F32(X, f16, TESS_F16, widen_f16)                                                                                \
    SAME_FORMAT(X, u8, TESS_U8, uint8_t, uint8_t, SAME, SAME, OP_WRAP_u8, AS_IS)                                       \
    SAME_FORMAT(X, i8, TESS_I8, int8_t, int8_t, SAME, SAME, OP_WRAP_i8, AS_IS)                                         \
    SAME_FORMAT(X, i32, TESS_I32, int32_t, int32_t, SAME, SAME, OP_WRAP_i32, AS_IS)                                    \
    SAME_FORMAT(X, i64, TESS_I64, int64_t, int64_t, SAME, SAME, OP_WRAP_i64, AS_IS)
REDUCTIONS(DEFINE_REDUCE)

static shm_reduce_fn *pick(uint32_t in, uint32_t out, uint32_t redop) {
#define ENTRY(name, IN, OUT, REDOP, ...) { IN, OUT, REDOP, reduce_##name },
    static const struct {
        uint32_t in, out, redop;
        shm_reduce_fn *fn;
    } table[] = { REDUCTIONS(ENTRY) };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].in == in && table[i].out == out && table[i].redop == redop)
            return table[i].fn;
    return NULL;
}
