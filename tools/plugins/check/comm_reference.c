/* SPDX-License-Identifier: BSD-3-Clause */
#include "comm_reference.h"
#include <math.h>
#include <string.h>

uint64_t ref_dtype_bytes(uint32_t dtype) {
    static const uint8_t bytes[] = { 0, 1, 1, 4, 8, 2, 2, 4, 8 };
    return dtype < sizeof bytes ? bytes[dtype] : 0;
}

const char *ref_dtype_name(uint32_t dtype) {
    static const char *const names[] = { "?", "u8", "i8", "i32", "i64", "f16", "bf16", "f32", "f64" };
    return dtype < sizeof names / sizeof *names ? names[dtype] : "?";
}

/* 2^n for a normal result, and the largest such n with 2^n <= |x|; -1023 for a zero or subnormal x. libm's functions
 * are much slower, and millions of values take them. */
static double power_of_two(int n) {
    const uint64_t bits = (uint64_t)(n + 1023) << 52;
    double p;
    memcpy(&p, &bits, sizeof p);
    return p;
}
static int exponent_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (int)(bits >> 52 & 2047) - 1023;
}

/* Rounds a float to `digits` significant bits, ties to even. Subnormals are multiples of 2^least. */
static double round_to(float x, int digits, int least) {
    if (x == 0 || !isfinite(x))
        return (double)x;
    const int e = exponent_of((double)x), unit = (e < least ? least : e) - digits + 1;
    const double near = 3 * power_of_two(51); /* doubles near it are whole: a sum with it is rounded */
    return copysign((fabs((double)x) * power_of_two(-unit) + near - near) * power_of_two(unit), (double)x);
}

static uint16_t f16_bits(float x) {
    const double v = fabs(round_to(x, 11, -14));
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    const int e = exponent_of(v);
    if (v > 65504)
        return sign | 0x7c00;
    if (e < -14)
        return sign | (uint16_t)(v * power_of_two(24));
    return sign | (uint16_t)((e + 15) << 10) | (uint16_t)(v * power_of_two(10 - e) - 1024);
}

static float f16_value(uint16_t bits) {
    int e = bits >> 10 & 31, m = bits & 1023;
    double v = e == 31 ? INFINITY : (e == 0 ? m : 1024 + m) * power_of_two((e == 0 ? 1 : e) - 25);
    return (float)(bits & 0x8000 ? -v : v);
}

static uint16_t bf16_bits(float x) {
    float v = (float)round_to(x, 8, -126);
    uint32_t bits;
    memcpy(&bits, &v, 4);
    return (uint16_t)(bits >> 16);
}

static float bf16_value(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float v;
    memcpy(&v, &wide, 4);
    return v;
}

static uint64_t mix(uint64_t x) {
    x ^= x >> 33;
    x *= UINT64_C(0xff51afd7ed558ccd);
    x ^= x >> 33;
    x *= UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ x >> 33;
}

static void store(uint32_t dtype, double real, int64_t whole, void *out) {
    const float single = (float)real;
    const int32_t narrow = (int32_t)(uint32_t)(uint64_t)whole;
    const uint8_t byte = (uint8_t)(uint64_t)whole;
    switch (dtype) {
    case TESS_U8:
    case TESS_I8: memcpy(out, &byte, 1); break;
    case TESS_I32: memcpy(out, &narrow, 4); break;
    case TESS_I64: memcpy(out, &whole, 8); break;
    case TESS_F32: memcpy(out, &single, 4); break;
    case TESS_F64: memcpy(out, &real, 8); break;
    default: memcpy(out, &(uint16_t){ dtype == TESS_F16 ? f16_bits(single) : bf16_bits(single) }, 2);
    }
}

void ref_value(uint32_t dtype, int rank, uint64_t i, int exact, void *out) {
    uint64_t h = mix((i + 1) * UINT64_C(0xd1342543de82ef95) + ((uint64_t)rank + 1) * UINT64_C(0x9e3779b97f4a7c15));
    if (exact) {
        store(dtype, (double)(h % 7 + 1), (int64_t)(h % 7 + 1), out);
        return;
    }
    /* Odd mantissas over a few binades show the order of additions in the last bits. No value is zero. */
    double m = (double)(h >> 12 | 1) / (double)(UINT64_C(1) << 52);
    double real = (h & 1 ? m : -m) * power_of_two((int)(h >> 1 & 7) - 3);
    store(dtype, real, (int64_t)h, out);
}

