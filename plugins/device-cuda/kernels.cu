/* SPDX-License-Identifier: BSD-3-Clause */
// The kernels of kernels.h. Each thread takes one item after another, a grid apart.
#include "kernels.h"

#define DEFINE(name, args, body)                                                                                       \
    extern "C" __global__ void name(const __grid_constant__ args a) {                                                  \
        for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (ITEMS(a));                             \
             i += (uint64_t)gridDim.x * blockDim.x)                                                                    \
            body(&a, i);                                                                                               \
    }
#define ITEMS(a) (*(const uint64_t *)&(a)) /* every list of arguments begins with it */
CUDA_KERNELS(DEFINE)

extern "C" __global__ void __launch_bounds__(CUDA_COLUMNS)
    tess_cuda_square_sum(const __grid_constant__ cuda_square_args a) {
    __shared__ cuda_square_shared s;
    cuda_square_begin(&s, threadIdx.x);
    for (uint64_t i = (uint64_t)blockIdx.x * CUDA_COLUMNS + threadIdx.x; i < a.items;
         i += (uint64_t)gridDim.x * CUDA_COLUMNS)
        cuda_square_body(&a, &s, threadIdx.x, i);
    __syncthreads();
    if (threadIdx.x < TESS__NORM_LIMBS)
        cuda_square_row(&s, threadIdx.x);
    __syncthreads();
    if (threadIdx.x == 0)
        cuda_square_end(&a, &s);
}
