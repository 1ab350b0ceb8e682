/* SPDX-License-Identifier: BSD-3-Clause */
/* The device's code of optimizer-lion's kernels. */
#include "cuda_words.h"

#include "plugins/optimizer-lion/kernels.cu"

#define ROW(name, args, body) EMULATED(name, args)
const emulated_kernel emulated_lion[] = { LION_KERNELS(ROW){ nullptr, 0, nullptr } };
