/* SPDX-License-Identifier: BSD-3-Clause */
/* The hand-written vector paths of kernel_cast.c and kernel_norm.c. Each gives the bits of the plain C loop. */
#ifndef TESS_KERNEL_X86_H
#define TESS_KERNEL_X86_H
#include "isa.h"
#include "kernels.h"
#if defined(TESS_HAVE_X86)

/** Null when no hand-written path helps: then the plain loop is taken, compiled for the instruction set. */
tess__cast_fn tess__cast_find_x86(uint32_t from, uint32_t to, int stream, int isa);

/* A block's squares as two exact integers: high * 2^(high_bit) + low * 2^(low_bit) in units of 2^-149. */
typedef struct {
    uint64_t high, low;
    uint32_t high_bit, low_bit;
} tess__square_block;
/** Sums the squares of x[i] * scale for i < elems, a multiple of 16 up to 2048. What is too small for the two windows
 * goes to `rest` one by one. 0 when something is not finite: then nothing was done. */
int tess__square_block_avx512(const float *x, uint64_t elems, float scale, tess__square_block *out,
                              void (*rest)(void *, float square), void *user);
int tess__square_block_avx2(const float *x, uint64_t elems, float scale, tess__square_block *out,
                            void (*rest)(void *, float square), void *user);
#endif
#endif
