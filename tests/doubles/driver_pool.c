/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory in stream order. A pool that may makes an allocation's stream wait for the release before it, as the driver
 * does to hand out the same memory again; a release gives back when its stream has come to it. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

#define OOM CUDA_ERROR_OUT_OF_MEMORY
enum { PIECES = 4096 };

struct pool {
    int device, may_wait, own;
    double_event *released; /* the last one; null: none yet */
};
static struct pool defaults[DOUBLE_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    uintptr_t at;
    struct pool *pool;
} pieces[PIECES];

/* The pool of a piece; `set` not null: from now on. */
static struct pool *pool_of(uintptr_t at, struct pool *set) {
    struct pool *found = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < PIECES && !found; i++)
        if (pieces[i].at == at || (set && !pieces[i].at)) {
            found = set ? set : pieces[i].pool;
            pieces[i].at = set ? at : 0;
            pieces[i].pool = set;
        }
    pthread_mutex_unlock(&lock);
    return found;
}

static CUresult take_from(struct pool *pool, CUdeviceptr *out, size_t bytes, CUstream stream) {
    double_stream *s = double__stream_of(stream);
    uintptr_t at;
    if (!s)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (double__is_recording(s)) /* memory within a graph */
        return double__break(s, CUDA_ERROR_NOT_SUPPORTED);
    if (double__take(pool->device, bytes, 0, &at))
        return OOM;
    if (pool->may_wait && pool->released)
        double__event_wait(pool->released, s);
    pool_of(at, pool);
    *out = at;
    return CUDA_SUCCESS;
}

static struct pool *default_of(int device) {
    struct pool *p = &defaults[device];
    if (!p->own) {
        *p = (struct pool){ .device = device, .may_wait = 1, .own = 1 };
    }
    return p;
}

DOUBLE_API CUresult cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream) {
    ENTER_CONTEXT("cuMemAllocAsync", OOM);
    return take_from(default_of(double__current_device()), out, bytes, stream);
}

DOUBLE_API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream) {
    ENTER_CONTEXT("cuMemAllocFromPoolAsync", OOM);
    return pool ? take_from((struct pool *)pool, out, bytes, stream) : CUDA_ERROR_INVALID_VALUE;
}

static void give_later(void *data) {
    double__give(*(uintptr_t *)data, DOUBLE_MEM_DEVICE);
}

DOUBLE_API CUresult cuMemFreeAsync(CUdeviceptr at, CUstream stream) {
    CUresult entered = double__enter_context("cuMemFreeAsync", CUDA_ERROR_UNKNOWN);
    double_stream *s = double__current_device() >= 0 ? double__stream_of(stream) : NULL;
    double_piece piece;
    uintptr_t address = at;
    if (!s)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!double__piece_of((void *)at, &piece) || piece.at != at || piece.kind != DOUBLE_MEM_DEVICE || piece.nccl)
        return CUDA_ERROR_INVALID_VALUE;
    if (double__is_recording(s))
        return double__break(s, CUDA_ERROR_NOT_SUPPORTED);
    struct pool *pool = pool_of(address, NULL);
    double__push_mark(s, give_later, &address, sizeof address);
    if (pool && !pool->released)
        pool->released = double__event_new(pool->device), double__live("events", -1);
    if (pool)
        double__event_record(pool->released, s);
    return entered;
}

DOUBLE_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device) {
    ENTER("cuDeviceGetDefaultMemPool", CUDA_ERROR_UNKNOWN);
    if (device < 0 || device >= DOUBLE_DEVICES)
        return CUDA_ERROR_INVALID_DEVICE;
    *out = (CUmemoryPool)default_of(device);
    return CUDA_SUCCESS;
}

DOUBLE_API CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device) {
    return cuDeviceGetDefaultMemPool(out, device);
}

DOUBLE_API CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props) {
    ENTER("cuMemPoolCreate", OOM);
    if (props->location.id < 0 || props->location.id >= DOUBLE_DEVICES ||
        props->location.type != CU_MEM_LOCATION_TYPE_DEVICE || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    struct pool *p = calloc(1, sizeof *p);
    if (!p)
        return OOM;
    *p = (struct pool){ .device = props->location.id, .may_wait = 1 };
    *out = (CUmemoryPool)p;
    double__live("memory pools", 1);
    return CUDA_SUCCESS;
}

DOUBLE_API CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    CUresult entered = double__enter("cuMemPoolDestroy", CUDA_ERROR_UNKNOWN);
    struct pool *p = (struct pool *)pool;
    if (!p || p->own)
        return CUDA_ERROR_INVALID_VALUE;
    if (p->released)
        double__live("events", 1), double__event_end(p->released);
    free(p);
    double__live("memory pools", -1);
    return entered;
}

DOUBLE_API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    ENTER("cuMemPoolSetAttribute", CUDA_ERROR_UNKNOWN);
    if (!pool || !value)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES)
        memcpy(&((struct pool *)pool)->may_wait, value, sizeof(int));
    return CUDA_SUCCESS;
}

DOUBLE_API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    ENTER("cuMemPoolGetAttribute", CUDA_ERROR_UNKNOWN);
    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    cuuint64_t bytes = 0;
    if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT || attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
        bytes = double__used(((struct pool *)pool)->device);
    memcpy(value, &bytes, sizeof bytes);
    return CUDA_SUCCESS;
}

DOUBLE_API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    ENTER("cuMemPoolTrimTo", CUDA_ERROR_UNKNOWN);
    (void)keep;
    return pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
