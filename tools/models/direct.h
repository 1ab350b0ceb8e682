/* SPDX-License-Identifier: BSD-3-Clause */
/* Calls a model's blocks one after another in one process, without the engine: the same kernels on plain memory.
 * Tests of the models use it, and so does the benchmark that compares the engine with it. */
#ifndef TESS_MODELS_DIRECT_H
#define TESS_MODELS_DIRECT_H
#include "model.h"

typedef struct direct direct;
/** Allocates all tensors in the memory of the model's operators, which must have been started. Parameters get their
 * initial values. With `check`, each call's scratch starts as NaN, and direct_intact detects writes beyond the
 * declared sizes. */
tess_status direct_create(model *, int check, direct **out);
void direct_destroy(direct *);
float *direct_param(direct *, int32_t param); /* pointer into the operators' memory; an alias gives its original's */
float *direct_grad(direct *, int32_t param);
void direct_zero_grads(direct *); /* zeroes only the gradients that kernels add to */
/** Runs one pass: TESS_PASS_TRAIN adds gradients, TESS_PASS_EVAL is forward only. `result`: desc.result_bytes, or
 * null. It enforces the blocks' flags: a dropped output is null (and NaN with `check`), and a gradient in place has
 * one buffer. */
tess_status direct_run(direct *, uint32_t pass, const void *batch, uint64_t step, uint64_t microbatch, void *result);
/** Makes each later run write the seconds of each block: forward at [i], backward at [n_blocks + i]; null stops it. */
void direct_clock(direct *, double *seconds);
/** Multiplies the loss's gradient in each later run, as the engine does in fp16; 0: 1. */
void direct_scale_loss(direct *, float scale);
int direct_intact(const direct *); /* 1 if nothing was written beyond a buffer's end */
#endif
