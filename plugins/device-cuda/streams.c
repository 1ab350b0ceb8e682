/* SPDX-License-Identifier: BSD-3-Clause */
/* Streams, points in them, copies. */
#include "device.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

static CUstream native_stream(const tess_stream *s) {
    return s ? (CUstream)s->handle : NULL;
}

tess_status cuda_stream_create(tess_device *d, uint32_t role, tess_stream *out, tess_error *error) {
    int least = 0, greatest = 0;
    CUstream stream = NULL;
    tess_status s = cuda_enter(d, error);
    if (s)
        return s;
    /* A stream of transfers goes before computation, because other ranks and the next unit wait for it. */
    CUresult r = d->cu->cuCtxGetStreamPriorityRange(&least, &greatest);
    if (r == CUDA_SUCCESS)
        r = d->cu->cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING,
                                              role == TESS_STREAM_COMPUTE ? least : greatest);
    pthread_mutex_lock(&d->lock);
    if (r == CUDA_SUCCESS && d->n_streams == CUDA_STREAMS) {
        d->cu->cuStreamDestroy(stream);
        s = tess_plugin_fail(error, TESS_E_INVALID, "device cuda: more than %d streams", CUDA_STREAMS);
    } else if (r == CUDA_SUCCESS) {
        d->streams[d->n_streams++] = stream;
    }
    pthread_mutex_unlock(&d->lock);
    cuda_leave(d);
    if (r)
        return cuda_failed(d, r, "making a stream", error);
    if (s == TESS_OK)
        *out = (tess_stream){ .mem = TESS_MEM_CUDA, .device = d->index, .handle = stream };
    return s;
}

tess_status cuda_stream_import(tess_device *d, void *stream, tess_stream *out, tess_error *error) {
    tess_status s = cuda_enter(d, error);
    if (s)
        return s;
    CUresult r = d->cu->cuStreamQuery((CUstream)stream);
    cuda_leave(d);
    if (r != CUDA_SUCCESS && r != CUDA_ERROR_NOT_READY)
        return tess_plugin_fail(error, TESS_E_INVALID, "device cuda: tess_options.stream is no stream of GPU %d: %s",
                                (int)d->index, tess_cuda_text(r));
    pthread_mutex_lock(&d->lock);
    d->program = stream;
    d->has_program = 1;
    pthread_mutex_unlock(&d->lock);
    *out = (tess_stream){ .mem = TESS_MEM_CUDA, .device = d->index, .handle = stream };
    return TESS_OK;
}

void cuda_stream_destroy(tess_device *d, tess_stream *stream) {
    if (!stream || !stream->handle || cuda_enter(d, NULL) != TESS_OK)
        return;
    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < d->n_streams; i++) {
        if (d->streams[i] != native_stream(stream)) /* the program's own stays */
            continue;
        d->cu->cuStreamSynchronize(d->streams[i]);
        d->cu->cuStreamDestroy(d->streams[i]);
        d->streams[i] = d->streams[--d->n_streams];
        break;
    }
    pthread_mutex_unlock(&d->lock);
    cuda_leave(d);
    stream->handle = NULL;
}

/* ---- events ------------------------------------------------------------------------------------------ */

tess_status cuda_event_create(tess_device *d, tess_event **out, tess_error *error) {
    tess_event *event = calloc(1, sizeof *event);
    if (!event)
        return tess_plugin_fail(error, TESS_E_NOMEM, "device cuda: no memory for an event");
    tess_status s = cuda_enter(d, error);
    if (s == TESS_OK) {
        CUresult r = d->cu->cuEventCreate(&event->event, CU_EVENT_DEFAULT);
        cuda_leave(d);
        s = r ? cuda_failed(d, r, "making an event", error) : TESS_OK;
    }
    if (s) {
        free(event);
        return s;
    }
    event->device = d;
    *out = event;
    return TESS_OK;
}

void cuda_event_destroy(tess_event *event) {
    if (!event)
        return;
    if (cuda_enter(event->device, NULL) == TESS_OK) {
        event->device->cu->cuEventDestroy(event->event);
        cuda_leave(event->device);
    }
    free(event);
}

tess_status cuda_event_record(tess_event *event, const tess_stream *stream, tess_error *error) {
    tess_device *d = event->device;
    tess_status s = cuda_enter(d, error);
    if (s)
        return s;
    CUresult r = d->cu->cuEventRecord(event->event, native_stream(stream));
    cuda_leave(d);
    return r ? cuda_failed(d, r, "recording an event", error) : TESS_OK;
}

