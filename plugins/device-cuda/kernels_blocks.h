/* SPDX-License-Identifier: BSD-3-Clause */
/* Casts and sums of which something becomes blocks of 8 bits: what goes out, or each sum of two. A warp has one block,
 * and each lane E neighbouring elements of it; in the tests' double one lane has all. */
#ifndef CUDA_KERNELS_BLOCKS_H
#define CUDA_KERNELS_BLOCKS_H
#include "kernels.h"

#if defined(__CUDA_ARCH__)
enum { CUDA_BLOCK_E = 8 };
TESS_FN uint32_t cuda_block_most(uint32_t most) { /* of all lanes; a register is moved as it is, whatever it holds */
    CUDA_UNROLL for (int apart = 16; apart; apart /= 2) {
        uint32_t other = tess_f32_bits(__shfl_xor_sync(0xffffffffu, tess_f32_of_bits(most), apart));
        most = other > most ? other : most;
    }
    return most;
}
TESS_FN void cuda_block_meet(void) {
    __syncwarp();
}
#else
enum { CUDA_BLOCK_E = TESS_Q8_BLOCK };
TESS_FN void cuda_block_meet(void) {}
TESS_FN uint32_t cuda_block_most(uint32_t most) {
    return most;
}
#endif

TESS_FN float cuda_block_top(uint32_t dtype) {
    return dtype == TESS_Q8 ? TESS_Q8_TOP : TESS_E4M3_TOP;
}

TESS_FN float cuda_block_scale(uint32_t dtype, const float *x) {
    uint32_t most = 0;
    CUDA_UNROLL for (int l = 0; l < CUDA_BLOCK_E; l++) {
        uint32_t size = tess_f32_bits(x[l]) & 0x7fffffffu;
        most = size > most ? size : most;
    }
    return tess_block_scale(cuda_block_most(most), cuda_block_top(dtype));
}

/* The bytes of this lane's elements, and the scale of the block. */
TESS_FN float cuda_block_pack(uint32_t dtype, const float *x, uint8_t *q) {
    float scale = cuda_block_scale(dtype, x), factor = tess_block_factor(scale);
    CUDA_UNROLL for (int l = 0; l < CUDA_BLOCK_E; l++) {
        float y = x[l] * factor;
        q[l] = factor == 0.0f ? (uint8_t)0 : dtype == TESS_Q8 ? tess_q8_of_f32(y) : tess_e4m3_of_block(y);
    }
    return scale;
}

/* x = a + x, which goes through a block of `round`, if that is one. */
TESS_FN void cuda_block_add(uint32_t round, const float *a, float *x) {
    uint8_t q[CUDA_BLOCK_E];
    CUDA_UNROLL for (int l = 0; l < CUDA_BLOCK_E; l++) x[l] = a[l] + x[l];
    if (!round)
        return;
    float scale = cuda_block_pack(round, x, q);
    CUDA_UNROLL for (int l = 0; l < CUDA_BLOCK_E; l++) x[l] =
        (round == TESS_Q8 ? tess_f32_of_q8(q[l]) : tess_f32_of_e4m3(q[l])) * scale;
}

TESS_FN float cuda_block_element(uint32_t dtype, const void *at, uint64_t i) {
    switch (dtype) {
    case TESS_F32: return ((const float *)at)[i];
    case TESS_BF16: return tess_f32_of_bf16(((const uint16_t *)at)[i]);
    case TESS_F16: return tess_f32_of_f16(((const uint16_t *)at)[i]);
    default: return cuda_block_value(dtype, at, i);
    }
}

/* Behind the last element there are zeros. */
TESS_FN void cuda_block_load(uint32_t dtype, const void *at, uint64_t base, uint64_t elems, float *x) {
    CUDA_UNROLL for (int l = 0; l < CUDA_BLOCK_E; l++) x[l] =
        base + (uint64_t)l < elems ? cuda_block_element(dtype, at, base + (uint64_t)l) : 0.0f;
}

TESS_FN void cuda_block_store(const cuda_sum *a, uint64_t block, uint32_t lane, const float *x) {
    uint64_t base = block * TESS_Q8_BLOCK + lane * CUDA_BLOCK_E;
    if (cuda_is_blocks(a->out_dtype)) {
        uint8_t q[CUDA_BLOCK_E];
        char *out = (char *)a->out + block * TESS_Q8_BYTES;
        float scale = cuda_block_pack(a->out_dtype, x, q);
        cuda_block_meet(); /* all lanes have read the scale of a block that is added to, or summed in place */
        if (lane == 0)
            *(float *)out = scale;
        CUDA_UNROLL for (int l = 0; l < CUDA_BLOCK_E; l++) * (uint8_t *)(out + 4 + lane * CUDA_BLOCK_E + l) = q[l];
        return;
    }
    CUDA_UNROLL for (int l = 0; l < CUDA_BLOCK_E; l++) {
        uint64_t i = base + (uint64_t)l;
        if (i >= a->elems)
            break;
        if (a->out_dtype == TESS_F32)
            ((float *)a->out)[i] = x[l];
        else
            ((uint16_t *)a->out)[i] = a->out_dtype == TESS_BF16 ? tess_bf16_of_f32(x[l]) : tess_f16_of_f32(x[l]);
    }
}

