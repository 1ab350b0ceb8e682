/* SPDX-License-Identifier: BSD-3-Clause */
/* A model's blocks called one after another in one process, without the engine: the same kernels on plain memory. Tests
 * of the models use it, and the benchmark that compares the engine with it. */
#ifndef TESS_MODELS_DIRECT_H
#define TESS_MODELS_DIRECT_H
#include "model.h"

typedef struct direct direct;
/** Allocates everything, where the model's operators have their tensors (after their start); parameters get their
 * initial values. `check`: every call's scratch starts as NaN, and direct_intact sees writes beyond the declared sizes.
 */
tess_status direct_create(model *, int check, direct **out);
void direct_destroy(direct *);
float *direct_param(direct *, int32_t param); /* an alias gives its original's; in the operators' memory */
float *direct_grad(direct *, int32_t param);
void direct_zero_grads(direct *); /* zeroes the gradients that kernels add to */
/** One pass: TESS_PASS_TRAIN adds gradients, TESS_PASS_EVAL is forward only. `result`: desc.result_bytes, or null.
 * Blocks are held to their flags: a dropped output is null (and NaN, with `check`), a gradient in place has one buffer.
 */
tess_status direct_run(direct *, uint32_t pass, const void *batch, uint64_t step, uint64_t microbatch, void *result);
/** Makes each later run write the seconds of every block: forward at [i], backward at [n_blocks + i]; null stops it. */
void direct_clock(direct *, double *seconds);
int direct_intact(const direct *); /* 1 unless something was written beyond a buffer's end */
#endif
