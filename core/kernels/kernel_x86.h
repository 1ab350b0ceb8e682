/* SPDX-License-Identifier: BSD-3-Clause */
/* The hand-written vector paths of kernel_cast.c, kernel_blocks.c and kernel_norm.c. Each gives the bits of the plain C
 * loop. */
#ifndef TESS_KERNEL_X86_H
#define TESS_KERNEL_X86_H
#include "isa.h"
#include "kernels.h"
#if defined(TESS_HAVE_X86)

/** Null when no hand-written path helps: then the plain loop is taken, compiled for the instruction set. */
tess__cast_fn tess__cast_find_x86(uint32_t from, uint32_t to, int stream, int isa);

/** Widens blocks to f32. `stream`: past the caches. `plain` does what is left over. */
typedef void (*tess__widen_fn)(const void *src, float *dst, uint64_t elems, int stream, tess__cast_fn plain);
void tess__e4m3_256_widen(const void *, float *, uint64_t, int, tess__cast_fn plain);
void tess__e4m3_512_widen(const void *, float *, uint64_t, int, tess__cast_fn plain);
void tess__q8_256_widen(const void *, float *, uint64_t, int, tess__cast_fn plain);
void tess__q8_512_widen(const void *, float *, uint64_t, int, tess__cast_fn plain);
/** Sums of two, past the caches if `out` lies at a line. A pair is of blocks, through a block, into f32 (plugin.h,
 * TESS_KERNEL_Q8); 0 when it has a part of a block or one that is not of numbers: then `out` holds nothing. */
int tess__pair_q8_512(const void *a, const void *b, void *out, uint64_t elems, int past);
int tess__pair_e4m3_512(const void *a, const void *b, void *out, uint64_t elems, int past);
void tess__add_past(void *out, const void *a, const void *b, uint64_t elems);
/** Copies past the caches; a fence ends a run of stores past them. */
void tess__copy_past(void *to, const void *from, uint64_t bytes);
void tess__copy_past_end(void);

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
