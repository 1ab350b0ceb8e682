/* SPDX-License-Identifier: BSD-3-Clause */
/* How a frozen matrix rests: in fp32, bf16 or fp16, or in blocks of codes, which are opaque bytes to the engine. A
 * block is 64 elements in row order: their largest magnitude as a float, then their codes. int8 divides it in 127
 * steps. nf4 is QLoRA's (Dettmers et al. 2023, without double quantisation): two codes a byte, the first in the upper
 * half. */
#ifndef TESS_MODELS_STORED_H
#define TESS_MODELS_STORED_H
#include "ops.h"

enum { STORED_F32, STORED_BF16, STORED_F16, STORED_INT8, STORED_NF4, STORED_KINDS };
enum { STORED_BLOCK = 64, STORED_BLOCK_BYTES = 68 /* at most */ };

const char *stored_name(uint32_t kind); /* "f32", "bf16", "f16", "int8", "nf4" */
/** 1 and the kind, or 0: no such name. */
int stored_find(const char *name, uint32_t *kind);
uint32_t stored_dtype(uint32_t kind); /* TESS_U8 for blocks */
static inline int stored_in_blocks(uint32_t kind) {
    return kind >= STORED_INT8;
}
static inline int64_t stored_block_bytes(uint32_t kind) {
    return kind == STORED_NF4 ? 4 + STORED_BLOCK / 2 : 4 + STORED_BLOCK;
}
/** How many elements of stored_dtype a matrix takes. */
static inline int64_t stored_elems(uint32_t kind, int64_t elems) {
    return stored_in_blocks(kind) ? (elems + STORED_BLOCK - 1) / STORED_BLOCK * stored_block_bytes(kind) : elems;
}
/** One block of 64 elements. */
void stored_pack(uint32_t kind, const float x[STORED_BLOCK], uint8_t *block);
/** Elements of a matrix that rests at `from`, as fp32. */
void stored_read(uint32_t kind, const void *from, int64_t first, int64_t n, float *out);
/** A whole matrix into `dtype`, TESS_F32 or TESS_BF16. */
void stored_widen(const ops *, uint32_t kind, const void *from, int64_t elems, uint32_t dtype, void *out);
#endif
