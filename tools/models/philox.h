/* SPDX-License-Identifier: BSD-3-Clause */
/* Random values of models and batches, by element. */
#ifndef TESS_MODELS_PHILOX_H
#define TESS_MODELS_PHILOX_H
#include "kit/philox.h"
#include <math.h>

/** Returns the block of element `i` in stream `purpose`; the element's word in it is i & 3. */
static inline philox_block philox_at(uint64_t seed, uint32_t purpose, uint64_t i, uint32_t a, uint32_t b) {
    uint64_t n = i >> 2;
    return philox(seed, (uint32_t)n, purpose << 24 | (uint32_t)(n >> 32 & 0xffffff), a, b);
}

/** Maps a word to [0, 1) on a grid of 2^-24, which is exact in fp32. */
PHILOX_FN float philox_uniform(uint32_t word) {
    return (float)(word >> 8) * 0x1p-24f;
}

/** Makes four standard normals from a block by Box and Muller's method in fp64. */
static inline void philox_normal(philox_block block, float out[4]) {
    for (int i = 0; i < 4; i += 2) {
        double u = ((double)block.v[i] + 1.0) * 0x1p-32; /* in (0, 1], so the logarithm is finite */
        double angle = (double)block.v[i + 1] * 0x1p-32 * 6.283185307179586476925;
        double radius = sqrt(-2.0 * log(u));
        out[i] = (float)(radius * cos(angle));
        out[i + 1] = (float)(radius * sin(angle));
    }
}
#endif
