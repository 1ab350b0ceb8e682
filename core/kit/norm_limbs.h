/* SPDX-License-Identifier: BSD-3-Clause */
/* The layout of the exact sum of squares behind the gradient norm (kernels/norm.h): 32-bit digits in int64 limbs. For
 * host and device code. */
#ifndef TESS_NORM_LIMBS_H
#define TESS_NORM_LIMBS_H

enum {
    TESS__NORM_DIGITS = 14, /* 448 bits: squares end below bit 277, the rest is room for 2^120 of them and carries */
    TESS__NORM_NAN = 14,    /* counts of squares that are NaN, and that are infinite */
    TESS__NORM_INFINITE = 15,
    TESS__NORM_LIMBS = 16
};
#endif