static int is_whole(uint32_t dtype) {
    return dtype == TESS_U8 || dtype == TESS_I8 || dtype == TESS_I32 || dtype == TESS_I64;
}

static int64_t load_whole(uint32_t dtype, const void *p) {
    uint8_t u8;
    int8_t i8;
    int32_t i32;
    int64_t i64;
    switch (dtype) {
    case TESS_U8: memcpy(&u8, p, 1); return u8;
    case TESS_I8: memcpy(&i8, p, 1); return i8;
    case TESS_I32: memcpy(&i32, p, 4); return i32;
    default: memcpy(&i64, p, 8); return i64;
    }
}

static double load_real(uint32_t dtype, const void *p) {
    uint16_t half;
    float single;
    double real;
    switch (dtype) {
    case TESS_F16: memcpy(&half, p, 2); return f16_value(half);
    case TESS_BF16: memcpy(&half, p, 2); return bf16_value(half);
    case TESS_F32: memcpy(&single, p, 4); return single;
    default: memcpy(&real, p, 8); return real;
    }
}

static int below(int n) { /* returns the largest power of two below n */
    int p = 1;
    while (p * 2 < n)
        p *= 2;
    return p;
}

static double join_real(uint32_t dtype, uint32_t redop, double a, double b) {
    if (redop != TESS_SUM)
        return (redop == TESS_MIN) == (a < b) ? a : b;
    if (dtype == TESS_F64)
        return a + b;
    float sum = (float)a + (float)b;
    return sum;
}

static double tree_real(uint32_t dtype, uint32_t redop, int lo, int n, uint64_t i, int exact) {
    if (n == 1) {
        unsigned char raw[8];
        ref_value(dtype, lo, i, exact, raw);
        return load_real(dtype, raw);
    }
    int p = below(n);
    return join_real(dtype, redop, tree_real(dtype, redop, lo, p, i, exact),
                     tree_real(dtype, redop, lo + p, n - p, i, exact));
}

static int64_t fold_whole(uint32_t dtype, uint32_t redop, int n, uint64_t i, int exact) {
    int64_t all = 0;
    for (int rank = 0; rank < n; rank++) {
        unsigned char raw[8];
        ref_value(dtype, rank, i, exact, raw);
        int64_t v = load_whole(dtype, raw);
        if (rank == 0)
            all = v;
        else if (redop == TESS_SUM)
            all = (int64_t)((uint64_t)all + (uint64_t)v);
        else if ((redop == TESS_MIN) == (v < all))
            all = v;
    }
    return all;
}

void ref_reduce(uint32_t from, uint32_t to, uint32_t redop, int n, uint64_t i, int exact, double scale, const void *old,
                void *out) {
    if (is_whole(from)) {
        int64_t v = fold_whole(from, redop, n, i, exact);
        store(to, 0, old ? (int64_t)((uint64_t)v + (uint64_t)load_whole(to, old)) : v, out);
        return;
    }
    double v = tree_real(from, redop, 0, n, i, exact);
    if (from == TESS_F64) {
        v = old ? load_real(to, old) + v : v;
        v *= scale;
    } else {
        float f = old ? (float)load_real(to, old) + (float)v : (float)v;
        v = f * (float)scale;
    }
    store(to, v, 0, out);
}

uint64_t ref_part(int shape, uint64_t count, int nranks, int from, int to) {
    const uint64_t even = count / (uint64_t)nranks;
    switch (shape) {
    case PARTS_UNEVEN: return even * (uint64_t)((from + 2 * to) % 3) / 2;
    case PARTS_TO_ONE: return to == nranks / 2 ? even : 0;
    case PARTS_TO_NEXT: return to == (from + 1) % nranks ? count : 0;
    default: return 0;
    }
}
