/* SPDX-License-Identifier: BSD-3-Clause */
/* Allocation, copies, fills. */
#include "driver.h"
#include "races.h"

#include <stdlib.h>
#include <string.h>

#define OOM CUDA_ERROR_OUT_OF_MEMORY

/* ---- device memory ------------------------------------------------------------------------------ */

static CUresult take(CUdeviceptr *out, size_t bytes) {
    uintptr_t at;
    if (!out || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (double__take(double__current_device(), bytes, 0, &at))
        return OOM;
    *out = at;
    return CUDA_SUCCESS;
}

DOUBLE_API CUresult cuMemAlloc(CUdeviceptr *out, size_t bytes) {
    ENTER_UNSAFE("cuMemAlloc", OOM);
    return take(out, bytes);
}

DOUBLE_API CUresult cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned flags) {
    ENTER_UNSAFE("cuMemAllocManaged", OOM);
    uintptr_t at;
    (void)flags;
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (double__take_host(bytes, DOUBLE_MEM_MANAGED, double__current_device(), &at))
        return OOM;
    *out = at;
    return CUDA_SUCCESS;
}

/* Gives back even when asked to fail, so that what is left at exit is the caller's fault alone. Waits for all work, as
 * the driver does. */
DOUBLE_API CUresult cuMemFree(CUdeviceptr at) {
    CUresult entered = double__enter_context("cuMemFree", CUDA_ERROR_UNKNOWN);
    entered = entered ? entered : double__unsafe();
    double_piece piece;
    if (!at)
        return entered;
    if (double__current_device() >= 0)
        double__finish_device(double__current_device());
    if (!double__piece_of((void *)at, &piece) || piece.nccl ||
        (double__give(at, DOUBLE_MEM_DEVICE) && double__give(at, DOUBLE_MEM_MANAGED)))
        return CUDA_ERROR_INVALID_VALUE;
    return entered;
}

DOUBLE_API CUresult cuMemGetInfo(size_t *free_bytes, size_t *total) {
    ENTER_CONTEXT("cuMemGetInfo", CUDA_ERROR_UNKNOWN);
    *total = double__capacity();
    *free_bytes = *total - double__used(double__current_device());
    return CUDA_SUCCESS;
}

/* ---- the host's --------------------------------------------------------------------------------- */

static CUresult alloc_host(void **out, size_t bytes) {
    uintptr_t at;
    if (!out || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (double__take_host(bytes, DOUBLE_MEM_PINNED, double__current_device(), &at))
        return OOM;
    *out = (void *)at;
    return CUDA_SUCCESS;
}

DOUBLE_API CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
    ENTER_UNSAFE("cuMemHostAlloc", OOM);
    (void)flags;
    return alloc_host(out, bytes);
}

DOUBLE_API CUresult cuMemAllocHost(void **out, size_t bytes) {
    ENTER_UNSAFE("cuMemAllocHost", OOM);
    return alloc_host(out, bytes);
}

DOUBLE_API CUresult cuMemFreeHost(void *at) {
    CUresult entered = double__enter_context("cuMemFreeHost", CUDA_ERROR_UNKNOWN);
    entered = entered ? entered : double__unsafe();
    if (double__current_device() >= 0)
        double__finish_device(double__current_device());
    return double__give((uintptr_t)at, DOUBLE_MEM_PINNED) ? CUDA_ERROR_INVALID_VALUE : entered;
}

DOUBLE_API CUresult cuMemHostRegister(void *at, size_t bytes, unsigned flags) {
    ENTER_UNSAFE("cuMemHostRegister", OOM);
    (void)flags;
    if (!at || !bytes || double__is_device(at))
        return CUDA_ERROR_INVALID_VALUE;
    return double__note_host(at, bytes, double__current_device()) ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
                                                                  : CUDA_SUCCESS;
}

DOUBLE_API CUresult cuMemHostUnregister(void *at) {
    CUresult entered = double__enter_context("cuMemHostUnregister", CUDA_ERROR_UNKNOWN);
    entered = entered ? entered : double__unsafe();
    if (double__current_device() >= 0)
        double__finish_device(double__current_device());
    return double__give((uintptr_t)at, DOUBLE_MEM_REGISTERED) ? CUDA_ERROR_INVALID_VALUE : entered;
}

DOUBLE_API CUresult cuMemHostGetDevicePointer(CUdeviceptr *out, void *at, unsigned flags) {
    ENTER_CONTEXT("cuMemHostGetDevicePointer", CUDA_ERROR_UNKNOWN);
    if (flags || !double__is_locked(at))
        return CUDA_ERROR_INVALID_VALUE;
    *out = (CUdeviceptr)(uintptr_t)at;
    return CUDA_SUCCESS;
}

