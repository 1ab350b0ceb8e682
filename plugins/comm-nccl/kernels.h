/* SPDX-License-Identifier: BSD-3-Clause */
/* The kernels of this plugin, for CUDA and, in the tests' double, for the host: contributions of all ranks become one
 * result, or are widened for NCCL, whose sum is finished. The list below is what both are made from. */
#ifndef NCCL_KERNELS_H
#define NCCL_KERNELS_H
#include "formulas.h"

#include <string.h>

/* out = (sum, minimum or maximum of n contributions, in rank order in the engine's tree [+ out]) * scale. The own
 * contribution has an address of its own; the others' follow each other. */
typedef struct {
    const void *others,
        *own; /* others: rank p's at index p, or p - 1 for p > own_rank; null `own`: all n in `others` */
    void *out;
    uint64_t stride_bytes, elems; /* stride: distance between two of `others` */
    double scale;
    uint32_t n, own_rank, in_dtype, out_dtype, redop, add;
} tess_nccl_reduce_args;

enum { TESS_NCCL_LEVELS = 16 }; /* 65,536 ranks */

TESS_FN const char *tess_nccl_contribution(const tess_nccl_reduce_args *a, uint32_t rank) {
    if (a->own && rank == a->own_rank)
        return (const char *)a->own;
    return (const char *)a->others + (a->own && rank > a->own_rank ? rank - 1 : rank) * a->stride_bytes;
}

/* ---- values: 16-bit floats as f32, integers as 64 bits ------------------------------------------ */

TESS_FN float tess_nccl_load_f32(uint32_t dtype, const void *at, uint64_t i) {
    switch (dtype) {
    case TESS_F16: return tess_f32_of_f16(((const uint16_t *)at)[i]);
    case TESS_BF16: return tess_f32_of_bf16(((const uint16_t *)at)[i]);
    default: return ((const float *)at)[i];
    }
}
TESS_FN void tess_nccl_store_f32(uint32_t dtype, void *at, uint64_t i, float x) {
    switch (dtype) {
    case TESS_F16: ((uint16_t *)at)[i] = tess_f16_of_f32(x); break;
    case TESS_BF16: ((uint16_t *)at)[i] = tess_bf16_of_f32(x); break;
    default: ((float *)at)[i] = x;
    }
}
TESS_FN int64_t tess_nccl_load_whole(uint32_t dtype, const void *at, uint64_t i) {
    switch (dtype) {
    case TESS_U8: return ((const uint8_t *)at)[i];
    case TESS_I8: return ((const int8_t *)at)[i];
    case TESS_I32: return ((const int32_t *)at)[i];
    default: return ((const int64_t *)at)[i];
    }
}
TESS_FN void tess_nccl_store_whole(uint32_t dtype, void *at, uint64_t i, int64_t x) {
    switch (dtype) {
    case TESS_U8: ((uint8_t *)at)[i] = (uint8_t)x; break;
    case TESS_I8: ((int8_t *)at)[i] = (int8_t)x; break;
    case TESS_I32: ((int32_t *)at)[i] = (int32_t)x; break;
    default: ((int64_t *)at)[i] = x;
    }
}

/* A NaN on either side is the result. */
#define TESS_NCCL_JOIN_REAL(name, type)                                                                                \
    TESS_FN type name(uint32_t redop, type a, type b) {                                                                \
        if (redop == TESS_SUM || a != a || b != b)                                                                     \
            return a + b;                                                                                              \
        return (redop == TESS_MIN) == (a < b) ? a : b;                                                                 \
    }
TESS_NCCL_JOIN_REAL(tess_nccl_join_f32, float)
TESS_NCCL_JOIN_REAL(tess_nccl_join_f64, double)
TESS_FN int64_t tess_nccl_join_whole(uint32_t redop, int64_t a, int64_t b) {
    if (redop == TESS_SUM)
        return (int64_t)((uint64_t)a + (uint64_t)b);
    return (redop == TESS_MIN) == (a < b) ? a : b;
}

/* ---- the tree: a binary counter of partial results (core/kernels/kernel_tree_sum.c) ------------- */

