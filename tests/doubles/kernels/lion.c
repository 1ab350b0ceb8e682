/* SPDX-License-Identifier: BSD-3-Clause */
/* The kernels of plugins/optimizer-lion, on the host. */
#include "plugins/optimizer-lion/kernels.h"
#include "double.h"

const double_kernel *double__lion_kernels(void);

#define RUN(name, args_type, body)                                                                                     \
    static void run_##name(const void *args, const unsigned grid[3], const unsigned block[3]) {                        \
        const args_type *a = args;                                                                                     \
        (void)grid, (void)block;                                                                                       \
        for (uint64_t i = 0; i < a->items; i++)                                                                        \
            body(a, i);                                                                                                \
    }
LION_KERNELS(RUN)

const double_kernel *double__lion_kernels(void) {
#define ENTRY(name, args, body) { #name, sizeof(args), run_##name, 0 },
    static const double_kernel list[] = { LION_KERNELS(ENTRY){ 0 } };
    return list;
}