DOUBLE_API CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr at) {
    ENTER("cuPointerGetAttribute", CUDA_ERROR_UNKNOWN);
    double_piece piece;
    if (!double__piece_of((void *)at, &piece))
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
        *(unsigned *)value = piece.kind == DOUBLE_MEM_DEVICE ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    else if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
        *(int *)value = piece.device;
    else
        return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

/* ---- copies and fills --------------------------------------------------------------------------- */

struct move {
    void *to;
    const void *from;
    size_t bytes, rows, to_pitch, from_pitch;
    uint32_t value;
    int width; /* 0: a copy; else bytes of `value` */
};

static void run_move(void *data) {
    struct move *m = data;
    for (size_t row = 0; row < m->rows; row++) {
        unsigned char *to = (unsigned char *)double_host(m->to) + row * m->to_pitch;
        if (m->width == 0)
            memmove(to, (const unsigned char *)double_host(m->from) + row * m->from_pitch, m->bytes);
        else if (m->width == 1)
            memset(to, (int)m->value, m->bytes);
        else
            for (size_t i = 0; i < m->bytes; i += (size_t)m->width)
                memcpy(to + i, &m->value, (size_t)m->width);
    }
}

static void describe_move(const void *data, double_access *a) {
    const struct move *m = data;
    for (size_t row = 0; row < m->rows; row++) {
        if (m->width == 0)
            double__reads(a, "a copy", (const char *)m->from + row * m->from_pitch, m->bytes);
        double__writes(a, m->width ? "a fill" : "a copy", (char *)m->to + row * m->to_pitch, m->bytes);
    }
}
__attribute__((constructor)) static void describe_moves(void) {
    double__describes(run_move, describe_move);
}

/* Memory that is not locked is staged: the call comes back when the copy is over. */
static CUresult queue_move(const struct move *m, CUstream stream) {
    double_stream *s = double__stream_of(stream);
    if (!s)
        return CUDA_ERROR_INVALID_HANDLE;
    TAKES(s);
    const void *ends[] = { m->to, m->width ? m->to : m->from };
    int recording = double__is_recording(s);
    for (int i = 0; i < 2; i++)
        if (recording && !double__is_device(ends[i]) && !double__is_locked(ends[i]))
            return double__break(s, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    double__push(s, run_move, m, sizeof *m);
    for (int i = 0; i < 2; i++)
        if (!double__is_device(ends[i]) && !double__is_locked(ends[i])) {
            double__fails("pageable-copies"); /* counts */
            double__finish(s);
            return (CUresult)double__spoilt(double__current_device());
        }
    return CUDA_SUCCESS;
}

enum { DEVICE = 1, HOST = 2 };
static CUresult copy(CUdeviceptr to, int to_may, CUdeviceptr from, int from_may, size_t bytes, CUstream stream) {
    struct move m = { .to = (void *)to, .from = (void *)from, .bytes = bytes, .rows = 1 };
    if (!bytes)
        return CUDA_SUCCESS;
    if (!double__range_ok(m.to, bytes, to_may & HOST) || (double__is_device(m.to) && !(to_may & DEVICE)) ||
        !double__range_ok(m.from, bytes, from_may & HOST) || (double__is_device(m.from) && !(from_may & DEVICE)))
        return CUDA_ERROR_INVALID_VALUE;
    return queue_move(&m, stream);
}

static CUresult finish(CUresult queued) { /* of the null stream: calls without "Async" */
    if (queued == CUDA_SUCCESS)
        double__finish(double__null_stream(double__current_device()));
    return queued == CUDA_SUCCESS ? (CUresult)double__spoilt(double__current_device()) : queued;
}

#define DEFINE_COPY(name, name_async, text, to_type, to_may, from_type, from_may)                                      \
    DOUBLE_API CUresult name_async(to_type to, from_type from, size_t bytes, CUstream stream) {                        \
        ENTER_CONTEXT(text "Async", CUDA_ERROR_UNKNOWN);                                                               \
        return copy((CUdeviceptr)to, to_may, (CUdeviceptr)from, from_may, bytes, stream);                              \
    }                                                                                                                  \
    DOUBLE_API CUresult name(to_type to, from_type from, size_t bytes) {                                               \
        ENTER_CONTEXT(text, CUDA_ERROR_UNKNOWN);                                                                       \
        return finish(copy((CUdeviceptr)to, to_may, (CUdeviceptr)from, from_may, bytes, NULL));                        \
    }
DEFINE_COPY(cuMemcpyHtoD, cuMemcpyHtoDAsync, "cuMemcpyHtoD", CUdeviceptr, DEVICE | HOST, const void *, HOST)
DEFINE_COPY(cuMemcpyDtoH, cuMemcpyDtoHAsync, "cuMemcpyDtoH", void *, HOST, CUdeviceptr, DEVICE | HOST)
DEFINE_COPY(cuMemcpyDtoD, cuMemcpyDtoDAsync, "cuMemcpyDtoD", CUdeviceptr, DEVICE, CUdeviceptr, DEVICE)
DEFINE_COPY(cuMemcpy, cuMemcpyAsync, "cuMemcpy", CUdeviceptr, DEVICE | HOST, CUdeviceptr, DEVICE | HOST)

DOUBLE_API CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                                      size_t bytes, CUstream stream) {
    ENTER_CONTEXT("cuMemcpyPeerAsync", CUDA_ERROR_UNKNOWN);
    if (!to_context || !from_context)
        return CUDA_ERROR_INVALID_CONTEXT;
    return copy(to, DEVICE, from, DEVICE, bytes, stream);
}

static CUresult copy_rows(const CUDA_MEMCPY2D *c, CUstream stream) {
    int from_device = c->srcMemoryType == CU_MEMORYTYPE_DEVICE || c->srcMemoryType == CU_MEMORYTYPE_UNIFIED;
    int to_device = c->dstMemoryType == CU_MEMORYTYPE_DEVICE || c->dstMemoryType == CU_MEMORYTYPE_UNIFIED;
    struct move m = { .to = to_device ? (char *)c->dstDevice : (char *)c->dstHost,
                      .from = from_device ? (const char *)c->srcDevice : (const char *)c->srcHost,
                      .bytes = c->WidthInBytes,
                      .rows = c->Height,
                      .to_pitch = c->dstPitch ? c->dstPitch : c->WidthInBytes,
                      .from_pitch = c->srcPitch ? c->srcPitch : c->WidthInBytes };
    m.to = (char *)m.to + c->dstY * m.to_pitch + c->dstXInBytes;
    m.from = (const char *)m.from + c->srcY * m.from_pitch + c->srcXInBytes;
    if (!m.bytes || !m.rows)
        return CUDA_SUCCESS;
    if (!double__range_ok(m.to, (m.rows - 1) * m.to_pitch + m.bytes, !to_device) ||
        !double__range_ok(m.from, (m.rows - 1) * m.from_pitch + m.bytes, !from_device))
        return CUDA_ERROR_INVALID_VALUE;
    return queue_move(&m, stream);
}

DOUBLE_API CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D *c, CUstream stream) {
    ENTER_CONTEXT("cuMemcpy2DAsync", CUDA_ERROR_UNKNOWN);
    return copy_rows(c, stream);
}

