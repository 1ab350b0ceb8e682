/* SPDX-License-Identifier: BSD-3-Clause */
/* The device's code of comm-nccl's kernels. */
#include "cuda_words.h"

#include "plugins/comm-nccl/kernels.cu"

#define ROW(name, args, number, body) EMULATED(name, args)
const emulated_kernel emulated_nccl[] = { TESS_NCCL_KERNELS(ROW){ nullptr, 0, nullptr } };
