/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera/gpu.h: what keeps a GPU at work: its stream, late results, recorded passes. C11 and C++17.
 *
 * The rules of tessera.h hold. A program that trains on a GPU needs tess_options.pointer_mem and tess_options.stream of
 * tessera.h; it does without this header until the host holds the GPU up. On devices without streams all of this does
 * the same at once. */
/* The tables below are laid out by hand. */
/* clang-format off */
#ifndef TESSERA_GPU_H
#define TESSERA_GPU_H
#include <tessera/tessera.h>
#ifdef __cplusplus
extern "C" {
#endif

/* ---- blocks for which the host does not wait ---------------------------------------------------- */
enum { /* tess_options.flags, beside those of tessera.h */
    TESS_OPTIONS_LATE = 8,   /* blocks: tess_run leaves its result, and tess_stats.grad_norm, to the next tess_run or to
                              * tess_run_wait, so that a GPU is never idle between passes. The result's memory stays until
                              * then. Page-locked memory for two results and batches is planned. A step comes with a tess_run
                              * only */
    TESS_OPTIONS_REPEAT = 16 /* blocks: their kernels go to the stream of tess_stream_get alone; tess_run_repeat says which
                              * passes do the same */
};
/** The stream on which the device works for this engine, a cudaStream_t: tess_options.stream. Where that is null, one of the
 * engine's own with TESS_OPTIONS_REPEAT, which lasts until tess_close, else the default stream. Null without streams. */
TESS_API void *tess_stream_get(const tess *);
/** The results of all passes are there. At once without TESS_OPTIONS_LATE. */
TESS_API tess_status tess_run_wait(tess *);
/** [C] As tess_run, with TESS_OPTIONS_REPEAT and TESS_OPTIONS_LATE. Blocks that are called in passes of the same `number`,
 * with the same pointers, put the same into the stream, and do nothing else. So one such pass may be recorded, and run
 * again without calling them. Values that differ from step to step, they read from memory; `step` and `microbatch` of the
 * call they do not look at. With number 0, and with TESSERA_GRAPHS=0, they are always called. */
TESS_API tess_status tess_run_repeat(tess *, const tess_run_options *, uint64_t number);
/** [C] As tess_all_reduce, to the bit, for a program with TESS_OPTIONS_LATE, which does not wait: `host` stays until the
 * next tess_run or tess_run_wait has returned, one of which writes it. At once on one rank, where the comm plugin or the
 * device has no streams, before the first tess_run, for more than 64 bytes, and from the second call behind one tess_run
 * on. */
TESS_API tess_status tess_all_reduce_late(tess *, void *host, uint64_t elems, uint32_t dtype, uint32_t op);

#ifdef __cplusplus
}
#endif
#endif
