/* SPDX-License-Identifier: BSD-3-Clause */
/* Frozen matrices, which rest in another dtype or in blocks, as products read them: stored.h. */
#ifndef TESS_MODELS_CUDA_KERNELS_STORED_H
#define TESS_MODELS_CUDA_KERNELS_STORED_H
#include "kernels_layer.h"
#include "tools/models/stored_formulas.h"

enum { OPS_STORED_F32, OPS_STORED_BF16, OPS_STORED_F16, OPS_STORED_INT8, OPS_STORED_NF4, OPS_STORED_BLOCK = 64 };
typedef struct { /* y[row] = the matrix's row ids[row], or without ids this row */
    const void *from;
    const int32_t *ids; /* null: none */
    void *y;
    uint64_t elems, width;
    uint32_t kind;
    int32_t half, vector; /* vector: rows are whole vectors; x and y begin at multiples of 16 bytes, blocks of 4 */
} ops_args_stored;

TESS_FN uint32_t ops_get_word(const uint8_t *at, int vector) {
#if defined(__CUDA_ARCH__)
    if (vector)
        return *(const uint32_t *)at;
#endif
    if (vector && (uintptr_t)at % 4)
        return 0x7fc00000; /* a GPU refuses it: ops_refuses */
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* Elements i … i + n - 1 of blocks, which one block has; n is at most 8. */
TESS_FN void ops_get_codes(const ops_args_stored *a, uint64_t i, uint64_t n, float *v) {
    int nf4 = a->kind == OPS_STORED_NF4;
    uint64_t block_bytes = 4 + (nf4 ? OPS_STORED_BLOCK / 2 : OPS_STORED_BLOCK), within = i % OPS_STORED_BLOCK;
    const uint8_t *block = (const uint8_t *)a->from + i / OPS_STORED_BLOCK * block_bytes;
    float most = tess_f32_of_bits(ops_get_word(block, a->vector));
    const uint8_t *codes = block + 4;
    if (a->vector) { /* all eight */
        uint32_t low = ops_get_word(codes + (nf4 ? within / 2 : within), 1);
        uint32_t high = nf4 ? 0 : ops_get_word(codes + within + 4, 1);
        for (int k = 0; k < 8; k++) {
            uint8_t byte = (uint8_t)(nf4 ? low >> k / 2 * 8 : (k < 4 ? low : high) >> k % 4 * 8);
            v[k] = nf4 ? stored_nf4(stored_nf4_code(byte, k % 2)) * most : stored_int8(byte, most);
        }
        return;
    }
    for (uint64_t k = 0, at = within; k < n; k++, at++)
        v[k] = nf4 ? stored_nf4(stored_nf4_code(codes[at / 2], at % 2)) * most : stored_int8(codes[at], most);
}

/* Elements i … i + 7, or where rows are no whole vectors the first of them. */
TESS_FN void ops_get_stored(const ops_args_stored *a, uint64_t i, float *v) {
    uint64_t n = a->vector ? 8 : 1;
    if (a->kind >= OPS_STORED_INT8)
        ops_get_codes(a, i, n, v);
    else if (a->kind != OPS_STORED_F16)
        ops_get_eight(a->from, i, n, a->kind == OPS_STORED_BF16, a->vector, v);
    else
        for (uint64_t k = 0; k < n; k++)
            v[k] = tess_f32_of_f16(((const uint16_t *)a->from)[i + k]);
}
OPS_BODY(stored) {
    float v[8];
    OPS_EIGHT(i);
    OPS_ONE_PHASE;
    for (uint64_t end = i + 8; i < end && i < a->elems; i += a->vector ? 8 : 1) {
        uint64_t r = ops_div(i, a->width), c = ops_mod(i, a->width);
        ops_get_stored(a, (a->ids ? (uint64_t)a->ids[r] : r) * a->width + c, v);
        ops_put_eight(a->y, i, a->vector ? 8 : 1, a->half, a->vector, v);
    }
}
#endif
