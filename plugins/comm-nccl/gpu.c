/* SPDX-License-Identifier: BSD-3-Clause */
#include "communicator.h"

extern const unsigned char tess_nccl_kernels[]; /* kernels.cu, compiled */

static tess_status find_device(struct nccl_gpu *g, int32_t index, tess_error *f) {
    int n = 0;
    CUresult r = tess_cuda_device_of(g->cu, index, &g->device, &n);
    if (r == CUDA_ERROR_INVALID_DEVICE)
        return tess_plugin_fail(f, TESS_E_INVALID,
                                "nccl: GPU %d asked for, this host has %d; a rank takes the one of its LOCAL_RANK",
                                index, n);
    return nccl_cuda_ok(r, "finding the GPU", f);
}

static tess_status make_event(struct nccl_gpu *g, CUevent *out, tess_error *f) {
    return nccl_cuda_ok(g->cu->cuEventCreate(out, CU_EVENT_DISABLE_TIMING), "cuEventCreate", f);
}

/* Both streams get the highest priority, because network work and the sums that delay it should start first. */
static tess_status make_streams(struct nccl_gpu *g, tess_error *f) {
    int least = 0, greatest = 0;
    CUstream *streams[] = { &g->stream, &g->sums.stream };
    tess_status s =
        nccl_cuda_ok(g->cu->cuCtxGetStreamPriorityRange(&least, &greatest), "cuCtxGetStreamPriorityRange", f);
    for (int i = 0; s == TESS_OK && i < 2; i++)
        s = nccl_cuda_ok(g->cu->cuStreamCreateWithPriority(streams[i], CU_STREAM_NON_BLOCKING, greatest),
                         "cuStreamCreateWithPriority", f);
    for (int i = 0; s == TESS_OK && i < 2; i++)
        s = make_event(g, &g->sums.summed[i], f);
    return s ? s : make_event(g, &g->sums.came, f);
}

static void end_streams(const struct nccl_gpu *g) {
    CUstream streams[] = { g->stream, g->sums.stream };
    CUevent events[] = { g->sums.came, g->sums.summed[0], g->sums.summed[1] };
    for (int i = 0; i < 2; i++)
        if (streams[i])
            g->cu->cuStreamDestroy(streams[i]);
    for (int i = 0; i < 3; i++)
        if (events[i])
            g->cu->cuEventDestroy(events[i]);
}

static tess_status find_kernel(struct nccl_gpu *g, const char *name, CUfunction *out, tess_error *f) {
    return nccl_cuda_ok(g->cu->cuModuleGetFunction(out, g->module, name), "cuModuleGetFunction", f);
}

static tess_status load_kernels(struct nccl_gpu *g, tess_error *f) {
    char why[240];
    CUresult r = tess_cuda_load_module(g->cu, g->device, tess_nccl_kernels, &g->module, why, sizeof why);
    if (r)
        return tess_plugin_fail(f, tess_cuda_status(r), "nccl: %s", why);
    tess_status s = find_kernel(g, "tess_nccl_reduce", &g->kernels.reduce, f);
    if (s == TESS_OK)
        s = find_kernel(g, "tess_nccl_widen", &g->kernels.widen, f);
    return s ? s : find_kernel(g, "tess_nccl_finish", &g->kernels.finish, f);
}

tess_status nccl_gpu_open(struct nccl_gpu *g, int32_t index, tess_error *f) {
    char why[200];
    memset(g, 0, sizeof *g);
    tess_status s = tess_cuda_get(&g->cu, why, sizeof why);
    if (s)
        return tess_plugin_fail(f, s, "nccl: %s", why);
    s = nccl_library_get(&g->lib, f);
    if (s == TESS_OK)
        s = find_device(g, index, f);
    if (s == TESS_OK)
        s = nccl_cuda_ok(tess_cuda_retain(g->cu, g->device, &g->context), "cuDevicePrimaryCtxRetain", f);
    if (s == TESS_OK)
        s = nccl_enter(g, f);
    if (s)
        return s;
    s = make_streams(g, f);
    if (s == TESS_OK)
        s = load_kernels(g, f);
    nccl_leave(g);
    return s;
}

void nccl_gpu_close(struct nccl_gpu *g) {
    tess_error ignored = { .struct_size = sizeof ignored };
    if (!g->context)
        return;
    if (nccl_enter(g, &ignored) == TESS_OK || nccl_enter(g, &ignored) == TESS_OK) {
        if (g->module)
            g->cu->cuModuleUnload(g->module);
        end_streams(g);
        nccl_leave(g);
    }
    g->cu->cuDevicePrimaryCtxRelease(g->device);
    memset(g, 0, sizeof *g);
}

tess_status nccl_enter(const struct nccl_gpu *g, tess_error *f) {
    return nccl_cuda_ok(g->cu->cuCtxPushCurrent(g->context), "cuCtxPushCurrent", f);
}

void nccl_leave(const struct nccl_gpu *g) {
    g->cu->cuCtxPopCurrent(NULL);
}
