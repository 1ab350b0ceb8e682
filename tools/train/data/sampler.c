/* SPDX-License-Identifier: BSD-3-Clause */
#include "sampler.h"

#include "random.h"

uint64_t tool_sampler_steps(const tool_sampler *s) {
    uint64_t per_step = (uint64_t)s->batch * (uint64_t)s->ranks * (uint64_t)s->accum;
    return (s->samples + per_step - 1) / per_step;
}

uint64_t tool_sampler_slot(const tool_sampler *s, int32_t rank, int32_t k) {
    if (s->sync_each)
        return (uint64_t)k * (uint64_t)s->ranks + (uint64_t)rank;
    return (uint64_t)rank * (uint64_t)s->accum + (uint64_t)k;
}

/* One Feistel permutation of 2*half_bits bits, keyed by seed and epoch. */
static uint64_t feistel(uint64_t seed, uint64_t epoch, unsigned half_bits, uint64_t x) {
    uint64_t mask = (UINT64_C(1) << half_bits) - 1;
    uint64_t left = x >> half_bits, right = x & mask;
    for (uint32_t round = 0; round < 6; round++) {
        philox_block bits =
            philox(seed, (uint32_t)right, (uint32_t)epoch, (uint32_t)(epoch >> 32), 0x53000000u + round);
        uint64_t next = left ^ ((((uint64_t)bits.v[1] << 32) | bits.v[0]) & mask);
        left = right;
        right = next;
    }
    return left << half_bits | right;
}

/* Applies a permutation of a power of four until the result is inside the set. This needs no table. */
uint64_t tool_sampler_at(const tool_sampler *s, uint64_t epoch, uint64_t position) {
    unsigned half_bits = 1;
    while (half_bits < 31 && UINT64_C(1) << (2 * half_bits) < s->samples)
        half_bits++;
    uint64_t x = position % s->samples;
    do
        x = feistel(s->seed, epoch, half_bits, x);
    while (x >= s->samples);
    return x;
}

void tool_sampler_batch(const tool_sampler *s, uint64_t epoch, uint64_t step, int32_t rank, int32_t k, uint64_t *out) {
    uint64_t per_step = (uint64_t)s->ranks * (uint64_t)s->accum;
    uint64_t first = (step * per_step + tool_sampler_slot(s, rank, k)) * (uint64_t)s->batch;
    for (int64_t i = 0; i < s->batch; i++)
        out[i] = tool_sampler_at(s, epoch, first + (uint64_t)i);
}
