/* SPDX-License-Identifier: BSD-3-Clause */
#include "device_cpu.h"
#include "kernels/kernels.h"
#include "base/numa.h"
#include <tessera/plugin_helpers.h>

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { PAGE_BYTES = 4096, HUGE_PAGE_BYTES = 2 << 20, DOMAINS = 3, CATEGORIES = 16, MOST_THREADS = 256 };

typedef struct {
    const tess_host *host;
    int32_t threads;
} cpu_context;

typedef struct block { /* one mapping */
    struct block *next;
    void *ptr;
    uint64_t bytes;
    uint32_t domain, locked;
} block;

typedef struct {
    uint64_t now, peak;
} meter;

struct tess_device {
    const cpu_context *ctx;
    uint64_t capacity_bytes; /* of the device domain; 0: none */
    tess__pool *pool;
    pthread_mutex_t lock; /* of what follows */
    block *blocks;
    meter domain[DOMAINS];
    int warned_unpinned;
};

struct tess_event {
    int recorded;
    struct timespec at;
};

/* ---- opening and describing -------------------------------------------------------------------- */
static void cpu_close(void *ctx) {
    free(ctx);
}

/* Describes the device. Index -1 is for plans and says nothing of this machine. */
static tess_status cpu_describe(void *ctx, int32_t index, tess_device_info *out, tess_error *error) {
    (void)ctx;
    tess_device_info info = { .mem = TESS_MEM_HOST,
                              .mem_mask = 1u << TESS_MEM_HOST | 1u << TESS_MEM_PINNED,
                              .align = 64,
                              .granularity_bytes = PAGE_BYTES,
                              .numa_node = -1,
                              .dtype_mask = 1u << TESS_U8 | 1u << TESS_I8 | 1u << TESS_I32 | 1u << TESS_I64 |
                                            1u << TESS_F16 | 1u << TESS_BF16 | 1u << TESS_F32 | 1u << TESS_F64 |
                                            1u << TESS_Q8 | 1u << TESS_Q8E4M3,
                              .kernel_mask = 1u << TESS_K_CAST | 1u << TESS_K_TREE_SUM | 1u << TESS_K_SCALE |
                                             1u << TESS_K_SQUARE_SUM | 1u << TESS_K_OPTIMIZER,
                              .name = "cpu",
                              .id = "cpu" };
    if (index < -1 || index > 0)
        return tess_plugin_fail(error, TESS_E_INVALID, "device cpu has no index %d, expected 0", index);
    if (index == 0)
        info.capacity_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    TESS_GIVE(out, &info);
    return TESS_OK;
}

