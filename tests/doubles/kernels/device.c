/* SPDX-License-Identifier: BSD-3-Clause */
/* The kernels of plugins/device-cuda, on the host: every item in turn, whatever the grid. */
#include "plugins/device-cuda/kernels_blocks.h"
#include "plugins/device-cuda/kernels_many.h"
#include "double.h"

const double_kernel *double__device_kernels(void);

#define RUN(name, args_type, body)                                                                                     \
    static void run_##name(const void *args, const unsigned grid[3], const unsigned block[3]) {                        \
        const args_type *a = args;                                                                                     \
        const uint64_t items = *(const uint64_t *)args;                                                                \
        (void)grid, (void)block;                                                                                       \
        for (uint64_t i = 0; i < items; i++)                                                                           \
            body(a, i);                                                                                                \
    }
CUDA_KERNELS(RUN)

#define RUN_BLOCKS(name, args_type, body)                                                                              \
    static void run_##name(const void *args, const unsigned grid[3], const unsigned block[3]) {                        \
        const args_type *a = args;                                                                                     \
        const uint64_t items = *(const uint64_t *)args;                                                                \
        (void)grid, (void)block;                                                                                       \
        for (uint64_t b = 0; b < items; b++)                                                                           \
            body(a, b, 0);                                                                                             \
    }
CUDA_OF_BLOCKS(RUN_BLOCKS)

/* As the grid lies: each block with the items of its piece. */
#define RUN_STEPS(name, body)                                                                                          \
    static void run_##name(const void *args, const unsigned grid[3], const unsigned block[3]) {                        \
        const cuda_steps_args *a = args;                                                                               \
        for (unsigned b = 0; b < grid[0]; b++) {                                                                       \
            CUDA_PIECE_OF(a, b, k);                                                                                    \
            const cuda_step_piece *p = &a->pieces[k];                                                                  \
            tess_step_constants c = cuda_step_constants(a, k);                                                         \
            uint64_t step = (uint64_t)CUDA_PIECE_BLOCKS(a, k) * block[0];                                              \
            for (uint64_t t = 0; t < block[0]; t++)                                                                    \
                for (uint64_t i = (b - p->first_block) * block[0] + t; i < cuda_step_items(p); i += step)              \
                    body(p, &c, i);                                                                                    \
        }                                                                                                              \
    }
CUDA_STEPS(RUN_STEPS)

/* Each block with sums of its own. */
static void run_square_sum(const void *args, const unsigned grid[3], const unsigned block[3]) {
    const cuda_squares_args *a = args;
    for (unsigned b = 0; b < grid[0]; b++) {
        cuda_square_shared s;
        CUDA_PIECE_OF(a, b, k);
        const cuda_square_piece *p = &a->pieces[k];
        uint64_t step = (uint64_t)CUDA_PIECE_BLOCKS(a, k) * block[0];
        for (uint32_t t = 0; t < block[0]; t++)
            cuda_square_begin(&s, t);
        for (uint32_t t = 0; t < block[0]; t++)
            for (uint64_t i = (uint64_t)(b - p->first_block) * block[0] + t; i < cuda_square_items(p); i += step)
                cuda_square_body(p, a->scale, &s, t, i);
        for (uint32_t row = 0; row < TESS__NORM_LIMBS; row++)
            cuda_square_row(&s, row);
        cuda_square_end(a, &s);
    }
}

const double_kernel *double__device_kernels(void) {
#define ENTRY_STEPS(name, body) { #name, sizeof(cuda_steps_args), run_##name, 0 },
#define ENTRY(name, args, body) { #name, sizeof(args), run_##name, 0 },
    static const double_kernel list[] = { CUDA_KERNELS(ENTRY) CUDA_STEPS(ENTRY_STEPS) CUDA_OF_BLOCKS(ENTRY){
                                              "tess_cuda_square_sum", sizeof(cuda_squares_args), run_square_sum, 0 },
                                          { 0 } };
    return list;
}
