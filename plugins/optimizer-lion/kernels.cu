/* SPDX-License-Identifier: BSD-3-Clause */
// The kernel of kernels.h. Each thread takes one element after another, a grid apart.
#include "kernels.h"

#define DEFINE(name, args, body)                                                                                       \
    extern "C" __global__ void name(const __grid_constant__ args a) {                                                  \
        for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.items;                                \
             i += (uint64_t)gridDim.x * blockDim.x)                                                                    \
            body(&a, i);                                                                                               \
    }
LION_KERNELS(DEFINE)
