/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory: of the GPU, by stream-ordered allocation where the driver has it; page-locked; and plain, for the core's
 * arenas on the host. */
#include "device.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PREFERRED = 1 /* MPOL_PREFERRED */, MOST_NODES = 1024 };

static uint64_t round_up(uint64_t n, uint64_t to) {
    return (n + to - 1) / to * to;
}

static tess_status check_request(const tess_device *d, const tess_alloc_request *r, tess_error *error) {
    int known = r->mem == TESS_MEM_CUDA || r->mem == TESS_MEM_PINNED || r->mem == TESS_MEM_HOST;
    if (!known)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED,
                                "device cuda has memory of the GPU, page-locked and host memory, not memory kind %u",
                                r->mem);
    if (!r->bytes || r->bytes > (uint64_t)1 << 56)
        return tess_plugin_fail(error, TESS_E_INVALID, "device cuda: %llu bytes asked for",
                                (unsigned long long)r->bytes);
    if ((r->align & (r->align - 1)) || r->align > CUDA_GRANULARITY)
        return tess_plugin_fail(error, TESS_E_INVALID, "device cuda: alignment %llu is not a power of two up to 2 MiB",
                                (unsigned long long)r->align);
    (void)d;
    return TESS_OK;
}

/* ---- of the GPU ------------------------------------------------------------------------------------- */

/* Releases that wait for a stream are no reason to wait here: the pool hands out what has been given back already, or
 * more of the GPU's memory. */
static CUresult take_from_pool(tess_device *d, uint64_t bytes, CUdeviceptr *out) {
    CUresult r = d->cu->cuMemAllocFromPoolAsync(out, bytes, d->pool, d->taking);
    if (r)
        return r;
    r = d->cu->cuStreamSynchronize(d->taking); /* whatever stream uses it next need not know of ours */
    if (r)
        d->cu->cuMemFreeAsync(*out, d->taking);
    return r;
}

static CUresult take_memory(tess_device *d, uint64_t bytes, CUdeviceptr *out) {
    if (!d->pool)
        return d->cu->cuMemAlloc(out, bytes);
    CUresult r = take_from_pool(d, bytes, out);
    if (r != CUDA_ERROR_OUT_OF_MEMORY)
        return r;
    r = d->cu->cuStreamSynchronize(d->giving); /* pending releases must return memory first */
    return r ? r : take_from_pool(d, bytes, out);
}

static tess_status alloc_device(tess_device *d, cuda_block *b, tess_error *error) {
    uint64_t room = d->capacity_bytes > d->taken_bytes ? d->capacity_bytes - d->taken_bytes : 0;
    size_t free_bytes = 0, total = 0;
    CUdeviceptr at = 0;
    if (d->capacity_bytes && b->bytes > room)
        return tess_plugin_fail(error, TESS_E_NOMEM, "device cuda: %llu bytes needed, %llu of its %llu free",
                                (unsigned long long)b->bytes, (unsigned long long)room,
                                (unsigned long long)d->capacity_bytes);
    CUresult r = take_memory(d, b->bytes, &at);
    if (r == CUDA_ERROR_OUT_OF_MEMORY && d->cu->cuMemGetInfo(&free_bytes, &total) == CUDA_SUCCESS)
        return tess_plugin_fail(error, TESS_E_NOMEM, "device cuda: GPU %d has no %llu bytes: %llu of its %llu are free",
                                (int)d->index, (unsigned long long)b->bytes, (unsigned long long)free_bytes,
                                (unsigned long long)total);
    if (r)
        return cuda_failed(d, r, "allocating memory", error);
    b->at = at;
    b->pooled = d->pool != NULL;
    d->taken_bytes += b->bytes;
    return TESS_OK;
}

/* Does not wait: a stream of its own releases the memory after the work that all streams hold now. */
static void free_device(tess_device *d, const cuda_block *b) {
    d->taken_bytes -= b->bytes;
    if (!b->pooled) {
        d->cu->cuMemFree(b->at);
        return;
    }
    for (int i = 0; i < d->n_streams + d->has_program; i++)
        if (d->cu->cuEventRecord(d->passed, i < d->n_streams ? d->streams[i] : d->program) == CUDA_SUCCESS)
            d->cu->cuStreamWaitEvent(d->giving, d->passed, 0);
    d->cu->cuMemFreeAsync(b->at, d->giving);
}

