/* SPDX-License-Identifier: BSD-3-Clause */
/* The kernels of the reference models with factors in fp16, run in loops. */
#define OPS_HALF_F16 1
#define double__model_kernels double__model_kernels_f16
#include "models.c"
