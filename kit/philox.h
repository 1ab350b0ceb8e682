/* SPDX-License-Identifier: BSD-3-Clause */
/* Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011). A random
 * number is a pure function of a key and a counter, so any rank can make any range of values in any order. */
#ifndef TESS_PHILOX_H
#define TESS_PHILOX_H
#include <stdint.h>

#if defined(__CUDACC__)
#define PHILOX_FN static __host__ __device__ __forceinline__
#else
#define PHILOX_FN static inline
#endif

enum { PHILOX_INIT = 1, PHILOX_DROPOUT, PHILOX_BATCH, PHILOX_ROUND }; /* purpose of a stream: second word's top byte */

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
#endif
