/* SPDX-License-Identifier: BSD-3-Clause */
/* What the files of the driver's part share. */
#ifndef TESSERA_DOUBLE_DRIVER_H
#define TESSERA_DOUBLE_DRIVER_H
#include <cuda.h>

#include "double.h"

enum { DOUBLE_LEAST = 0, DOUBLE_GREATEST = -5 }; /* priorities of streams */

#define DOUBLE_API __attribute__((visibility("default")))

/** Counts the call. CUDA_SUCCESS to go on; what it is to fail with, or the context's failure. */
CUresult double__enter(const char *name, CUresult usual);
/** The same, for calls that need a current context. */
CUresult double__enter_context(const char *name, CUresult usual);

#define ENTER(name, usual)                                                                                             \
    do {                                                                                                               \
        CUresult entered_ = double__enter(name, usual);                                                                \
        if (entered_ != CUDA_SUCCESS)                                                                                  \
            return entered_;                                                                                           \
    } while (0)
#define ENTER_CONTEXT(name, usual)                                                                                     \
    do {                                                                                                               \
        CUresult entered_ = double__enter_context(name, usual);                                                        \
        if (entered_ != CUDA_SUCCESS)                                                                                  \
            return entered_;                                                                                           \
    } while (0)

/** The stream of a handle, with 0 and CU_STREAM_LEGACY for the null stream; null when it is none of this context. */
double_stream *double__stream_of(CUstream);
/** graph.c: breaks what the stream records, if anything, and returns `with`. */
CUresult double__break(double_stream *, CUresult with);
/** A call that is not allowed while this thread records: breaks the recording. */
CUresult double__unsafe(void);
/** A stream waits for a point of a recording (0: for another event). CUDA_ERROR_NOT_READY: no recording is concerned.
 */
CUresult double__record_wait(double_stream *, uint64_t mark);
/** Before work is put into a stream: what forbids it. */
CUresult double__stream_takes(double_stream *);
#define ENTER_UNSAFE(name, usual)                                                                                      \
    do {                                                                                                               \
        ENTER_CONTEXT(name, usual);                                                                                    \
        CUresult unsafe_ = double__unsafe();                                                                           \
        if (unsafe_ != CUDA_SUCCESS)                                                                                   \
            return unsafe_;                                                                                            \
    } while (0)
#define TAKES(stream)                                                                                                  \
    do {                                                                                                               \
        CUresult takes_ = double__stream_takes(stream);                                                                \
        if (takes_ != CUDA_SUCCESS)                                                                                    \
            return takes_;                                                                                             \
    } while (0)

/** driver_device.c: what a launch may give a block at most. */
int double__shared_bytes(void);
/** driver_image.c: CUDA_SUCCESS, or what a driver of DRIVER_VERSION says of this image on a chip of CAPABILITY. */
CUresult double__image_fits(const void *image);
#endif
