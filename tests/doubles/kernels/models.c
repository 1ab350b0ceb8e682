/* SPDX-License-Identifier: BSD-3-Clause */
/* The kernels of the reference models, run in loops. */
#include "double.h"
#include "tools/models/cuda/kernels.h"

#define RUN_IN(name, phases, doubles)                                                                                  \
    static void run_##name(const void *args, const unsigned grid[3], const unsigned block[3]) {                        \
        _Alignas(16) double room[doubles];                                                                             \
        (void)block;                                                                                                   \
        for (unsigned b = 0; b < grid[0]; b++)                                                                         \
            for (int phase = 0; phase < (phases); phase++)                                                             \
                for (unsigned t = 0; t < OPS_BLOCK; t++)                                                               \
                    ops_body_##name(args, b, t, phase, room);                                                          \
    }
#define RUN(name, phases) RUN_IN(name, phases, OPS_ROOM)
OPS_CUDA_KERNELS(RUN)
#define RUN_WIDE(name, phases) RUN_IN(name, phases, OPS_WIDE)
OPS_CUDA_WIDE_KERNELS(RUN_WIDE)

/* Those of attention run a whole block at once. */
#define RUN_BLOCK_OF(name, shares, threads)                                                                            \
    static void run_##name(const void *args, const unsigned grid[3], const unsigned block[3]) {                        \
        static __thread shares shared;                                                                                 \
        for (unsigned b = 0; b < grid[0] && block[0] == (threads); b++)                                                \
            body_##name(args, b, &shared);                                                                             \
    }
#define RUN_BLOCK(name, args_type, shares) RUN_BLOCK_OF(name, shares, TILE_THREADS)
OPS_ATTEND_KERNELS(RUN_BLOCK)
#define RUN_LARGE(name, args_type, shares) RUN_BLOCK_OF(name, shares, TILE_MOST_THREADS)
OPS_ATTEND_LARGE_KERNELS(RUN_LARGE)

const double_kernel *double__model_kernels(void) {
#define ENTRY_LARGE(name, args, shares) { OPS_KERNEL_NAME(name), sizeof(args), run_##name, sizeof(shares) },
#define ENTRY_BLOCK(name, args, shares) { OPS_KERNEL_NAME(name), sizeof(args), run_##name, 0 },
#define ENTRY(name, phases) { OPS_KERNEL_NAME(name), sizeof(ops_args_##name), run_##name, 0 },
    static const double_kernel list[] = { OPS_CUDA_KERNELS(ENTRY) OPS_CUDA_WIDE_KERNELS(ENTRY) OPS_ATTEND_KERNELS(
        ENTRY_BLOCK) OPS_ATTEND_LARGE_KERNELS(ENTRY_LARGE){ 0 } };
    return list;
}
