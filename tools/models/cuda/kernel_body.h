/* SPDX-License-Identifier: BSD-3-Clause */
/* Macros for the kernels of kernels.h. */
#ifndef TESS_MODELS_CUDA_KERNEL_BODY_H
#define TESS_MODELS_CUDA_KERNEL_BODY_H
#include "tools/models/ops_formulas.h"
#include "tools/models/philox.h"

/* OPS_EACH: elements per thread in kernels whose elements are independent. */
enum { OPS_BLOCK = 256, OPS_ROOM = 2 * OPS_BLOCK, OPS_EACH = 4 };
enum {
    OPS_WIDE = 4096
}; /* doubles that a block of a wide kernel shares: 32 KiB, so that six blocks fit on a Hopper multiprocessor */
enum { OPS_ROWS_PER_BLOCK = OPS_BLOCK / OPS_LANES };
enum { OPS_COLUMNS_PER_BLOCK = 8, OPS_COLUMN_LANES = OPS_BLOCK / OPS_COLUMNS_PER_BLOCK };
enum { OPS_CHUNK = 512 }; /* rows per chunk of batch normalisation's sums, the same as on the CPU */

/* A 64-bit division costs a GPU several times a 32-bit one, which almost always suffices. */
TESS_FN uint64_t ops_div(uint64_t a, uint64_t b) {
    return (a | b) >> 32 ? a / b : (uint32_t)a / (uint32_t)b;
}
TESS_FN uint64_t ops_mod(uint64_t a, uint64_t b) {
    return (a | b) >> 32 ? a % b : (uint32_t)a % (uint32_t)b;
}

/* Iterates over a thread's elements, block · 1024 + k · 256 + thread. Neighbouring threads read neighbouring
 * elements. */
#define OPS_FOR_EACH(i, n)                                                                                             \
    for (uint64_t i = (uint64_t)block * (OPS_BLOCK * OPS_EACH) + thread, end_ = i + OPS_BLOCK * OPS_EACH;              \
         i < end_ && i < (n); i += OPS_BLOCK)
/* The same iteration with all loads before the stores, so that the loads overlap. OPS_LOAD declares v, the thread's
 * elements of p. OPS_STORE runs its body for element i, which is v[k]. */
#define OPS_AT(k) ((uint64_t)block * (OPS_BLOCK * OPS_EACH) + (uint64_t)(k)*OPS_BLOCK + thread)
#define OPS_LOAD(type, v, p, n)                                                                                        \
    type v[OPS_EACH];                                                                                                  \
    for (int k_ = 0; k_ < OPS_EACH; k_++)                                                                              \
    v[k_] = OPS_AT(k_) < (n) ? (p)[OPS_AT(k_)] : 0
#define OPS_STORE(i, k, n)                                                                                             \
    for (int k = 0; k < OPS_EACH; k++)                                                                                 \
        for (uint64_t i = OPS_AT(k), once_ = 1; once_ && i < (n); once_ = 0)
#define OPS_BODY(name)                                                                                                 \
    TESS_FN void ops_body_##name(const ops_args_##name *a, uint32_t block, uint32_t thread, int phase, double *room)
#if defined(__CUDACC__)
#define OPS_ROLLED _Pragma("unroll 1") /* unrolling would cost registers and gain nothing */
#define OPS_UNROLLED _Pragma("unroll") /* so that arrays rest in registers */
#define OPS_AHEAD _Pragma("unroll 16") /* so that many loads of a sum are under way at once */
#else
#define OPS_ROLLED
#define OPS_UNROLLED
#define OPS_AHEAD
#endif
#define OPS_ONE_PHASE                                                                                                  \
    (void)phase;                                                                                                       \
    (void)room

/* ---- rows: a block has 16 rows of 16 lanes each ----------------------------------------------------- */
TESS_FN double ops_add_lanes(const double *room, uint32_t row) {
    double sum = 0;
    for (int lane = 0; lane < OPS_LANES; lane++)
        sum += room[(int)row * OPS_LANES + lane];
    return sum;
}
#define OPS_ROW                                                                                                        \
    uint32_t lane = thread % OPS_LANES, within = thread / OPS_LANES;                                                   \
    uint64_t r = (uint64_t)block * OPS_ROWS_PER_BLOCK + within
#endif
