/* SPDX-License-Identifier: BSD-3-Clause */
/* Dynamic 8-bit codes: Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2022, section 1.3. A code is
 * the index of one of 256 ascending values between -1 (or 0) and 1. */
#ifndef ADAMW8BIT_CODES_H
#define ADAMW8BIT_CODES_H
#include <stdint.h>
#include <string.h>

enum { CODES = 256, BINS_PER_OCTAVE = 64, OCTAVES = 24, BINS = OCTAVES * BINS_PER_OCTAVE + 1 };

typedef struct {
    float value[CODES], middle[CODES];      /* middle: halfway to the next value; the last is infinite */
    uint8_t positive[BINS], negative[BINS]; /* code of the least number in the bin */
} codes;

void codes_make(codes *, int is_signed);

/* Returns the bin of a magnitude of at most 1. The magnitude may be -0. A bin is the exponent and the next six bits.
 * Bin 0 holds all below 2^-24. */
static inline uint32_t codes_bin(float magnitude) {
    uint32_t bits, least = (127u - OCTAVES) << 6;
    memcpy(&bits, &magnitude, 4);
    bits = (bits & 0x7fffffff) >> 17;
    return bits <= least ? 0 : bits - least > BINS - 1 ? BINS - 1 : bits - least;
}

/* Returns the code of the value nearest to x in [-1, 1]. Of two equally near values it takes the lower one. */
static inline uint8_t codes_nearest(const codes *c, float x) {
    uint8_t code = x < 0 ? c->negative[codes_bin(-x)] : c->positive[codes_bin(x)];
    while (x > c->middle[code])
        code++;
    return code;
}
#endif
