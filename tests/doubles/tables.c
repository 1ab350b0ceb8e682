/* SPDX-License-Identifier: BSD-3-Clause */
/* Every table of kernels there is. */
#include "double.h"

const double_kernel *double__own_kernels(void), *double__device_kernels(void), *double__nccl_kernels(void),
    *double__model_kernels(void), *double__model_kernels_f16(void), *double__lion_kernels(void);

extern const double_kernels_fn double__tables[];
const double_kernels_fn double__tables[] = { double__own_kernels,
                                             double__device_kernels,
                                             double__nccl_kernels,
                                             double__model_kernels,
                                             double__model_kernels_f16,
                                             double__lion_kernels,
                                             NULL };

/* ---- a kernel for the tests of the double itself ------------------------------------------------ */

struct increment { /* out[i] = in[i] + by */
    const int32_t *in;
    int32_t *out;
    uint64_t elems;
    int32_t by;
};

static void increment(const void *args, const unsigned grid[3], const unsigned block[3]) {
    const struct increment *a = args;
    for (uint64_t i = 0; i < (uint64_t)grid[0] * block[0] && i < a->elems; i++)
        a->out[i] = a->in[i] + a->by;
}

const double_kernel *double__own_kernels(void) {
    static const double_kernel list[] = { { "double_increment", sizeof(struct increment), increment, 0 },
                                          { "double_large", sizeof(struct increment), increment, 64 << 10 },
                                          { 0 } };
    return list;
}
