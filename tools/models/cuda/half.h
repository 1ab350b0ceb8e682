/* SPDX-License-Identifier: BSD-3-Clause */
/* The 16-bit format of factors. kernels.cu is compiled once for bf16, and once for fp16, with OPS_HALF_F16. */
#ifndef TESS_MODELS_CUDA_HALF_H
#define TESS_MODELS_CUDA_HALF_H
#include "kit/formulas.h"
#if defined(__CUDA_ARCH__)
#include "ptx.h"
#endif

/* A GPU rounds by one instruction. The bits of its NaNs differ from those of the formulas. */
#if !defined(OPS_HALF_F16)
TESS_FN uint16_t ops_half_of(float x) {
#if defined(__CUDA_ARCH__)
    return (uint16_t)ptx_pair(x, 0);
#else
    return tess_bf16_of_f32(x);
#endif
}
TESS_FN float ops_of_half(uint16_t h) {
    return tess_f32_of_bf16(h);
}
/* The elements of a pair. */
TESS_FN float ops_low(uint32_t pair) {
    return tess_f32_of_bits(pair << 16);
}
TESS_FN float ops_high(uint32_t pair) {
    return tess_f32_of_bits(pair & 0xffff0000u);
}
#elif defined(__CUDA_ARCH__)
TESS_FN uint16_t ops_half_of(float x) {
    return ptx_f16_of(x);
}
TESS_FN float ops_of_half(uint16_t h) {
    return ptx_of_f16(h);
}
#else
TESS_FN uint16_t ops_half_of(float x) {
    return tess_f16_of_f32(x);
}
TESS_FN float ops_of_half(uint16_t h) {
    return tess_f32_of_f16(h);
}
#endif

#if defined(OPS_HALF_F16)
TESS_FN float ops_low(uint32_t pair) {
    return ops_of_half((uint16_t)pair);
}
TESS_FN float ops_high(uint32_t pair) {
    return ops_of_half((uint16_t)(pair >> 16));
}
#endif
TESS_FN uint32_t ops_pair_of(float low, float high) {
#if defined(__CUDA_ARCH__)
    return ptx_pair(low, high);
#else
    return ops_half_of(low) | (uint32_t)ops_half_of(high) << 16;
#endif
}
#endif
