/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared by the files of device-cuda. plugin.c: finding and opening a GPU; context.c: calls and their failures;
 * memory.c; streams.c; graph.c; launch.c: kernels; ranges.c: names for a profiler. */
#ifndef CUDA_DEVICE_H
#define CUDA_DEVICE_H
#include "cuda_driver.h"

#include <pthread.h>
#include <tessera/plugin_helpers.h>

enum { CUDA_STREAMS = 16, CUDA_GRAPHS = 128, CUDA_ALIGN = 256, CUDA_GRANULARITY = 2 << 20 /* the driver's pages */ };

typedef struct {
    const tess_host *host;
    tess_device_ops ops; /* adds NVTX ranges while a profiler is attached */
} cuda_context;

typedef struct cuda_block { /* one piece of memory given out */
    struct cuda_block *next;
    uint64_t at, bytes;
    uint32_t mem, domain;
    int pooled; /* allocated from the pool */
} cuda_block;

typedef struct cuda_batch cuda_batch; /* batch.h */

struct tess_graph {
    tess_device *device;
    CUgraphExec exec; /* null: free */
};

struct tess_device {
    const cuda_context *ctx;
    const tess_cuda *cu;
    int32_t index, processors;
    CUdevice handle;
    CUcontext context;
    CUmodule module;
    CUfunction *functions;
    cuda_batch *batch; /* only the engine's thread uses it */
    CUmemoryPool pool; /* null: the driver has none */
    CUstream taking;   /* allocates on a stream without other work, so that no allocation waits for a release */
    CUstream giving;   /* releases, each after the work that the streams held then */
    CUevent passed;    /* marks a stream's position when memory is released */
    uint64_t capacity_bytes, free_at_start;
    pthread_mutex_t lock; /* guards the fields below */
    cuda_block *blocks;
    uint64_t taken_bytes;                    /* device memory in use */
    CUstream streams[CUDA_STREAMS], program; /* program: the stream imported, which stays its owner's */
    int has_program;
    int n_streams, warned_unpinned;
    tess_graph graphs[CUDA_GRAPHS]; /* engine's thread only; fixed, because a step must not allocate */
};

struct tess_event {
    tess_device *device;
    CUevent event;
};

/* Every slot that calls the driver does so between these two: any thread may call. */
tess_status cuda_enter(tess_device *, tess_error *);
void cuda_leave(tess_device *);
/* Sets the message of a failed call. */
tess_status cuda_failed(tess_device *, CUresult, const char *doing, tess_error *);

tess_status cuda_mem_alloc(tess_device *, const tess_alloc_request *, tess_buffer *, tess_error *);
void cuda_mem_free(tess_device *, tess_buffer *);
int cuda_is_on_host(tess_device *, const void *at); /* true if `at` lies in host memory that this device allocated */
tess_status cuda_mem_usage(tess_device *, uint64_t *backend_bytes, uint64_t *free_bytes);
CUresult cuda_memory_begin(tess_device *); /* within cuda_enter */
void cuda_memory_end(tess_device *);

tess_status cuda_stream_create(tess_device *, uint32_t role, tess_stream *, tess_error *);
tess_status cuda_stream_import(tess_device *, void *native, tess_stream *, tess_error *);
void cuda_stream_destroy(tess_device *, tess_stream *);
tess_status cuda_event_create(tess_device *, tess_event **, tess_error *);
void cuda_event_destroy(tess_event *);
tess_status cuda_event_record(tess_event *, const tess_stream *, tess_error *);
tess_status cuda_event_stream_wait(tess_event *, const tess_stream *, tess_error *);
tess_status cuda_event_wait(tess_event *, int64_t timeout_ns, tess_error *);
tess_status cuda_event_elapsed_ns(tess_event *from, tess_event *to, int64_t *out);
tess_status cuda_copy(tess_device *, void *dst, uint32_t dst_mem, const void *src, uint32_t src_mem, uint64_t bytes,
                      const tess_stream *, tess_error *);
tess_status cuda_fill(tess_device *, void *dst, uint8_t byte, uint64_t bytes, const tess_stream *, tess_error *);

tess_status cuda_record_begin(tess_device *, const tess_stream *, tess_error *);
tess_status cuda_record_end(tess_device *, const tess_stream *, tess_graph **out, tess_error *);
tess_status cuda_graph_run(tess_graph *, const tess_stream *, tess_error *);
void cuda_graph_destroy(tess_graph *);
tess_status cuda_optimizer_prepare(void *ctx, const tess_optimizer *, void *out);

int cuda_is_profiled(const tess_host *); /* a profiler listens to ranges */
void cuda_range_push(tess_device *, const char *name);
void cuda_range_pop(tess_device *);

tess_status cuda_load_kernels(tess_device *, tess_error *); /* within cuda_enter */
tess_status cuda_kernel_need(void *ctx, const tess_kernel *, tess_need *);
tess_status cuda_kernel(tess_device *, const tess_kernel *, const tess_stream *, tess_error *);
#endif