DOUBLE_API CUresult cuMemcpy2D(const CUDA_MEMCPY2D *c) {
    ENTER_CONTEXT("cuMemcpy2D", CUDA_ERROR_UNKNOWN);
    return finish(copy_rows(c, NULL));
}

static CUresult fill(CUdeviceptr to, uint32_t value, int width, size_t count, CUstream stream) {
    struct move m = { .to = (void *)to, .bytes = count * (size_t)width, .rows = 1, .value = value, .width = width };
    if (!count)
        return CUDA_SUCCESS;
    if (to % (unsigned)width || !double__range_ok(m.to, m.bytes, double__is_locked(m.to)))
        return CUDA_ERROR_INVALID_VALUE;
    return queue_move(&m, stream);
}

#define DEFINE_FILL(name, name_async, text, type)                                                                      \
    DOUBLE_API CUresult name_async(CUdeviceptr to, type value, size_t n, CUstream stream) {                            \
        ENTER_CONTEXT(text "Async", CUDA_ERROR_UNKNOWN);                                                               \
        return fill(to, value, sizeof value, n, stream);                                                               \
    }                                                                                                                  \
    DOUBLE_API CUresult name(CUdeviceptr to, type value, size_t n) {                                                   \
        ENTER_CONTEXT(text, CUDA_ERROR_UNKNOWN);                                                                       \
        return finish(fill(to, value, sizeof value, n, NULL));                                                         \
    }
DEFINE_FILL(cuMemsetD8, cuMemsetD8Async, "cuMemsetD8", unsigned char)
DEFINE_FILL(cuMemsetD16, cuMemsetD16Async, "cuMemsetD16", unsigned short)
DEFINE_FILL(cuMemsetD32, cuMemsetD32Async, "cuMemsetD32", unsigned)
