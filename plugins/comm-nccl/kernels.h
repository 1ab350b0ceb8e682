/* SPDX-License-Identifier: BSD-3-Clause */
/* The one kernel of this plugin, for CUDA and, in the tests' double, for the host: contributions of all ranks become
 * one result. The list below is what both are made from. */
#ifndef NCCL_KERNELS_H
#define NCCL_KERNELS_H
#include "formulas.h"

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

/* X(name, arguments, what is done for element i). */
#define TESS_NCCL_KERNELS(X) X(tess_nccl_reduce, tess_nccl_reduce_args, tess_nccl_reduce_body)
#endif