static void cpu_destroy(tess_device *device) {
    if (!device)
        return;
    while (device->blocks) {
        block *b = device->blocks;
        device->blocks = b->next;
        munmap(b->ptr, b->bytes);
        free(b);
    }
    tess__pool_destroy(device->pool);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

static tess_status cpu_create(void *ctx, int32_t index, uint64_t capacity_bytes, tess_device **out, tess_error *error) {
    const cpu_context *c = ctx;
    if (index != 0)
        return tess_plugin_fail(error, TESS_E_INVALID, "device cpu has no index %d, expected 0", index);
    tess_device *device = calloc(1, sizeof *device);
    if (!device)
        return tess_plugin_fail(error, TESS_E_NOMEM, "device cpu: no memory for its own tables");
    device->ctx = c;
    device->capacity_bytes = capacity_bytes;
    pthread_mutex_init(&device->lock, NULL);
    tess_status status = tess__pool_create(c->threads, "", &device->pool, error);
    if (status < 0) {
        cpu_destroy(device);
        return status;
    }
    *out = device;
    return TESS_OK;
}

/* ---- memory ------------------------------------------------------------------------------------ */
static void count_block(tess_device *device, const block *b, int sign) {
    meter *m = &device->domain[b->domain];
    m->now += sign > 0 ? b->bytes : -b->bytes;
    if (m->now > m->peak)
        m->peak = m->now;
}

static uint64_t free_bytes(const tess_device *device) {
    uint64_t used = device->domain[TESS_DOMAIN_DEVICE].now;
    return used < device->capacity_bytes ? device->capacity_bytes - used : 0;
}

/* Maps whole pages at any power-of-two alignment: reserves more addresses, which take no memory, and gives back what
 * sticks out. */
static void *map_pages(uint64_t bytes, uint64_t align) {
    const int plain = MAP_PRIVATE | MAP_ANONYMOUS;
    uint64_t extra = align > PAGE_BYTES ? align - PAGE_BYTES : 0;
    char *base = mmap(NULL, bytes + extra, PROT_NONE, plain | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    uint64_t head = extra ? (align - ((uintptr_t)base & (align - 1))) & (align - 1) : 0;
    if (head)
        munmap(base, head);
    if (extra > head)
        munmap(base + head + bytes, extra - head);
    base += head;
    if (mmap(base, bytes, PROT_READ | PROT_WRITE, plain | MAP_FIXED, -1, 0) == MAP_FAILED) {
        munmap(base, bytes);
        return NULL;
    }
    if (bytes >= HUGE_PAGE_BYTES)
        madvise(base, bytes, MADV_HUGEPAGE); /* fewer page faults and misses; harmless when refused */
    return base;
}

static tess_status check_request(const tess_alloc_request *r, tess_error *error) {
    if (r->mem != TESS_MEM_HOST && r->mem != TESS_MEM_PINNED)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "device cpu has host and pinned memory, not memory kind %u",
                                r->mem);
    if (!r->bytes || r->bytes > (uint64_t)1 << 56)
        return tess_plugin_fail(error, TESS_E_INVALID, "device cpu: %llu bytes asked for",
                                (unsigned long long)r->bytes);
    if ((r->align & (r->align - 1)) || r->align > (uint64_t)1 << 30)
        return tess_plugin_fail(error, TESS_E_INVALID, "device cpu: alignment %llu is not a power of two up to 1 GiB",
                                (unsigned long long)r->align);
    if (r->domain >= DOMAINS || r->category >= CATEGORIES)
        return tess_plugin_fail(error, TESS_E_INVALID, "device cpu: domain %u, category %u are unknown", r->domain,
                                r->category);
    return TESS_OK;
}

static void warn_unpinned(tess_device *device, uint64_t bytes, int why) {
    const tess_host *host = device->ctx->host;
    struct rlimit limit = { 0 };
    char line[240];
    if (device->warned_unpinned || !host || !host->log)
        return;
    device->warned_unpinned = 1;
    getrlimit(RLIMIT_MEMLOCK, &limit);
    snprintf(line, sizeof line,
             "cannot lock %llu bytes in memory (%s; RLIMIT_MEMLOCK is %llu): going on with pageable memory",
             (unsigned long long)bytes, strerror(why), (unsigned long long)limit.rlim_cur);
    host->log(host->host, 1, "device cpu", line);
}

/* Locks a mapping when that is asked for; *mem says when it stayed pageable. */
static tess_status pin_block(tess_device *device, const tess_alloc_request *r, block *b, uint32_t *mem,
                             tess_error *error) {
    if (r->mem != TESS_MEM_PINNED)
        return TESS_OK;
    if (mlock(b->ptr, b->bytes) == 0) {
        b->locked = 1;
        return TESS_OK;
    }
    int why = errno;
    if (!(r->flags & TESS_ALLOC_MAY_UNPIN))
        return tess_plugin_fail(error, TESS_E_NOMEM,
                                "device cpu: cannot lock %llu bytes in memory: %s (raise ulimit -l)",
                                (unsigned long long)b->bytes, strerror(why));
    warn_unpinned(device, b->bytes, why);
    *mem = TESS_MEM_HOST;
    return TESS_OK;
}

static tess_status obtain_block(tess_device *device, const tess_alloc_request *r, block *b, uint32_t *mem,
                                tess_error *error) {
    uint64_t align = r->align < PAGE_BYTES ? PAGE_BYTES : r->align;
    if (b->domain == TESS_DOMAIN_DEVICE && device->capacity_bytes && b->bytes > free_bytes(device))
        return tess_plugin_fail(error, TESS_E_NOMEM, "device cpu: %llu bytes needed, %llu of its %llu free",
                                (unsigned long long)b->bytes, (unsigned long long)free_bytes(device),
                                (unsigned long long)device->capacity_bytes);
    if (align == PAGE_BYTES && b->bytes >= HUGE_PAGE_BYTES)
        align = HUGE_PAGE_BYTES;
    b->ptr = map_pages(b->bytes, align);
    if (!b->ptr)
        return tess_plugin_fail(error, TESS_E_NOMEM, "device cpu: the system refuses %llu bytes: %s",
                                (unsigned long long)b->bytes, strerror(errno));
    if (r->numa_node >= 0)
        tess__numa_bind(b->ptr, b->bytes, r->numa_node); /* a wish, before locking touches the pages */
    tess_status status = pin_block(device, r, b, mem, error);
    if (status < 0) {
        munmap(b->ptr, b->bytes);
        return status;
    }
    count_block(device, b, 1);
    b->next = device->blocks;
    device->blocks = b;
    return TESS_OK;
}

static tess_status cpu_mem_alloc(tess_device *device, const tess_alloc_request *r, tess_buffer *out,
                                 tess_error *error) {
    uint32_t mem = r->mem;
    tess_status status = check_request(r, error);
    if (status < 0)
        return status;
    block *b = calloc(1, sizeof *b);
    if (!b)
        return tess_plugin_fail(error, TESS_E_NOMEM, "device cpu: no memory for its own tables");
    b->bytes = (r->bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    b->domain = r->domain ? r->domain : TESS_DOMAIN_DEVICE;

    pthread_mutex_lock(&device->lock);
    status = obtain_block(device, r, b, &mem, error);
    pthread_mutex_unlock(&device->lock);
    if (status < 0) {
        free(b);
        return status;
    }
    tess_buffer buffer = { .mem = mem, .ptr = b->ptr, .bytes = b->bytes };
    TESS_GIVE(out, &buffer);
    return TESS_OK;
}

static void cpu_mem_free(tess_device *device, tess_buffer *buffer) {
    if (!buffer || !buffer->ptr)
        return;
    pthread_mutex_lock(&device->lock);
    block **link = &device->blocks;
    while (*link && (*link)->ptr != buffer->ptr)
        link = &(*link)->next;
    block *b = *link;
    if (b) {
        *link = b->next;
        count_block(device, b, -1);
        munmap(b->ptr, b->bytes);
    }
    pthread_mutex_unlock(&device->lock);
    free(b);
    buffer->ptr = NULL;
    buffer->bytes = 0;
}

static tess_status cpu_mem_usage(tess_device *device, uint64_t *backend_bytes, uint64_t *free_out) {
    uint64_t available = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    pthread_mutex_lock(&device->lock);
    *free_out = device->capacity_bytes ? free_bytes(device) : available;
    pthread_mutex_unlock(&device->lock);
    *backend_bytes = 0;
    return TESS_OK;
}

void tess__device_cpu_obtained(tess_device *device, uint32_t domain, uint64_t *now, uint64_t *peak) {
    pthread_mutex_lock(&device->lock);
    *now = device->domain[domain].now;
    *peak = device->domain[domain].peak;
    pthread_mutex_unlock(&device->lock);
}

/* ---- streams and events: work is done when its call returns, so there is nothing to order ------- */
static tess_status cpu_stream_create(tess_device *device, uint32_t role, tess_stream *out, tess_error *error) {
    (void)device, (void)role, (void)error;
    *out = (tess_stream){ .mem = TESS_MEM_HOST };
    return TESS_OK;
}

static tess_status cpu_stream_import(tess_device *device, void *native, tess_stream *out, tess_error *error) {
    if (native)
        return tess_plugin_fail(error, TESS_E_INVALID,
                                "device cpu has no streams, but the program gave one: leave tess_options.stream null");
    return cpu_stream_create(device, TESS_STREAM_COMPUTE, out, error);
}

static void cpu_stream_destroy(tess_device *device, tess_stream *stream) {
    (void)device, (void)stream;
}

static tess_status cpu_event_create(tess_device *device, tess_event **out, tess_error *error) {
    (void)device;
    tess_event *event = calloc(1, sizeof *event);
    if (!event)
        return tess_plugin_fail(error, TESS_E_NOMEM, "device cpu: no memory for an event");
    *out = event;
    return TESS_OK;
}

static void cpu_event_destroy(tess_event *event) {
    free(event);
}

static tess_status cpu_event_record(tess_event *event, const tess_stream *stream, tess_error *error) {
    (void)stream, (void)error;
    clock_gettime(CLOCK_MONOTONIC, &event->at);
    event->recorded = 1;
    return TESS_OK;
}

static tess_status cpu_event_stream_wait(tess_event *event, const tess_stream *stream, tess_error *error) {
    (void)event, (void)stream, (void)error;
    return TESS_OK;
}

static tess_status cpu_event_wait(tess_event *event, int64_t timeout_ns, tess_error *error) {
    (void)event, (void)timeout_ns, (void)error;
    return TESS_OK;
}

static tess_status cpu_event_elapsed_ns(tess_event *from, tess_event *to, int64_t *out) {
    if (!from->recorded || !to->recorded)
        return TESS_PENDING;
    *out = (int64_t)(to->at.tv_sec - from->at.tv_sec) * 1000000000 + (to->at.tv_nsec - from->at.tv_nsec);
    return TESS_OK;
}

/* ---- work -------------------------------------------------------------------------------------- */
static int is_host_memory(uint32_t mem) {
    return mem == TESS_MEM_HOST || mem == TESS_MEM_PINNED || mem == TESS_MEM_SHM;
}

static tess_status cpu_copy(tess_device *device, void *dst, uint32_t dst_mem, const void *src, uint32_t src_mem,
                            uint64_t bytes, const tess_stream *stream, tess_error *error) {
    (void)stream;
    if (!is_host_memory(dst_mem) || !is_host_memory(src_mem))
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "device cpu cannot copy from memory kind %u to kind %u",
                                src_mem, dst_mem);
    if (!bytes || dst == src)
        return TESS_OK;
    const void *in[1] = { src };
    tess_kernel copy = { .struct_size = sizeof copy,
                         .kernel = TESS_K_CAST,
                         .in_dtype = TESS_U8,
                         .out_dtype = TESS_U8,
                         .n_in = 1,
                         .in = in,
                         .out = dst,
                         .elems = bytes };
    return tess__kernel_run(&copy, device->pool, error);
}

static tess_status cpu_fill(tess_device *device, void *dst, uint8_t byte, uint64_t bytes, const tess_stream *stream,
                            tess_error *error) {
    (void)device, (void)stream, (void)error;
    if (bytes)
        memset(dst, byte, bytes);
    return TESS_OK;
}

static tess_status cpu_kernel_need(void *ctx, const tess_kernel *kernel, tess_need *out) {
    (void)ctx;
    return tess__kernel_need(kernel, out);
}

static tess_status cpu_kernel(tess_device *device, const tess_kernel *kernel, const tess_stream *stream,
                              tess_error *error) {
    (void)stream;
    return tess__kernel_run(kernel, device->pool, error);
}

static const tess_device_ops ops = {
    .struct_size = sizeof ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .close = cpu_close,
    .describe = cpu_describe,
    .create = cpu_create,
    .destroy = cpu_destroy,
    .mem_alloc = cpu_mem_alloc,
    .mem_free = cpu_mem_free,
    .mem_usage = cpu_mem_usage,
    .stream_create = cpu_stream_create,
    .stream_import = cpu_stream_import,
    .stream_destroy = cpu_stream_destroy,
    .event_create = cpu_event_create,
    .event_destroy = cpu_event_destroy,
    .event_record = cpu_event_record,
    .event_stream_wait = cpu_event_stream_wait,
    .event_wait = cpu_event_wait,
    .event_elapsed_ns = cpu_event_elapsed_ns,
    .copy = cpu_copy,
    .fill = cpu_fill,
    .kernel_need = cpu_kernel_need,
    .kernel = cpu_kernel,
};

tess_status tess__device_cpu_open(const tess_host *host, const void **out, void **ctx, tess_error *error) {
    const char *text = host && host->option ? host->option(host->host, "threads") : NULL;
    char *end = NULL;
    long threads = text && *text ? strtol(text, &end, 10) : 1;
    if (threads < 1 || (end && *end))
        return tess_plugin_fail(error, TESS_E_INVALID, "TESSERA_THREADS is \"%s\", expected a number from 1 up", text);
    cpu_context *c = calloc(1, sizeof *c);
    if (!c)
        return tess_plugin_fail(error, TESS_E_NOMEM, "device cpu: no memory to open");
    c->host = host;
    c->threads = (int32_t)(threads < MOST_THREADS ? threads : MOST_THREADS);
    *out = &ops;
    *ctx = c;
    return TESS_OK;
}
