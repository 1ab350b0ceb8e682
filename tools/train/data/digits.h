/* SPDX-License-Identifier: BSD-3-Clause */
/* Digits that the tool draws itself, for training without data: strokes, a random affine distortion, noise. */
#ifndef TOOL_DIGITS_H
#define TOOL_DIGITS_H
#include <stdint.h>

enum { TOOL_DIGITS_SIDE = 28, TOOL_DIGITS_TRAIN = 6000, TOOL_DIGITS_TEST = 1000 };

/** The digit that `index` shows: 0 … 9. */
unsigned char tool_digits_label(uint64_t seed, uint64_t index);
/** Draws sample `index` into 28 x 28 pixels: a pure function, so no rank needs more than its own. */
void tool_digits_draw(uint64_t seed, uint64_t index, unsigned char *pixels);
#endif
