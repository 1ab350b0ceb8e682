/* SPDX-License-Identifier: BSD-3-Clause */
/* The device's kernels: each has its arguments and a body for one item, which compiles for CUDA (kernels.cu) and for
 * the host, in the tests' double. An item is CUDA_LANES neighbouring elements, read and written 16 bytes at a time (8
 * for 16-bit formats) where all addresses allow it; neighbouring threads take neighbouring items. Formulas are
 * kit/formulas.h's and the order of sums that of core/kernels/kernel_tree_sum.c, so the bits are the CPU's. */
#ifndef CUDA_KERNELS_H
#define CUDA_KERNELS_H
#include "formulas.h"
#include "norm_limbs.h"

enum {
    CUDA_LANES = 4,
    CUDA_FEW = 16, /* inputs of a tree sum: the arguments of a launch hold 4 KiB */
    CUDA_MANY = 448,
    CUDA_LEVELS = 9,   /* 2^9 > CUDA_MANY */
    CUDA_COLUMNS = 128 /* threads of a block that adds up squares */
};
#if defined(__CUDACC__)
#define CUDA_UNROLL _Pragma("unroll") /* keeps lanes and partial sums in registers */
#else
#define CUDA_UNROLL
#endif
#define CUDA_ALIGNED __attribute__((aligned(16)))

/* CUDA_LANES elements between aligned memory and registers. */
TESS_FN void cuda_move(void *to, const void *from, uint32_t bytes) {
#if defined(__CUDA_ARCH__)
    if (bytes == 8)
        *(uint2 *)to = *(const uint2 *)from;
    else
        for (uint32_t i = 0; i < bytes / 16; i++)
            ((uint4 *)to)[i] = ((const uint4 *)from)[i];
#else
    memcpy(to, from, bytes);
#endif
}

/* ---- lanes [from, to) of those at element `base`; `vector`: the address is aligned as a whole item needs  */

#define CUDA_MOVES(name, type)                                                                                         \
    TESS_FN void cuda_get_##name(int vector, const void *at, uint64_t base, uint32_t from, uint32_t to, type *x) {     \
        const type *in = (const type *)at + base;                                                                      \
        if (vector && to - from == CUDA_LANES)                                                                         \
            cuda_move(x, in, CUDA_LANES * sizeof(type));                                                               \
        else                                                                                                           \
            CUDA_UNROLL for (uint32_t l = 0; l < CUDA_LANES; l++) x[l] = l >= from && l < to ? in[l] : (type)0;        \
    }                                                                                                                  \
    TESS_FN void cuda_put_##name(int vector, void *at, uint64_t base, uint32_t from, uint32_t to, const type *x) {     \
        type *out = (type *)at + base;                                                                                 \
        if (vector && to - from == CUDA_LANES)                                                                         \
            cuda_move(out, x, CUDA_LANES * sizeof(type));                                                              \
        else                                                                                                           \
            CUDA_UNROLL for (uint32_t l = 0; l < CUDA_LANES; l++) if (l >= from && l < to) out[l] = x[l];              \
    }
CUDA_MOVES(u16, uint16_t)
CUDA_MOVES(f32, float)
CUDA_MOVES(f64, double)
CUDA_MOVES(u32, uint32_t)
CUDA_MOVES(u64, uint64_t)

/* Element i of blocks of 8 bits. */
TESS_FN float cuda_block_value(uint32_t dtype, const void *at, uint64_t i) {
    const char *block = (const char *)at + i / TESS_Q8_BLOCK * TESS_Q8_BYTES;
    uint8_t q = *(const uint8_t *)(block + 4 + i % TESS_Q8_BLOCK);
    return (dtype == TESS_Q8 ? tess_f32_of_q8(q) : tess_f32_of_e4m3(q)) * *(const float *)block;
}
TESS_FN int cuda_is_blocks(uint32_t dtype) {
    return dtype == TESS_Q8 || dtype == TESS_Q8E4M3;
}

