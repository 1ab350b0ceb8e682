/* SPDX-License-Identifier: BSD-3-Clause */
/* device-cuda: an NVIDIA GPU, through the driver's own interface (libcuda.so.1), which is looked up when it is needed:
 * a plan needs no driver. */
#include "device.h"

#include <ctype.h>
#include <stdlib.h>

TESS_DESCRIPTOR(1u << TESS_KIND_DEVICE, "cuda", TESSERA_PLUGIN_VERSION, "BSD-3-Clause", "NVIDIA driver");

static tess_status open_driver(const tess_cuda **out, tess_error *error) {
    char why[240];
    tess_status s = tess_cuda_get(out, why, sizeof why);
    return s ? tess_plugin_fail(error, s == TESS_E_VERSION ? s : TESS_E_DEVICE, "device cuda: %s", why) : TESS_OK;
}

/* ---- what there is ------------------------------------------------------------------------------ */

static tess_status find_device(const tess_cuda *cu, int32_t index, CUdevice *out, tess_error *error) {
    int n = 0;
    CUresult r = tess_cuda_device_of(cu, index, out, &n);
    if (r == CUDA_ERROR_INVALID_DEVICE)
        return tess_plugin_fail(error, TESS_E_INVALID,
                                "device cuda: no GPU %d: this host shows %d, and each rank takes the one of its local "
                                "rank: start at most %d ranks here",
                                index, n, n);
    return r ? cuda_failed(NULL, r, "finding it", error) : TESS_OK;
}

/* The node that sysfs has for a PCI address, -1 for none; the driver writes addresses in capitals. */
static int32_t node_of(const char *address) {
    char path[128], lower[48];
    int node;
    size_t i = 0;
    for (; address[i] && i + 1 < sizeof lower; i++)
        lower[i] = (char)tolower((unsigned char)address[i]);
    lower[i] = 0;
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", lower);
    FILE *f = fopen(path, "re");
    int read = f && fscanf(f, "%d", &node) == 1;
    if (f)
        fclose(f);
    return read ? node : -1;
}

static tess_status cuda_describe(void *ctx, int32_t index, tess_device_info *out, tess_error *error) {
    tess_device_info info = { .mem = TESS_MEM_CUDA,
                              .mem_mask = 1u << TESS_MEM_CUDA | 1u << TESS_MEM_PINNED | 1u << TESS_MEM_HOST,
                              .align = CUDA_ALIGN,
                              .granularity_bytes = CUDA_GRANULARITY,
                              .numa_node = -1,
                              .dtype_mask = 1u << TESS_U8 | 1u << TESS_I8 | 1u << TESS_I32 | 1u << TESS_I64 |
                                            1u << TESS_F16 | 1u << TESS_BF16 | 1u << TESS_F32 | 1u << TESS_F64 |
                                            1u << TESS_Q8 | 1u << TESS_Q8E4M3,
                              .kernel_mask = 1u << TESS_K_CAST | 1u << TESS_K_TREE_SUM | 1u << TESS_K_SCALE |
                                             1u << TESS_K_SQUARE_SUM | 1u << TESS_K_OPTIMIZER,
                              .name = "cuda",
                              .id = "cuda" };
    const tess_cuda *cu;
    CUdevice device;
    size_t total = 0;
    (void)ctx;
    if (index == -1) {
        TESS_GIVE(out, &info);
        return TESS_OK;
    }
    tess_status s = open_driver(&cu, error);
    if (s == TESS_OK)
        s = find_device(cu, index, &device, error);
    if (s)
        return s;
    CUresult r = cu->cuDeviceGetName(info.name, sizeof info.name, device);
    if (r == CUDA_SUCCESS)
        r = cu->cuDeviceGetPCIBusId(info.id, sizeof info.id, device);
    if (r == CUDA_SUCCESS)
        r = cu->cuDeviceTotalMem(&total, device);
    if (r)
        return cuda_failed(NULL, r, "describing it", error);
    info.capacity_bytes = total;
    info.numa_node = node_of(info.id);
    TESS_GIVE(out, &info);
    return TESS_OK;
}

/* ---- an instance --------------------------------------------------------------------------------- */

static void cuda_destroy(tess_device *d) {
    if (!d)
        return;
    if (d->context && cuda_enter(d, NULL) == TESS_OK) {
        d->cu->cuCtxSynchronize();
        cuda_memory_end(d);
        for (int i = 0; i < d->n_streams; i++)
            d->cu->cuStreamDestroy(d->streams[i]);
        if (d->module)
            d->cu->cuModuleUnload(d->module);
        cuda_leave(d);
    }
    if (d->context)
        d->cu->cuDevicePrimaryCtxRelease(d->handle);
    pthread_mutex_destroy(&d->lock);
    free(d->functions);
    free(d->batch);
    free(d);
}