tess_status cuda_event_stream_wait(tess_event *event, const tess_stream *stream, tess_error *error) {
    tess_device *d = event->device;
    tess_status s = cuda_enter(d, error);
    if (s)
        return s;
    CUresult r = d->cu->cuStreamWaitEvent(native_stream(stream), event->event, 0);
    cuda_leave(d);
    return r ? cuda_failed(d, r, "waiting for an event", error) : TESS_OK;
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The driver has no wait with an end: looks again and again, in earnest at first. */
static CUresult wait_until(tess_device *d, CUevent event, int64_t timeout_ns) {
    const int64_t begin = now_ns(), spin_ns = 50000;
    const struct timespec nap = { 0, 20000 };
    for (;;) {
        CUresult r = d->cu->cuEventQuery(event);
        int64_t waited = now_ns() - begin;
        if (r != CUDA_ERROR_NOT_READY || waited >= timeout_ns)
            return r;
        if (waited > spin_ns)
            nanosleep(&nap, NULL);
    }
}

tess_status cuda_event_wait(tess_event *event, int64_t timeout_ns, tess_error *error) {
    tess_device *d = event->device;
    tess_status s = cuda_enter(d, error);
    if (s)
        return s;
    CUresult r = timeout_ns < 0 ? d->cu->cuEventSynchronize(event->event) : wait_until(d, event->event, timeout_ns);
    cuda_leave(d);
    if (r == CUDA_ERROR_NOT_READY)
        return timeout_ns == 0 ? TESS_PENDING
                               : tess_plugin_fail(error, TESS_E_TIMEOUT,
                                                  "device cuda: GPU %d did not get there in time", (int)d->index);
    return r ? cuda_failed(d, r, "work on it", error) : TESS_OK;
}

tess_status cuda_event_elapsed_ns(tess_event *from, tess_event *to, int64_t *out) {
    tess_device *d = from->device;
    float ms = 0;
    tess_status s = cuda_enter(d, NULL);
    if (s)
        return s;
    CUresult r = d->cu->event_elapsed_time(&ms, from->event, to->event);
    cuda_leave(d);
    if (r == CUDA_ERROR_NOT_READY || r == CUDA_ERROR_INVALID_HANDLE) /* not passed yet, or never recorded */
        return TESS_PENDING;
    if (r)
        return cuda_failed(d, r, "reading an event", NULL);
    *out = (int64_t)((double)ms * 1e6);
    return TESS_OK;
}

/* ---- copies -------------------------------------------------------------------------------------------- */

static int is_known_memory(uint32_t mem) {
    return mem == TESS_MEM_CUDA || mem == TESS_MEM_PINNED || mem == TESS_MEM_HOST || mem == TESS_MEM_SHM;
}

tess_status cuda_copy(tess_device *d, void *dst, uint32_t dst_mem, const void *src, uint32_t src_mem, uint64_t bytes,
                      const tess_stream *stream, tess_error *error) {
    CUdeviceptr to = (CUdeviceptr)(uintptr_t)dst, from = (CUdeviceptr)(uintptr_t)src;
    if (!is_known_memory(dst_mem) || !is_known_memory(src_mem))
        return tess_plugin_fail(error, TESS_E_INVALID, "device cuda cannot copy from memory kind %u to kind %u",
                                src_mem, dst_mem);
    if (!bytes || dst == src)
        return TESS_OK;
    tess_status s = cuda_enter(d, error);
    if (s)
        return s;
    CUresult r;
    if (dst_mem == TESS_MEM_CUDA && src_mem == TESS_MEM_CUDA)
        r = d->cu->cuMemcpyDtoDAsync(to, from, bytes, native_stream(stream));
    else if (dst_mem == TESS_MEM_CUDA)
        r = d->cu->cuMemcpyHtoDAsync(to, src, bytes, native_stream(stream));
    else if (src_mem == TESS_MEM_CUDA)
        r = d->cu->cuMemcpyDtoHAsync(dst, from, bytes, native_stream(stream));
    else
        r = d->cu->cuMemcpyAsync(to, from, bytes, native_stream(stream));
    cuda_leave(d);
    return r ? cuda_failed(d, r, "a copy", error) : TESS_OK;
}

tess_status cuda_fill(tess_device *d, void *dst, uint8_t byte, uint64_t bytes, const tess_stream *stream,
                      tess_error *error) {
    if (!bytes)
        return TESS_OK;
    tess_status s = cuda_enter(d, error);
    if (s)
        return s;
    CUresult r = d->cu->cuMemsetD8Async((CUdeviceptr)(uintptr_t)dst, byte, bytes, native_stream(stream));
    cuda_leave(d);
    return r ? cuda_failed(d, r, "a fill", error) : TESS_OK;
}