/* The tree of kernels.h, of one block; `round`: the blocks that each sum of two goes through, 0 for none. */
TESS_FN void cuda_sum_blocks(const cuda_sum *a, const void *const *in, uint64_t block, uint32_t lane) {
    uint64_t base = block * TESS_Q8_BLOCK + lane * CUDA_BLOCK_E;
    uint32_t last = a->n_in - 1;
    float level[CUDA_LEVELS][CUDA_BLOCK_E], x[CUDA_BLOCK_E], y[CUDA_BLOCK_E];
    for (uint32_t k = 0; k < last; k++) {
        int carries = 1;
        cuda_block_load(a->in_dtype, in[k], base, a->elems, x);
        CUDA_UNROLL for (int d = 0; d < CUDA_LEVELS; d++) {
            if (carries && (k >> d & 1u))
                cuda_block_add(a->round, level[d], x);
            else if (carries) {
                CUDA_UNROLL for (int l = 0; l < CUDA_BLOCK_E; l++) level[d][l] = x[l];
                carries = 0;
            }
        }
    }
    cuda_block_load(a->in_dtype, in[last], base, a->elems, x);
    CUDA_UNROLL for (int d = 0; d < CUDA_LEVELS; d++) if (last >> d & 1u) cuda_block_add(a->round, level[d], x);
    if (a->add) {
        cuda_block_load(a->out_dtype, a->out, base, a->elems, y);
        cuda_block_add(a->round, y, x);
    }
    if (a->scale != 1)
        CUDA_UNROLL for (int l = 0; l < CUDA_BLOCK_E; l++) x[l] *= (float)a->scale;
    cuda_block_store(a, block, lane, x);
}

TESS_FN void cuda_blocks_few_body(const cuda_sum_few_args *a, uint64_t block, uint32_t lane) {
    cuda_sum_blocks(&a->sum, a->in, block, lane);
}
TESS_FN void cuda_blocks_many_body(const cuda_sum_many_args *a, uint64_t block, uint32_t lane) {
    cuda_sum_blocks(&a->sum, a->in, block, lane);
}

typedef struct { /* one parameter's elements, each rounded by a draw of its own */
    uint64_t items, elems;
    const float *in;
    char *out;
    uint64_t at; /* the number of the first in the model */
    uint32_t step, draw, dtype, reserved;
} cuda_draw_args;

TESS_FN void cuda_draw_body(const cuda_draw_args *a, uint64_t block, uint32_t lane) {
    uint64_t base = block * TESS_Q8_BLOCK + lane * CUDA_BLOCK_E;
    char *out = a->out + block * TESS_Q8_BYTES;
    uint32_t draws[CUDA_BLOCK_E];
    float x[CUDA_BLOCK_E];
    cuda_block_load(TESS_F32, a->in, base, a->elems, x);
    float scale = cuda_block_scale(a->dtype, x), factor = tess_block_factor(scale);
    CUDA_UNROLL for (int l = 0; l < CUDA_BLOCK_E; l += 8)
        tess_draws_of(a->at + base + (uint64_t)l, a->step, a->draw, draws + l);
    if (lane == 0)
        *(float *)out = scale;
    CUDA_UNROLL for (int l = 0; l < CUDA_BLOCK_E; l++) {
        float y = x[l] * factor;
        *(uint8_t *)(out + 4 + lane * CUDA_BLOCK_E + l) = factor == 0.0f        ? (uint8_t)0
                                                          : a->dtype == TESS_Q8 ? tess_q8_drawn(y, draws[l])
                                                                                : tess_e4m3_drawn(y, draws[l]);
    }
}

/* Items are blocks. */
#define CUDA_OF_BLOCKS(X)                                                                                              \
    X(tess_cuda_blocks_few, cuda_sum_few_args, cuda_blocks_few_body)                                                   \
    X(tess_cuda_blocks_many, cuda_sum_many_args, cuda_blocks_many_body)                                                \
    X(tess_cuda_draw, cuda_draw_args, cuda_draw_body)
#endif
