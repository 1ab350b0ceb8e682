/* SPDX-License-Identifier: BSD-3-Clause */
/* A batch to measure with: anything but zeros, which some kernels are quicker on. */
#ifndef TOOL_BENCH_BATCH_H
#define TOOL_BENCH_BATCH_H
#include "tools/models/model.h"

void bench_batch_fill(const model *, void *batch);
#endif