static tess_status check_chip(tess_device *d, tess_error *error) {
    int major = 0, minor = 0;
    CUresult r = d->cu->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, d->handle);
    if (r == CUDA_SUCCESS)
        r = d->cu->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, d->handle);
    if (r == CUDA_SUCCESS)
        r = d->cu->cuDeviceGetAttribute(&d->processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, d->handle);
    if (r)
        return cuda_failed(d, r, "asking for its properties", error);
    if (major < 8)
        return tess_plugin_fail(error, TESS_E_DEVICE,
                                "device cuda: GPU %d has compute capability %d.%d, 8.0 (Ampere) or later is needed",
                                (int)d->index, major, minor);
    return TESS_OK;
}

static tess_status start_device(tess_device *d, tess_error *error) {
    size_t free_bytes = 0, total = 0;
    CUresult r = tess_cuda_retain(d->cu, d->handle, &d->context);
    if (r)
        return cuda_failed(d, r, "making a context on it", error);
    tess_status s = cuda_enter(d, error);
    if (s)
        return s;
    s = cuda_load_kernels(d, error);
    if (s == TESS_OK) {
        r = cuda_memory_begin(d);
        if (r == CUDA_SUCCESS)
            r = d->cu->cuMemGetInfo(&free_bytes, &total);
        if (r)
            s = cuda_failed(d, r, "starting on it", error);
    }
    d->free_at_start = free_bytes;
    cuda_leave(d);
    return s;
}

static tess_status cuda_create(void *ctx, int32_t index, uint64_t capacity_bytes, tess_device **out,
                               tess_error *error) {
    const tess_cuda *cu;
    CUdevice handle;
    tess_status s = open_driver(&cu, error);
    if (s == TESS_OK)
        s = find_device(cu, index, &handle, error);
    if (s)
        return s;
    tess_device *d = calloc(1, sizeof *d);
    if (!d)
        return tess_plugin_fail(error, TESS_E_NOMEM, "device cuda: no memory for its own tables");
    d->ctx = ctx;
    d->cu = cu;
    d->index = index;
    d->handle = handle;
    d->capacity_bytes = capacity_bytes;
    pthread_mutex_init(&d->lock, NULL);
    s = check_chip(d, error);
    if (s == TESS_OK)
        s = start_device(d, error);
    if (s) {
        cuda_destroy(d);
        return s;
    }
    *out = d;
    return TESS_OK;
}

static void close_plugin(void *ctx) {
    free(ctx);
}

static const tess_device_ops ops = {
    .struct_size = sizeof ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .close = close_plugin,
    .describe = cuda_describe,
    .create = cuda_create,
    .destroy = cuda_destroy,
    .mem_alloc = cuda_mem_alloc,
    .mem_free = cuda_mem_free,
    .mem_usage = cuda_mem_usage,
    .stream_create = cuda_stream_create,
    .stream_import = cuda_stream_import,
    .stream_destroy = cuda_stream_destroy,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_stream_wait = cuda_event_stream_wait,
    .event_wait = cuda_event_wait,
    .event_elapsed_ns = cuda_event_elapsed_ns,
    .copy = cuda_copy,
    .fill = cuda_fill,
    .kernel_need = cuda_kernel_need,
    .kernel = cuda_kernel,
    .record_begin = cuda_record_begin,
    .record_end = cuda_record_end,
    .graph_run = cuda_graph_run,
    .graph_destroy = cuda_graph_destroy,
    .optimizer_prepare = cuda_optimizer_prepare,
};

TESS_EXPORT tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx,
                                            tess_error *error) {
    if (kind != TESS_KIND_DEVICE)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "device cuda is no plugin of kind %u", kind);
    if (host->args[0])
        return tess_plugin_fail(error, TESS_E_INVALID, "device cuda takes no settings, found \"%.60s\"", host->args);
    cuda_context *c = calloc(1, sizeof *c);
    if (!c)
        return tess_plugin_fail(error, TESS_E_NOMEM, "device cuda: no memory to open");
    c->host = host;
    c->ops = ops;
    if (cuda_is_profiled(host)) {
        c->ops.range_push = cuda_range_push;
        c->ops.range_pop = cuda_range_pop;
    }
    *out = &c->ops;
    *ctx = c;
    return TESS_OK;
}