/* ---- of the host -------------------------------------------------------------------------------------- */

/* The driver touches the pages it locks, on this thread: they come from the node that the thread prefers. */
static CUresult lock_pages(tess_device *d, void **out, uint64_t bytes, int32_t node) {
    unsigned long before[MOST_NODES / (8 * sizeof(long))] = { 0 }, wish[MOST_NODES / (8 * sizeof(long))] = { 0 };
    int mode = 0, bound = node >= 0 && node < MOST_NODES &&
                          syscall(SYS_get_mempolicy, &mode, before, (unsigned long)MOST_NODES, NULL, 0ul) == 0;
    if (bound) {
        wish[(size_t)node / (8 * sizeof(long))] = 1ul << ((size_t)node % (8 * sizeof(long)));
        bound = syscall(SYS_set_mempolicy, PREFERRED, wish, (unsigned long)MOST_NODES) == 0;
    }
    CUresult r = d->cu->cuMemHostAlloc(out, bytes, CU_MEMHOSTALLOC_PORTABLE);
    if (bound)
        syscall(SYS_set_mempolicy, mode, before, (unsigned long)MOST_NODES);
    return r;
}

static tess_status alloc_plain(cuda_block *b, tess_error *error) {
    void *at = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return tess_plugin_fail(error, TESS_E_NOMEM, "device cuda: the system refuses %llu bytes: %s",
                                (unsigned long long)b->bytes, strerror(errno));
    b->mem = TESS_MEM_HOST;
    b->at = (uint64_t)(uintptr_t)at;
    return TESS_OK;
}

static void say_unpinned(tess_device *d, uint64_t bytes, CUresult why) {
    const tess_host *host = d->ctx->host;
    char line[240];
    if (d->warned_unpinned)
        return;
    d->warned_unpinned = 1;
    snprintf(line, sizeof line, "cannot lock %llu bytes in memory (%s): going on with pageable memory, slower copies",
             (unsigned long long)bytes, tess_cuda_text(why));
    host->log(host->host, 1, "device cuda", line);
}

static tess_status alloc_pinned(tess_device *d, const tess_alloc_request *request, cuda_block *b, tess_error *error) {
    void *at = NULL;
    CUresult r = lock_pages(d, &at, b->bytes, request->numa_node);
    if (r == CUDA_SUCCESS) {
        b->at = (uint64_t)(uintptr_t)at;
        return TESS_OK;
    }
    if (r != CUDA_ERROR_OUT_OF_MEMORY || !(request->flags & TESS_ALLOC_MAY_UNPIN))
        return cuda_failed(d, r, "page-locking host memory", error);
    say_unpinned(d, b->bytes, r);
    return alloc_plain(b, error);
}

/* ---- slots ------------------------------------------------------------------------------------------------ */

tess_status cuda_mem_alloc(tess_device *d, const tess_alloc_request *r, tess_buffer *out, tess_error *error) {
    tess_status s = check_request(d, r, error);
    if (s)
        return s;
    cuda_block *b = calloc(1, sizeof *b);
    if (!b)
        return tess_plugin_fail(error, TESS_E_NOMEM, "device cuda: no memory for its own tables");
    b->mem = r->mem;
    b->bytes = round_up(r->bytes, CUDA_GRANULARITY);
    s = cuda_enter(d, error);
    if (s) {
        free(b);
        return s;
    }
    pthread_mutex_lock(&d->lock);
    s = r->mem == TESS_MEM_CUDA     ? alloc_device(d, b, error)
        : r->mem == TESS_MEM_PINNED ? alloc_pinned(d, r, b, error)
                                    : alloc_plain(b, error);
    if (s == TESS_OK) {
        b->next = d->blocks;
        d->blocks = b;
    }
    pthread_mutex_unlock(&d->lock);
    cuda_leave(d);
    if (s) {
        free(b);
        return s;
    }
    tess_buffer buffer = { .mem = b->mem, .ptr = (void *)(uintptr_t)b->at, .bytes = b->bytes };
    TESS_GIVE(out, &buffer);
    return TESS_OK;
}

