/* Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): random bits as a function of a
 * key and a counter, so that they depend on neither rank nor call order. */
#ifndef TOOL_PHILOX_H
#define TOOL_PHILOX_H
#include <stdint.h>

/** out = Philox(key, counter): 128 random bits. */
static inline void tool_philox(uint64_t key, const uint32_t counter[4], uint32_t out[4]) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t next0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, next2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = next0;
        c2 = next2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/** The k-th number of stream (key, a, b), uniform in [0, 1) with 24 bits. */
static inline float tool_uniform(uint64_t key, uint64_t a, uint32_t b, uint32_t k) {
    uint32_t counter[4] = { (uint32_t)a, (uint32_t)(a >> 32), b, k / 4 }, bits[4];
    tool_philox(key, counter, bits);
    return (float)(bits[k % 4] >> 8) * 0x1p-24f;
}
#endif
