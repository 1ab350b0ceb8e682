/* SPDX-License-Identifier: BSD-3-Clause */
/* What the files of gpu_bench share. */
#ifndef TESSERA_GPU_BENCH_H
#define TESSERA_GPU_BENCH_H
#include <stdint.h>
#include <tessera/tessera.h>

double gpu_bench_now(void); /* seconds */
double gpu_bench_median(double *x, int n);
/** A line: the value, what bounds it, and their ratio. */
void gpu_bench_say(const char *what, double value, double limit, const char *unit);
/** The operators of a decoder's layer; small where `bytes` is. */
tess_status gpu_bench_layer(uint64_t bytes, double copy_bandwidth);
#endif
