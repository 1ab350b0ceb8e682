/* SPDX-License-Identifier: BSD-3-Clause */
/* The device's code of the reference models' kernels. */
#include "cuda_words.h"

#include "tools/models/cuda/kernels.cu"

#define EMULATED_AS(name, args) EMULATED(name, args)
#define ROW(name, phases) EMULATED_AS(OPS_KERNEL(name), ops_args_##name)
#define ATTEND_ROW(name, args, shares) EMULATED_AS(OPS_KERNEL(name), args)
const emulated_kernel emulated_models[] = { OPS_CUDA_KERNELS(ROW) OPS_CUDA_WIDE_KERNELS(ROW) OPS_ATTEND_KERNELS(
    ATTEND_ROW) OPS_ATTEND_LARGE_KERNELS(ATTEND_ROW){ nullptr, 0, nullptr } };