/* f32, f16 or bf16, computed in f32. */
TESS_FN void cuda_load_f32(uint32_t dtype, int vector, const void *at, uint64_t base, uint32_t from, uint32_t to,
                           float *x) {
    CUDA_ALIGNED uint16_t half[CUDA_LANES];
    if (dtype == TESS_F32) {
        cuda_get_f32(vector, at, base, from, to, x);
        return;
    }
    cuda_get_u16(vector, at, base, from, to, half);
    CUDA_UNROLL for (int l = 0; l < CUDA_LANES; l++) x[l] =
        dtype == TESS_BF16 ? tess_f32_of_bf16(half[l]) : tess_f32_of_f16(half[l]);
}
TESS_FN void cuda_store_f32(uint32_t dtype, int vector, void *at, uint64_t base, uint32_t from, uint32_t to,
                            const float *x) {
    CUDA_ALIGNED uint16_t half[CUDA_LANES];
    if (dtype == TESS_F32) {
        cuda_put_f32(vector, at, base, from, to, x);
        return;
    }
    CUDA_UNROLL for (int l = 0; l < CUDA_LANES; l++) half[l] =
        dtype == TESS_BF16 ? tess_bf16_of_f32(x[l]) : tess_f16_of_f32(x[l]);
    cuda_put_u16(vector, at, base, from, to, half);
}
TESS_FN void cuda_load_f64(uint32_t dtype, int vector, const void *at, uint64_t base, uint32_t from, uint32_t to,
                           double *x) {
    (void)dtype;
    cuda_get_f64(vector, at, base, from, to, x);
}
TESS_FN void cuda_store_f64(uint32_t dtype, int vector, void *at, uint64_t base, uint32_t from, uint32_t to,
                            const double *x) {
    (void)dtype;
    cuda_put_f64(vector, at, base, from, to, x);
}
TESS_FN uint32_t cuda_lanes_of(uint64_t elems, uint64_t base) {
    return elems - base < CUDA_LANES ? (uint32_t)(elems - base) : (uint32_t)CUDA_LANES;
}

/* ---- cast --------------------------------------------------------------------------------------- */

typedef struct {
    uint64_t items, elems;
    const void *in;
    void *out;
    uint32_t in_dtype, out_dtype, vector, reserved;
} cuda_cast_args;

TESS_FN void cuda_cast_body(const cuda_cast_args *a, uint64_t i) {
    uint64_t base = i * CUDA_LANES;
    uint32_t to = cuda_lanes_of(a->elems, base);
    CUDA_ALIGNED float x[CUDA_LANES];
    CUDA_ALIGNED double wide[CUDA_LANES];
    CUDA_ALIGNED uint16_t half[CUDA_LANES];
    if (a->in_dtype != TESS_F64) {
        if (cuda_is_blocks(a->in_dtype))
            CUDA_UNROLL for (uint32_t l = 0; l < CUDA_LANES; l++) x[l] =
                l < to ? cuda_block_value(a->in_dtype, a->in, base + l) : 0.0f;
        else
            cuda_load_f32(a->in_dtype, (int)a->vector, a->in, base, 0, to, x);
        if (a->out_dtype != TESS_F64) {
            cuda_store_f32(a->out_dtype, (int)a->vector, a->out, base, 0, to, x);
            return;
        }
        CUDA_UNROLL for (int l = 0; l < CUDA_LANES; l++) wide[l] = tess_f64_of_f32(x[l]);
        cuda_put_f64((int)a->vector, a->out, base, 0, to, wide);
        return;
    }
    cuda_get_f64((int)a->vector, a->in, base, 0, to, wide);
    CUDA_UNROLL for (int l = 0; l < CUDA_LANES; l++) {
        x[l] = tess_f32_of_f64(wide[l]);
        half[l] = a->out_dtype == TESS_BF16 ? tess_bf16_of_f64(wide[l]) : tess_f16_of_f64(wide[l]);
    }
    if (a->out_dtype == TESS_F32)
        cuda_put_f32((int)a->vector, a->out, base, 0, to, x);
    else
        cuda_put_u16((int)a->vector, a->out, base, 0, to, half);
}

/* ---- scale -------------------------------------------------------------------------------------- */

typedef struct {
    uint64_t items, elems;
    const void *in;
    void *out;
    double scale;
    uint32_t dtype, vector;
} cuda_scale_args;

