/* SPDX-License-Identifier: BSD-3-Clause */
/* A digest of values by their place: the sum over all words of (key of the place) * (word), modulo 2^64. Digests of
 * parts add up to the digest of the whole, however it is cut, and in any order. */
#ifndef TESS_DIGEST_H
#define TESS_DIGEST_H
#include <stdint.h>

/** Values first … first + n - 1, of 1, 2, 4 or 8 bytes each, of what `seed` names. Bits count, not numbers: zero adds
 * nothing, and -0 does. A change of one value always changes the sum. Any thread. */
uint64_t tess__digest(const void *values, uint32_t value_bytes, uint64_t first, uint64_t n, uint64_t seed);
/** Spreads every bit of x over all 64 (the finaliser of splitmix64); one to one. */
static inline uint64_t tess__spread(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}
#endif
