/* SPDX-License-Identifier: BSD-3-Clause */
/* The kernels of comm-nccl, as loops over the grid. */
#include "races.h"

#include <tessera/plugin_helpers.h>

#include "plugins/comm-nccl/kernels.h"

static void describe_reduction(const void *args, double_access *access) {
    const tess_nccl_reduce_args *a = args;
    for (uint32_t p = 0; p < a->n; p++)
        double__reads(access, "tess_nccl_reduce", tess_nccl_contribution(a, p),
                      a->elems * tess_dtype_bytes(a->in_dtype));
    double__writes(access, "tess_nccl_reduce", a->out, a->elems * tess_dtype_bytes(a->out_dtype));
}
static void describe_widening(const void *args, double_access *access) {
    const tess_nccl_widen_args *a = args;
    uint64_t bytes = tess_dtype_bytes(a->in_dtype);
    for (uint32_t b = 0; b < a->blocks; b++)
        double__reads(access, "tess_nccl_widen", (const char *)a->from + b * a->stride * bytes, a->elems * bytes);
    double__writes(access, "tess_nccl_widen", a->to, a->blocks * a->elems * sizeof *a->to);
}
static void describe_finish(const void *args, double_access *access) {
    const tess_nccl_finish_args *a = args;
    double__reads(access, "tess_nccl_finish", a->from, a->elems * tess_dtype_bytes(a->in_dtype));
    double__writes(access, "tess_nccl_finish", a->out, a->elems * tess_dtype_bytes(a->out_dtype));
}
__attribute__((constructor)) static void describe_kernels(void) {
    double__describes_kernel("tess_nccl_reduce", describe_reduction);
    double__describes_kernel("tess_nccl_widen", describe_widening);
    double__describes_kernel("tess_nccl_finish", describe_finish);
}

#define DEFINE(name, args_type, number, body)                                                                          \
    static void run_##name(const void *args, const unsigned grid[3], const unsigned block[3]) {                        \
        static uint64_t runs;                                                                                          \
        const args_type *a = args;                                                                                     \
        (void)grid;                                                                                                    \
        (void)block;                                                                                                   \
        double__hold_up(#name, &runs, "sums-overtaken");                                                               \
        for (uint64_t i = 0; i < a->number; i++)                                                                       \
            body(a, i);                                                                                                \
    }
TESS_NCCL_KERNELS(DEFINE)

#define ROW(name, args_type, number, body) { #name, sizeof(args_type), run_##name, 0 },
const double_kernel *double__nccl_kernels(void);
const double_kernel *double__nccl_kernels(void) {
    static const double_kernel list[] = { TESS_NCCL_KERNELS(ROW){ 0 } };
    return list;
}
