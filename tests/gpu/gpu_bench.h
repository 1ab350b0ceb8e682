/* SPDX-License-Identifier: BSD-3-Clause */
/* What the files of gpu_bench share. */
#ifndef TESSERA_GPU_BENCH_H
#define TESSERA_GPU_BENCH_H
#include <stdint.h>
#include <tessera/tessera.h>

#include "tools/models/ops.h"

/** Each of our kernels once, for a tool that looks at them: no times, no product of cuBLAS, no engine. */
extern int gpu_bench_once;
double gpu_bench_now(void); /* seconds */
double gpu_bench_median(double *x, int n);
/** A line: the value, what bounds it, and their ratio. */
void gpu_bench_say(const char *what, double value, double limit, const char *unit);
/** Seconds of a call that enqueues: the median of rounds. */
tess_status gpu_bench_time(ops *, tess_status (*run)(const void *), const void *arg, double *out);
/** The operators of a decoder's layer, and the others of a decoder; small where `bytes` is. */
tess_status gpu_bench_layer(uint64_t bytes, double copy_bandwidth);
tess_status gpu_bench_ends(uint64_t bytes, double copy_bandwidth);
#endif
