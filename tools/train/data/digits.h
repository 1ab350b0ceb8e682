/* SPDX-License-Identifier: BSD-3-Clause */
/* Draws digits for training without data files: strokes, a random affine distortion, and noise. */
#ifndef TOOL_DIGITS_H
#define TOOL_DIGITS_H
#include <stdint.h>

enum { TOOL_DIGITS_SIDE = 28, TOOL_DIGITS_TRAIN = 6000, TOOL_DIGITS_TEST = 1000 };

/** Returns the digit that sample `index` shows: 0 … 9. */
unsigned char tool_digits_label(uint64_t seed, uint64_t index);
/** Draws sample `index` into 28 x 28 pixels. It is a pure function, so each rank draws only its own samples. */
void tool_digits_draw(uint64_t seed, uint64_t index, unsigned char *pixels);
#endif
