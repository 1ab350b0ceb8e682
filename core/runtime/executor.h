/* SPDX-License-Identifier: BSD-3-Clause */
/* An executor is where work on shards and activations runs: the device's compute stream, one of its two streams for
 * transfers, or a lane of the host. The work itself does not know which of them runs it. */
#ifndef TESS_EXECUTOR_H
#define TESS_EXECUTOR_H
#include "base/pool.h"
#include "lane.h"
#include "streams.h"

typedef struct tess__executor tess__executor;
struct tess__executor {
    /** Runs one kernel: on a stream behind what it holds, on a lane before it returns. A tess__kernel_fn, whose user is
     * the executor. */
    tess_status (*kernel)(void *executor, tess_kernel *);
    /** Copies bytes between the device's memory (`dst_mem`, `src_mem`: TESS_MEM_…) and the host's, in the same way.
     * Null for compute, as `wait` is. */
    tess_status (*copy)(tess__executor *, void *dst, uint32_t dst_mem, const void *src, uint32_t src_mem,
                        uint64_t bytes);
    /** Hands over one job for `run`, on a lane's thread or now. `*ticket` is what to wait for; compute sets none. */
    tess_status (*post)(tess__executor *, const tess__job *, uint64_t *ticket);
    /** Makes the compute stream, or on the host this thread, go on when the job has ended. */
    tess_status (*wait)(tess__executor *, uint64_t ticket);
    tess__job_fn run; /* with the executor as its first argument */
    void *engine;     /* for `run` */
    const tess__device *device;
    tess__streams *streams;
    tess__stream *stream; /* of a stream: which */
    tess__lane *lane;     /* of a lane; owned */
    tess__pool *pool;     /* the lane's kernels use it; null: its thread alone */
    tess__stream
        *behind; /* of a lane: each job begins behind what this stream held when it was posted; null: at once */
};

void tess__executor_compute(tess__executor *, const tess__device *);
void tess__executor_stream(tess__executor *, tess__streams *, tess__stream *);
/** `cpus`: of tess__lane_create. */
tess_status tess__executor_lane(tess__executor *, const char *cpus, tess__pool *, tess__streams *,
                                tess__stream *behind);
void tess__executor_end(tess__executor *); /* does what was posted to a lane first; one never made is fine */
/** Waits for the ticket and forgets it; at once where it is 0. */
tess_status tess__executor_wait(tess__executor *, uint64_t *ticket);
#endif
