/* SPDX-License-Identifier: BSD-3-Clause */
/* The step on an NVIDIA GPU. */
#include "lion.h"
#include "cuda_driver.h"

#include <stdlib.h>

enum { THREADS = 256, BLOCKS_PER_PROCESSOR = 8 };

extern const unsigned char lion_kernels_image[];

typedef struct {
    const void *ctx; /* the plugin's */
    const tess_cuda *cu;
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction kernel;
    uint64_t most_blocks;
} gpu;

static tess_status failed(CUresult r, const char *doing, tess_error *error) {
    tess_status s =
        tess_plugin_fail(error, tess_cuda_status(r), "optimizer lion: %s failed: %s", doing, tess_cuda_text(r));
    if (error && error->struct_size > offsetof(tess_error, native))
        error->native = (int32_t)r;
    return s;
}

void lion_device_close(void *opened) {
    gpu *g = opened;
    if (g->module && g->cu->cuCtxPushCurrent(g->context) == CUDA_SUCCESS) {
        g->cu->cuModuleUnload(g->module);
        g->cu->cuCtxPopCurrent(NULL);
    }
    if (g->context)
        g->cu->cuDevicePrimaryCtxRelease(g->device);
    free(g);
}

static tess_status load_kernels(gpu *g, tess_error *error) {
    char why[240];
    CUresult r = g->cu->cuCtxPushCurrent(g->context);
    if (r)
        return failed(r, "making the GPU's context current", error);
    r = tess_cuda_load_module(g->cu, g->device, lion_kernels_image, &g->module, why, sizeof why);
    if (r)
        tess_plugin_fail(error, tess_cuda_status(r), "optimizer lion: %s", why);
    else if ((r = g->cu->cuModuleGetFunction(&g->kernel, g->module, "tess_lion")))
        failed(r, "loading its kernel", error);
    g->cu->cuCtxPopCurrent(NULL);
    return r ? tess_cuda_status(r) : TESS_OK;
}

static tess_status open_gpu(gpu *g, int32_t index, tess_error *error) {
    char why[200];
    int n = 0, processors = 0;
    tess_status s = tess_cuda_get(&g->cu, why, sizeof why);
    if (s)
        return tess_plugin_fail(error, s, "optimizer lion: %s", why);
    CUresult r = tess_cuda_device_of(g->cu, index, &g->device, &n);
    if (r == CUDA_SUCCESS)
        r = g->cu->cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, g->device);
    if (r == CUDA_SUCCESS)
        r = tess_cuda_retain(g->cu, g->device, &g->context);
    if (r)
        return failed(r, "opening the GPU", error);
    g->most_blocks = (uint64_t)processors * BLOCKS_PER_PROCESSOR;
    return load_kernels(g, error);
}

tess_status lion_device_open(void *ctx, uint32_t mem, const tess_stream *stream, void **out, tess_error *error) {
    if (mem != TESS_MEM_CUDA)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED,
                                "optimizer lion: memory of kind %u, expected the host's or CUDA's", mem);
    if (!stream)
        return TESS_OK;
    gpu *g = calloc(1, sizeof *g);
    if (!g)
        return tess_plugin_fail(error, TESS_E_NOMEM, "optimizer lion: no memory to open a GPU");
    g->ctx = ctx;
    tess_status s = open_gpu(g, stream->device, error);
    if (s) {
        lion_device_close(g);
        return s;
    }
    *out = g;
    return TESS_OK;
}

tess_status lion_device_step(void *opened, const tess_device_piece *on, const tess_stream *stream, tess_error *error) {
    const gpu *g = opened;
    const tess_optimizer_piece *p = on->piece;
    lion_args a = { .items = p->elems,
                    .master = p->master,
                    .momentum = p->state[0],
                    .grad = p->grad,
                    .clip = on->clip,
                    .not_finite = on->not_finite,
                    .step = (int64_t)p->step,
                    .grad_scale = on->grad_scale };
    void *params[] = { &a };
    tess_status s = lion_numbers_of(g->ctx, p, &a.numbers, error);
    if (s)
        return s;
    uint64_t blocks = (p->elems + THREADS - 1) / THREADS;
    CUresult r = g->cu->cuCtxPushCurrent(g->context);
    if (r)
        return failed(r, "making the GPU's context current", error);
    r = g->cu->cuLaunchKernel(g->kernel, (unsigned)(blocks < g->most_blocks ? blocks : g->most_blocks), 1, 1, THREADS,
                              1, 1, 0, stream->handle, params, NULL);
    g->cu->cuCtxPopCurrent(NULL);
    return r ? failed(r, "a step", error) : TESS_OK;
}