#if defined(__CUDA_ARCH__)
#define TESS_NCCL_UNROLL _Pragma("unroll") /* keeps the partial sums in registers */
#else
#define TESS_NCCL_UNROLL
#endif
#define TESS_NCCL_TREE(type, load, join, a, i, result)                                                                 \
    do {                                                                                                               \
        type level[TESS_NCCL_LEVELS];                                                                                  \
        uint32_t last = (a)->n - 1;                                                                                    \
        for (uint32_t k = 0; k < last; k++) {                                                                          \
            type x = load((a)->in_dtype, tess_nccl_contribution(a, k), i);                                             \
            int carries = 1;                                                                                           \
            TESS_NCCL_UNROLL                                                                                           \
            for (int l = 0; l < TESS_NCCL_LEVELS; l++) {                                                               \
                if (carries && (k >> l & 1u)) {                                                                        \
                    x = join((a)->redop, level[l], x);                                                                 \
                } else if (carries) {                                                                                  \
                    level[l] = x;                                                                                      \
                    carries = 0;                                                                                       \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        (result) = load((a)->in_dtype, tess_nccl_contribution(a, last), i);                                            \
        TESS_NCCL_UNROLL                                                                                               \
        for (int l = 0; l < TESS_NCCL_LEVELS; l++)                                                                     \
            if (last >> l & 1u)                                                                                        \
                (result) = join((a)->redop, level[l], result);                                                         \
    } while (0)

#define TESS_NCCL_LOAD_F64(dtype, at, i) (((const double *)(at))[i])

TESS_FN void tess_nccl_reduce_body(const tess_nccl_reduce_args *a, uint64_t i) {
    if (a->in_dtype == TESS_F64) {
        double x;
        TESS_NCCL_TREE(double, TESS_NCCL_LOAD_F64, tess_nccl_join_f64, a, i, x);
        if (a->add)
            x = ((const double *)a->out)[i] + x;
        ((double *)a->out)[i] = a->scale == 1 ? x : x * a->scale;
    } else if (a->in_dtype < TESS_F16) {
        int64_t x;
        TESS_NCCL_TREE(int64_t, tess_nccl_load_whole, tess_nccl_join_whole, a, i, x);
        if (a->add)
            x = tess_nccl_join_whole(TESS_SUM, tess_nccl_load_whole(a->out_dtype, a->out, i), x);
        tess_nccl_store_whole(a->out_dtype, a->out, i, x);
    } else {
        float x;
        TESS_NCCL_TREE(float, tess_nccl_load_f32, tess_nccl_join_f32, a, i, x);
        if (a->add)
            x = tess_nccl_load_f32(a->out_dtype, a->out, i) + x;
        tess_nccl_store_f32(a->out_dtype, a->out, i, a->scale == 1 ? x : x * (float)a->scale);
    }
}

/* ---- around NCCL's own sums: each item is as many elements as two vectors of fp32 have ----------- */

enum { TESS_NCCL_LANES = 8 };

/* `vector`: addresses, and distances between blocks, are multiples of 16 bytes. */
typedef struct { /* to[b * elems + i] = from[b * stride + i], in fp32, for each block b */
    const void *from;
    float *to;
    uint64_t items, elems, stride;
    uint32_t blocks, in_dtype, vector;
} tess_nccl_widen_args;
typedef struct { /* out = (from [+ out]) * scale */
    const void *from;
    void *out;
    uint64_t items, elems;
    float scale;
    uint32_t in_dtype, out_dtype, add, vector;
} tess_nccl_finish_args;

#define TESS_NCCL_ALIGNED __attribute__((aligned(16)))

TESS_FN void tess_nccl_move(void *to, const void *from, uint32_t bytes) {
#if defined(__CUDA_ARCH__)
    for (uint32_t i = 0; i < bytes / 16; i++)
        ((uint4 *)to)[i] = ((const uint4 *)from)[i];
#else
    memcpy(to, from, bytes);
#endif
}

/* n of the lanes from element `at` on; all of them at once where the place is a vector's. */
TESS_FN void tess_nccl_get(uint32_t dtype, int vector, const void *from, uint64_t at, uint32_t n, float *x) {
    TESS_NCCL_ALIGNED uint16_t half[TESS_NCCL_LANES];
    if (!vector || n < TESS_NCCL_LANES) {
        TESS_NCCL_UNROLL for (uint32_t l = 0; l < TESS_NCCL_LANES; l++) x[l] =
            l < n ? tess_nccl_load_f32(dtype, from, at + l) : 0;
    } else if (dtype == TESS_F32) {
        tess_nccl_move(x, (const float *)from + at, sizeof(float) * TESS_NCCL_LANES);
    } else {
        tess_nccl_move(half, (const uint16_t *)from + at, sizeof half);
        TESS_NCCL_UNROLL for (uint32_t l = 0; l < TESS_NCCL_LANES; l++) x[l] = tess_nccl_load_f32(dtype, half, l);
    }
}
TESS_FN void tess_nccl_put(uint32_t dtype, int vector, void *to, uint64_t at, uint32_t n, const float *x) {
    TESS_NCCL_ALIGNED uint16_t half[TESS_NCCL_LANES];
    if (!vector || n < TESS_NCCL_LANES) {
        TESS_NCCL_UNROLL for (uint32_t l = 0; l < TESS_NCCL_LANES; l++) if (l < n)
            tess_nccl_store_f32(dtype, to, at + l, x[l]);
    } else if (dtype == TESS_F32) {
        tess_nccl_move((float *)to + at, x, sizeof(float) * TESS_NCCL_LANES);
    } else {
        TESS_NCCL_UNROLL for (uint32_t l = 0; l < TESS_NCCL_LANES; l++) tess_nccl_store_f32(dtype, half, l, x[l]);
        tess_nccl_move((uint16_t *)to + at, half, sizeof half);
    }
}

TESS_FN uint32_t tess_nccl_lanes_of(uint64_t elems, uint64_t item) {
    uint64_t left = elems - item * TESS_NCCL_LANES;
    return left < TESS_NCCL_LANES ? (uint32_t)left : (uint32_t)TESS_NCCL_LANES;
}

TESS_FN void tess_nccl_widen_body(const tess_nccl_widen_args *a, uint64_t item) {
    TESS_NCCL_ALIGNED float x[TESS_NCCL_LANES];
    uint32_t n = tess_nccl_lanes_of(a->elems, item);
    for (uint32_t b = 0; b < a->blocks; b++) {
        tess_nccl_get(a->in_dtype, (int)a->vector, a->from, b * a->stride + item * TESS_NCCL_LANES, n, x);
        tess_nccl_put(TESS_F32, (int)a->vector, a->to, b * a->elems + item * TESS_NCCL_LANES, n, x);
    }
}

TESS_FN void tess_nccl_finish_body(const tess_nccl_finish_args *a, uint64_t item) {
    TESS_NCCL_ALIGNED float x[TESS_NCCL_LANES], before[TESS_NCCL_LANES];
    uint64_t at = item * TESS_NCCL_LANES;
    uint32_t n = tess_nccl_lanes_of(a->elems, item);
    tess_nccl_get(a->in_dtype, (int)a->vector, a->from, at, n, x);
    if (a->add) {
        tess_nccl_get(a->out_dtype, (int)a->vector, a->out, at, n, before);
        TESS_NCCL_UNROLL for (uint32_t l = 0; l < TESS_NCCL_LANES; l++) x[l] = before[l] + x[l];
    }
    if (a->scale != 1)
        TESS_NCCL_UNROLL for (uint32_t l = 0; l < TESS_NCCL_LANES; l++) x[l] *= a->scale;
    tess_nccl_put(a->out_dtype, (int)a->vector, a->out, at, n, x);
}

/* X(name, arguments, how many calls, what one does). */
#define TESS_NCCL_KERNELS(X)                                                                                           \
    X(tess_nccl_reduce, tess_nccl_reduce_args, elems, tess_nccl_reduce_body)                                           \
    X(tess_nccl_widen, tess_nccl_widen_args, items, tess_nccl_widen_body)                                              \
    X(tess_nccl_finish, tess_nccl_finish_args, items, tess_nccl_finish_body)
#endif
