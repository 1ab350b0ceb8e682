/* SPDX-License-Identifier: BSD-3-Clause */
/* The kernels once more, with factors in fp16 in place of bf16. */
#define OPS_HALF_F16 1
#include "kernels.cu"
