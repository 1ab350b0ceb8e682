/* SPDX-License-Identifier: BSD-3-Clause */
/* Makes kernels of the bodies in kernels.h. It is compiled with --fmad=false (docs/numbers.md). */
#include "kernels.h"

#define KERNEL_OF(name, phases, doubles, bounds)                                                                       \
    extern "C" __global__ void __launch_bounds__ bounds OPS_KERNEL(name)(const __grid_constant__ ops_args_##name a) {  \
        __shared__ __align__(16) double room[doubles];                                                                 \
        _Pragma("unroll") for (int phase = 0; phase < phases; phase++) {                                               \
            if (phase)                                                                                                 \
                __syncthreads();                                                                                       \
            ops_body_##name(&a, blockIdx.x, threadIdx.x, phase, room);                                                 \
        }                                                                                                              \
    }
#define KERNEL(name, phases) KERNEL_OF(name, phases, OPS_ROOM, (OPS_BLOCK))
OPS_CUDA_KERNELS(KERNEL)
/* At least four blocks fit on a multiprocessor, which makes half of its threads. */
#define WIDE_KERNEL(name, phases) KERNEL_OF(name, phases, OPS_WIDE, (OPS_BLOCK, 4))
OPS_CUDA_WIDE_KERNELS(WIDE_KERNEL)

#define ATTEND(name, args, shares)                                                                                     \
    extern "C" __global__ void __launch_bounds__(TILE_THREADS, 1) OPS_KERNEL(name)(const __grid_constant__ args a) {   \
        __shared__ __align__(16) shares shared;                                                                        \
        body_##name(&a, blockIdx.x, &shared);                                                                          \
    }
OPS_ATTEND_KERNELS(ATTEND)
