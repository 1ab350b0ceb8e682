/* SPDX-License-Identifier: BSD-3-Clause */
/* Splitting independent work over the context's threads, and what the plain kernels need to be vectorised. */
#ifndef TESS_MODELS_PARALLEL_H
#define TESS_MODELS_PARALLEL_H
#include "ops.h"

/* Compiled once per instruction set and chosen at run time. Lanes are independent and nothing is contracted, so the
 * bits are the same in each. Not under a sanitizer, whose run-time is not up when the choice is made. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) && !TESSERA_SANITIZED
#if __GNUC__ >= 12
#define OPS_WIDEST "arch=x86-64-v4"
#else
#define OPS_WIDEST "avx512f" /* GCC 11 knows no levels */
#endif
#define OPS_CLONES __attribute__((target_clones(OPS_WIDEST, "avx2", "default")))
#else
#define OPS_CLONES
#endif

/** Items first … last-1 on thread `thread`. */
typedef void (*ops_task)(void *arg, int32_t thread, int64_t first, int64_t last);
/** Calls `task` for n items cut into one contiguous range per thread, at multiples of `grain`. Which thread gets which
 * items must not matter to the result. */
void ops_parallel(const ops *o, int64_t n, int64_t grain, ops_task task, void *arg);
#endif
