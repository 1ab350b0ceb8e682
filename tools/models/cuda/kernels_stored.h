/* SPDX-License-Identifier: BSD-3-Clause */
/* A kernel that widens frozen matrices (stored.h) to what products read. */
#ifndef TESS_MODELS_CUDA_KERNELS_STORED_H
#define TESS_MODELS_CUDA_KERNELS_STORED_H
#include "kernels_layer.h"
#include "tools/models/stored_formulas.h"

enum { OPS_STORED_F32, OPS_STORED_BF16, OPS_STORED_F16, OPS_STORED_INT8, OPS_STORED_NF4, OPS_STORED_BLOCK = 64 };
#if defined(OPS_HALF_F16)
enum { OPS_STORED_HALF = OPS_STORED_F16 };
#else
enum { OPS_STORED_HALF = OPS_STORED_BF16 };
#endif
typedef struct { /* y[row] = the matrix's row ids[row]; without ids, its row `row` */
    const void *from;
    const int32_t *ids; /* null: none */
    void *y;
    uint64_t elems, width;
    uint32_t kind;
    int32_t half, vector; /* vector: rows are whole vectors; x and y begin at multiples of 16 bytes, blocks of 4 */
} ops_args_stored;

/* Four codes; a GPU refuses them at an address that is no multiple of 4. */
TESS_FN uint32_t ops_get_word(const uint8_t *at) {
#if defined(__CUDA_ARCH__)
    return *(const uint32_t *)at;
#else
    uint32_t word = 0x7fc00000;
    if ((uintptr_t)at % 4 == 0)
        memcpy(&word, at, sizeof word);
    return word;
#endif
}
TESS_FN const uint8_t *ops_block_of(const ops_args_stored *a, uint64_t i) {
    uint64_t bytes = 4 + (a->kind == OPS_STORED_NF4 ? OPS_STORED_BLOCK / 2 : OPS_STORED_BLOCK);
    return (const uint8_t *)a->from + i / OPS_STORED_BLOCK * bytes;
}

/* bf16 or fp16, whatever products read. */
TESS_FN float ops_get_narrow(const ops_args_stored *a, uint64_t i) {
    const uint16_t h = ((const uint16_t *)a->from)[i];
    return a->kind == OPS_STORED_F16 ? tess_f32_of_f16(h) : tess_f32_of_bf16(h);
}

TESS_FN float ops_get_stored(const ops_args_stored *a, uint64_t i) {
    if (a->kind == OPS_STORED_F32)
        return ((const float *)a->from)[i];
    if (a->kind < OPS_STORED_INT8)
        return ops_get_narrow(a, i);
    const uint8_t *block = ops_block_of(a, i), *codes = block + 4;
    uint64_t at = i % OPS_STORED_BLOCK;
    uint32_t bits = block[0] | (uint32_t)block[1] << 8 | (uint32_t)block[2] << 16 | (uint32_t)block[3] << 24;
    float most = tess_f32_of_bits(bits);
    return a->kind == OPS_STORED_NF4 ? stored_nf4(stored_nf4_code(codes[at / 2], at % 2)) * most
                                     : stored_int8(codes[at], most);
}

/* Reads eight elements, which lie in one block. */
TESS_FN void ops_get_eight_stored(const ops_args_stored *a, uint64_t i, float *v) {
    if (a->kind == OPS_STORED_F32 || a->kind == OPS_STORED_HALF) {
        ops_get_eight(a->from, i, 8, a->kind == OPS_STORED_HALF, 1, v);
        return;
    }
    if (a->kind < OPS_STORED_INT8) {
        for (int k = 0; k < 8; k++)
            v[k] = ops_get_narrow(a, i + (uint64_t)k);
        return;
    }
    int nf4 = a->kind == OPS_STORED_NF4;
    const uint8_t *block = ops_block_of(a, i), *codes = block + 4 + i % OPS_STORED_BLOCK / (nf4 ? 2 : 1);
    float most = tess_f32_of_bits(ops_get_word(block));
    uint32_t low = ops_get_word(codes), high = nf4 ? 0 : ops_get_word(codes + 4);
    for (int k = 0; k < 8; k++) {
        uint8_t byte = (uint8_t)(nf4 ? low >> k / 2 * 8 : (k < 4 ? low : high) >> k % 4 * 8);
        v[k] = nf4 ? stored_nf4(stored_nf4_code(byte, k % 2)) * most : stored_int8(byte, most);
    }
}

/* Returns the matrix's element that is y's element i. */
TESS_FN uint64_t ops_stored_at(const ops_args_stored *a, uint64_t i) {
    return a->ids ? (uint64_t)a->ids[ops_div(i, a->width)] * a->width + ops_mod(i, a->width) : i;
}
OPS_BODY(stored) {
    float v[8];
    OPS_EIGHT(i);
    OPS_ONE_PHASE;
    if (a->vector && i < a->elems) {
        ops_get_eight_stored(a, ops_stored_at(a, i), v);
        ops_put_eight(a->y, i, 8, a->half, 1, v);
        return;
    }
    OPS_ROLLED for (uint64_t end = i + 8; i < end && i < a->elems; i++)
        ops_put(a->y, i, a->half, ops_get_stored(a, ops_stored_at(a, i)));
}
#endif
