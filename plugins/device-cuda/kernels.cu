/* SPDX-License-Identifier: BSD-3-Clause */
// The kernels of kernels.h, kernels_blocks.h and kernels_many.h. Each thread takes one item after another, a grid
// apart.
#include "kernels_blocks.h"
#include "kernels_many.h"

#define DEFINE(name, args, body)                                                                                       \
    extern "C" __global__ void name(const __grid_constant__ args a) {                                                  \
        for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (ITEMS(a));                             \
             i += (uint64_t)gridDim.x * blockDim.x)                                                                    \
            body(&a, i);                                                                                               \
    }
#define ITEMS(a) (*(const uint64_t *)&(a)) /* every list of arguments begins with it */
CUDA_KERNELS(DEFINE)

/* All lanes of a warp take part in each of its blocks. */
#define DEFINE_BLOCKS(name, args, body)                                                                                \
    extern "C" __global__ void name(const __grid_constant__ args a) {                                                  \
        uint64_t warps = (uint64_t)gridDim.x * blockDim.x / 32;                                                        \
        for (uint64_t b = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32; b < (ITEMS(a)); b += warps)          \
            body(&a, b, threadIdx.x % 32);                                                                             \
    }
CUDA_OF_BLOCKS(DEFINE_BLOCKS)

#define DEFINE_STEPS(name, body)                                                                                       \
    extern "C" __global__ void name(const __grid_constant__ cuda_steps_args a) {                                       \
        CUDA_PIECE_OF(&a, blockIdx.x, k);                                                                              \
        tess_step_constants c = cuda_step_constants(&a, k);                                                            \
        uint64_t items = cuda_step_items(&a.pieces[k]), step = (uint64_t)CUDA_PIECE_BLOCKS(&a, k) * blockDim.x;        \
        for (uint64_t i = (uint64_t)(blockIdx.x - a.pieces[k].first_block) * blockDim.x + threadIdx.x; i < items;      \
             i += step)                                                                                                \
            body(&a.pieces[k], &c, i);                                                                                 \
    }
CUDA_STEPS(DEFINE_STEPS)

extern "C" __global__ void __launch_bounds__(CUDA_COLUMNS)
    tess_cuda_square_sum(const __grid_constant__ cuda_squares_args a) {
    __shared__ cuda_square_shared s;
    CUDA_PIECE_OF(&a, blockIdx.x, k);
    uint64_t items = cuda_square_items(&a.pieces[k]), step = (uint64_t)CUDA_PIECE_BLOCKS(&a, k) * CUDA_COLUMNS;
    cuda_square_begin(&s, threadIdx.x);
    for (uint64_t i = (uint64_t)(blockIdx.x - a.pieces[k].first_block) * CUDA_COLUMNS + threadIdx.x; i < items;
         i += step)
        cuda_square_body(&a.pieces[k], a.scale, &s, threadIdx.x, i);
    __syncthreads();
    if (threadIdx.x < TESS__NORM_LIMBS)
        cuda_square_row(&s, threadIdx.x);
    __syncthreads();
    if (threadIdx.x == 0)
        cuda_square_end(&a, &s);
}
