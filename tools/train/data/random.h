/* SPDX-License-Identifier: BSD-3-Clause */
/* Random numbers for data, from the same generator as the models'. */
#ifndef TOOL_RANDOM_H
#define TOOL_RANDOM_H
#include "tools/models/philox.h"

/** Returns number k of stream (seed, a, b), uniform in [0, 1) with 24 bits. */
static inline float tool_uniform(uint64_t seed, uint64_t a, uint32_t b, uint32_t k) {
    return philox_uniform(philox(seed, (uint32_t)a, (uint32_t)(a >> 32), b, k / 4).v[k % 4]);
}
#endif