static void release_block(tess_device *d, cuda_block *b) {
    if (b->mem == TESS_MEM_CUDA)
        free_device(d, b);
    else if (b->mem == TESS_MEM_PINNED)
        d->cu->cuMemFreeHost((void *)(uintptr_t)b->at);
    else
        munmap((void *)(uintptr_t)b->at, b->bytes);
    free(b);
}

void cuda_mem_free(tess_device *d, tess_buffer *buffer) {
    if (!buffer || !buffer->ptr || cuda_enter(d, NULL) != TESS_OK)
        return;
    pthread_mutex_lock(&d->lock);
    cuda_block **link = &d->blocks;
    while (*link && (*link)->at != (uint64_t)(uintptr_t)buffer->ptr)
        link = &(*link)->next;
    cuda_block *b = *link;
    if (b) {
        *link = b->next;
        release_block(d, b);
    }
    pthread_mutex_unlock(&d->lock);
    cuda_leave(d);
    buffer->ptr = NULL;
    buffer->bytes = 0;
}

int cuda_is_on_host(tess_device *d, const void *at) {
    uint64_t address = (uint64_t)(uintptr_t)at;
    int found = 0;
    pthread_mutex_lock(&d->lock);
    for (const cuda_block *b = d->blocks; b && !found; b = b->next)
        found = b->mem != TESS_MEM_CUDA && address - b->at < b->bytes;
    pthread_mutex_unlock(&d->lock);
    return found;
}

/* Memory taken since the start that is not ours: modules, cuBLAS, cuDNN, NCCL, and other programs on this GPU. */
tess_status cuda_mem_usage(tess_device *d, uint64_t *backend_bytes, uint64_t *free_bytes) {
    size_t free_now = 0, total = 0;
    tess_status s = cuda_enter(d, NULL);
    if (s)
        return s;
    CUresult r = d->cu->cuMemGetInfo(&free_now, &total);
    cuda_leave(d);
    if (r)
        return tess_cuda_status(r);
    pthread_mutex_lock(&d->lock);
    uint64_t gone = d->free_at_start > free_now ? d->free_at_start - free_now : 0;
    *backend_bytes = gone > d->taken_bytes ? gone - d->taken_bytes : 0;
    *free_bytes = free_now;
    if (d->capacity_bytes) {
        uint64_t room = d->capacity_bytes > d->taken_bytes ? d->capacity_bytes - d->taken_bytes : 0;
        *free_bytes = room < free_now ? room : free_now;
    }
    pthread_mutex_unlock(&d->lock);
    return TESS_OK;
}

/* A pool of our own: no allocation waits for a release, and the program's pool stays as it is. It keeps nothing that
 * was released (its threshold stays 0), as NCCL, cuBLAS and the program could not have it; steps allocate nothing. */
static CUresult make_pool(tess_device *d) {
    CUmemPoolProps props = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                             .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = d->handle } };
    int has_pools = 0, no = 0;
    CUresult r = d->cu->cuDeviceGetAttribute(&has_pools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, d->handle);
    if (r || !has_pools)
        return r;
    r = d->cu->cuMemPoolCreate(&d->pool, &props);
    return r ? r : d->cu->cuMemPoolSetAttribute(d->pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &no);
}

CUresult cuda_memory_begin(tess_device *d) {
    CUresult r = make_pool(d);
    if (r == CUDA_SUCCESS)
        r = d->cu->cuStreamCreateWithPriority(&d->taking, CU_STREAM_NON_BLOCKING, 0);
    if (r == CUDA_SUCCESS)
        r = d->cu->cuStreamCreateWithPriority(&d->giving, CU_STREAM_NON_BLOCKING, 0);
    return r == CUDA_SUCCESS ? d->cu->cuEventCreate(&d->passed, CU_EVENT_DISABLE_TIMING) : r;
}

void cuda_memory_end(tess_device *d) {
    while (d->blocks) {
        cuda_block *b = d->blocks;
        d->blocks = b->next;
        release_block(d, b);
    }
    if (d->giving)
        d->cu->cuStreamSynchronize(d->giving);
    if (d->passed)
        d->cu->cuEventDestroy(d->passed);
    if (d->giving)
        d->cu->cuStreamDestroy(d->giving);
    if (d->taking)
        d->cu->cuStreamDestroy(d->taking);
    if (d->pool)
        d->cu->cuMemPoolDestroy(d->pool);
}
