/* The loops of reduce.h, compiled once for each instruction set that includes this file; all give the same bits. */
#include "reduce.h"

#include <string.h>
#include <tessera/plugin.h>
#ifdef __F16C__
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

/* ---- loops; unaligned addresses, so values are moved with memcpy, which costs nothing -------------- */

#define LOAD(T, name, from, i)                                                                                         \
    T name;                                                                                                            \
    memcpy(&name, (const char *)(from) + (i) * sizeof name, sizeof name)

#define DEFINE_TWO(name, S, A, widen, OP)                                                                              \
    static void two_##name(void *acc, const void *x, const void *y, size_t n) {                                        \
        A *restrict out = acc;                                                                                         \
        for (size_t i = 0; i < n; i++) {                                                                               \
            LOAD(S, sa, x, i);                                                                                         \
            LOAD(S, sb, y, i);                                                                                         \
            A a = widen(sa), b = widen(sb);                                                                            \
            out[i] = OP(A, a, b);                                                                                      \
        }                                                                                                              \
    }
#define DEFINE_ONE(name, S, A, widen)                                                                                  \
    static void one_##name(void *acc, const void *x, size_t n) {                                                       \
        A *out = acc;                                                                                                  \
        for (size_t i = 0; i < n; i++) {                                                                               \
            LOAD(S, a, x, i);                                                                                          \
            out[i] = widen(a);                                                                                         \
        }                                                                                                              \
    }
#define DEFINE_COMBINE(name, A, OP)                                                                                    \
    static void combine_##name(void *acc, const void *with, size_t n) {                                                \
        A *restrict out = acc;                                                                                         \
        const A *restrict in = with;                                                                                   \
        for (size_t i = 0; i < n; i++) {                                                                               \
            A a = out[i], b = in[i];                                                                                   \
            out[i] = OP(A, a, b);                                                                                      \
        }                                                                                                              \
    }
#define TIMES(A, x, s) ((x) * (A)(s))
#define AS_IS(A, x, s) (x)
#define DEFINE_FINISH(name, S, A, widen, narrow, PLUS, SCALE)                                                          \
    static void finish_##name(void *out, const void *old, const void *acc, size_t n, double scale) {                   \
        const A *sum = acc;                                                                                            \
        (void)scale;                                                                                                   \
        for (size_t i = 0; i < n; i++) {                                                                               \
            A a = sum[i];                                                                                              \
            if (old) {                                                                                                 \
                LOAD(S, before, old, i);                                                                               \
                A b = widen(before);                                                                                   \
                a = PLUS(A, b, a);                                                                                     \
            }                                                                                                          \
            S end = narrow(SCALE(A, a, scale));                                                                        \
            memcpy((char *)out + i * sizeof end, &end, sizeof end);                                                    \
        }                                                                                                              \
    }

/* name, stored type, accumulation type, way there, way back, sum, scale */
#define FORMATS(X)                                                                                                     \
    X(f32, float, float, SAME, SAME, OP_SUM, TIMES)                                                                    \
    X(f64, double, double, SAME, SAME, OP_SUM, TIMES)                                                                  \
    X(bf16, uint16_t, float, widen_bf16, narrow_bf16, OP_SUM, TIMES)                                                   \
    X(f16, uint16_t, float, widen_f16, narrow_f16, OP_SUM, TIMES)                                                      \
    X(u8, uint8_t, uint8_t, SAME, SAME, OP_WRAP_u8, AS_IS)                                                             \
    X(i8, int8_t, int8_t, SAME, SAME, OP_WRAP_i8, AS_IS)                                                               \
    X(i32, int32_t, int32_t, SAME, SAME, OP_WRAP_i32, AS_IS)                                                           \
    X(i64, int64_t, int64_t, SAME, SAME, OP_WRAP_i64, AS_IS)

#define DEFINE(name, S, A, widen, narrow, PLUS, SCALE)                                                                 \
    DEFINE_TWO(name##_sum, S, A, widen, PLUS)                                                                          \
    DEFINE_TWO(name##_min, S, A, widen, OP_MIN)                                                                        \
    DEFINE_TWO(name##_max, S, A, widen, OP_MAX)                                                                        \
    DEFINE_ONE(name, S, A, widen)                                                                                      \
    DEFINE_COMBINE(name##_sum, A, PLUS)                                                                                \
    DEFINE_COMBINE(name##_min, A, OP_MIN)                                                                              \
    DEFINE_COMBINE(name##_max, A, OP_MAX)                                                                              \
    DEFINE_FINISH(name, S, A, widen, narrow, PLUS, SCALE)
FORMATS(DEFINE)

#define ENTRY(name, S, A, widen, narrow, PLUS, SCALE)                                                                  \
    [NUMBER_##name] = { { two_##name##_sum, two_##name##_min, two_##name##_max },                                      \
                        { combine_##name##_sum, combine_##name##_min, combine_##name##_max },                          \
                        one_##name,                                                                                    \
                        finish_##name,                                                                                 \
                        sizeof(S),                                                                                     \
                        sizeof(A) },
enum {
    NUMBER_u8 = TESS_U8,
    NUMBER_i8 = TESS_I8,
    NUMBER_i32 = TESS_I32,
    NUMBER_i64 = TESS_I64,
    NUMBER_f16 = TESS_F16,
    NUMBER_bf16 = TESS_BF16,
    NUMBER_f32 = TESS_F32,
    NUMBER_f64 = TESS_F64
};

static int pick(uint32_t in, uint32_t out, uint32_t redop, struct shm_kernels *k) {
    static const struct {
        void (*two[3])(void *, const void *, const void *, size_t);
        void (*combine[3])(void *, const void *, size_t);
        void (*one)(void *, const void *, size_t);
        void (*finish)(void *, const void *, const void *, size_t, double);
        uint32_t bytes, acc_bytes;
    } table[] = { FORMATS(ENTRY) };
    int wider = out == TESS_F32 && (in == TESS_F16 || in == TESS_BF16);
    if (in < TESS_U8 || in > TESS_F64 || (in != out && !wider) || redop < TESS_SUM || redop > TESS_MAX)
        return 0;
    *k = (struct shm_kernels){ table[in].two[redop - TESS_SUM],
                               table[in].one,
                               table[in].combine[redop - TESS_SUM],
                               table[out].finish,
                               table[in].bytes,
                               table[in].acc_bytes,
                               table[out].bytes };
    return 1;
}
