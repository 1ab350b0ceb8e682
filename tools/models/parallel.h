/* SPDX-License-Identifier: BSD-3-Clause */
/* Divides independent work over the context's threads, and lets the compiler vectorise the plain kernels for each
 * instruction set. */
#ifndef TESS_MODELS_PARALLEL_H
#define TESS_MODELS_PARALLEL_H
#include "ops.h"

/* The compiler makes one clone per instruction set, and the loader chooses one. Lanes are independent and nothing is
 * contracted, so the bits are equal. Sanitizers exclude clones, because their run-time is not initialised when the
 * loader chooses. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) && !TESSERA_SANITIZED
#if __GNUC__ >= 12
#define OPS_WIDEST "arch=x86-64-v4"
#define OPS_HAS_WIDEST __builtin_cpu_supports("x86-64-v4")
#else
#define OPS_WIDEST "avx512f" /* GCC 11 does not know x86-64 levels */
#define OPS_HAS_WIDEST __builtin_cpu_supports("avx512f")
#endif
#define OPS_CLONES __attribute__((target_clones(OPS_WIDEST, "avx2", "default")))
#else
#define OPS_CLONES
#endif

/** Processes items first … last-1 on thread `thread`. */
typedef void (*ops_task)(void *arg, int32_t thread, int64_t first, int64_t last);
/** Divides n items into one contiguous range per thread, at multiples of `grain`, and calls `task` for each. The
 * result must not depend on which thread gets which items. */
void ops_parallel(const ops *o, int64_t n, int64_t grain, ops_task task, void *arg);
#endif
