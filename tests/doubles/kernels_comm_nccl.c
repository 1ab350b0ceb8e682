/* SPDX-License-Identifier: BSD-3-Clause */
/* The kernels of comm-nccl, as loops over the grid. */
#include "double.h"

#include "../../plugins/comm-nccl/kernels.h"

#define DEFINE(name, args_type, body)                                                                                  \
    static void run_##name(const void *args, const unsigned grid[3], const unsigned block[3]) {                        \
        const args_type *a = args;                                                                                     \
        (void)grid;                                                                                                    \
        (void)block;                                                                                                   \
        for (uint64_t i = 0; i < a->elems; i++)                                                                        \
            body(a, i);                                                                                                \
    }
TESS_NCCL_KERNELS(DEFINE)

#define ROW(name, args_type, body) { #name, sizeof(args_type), run_##name },
const double_kernel *double__nccl_kernels(void);
const double_kernel *double__nccl_kernels(void) {
    static const double_kernel list[] = { TESS_NCCL_KERNELS(ROW){ 0 } };
    return list;
}