TESS_FN void cuda_scale_body(const cuda_scale_args *a, uint64_t i) {
    uint64_t base = i * CUDA_LANES;
    uint32_t to = cuda_lanes_of(a->elems, base);
    if (a->dtype == TESS_F32) {
        CUDA_ALIGNED float x[CUDA_LANES];
        cuda_get_f32((int)a->vector, a->in, base, 0, to, x);
        CUDA_UNROLL for (int l = 0; l < CUDA_LANES; l++) x[l] *= (float)a->scale;
        cuda_put_f32((int)a->vector, a->out, base, 0, to, x);
    } else {
        CUDA_ALIGNED double x[CUDA_LANES];
        cuda_get_f64((int)a->vector, a->in, base, 0, to, x);
        CUDA_UNROLL for (int l = 0; l < CUDA_LANES; l++) x[l] *= a->scale;
        cuda_put_f64((int)a->vector, a->out, base, 0, to, x);
    }
}

/* ---- tree sum: a binary counter of partial sums, one per bit of the number of inputs ------------ */

typedef struct {
    uint64_t items, elems;
    void *out;
    double scale; /* 1: none */
    uint32_t n_in, in_dtype, out_dtype, chain, add, vector;
    uint32_t round, reserved; /* kernels_blocks.h */
} cuda_sum;
typedef struct {
    cuda_sum sum;
    const void *in[CUDA_FEW];
} cuda_sum_few_args;
typedef struct {
    cuda_sum sum;
    const void *in[CUDA_MANY];
} cuda_sum_many_args;

/* PARTIAL: the dtype that a chain's partials have. */
#define CUDA_SUM_BODY(name, type, load, store, PARTIAL, TIMES)                                                         \
    TESS_FN void name(const cuda_sum *a, const void *const *in, uint64_t i) {                                          \
        uint64_t base = i * CUDA_LANES;                                                                                \
        uint32_t to = cuda_lanes_of(a->elems, base), last = a->n_in - 1;                                               \
        int vector = (int)a->vector;                                                                                   \
        CUDA_ALIGNED type level[CUDA_LEVELS][CUDA_LANES], x[CUDA_LANES], y[CUDA_LANES];                                \
        for (uint32_t k = 0; k < last && !a->chain; k++) {                                                             \
            int carries = 1;                                                                                           \
            load(a->in_dtype, vector, in[k], base, 0, to, x);                                                          \
            CUDA_UNROLL for (int d = 0; d < CUDA_LEVELS; d++) {                                                        \
                int sums = carries && (k >> d & 1u), stays = carries && !(k >> d & 1u);                                \
                CUDA_UNROLL for (int l = 0; l < CUDA_LANES; l++) {                                                     \
                    if (sums)                                                                                          \
                        x[l] = level[d][l] + x[l];                                                                     \
                    else if (stays)                                                                                    \
                        level[d][l] = x[l];                                                                            \
                }                                                                                                      \
                carries = sums;                                                                                        \
            }                                                                                                          \
        }                                                                                                              \
        load(a->in_dtype, vector, in[last], base, 0, to, x);                                                           \
        CUDA_UNROLL for (int d = 0; d < CUDA_LEVELS; d++) {                                                            \
            if (a->chain || !(last >> d & 1u))                                                                         \
                continue;                                                                                              \
            CUDA_UNROLL for (int l = 0; l < CUDA_LANES; l++) x[l] = level[d][l] + x[l];                                \
        }                                                                                                              \
        for (uint32_t k = a->chain ? last : 0; k-- > 0;) {                                                             \
            load(PARTIAL, vector, in[k], base, 0, to, y);                                                              \
            CUDA_UNROLL for (int l = 0; l < CUDA_LANES; l++) x[l] = y[l] + x[l];                                       \
        }                                                                                                              \
        if (a->add) {                                                                                                  \
            load(a->out_dtype, vector, a->out, base, 0, to, y);                                                        \
            CUDA_UNROLL for (int l = 0; l < CUDA_LANES; l++) x[l] = y[l] + x[l];                                       \
        }                                                                                                              \
        if (a->scale != 1)                                                                                             \
            CUDA_UNROLL for (int l = 0; l < CUDA_LANES; l++) x[l] = TIMES(type, x[l], a->scale);                       \
        store(a->out_dtype, vector, a->out, base, 0, to, x);                                                           \
    }
