/* SPDX-License-Identifier: BSD-3-Clause */
/* Optimizer steps and sums of squares, many arrays to a launch: a kernel with TESS_KERNEL_MORE is held back until one
 * without it, or until no more fit. */
#ifndef CUDA_BATCH_H
#define CUDA_BATCH_H
#include "device.h"
#include "kernels_blocks.h"
#include "kernels_many.h"

/* A kernel that accesses page-locked memory uses CUDA_HOST_BLOCKS blocks. They keep 128 KiB in flight, which saturates
 * any link to the host, and leave the other multiprocessors free. */
enum { CUDA_THREADS = 256, CUDA_BLOCKS_PER_PROCESSOR = 8, CUDA_HOST_BLOCKS = 32 };
#define NUMBER(name, args, body) N_##name,
#define STEPS_NUMBER(name, body) N_##name,
enum { CUDA_KERNELS(NUMBER) CUDA_STEPS(STEPS_NUMBER) CUDA_OF_BLOCKS(NUMBER) N_tess_cuda_square_sum, N_KERNELS };
#undef NUMBER
#undef STEPS_NUMBER

typedef struct {
    tess_device *device;
    CUstream stream;
    uint64_t most_blocks;
} cuda_place;

struct cuda_batch {
    cuda_place place;
    int kernel; /* the kernel of the pieces collected so far */
    union {
        cuda_steps_args steps;
        cuda_squares_args squares;
    } of; /* n_pieces 0: nothing */
    uint64_t items[CUDA_SQUARE_PIECES];
    uint32_t n;
};

/* One launch of any of the kernels. */
CUresult cuda_launch(const cuda_place *, int kernel, const void *args, uint64_t blocks, unsigned threads);
/* Whether whole items of the array can be moved at once; a null one is none. */
int cuda_aligned(const void *at, uint32_t dtype);

CUresult cuda_optimizer(const cuda_place *, const tess_kernel *);
CUresult cuda_square_sum(const cuda_place *, const tess_kernel *);
/* Launches the pieces collected so far. */
CUresult cuda_batch_flush(tess_device *);
#endif
