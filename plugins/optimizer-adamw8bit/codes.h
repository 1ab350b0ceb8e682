/* SPDX-License-Identifier: BSD-3-Clause */
/* Dynamic 8-bit codes: Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2022, section 1.3. A code is
 * the number of one of 256 values between -1 (or 0) and 1, ascending. */
#ifndef ADAMW8BIT_CODES_H
#define ADAMW8BIT_CODES_H
#include <stdint.h>
#include <string.h>

enum { CODES = 256, BINS_PER_OCTAVE = 64, OCTAVES = 24, BINS = OCTAVES * BINS_PER_OCTAVE + 1 };

typedef struct {
    float value[CODES], middle[CODES];      /* middle: between a value and the next; the last is infinite */
    uint8_t positive[BINS], negative[BINS]; /* the least code of a number in this bin */
} codes;

void codes_make(codes *, int is_signed);

/* The bin of a magnitude up to 1, which may be -0: its exponent and the first six bits behind it. Bin 0 is all below
 * 2^-24. */
static inline uint32_t codes_bin(float magnitude) {
    uint32_t bits, least = (127u - OCTAVES) << 6;
    memcpy(&bits, &magnitude, 4);
    bits = (bits & 0x7fffffff) >> 17;
    return bits <= least ? 0 : bits - least > BINS - 1 ? BINS - 1 : bits - least;
}

/* Returns the code of the value nearest to x in [-1, 1]; of two equally near, the lower one. */
static inline uint8_t codes_nearest(const codes *c, float x) {
    uint8_t code = x < 0 ? c->negative[codes_bin(-x)] : c->positive[codes_bin(x)];
    while (x > c->middle[code])
        code++;
    return code;
}
#endif
