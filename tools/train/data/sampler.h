/* SPDX-License-Identifier: BSD-3-Clause */
/* The distributed sampler chooses the samples of a microbatch. By docs/numbers.md microbatch g of an epoch is
 * permutation[g*B … (g+1)*B), for any number of ranks. */
#ifndef TOOL_SAMPLER_H
#define TOOL_SAMPLER_H
#include <stdint.h>

typedef struct {
    uint64_t samples; /* in the set; at least 1 */
    uint64_t seed;
    int64_t batch; /* samples in one microbatch */
    int32_t ranks, accum;
    int32_t sync_each; /* 1: communicating after each microbatch; 0: at the end of the step */
} tool_sampler;

/** Returns the steps of an epoch. The last step is filled from the epoch's beginning, as PyTorch's DistributedSampler
 * does. Every sample is seen, a few twice. */
uint64_t tool_sampler_steps(const tool_sampler *);

/** Returns the microbatch's position in its step, which for the same data does not depend on the ranks. It is rank*K +
 * k when communicating at the end of the step, and k*W + rank when communicating after each microbatch. */
uint64_t tool_sampler_slot(const tool_sampler *, int32_t rank, int32_t k);

/** Returns the sample at `position` of an epoch's order. Positions past the end start over. It is a pure function. */
uint64_t tool_sampler_at(const tool_sampler *, uint64_t epoch, uint64_t position);

/** Returns the `batch` samples of rank `rank`'s microbatch k in `step` (from 0) of `epoch`. */
void tool_sampler_batch(const tool_sampler *, uint64_t epoch, uint64_t step, int32_t rank, int32_t k, uint64_t *out);
#endif
