/* SPDX-License-Identifier: BSD-3-Clause */
/* Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011). A random
 * number is a pure function of a key and a counter, so any rank can make any range of values in any order. */
#ifndef TESS_MODELS_PHILOX_H
#define TESS_MODELS_PHILOX_H
#include <math.h>
#include <stdint.h>

#if defined(__CUDACC__)
#define PHILOX_FN static __host__ __device__ __forceinline__
#else
#define PHILOX_FN static inline
#endif

enum { PHILOX_INIT = 1, PHILOX_DROPOUT = 2, PHILOX_BATCH = 3 }; /* purpose of a stream: top byte of the second word */

typedef struct {
    uint32_t v[4];
} philox_block;

/** Returns four words for the key `seed` and counter {c0, c1, c2, c3}. */
PHILOX_FN philox_block philox(uint64_t seed, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p = (uint64_t)0xD2511F53u * c0, q = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(q >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)q;
        c3 = (uint32_t)p;
        k0 += 0x9E3779B9u; /* the golden ratio and the square root of three, as published */
        k1 += 0xBB67AE85u;
    }
    philox_block out = { { c0, c1, c2, c3 } };
    return out;
}

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
