/* SPDX-License-Identifier: BSD-3-Clause */
/* The key of a word is that of its place in its block, 32 bits, times that of the block, 64 bits. Both are odd: the
 * product of a changed word and its key is below 2^64 and not 0, and an odd number keeps it so. */
#include "digest.h"

#include <pthread.h>

#include "isa.h"

enum { BLOCK = 256 }; /* words */
#define STEP UINT64_C(0x9e3779b97f4a7c15)

static uint32_t keys[BLOCK];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_keys(void) {
    for (uint64_t i = 0; i < BLOCK; i++)
        keys[i] = (uint32_t)(tess__spread((i + 1) * STEP) >> 32) | 1;
}

#define DIGEST(name, word)                                                                                             \
    TESS_BODY uint64_t name##_body(const void *values, uint64_t first, uint64_t n, uint64_t seed) {                    \
        const word *x = values;                                                                                        \
        uint64_t sum = 0;                                                                                              \
        while (n) {                                                                                                    \
            uint64_t at = first % BLOCK, most = BLOCK - at, run = n < most ? n : most, part = 0;                       \
            const uint32_t *key = keys + at;                                                                           \
            for (uint64_t i = 0; i < run; i++)                                                                         \
                part += (uint64_t)key[i] * x[i];                                                                       \
            sum += part * (tess__spread(seed + first / BLOCK * STEP) | 1);                                             \
            x += run;                                                                                                  \
            first += run;                                                                                              \
            n -= run;                                                                                                  \
        }                                                                                                              \
        return sum;                                                                                                    \
    }                                                                                                                  \
    static uint64_t name##_c(const void *x, uint64_t first, uint64_t n, uint64_t seed) {                               \
        return name##_body(x, first, n, seed);                                                                         \
    }                                                                                                                  \
    DIGEST_WIDE(name)
#if defined(TESS_HAVE_X86)
#define DIGEST_WIDE(name)                                                                                              \
    TESS_TARGET_AVX2 static uint64_t name##_avx2(const void *x, uint64_t first, uint64_t n, uint64_t seed) {           \
        return name##_body(x, first, n, seed);                                                                         \
    }                                                                                                                  \
    TESS_TARGET_AVX512 static uint64_t name##_avx512(const void *x, uint64_t first, uint64_t n, uint64_t seed) {       \
        return name##_body(x, first, n, seed);                                                                         \
    }
#define PATHS(name)                                                                                                    \
    { name##_c, name##_avx2, name##_avx512 }
#else
#define DIGEST_WIDE(name)
#define PATHS(name)                                                                                                    \
    { name##_c, name##_c, name##_c }
#endif

DIGEST(digest_1, uint8_t)
DIGEST(digest_2, uint16_t)
DIGEST(digest_4, uint32_t)

uint64_t tess__digest(const void *values, uint32_t value_bytes, uint64_t first, uint64_t n, uint64_t seed) {
    static uint64_t (*const paths[3][3])(const void *, uint64_t, uint64_t,
                                         uint64_t) = { PATHS(digest_1), PATHS(digest_2), PATHS(digest_4) };
    int isa = tess__isa(), path = isa >= TESS_ISA_AVX512 ? 2 : isa == TESS_ISA_AVX2 ? 1 : 0;
    uint64_t words = value_bytes == 8 ? 2 : 1; /* a value of 8 bytes is two words */
    pthread_once(&once, make_keys);
    return paths[value_bytes == 1 ? 0 : value_bytes == 2 ? 1 : 2][path](values, first * words, n * words, seed);
}
