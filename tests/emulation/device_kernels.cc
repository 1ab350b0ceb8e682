/* SPDX-License-Identifier: BSD-3-Clause */
/* The device's code of device-cuda's kernels. */
#include "cuda_words.h"

#include "plugins/device-cuda/kernels.cu"

#define ROW(name, args, body) EMULATED(name, args)
#define STEPS_ROW(name, body) EMULATED(name, cuda_steps_args)
const emulated_kernel emulated_device[] = { CUDA_KERNELS(ROW) CUDA_STEPS(STEPS_ROW) CUDA_OF_BLOCKS(ROW) EMULATED(
    tess_cuda_square_sum, cuda_squares_args){ nullptr, 0, nullptr } };
