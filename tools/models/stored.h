/* SPDX-License-Identifier: BSD-3-Clause */
/* Storage formats of a frozen matrix: fp32, bf16, fp16, or blocks of codes, which the engine treats as opaque bytes.
 * A block is 64 elements in row order: first their largest magnitude as a float, then their codes. int8 divides the
 * magnitude into 127 steps. nf4 is QLoRA's (Dettmers et al. 2023, without double quantisation): two codes per byte,
 * the first in the upper half. */
#ifndef TESS_MODELS_STORED_H
#define TESS_MODELS_STORED_H
#include "ops.h"

enum { STORED_F32, STORED_BF16, STORED_F16, STORED_INT8, STORED_NF4, STORED_KINDS };
enum { STORED_BLOCK = 64, STORED_BLOCK_BYTES = 68 /* the largest */ };

const char *stored_name(uint32_t kind); /* "f32", "bf16", "f16", "int8", "nf4" */
/** Returns 1 and the kind, or 0 if there is no such name. */
int stored_find(const char *name, uint32_t *kind);
uint32_t stored_dtype(uint32_t kind); /* TESS_U8 for blocks */
static inline int stored_in_blocks(uint32_t kind) {
    return kind >= STORED_INT8;
}
static inline int64_t stored_block_bytes(uint32_t kind) {
    return kind == STORED_NF4 ? 4 + STORED_BLOCK / 2 : 4 + STORED_BLOCK;
}
/** Returns how many elements of stored_dtype a matrix takes. */
static inline int64_t stored_elems(uint32_t kind, int64_t elems) {
    return stored_in_blocks(kind) ? (elems + STORED_BLOCK - 1) / STORED_BLOCK * stored_block_bytes(kind) : elems;
}
/** Packs one block of 64 elements. */
void stored_pack(uint32_t kind, const float x[STORED_BLOCK], uint8_t *block);
/** Reads n elements from element `first` of the matrix at `from`, as fp32. */
void stored_read(uint32_t kind, const void *from, int64_t first, int64_t n, float *out);
/** Converts a whole matrix to `dtype`, TESS_F32, TESS_BF16 or TESS_F16. */
void stored_widen(const ops *, uint32_t kind, const void *from, int64_t elems, uint32_t dtype, void *out);
#endif
