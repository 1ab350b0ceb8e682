/* SPDX-License-Identifier: BSD-3-Clause */
/* The values of a block's codes (stored.h), for the CPU and for a GPU. */
#ifndef TESS_MODELS_STORED_FORMULAS_H
#define TESS_MODELS_STORED_FORMULAS_H
#include "kit/formulas.h"

/* Quantiles of a normal distribution, scaled to [-1, 1], with an exact zero: appendix E of the paper. */
#define STORED_NF4_VALUES                                                                                              \
    {                                                                                                                  \
        -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f,               \
            -0.18477343022823334f, -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f,            \
            0.24611230194568634f, 0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f,                     \
            0.7229568362236023f, 1.0f                                                                                  \
    }
TESS_FN float stored_nf4(uint32_t code) {
    static const float values[16] = STORED_NF4_VALUES;
    return values[code];
}
/* The larger of the two codes of a byte comes first. */
TESS_FN uint32_t stored_nf4_code(uint8_t byte, int second) {
    return second ? byte & 15u : (uint32_t)(byte >> 4);
}
/* most: the block's largest magnitude */
TESS_FN float stored_int8(uint8_t code, float most) {
    return (float)((int)code - 128) * (most / 127.0f);
}
#endif