#define CUDA_REAL_TIMES(type, x, s) ((x) * (type)(s))
#define CUDA_WHOLE_TIMES(type, x, s) (x) /* integers are not scaled */
#define CUDA_LOAD_U32(dtype, vector, at, base, from, to, x) cuda_get_u32(vector, at, base, from, to, x)
#define CUDA_LOAD_U64(dtype, vector, at, base, from, to, x) cuda_get_u64(vector, at, base, from, to, x)
#define CUDA_STORE_U32(dtype, vector, at, base, from, to, x) cuda_put_u32(vector, at, base, from, to, x)
#define CUDA_STORE_U64(dtype, vector, at, base, from, to, x) cuda_put_u64(vector, at, base, from, to, x)
CUDA_SUM_BODY(cuda_sum_f32, float, cuda_load_f32, cuda_store_f32, TESS_F32, CUDA_REAL_TIMES)
CUDA_SUM_BODY(cuda_sum_f64, double, cuda_load_f64, cuda_store_f64, TESS_F64, CUDA_REAL_TIMES)
CUDA_SUM_BODY(cuda_sum_i32, uint32_t, CUDA_LOAD_U32, CUDA_STORE_U32, TESS_I32, CUDA_WHOLE_TIMES)
CUDA_SUM_BODY(cuda_sum_i64, uint64_t, CUDA_LOAD_U64, CUDA_STORE_U64, TESS_I64, CUDA_WHOLE_TIMES)

#define CUDA_SUM_BODIES(type)                                                                                          \
    TESS_FN void cuda_sum_##type##_few_body(const cuda_sum_few_args *a, uint64_t i) {                                  \
        cuda_sum_##type(&a->sum, a->in, i);                                                                            \
    }                                                                                                                  \
    TESS_FN void cuda_sum_##type##_many_body(const cuda_sum_many_args *a, uint64_t i) {                                \
        cuda_sum_##type(&a->sum, a->in, i);                                                                            \
    }
CUDA_SUM_BODIES(f32)
CUDA_SUM_BODIES(f64)
CUDA_SUM_BODIES(i32)
CUDA_SUM_BODIES(i64)

/* ---- the digits of a sum of squares (kernels_many.h) --------------------------------------------- */

typedef struct {
    uint64_t items; /* 1 */
    int64_t *limbs;
} cuda_carry_args;

TESS_FN void cuda_carry_body(const cuda_carry_args *a, uint64_t i) {
    (void)i;
    tess__norm_carry(a->limbs);
}

typedef struct {
    uint64_t items; /* 1 */
    const int64_t *limbs;
    float *out;
    double most;
} cuda_clip_args;

TESS_FN void cuda_clip_body(const cuda_clip_args *a, uint64_t i) {
    (void)i;
    *a->out = tess__clip_of(a->most, sqrt(tess__norm_square_of(a->limbs)));
}

/* ---- the list: X(name, arguments, what is done for item i) -------------------------------------- */

#define CUDA_KERNELS(X)                                                                                                \
    X(tess_cuda_cast, cuda_cast_args, cuda_cast_body)                                                                  \
    X(tess_cuda_scale, cuda_scale_args, cuda_scale_body)                                                               \
    X(tess_cuda_sum_f32_few, cuda_sum_few_args, cuda_sum_f32_few_body)                                                 \
    X(tess_cuda_sum_f64_few, cuda_sum_few_args, cuda_sum_f64_few_body)                                                 \
    X(tess_cuda_sum_i32_few, cuda_sum_few_args, cuda_sum_i32_few_body)                                                 \
    X(tess_cuda_sum_i64_few, cuda_sum_few_args, cuda_sum_i64_few_body)                                                 \
    X(tess_cuda_sum_f32_many, cuda_sum_many_args, cuda_sum_f32_many_body)                                              \
    X(tess_cuda_sum_f64_many, cuda_sum_many_args, cuda_sum_f64_many_body)                                              \
    X(tess_cuda_sum_i32_many, cuda_sum_many_args, cuda_sum_i32_many_body)                                              \
    X(tess_cuda_sum_i64_many, cuda_sum_many_args, cuda_sum_i64_many_body)                                              \
    X(tess_cuda_carry, cuda_carry_args, cuda_carry_body)                                                               \
    X(tess_cuda_clip, cuda_clip_args, cuda_clip_body)
/* kernels_many.h and kernels_blocks.h list the others. */
#endif
