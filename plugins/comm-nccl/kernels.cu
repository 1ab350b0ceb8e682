/* SPDX-License-Identifier: BSD-3-Clause */
// The kernels of kernels.h: each thread takes one element or item after another, a grid apart.
#include "kernels.h"

#define DEFINE(name, args, number, body)                                                                               \
    extern "C" __global__ void name(const args a) {                                                                    \
        for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.number;                               \
             i += (uint64_t)gridDim.x * blockDim.x)                                                                    \
            body(&a, i);                                                                                               \
    }
TESS_NCCL_KERNELS(DEFINE)
