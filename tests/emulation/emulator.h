/* SPDX-License-Identifier: BSD-3-Clause */
/* Runs CUDA kernels on the host as a GPU would: a stack for each thread of a block, barriers of the block, and of each
 * warp of 32 the instructions that its lanes do together. Kernels are compiled with cuda_words.h, so what runs is the
 * code of `__CUDA_ARCH__`, which the doubles never see.
 *
 * One thread of the host runs all of them, each until it waits, in one order or the other, so a run is the same every
 * time. Shared memory holds NaNs when a block begins. ThreadSanitizer takes each for a thread of its own, ordered by
 * barriers alone. Blocks follow each other, or several are there at once, which take turns by a seed from barrier to
 * barrier. Whatever a GPU would refuse or wait for without end stops the program. */
#ifndef TESSERA_EMULATOR_H
#define TESSERA_EMULATOR_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const char *name;
    size_t args_bytes;
    void (*run)(const void *args); /* one thread of one block */
} emulated_kernel;
/* The last has no name. */
extern const emulated_kernel emulated_models[], emulated_device[], emulated_nccl[], emulated_lion[];

typedef struct {
    int last_first; /* threads and blocks, from the last to the first */
    int late;       /* asynchronous copies happen when they are waited for, and leave NaNs until then; else at once */
    unsigned resident, seed; /* resident: blocks at once, at most EMULATED_RESIDENT; ThreadSanitizer sees one */
} emulated_order;
enum { EMULATED_RESIDENT = 6, EMULATED_THREADS = 256 };

/** Runs a kernel of `blocks` of `threads`, a multiple of 32. */
void emulate(const emulated_kernel *kernel, const void *args, unsigned blocks, unsigned threads, emulated_order order);

/* ---- for cuda_words.h ---------------------------------------------------------------------------- */
typedef struct {
    unsigned x;
} emulated_index;
extern emulated_index threadIdx, blockIdx, blockDim, gridDim;
/** The thread's number among those of all blocks that are there. */
unsigned emulated_strand(void);

/** Waits for all threads of the block. */
void emulated_barrier(void);
/** Waits for the warp. The last lane then runs `work` with the arguments of all 32. */
void emulated_together(void (*work)(void *const lanes[32]), void *mine);
/** A thread waits for another block. */
void emulated_pause(void);
/** A thread lets other blocks go on, before other warps of its own do. */
void emulated_give_way(void);
/** Waits for all lanes of the warp. */
void emulated_warp_barrier(void);
int emulated_is_late(void);
void emulated_refuse(const char *what) __attribute__((noreturn));
/** A function of its own, so that no compiler takes the answer from the pointer's type. */
void emulated_look(const void *at, unsigned bytes);

/* warp.c: what lanes do together */
float emulated_shuffle_xor(float x, int apart);
/** PTX's mma.m16n8k16 of bf16 or fp16. */
void emulated_multiply(float *c, const uint32_t *a, const uint32_t *b, int f16);
/** The rows that the 32 lanes say. */
void emulated_rows(const uint16_t *mine, const uint16_t **rows);
#ifdef __cplusplus
}
#endif
#endif
