/* SPDX-License-Identifier: BSD-3-Clause */
#include "toy_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(TOY_CUDA)
#include "../../plugins/cuda-common/cuda_driver.h"

static struct {
    const tess_cuda *cu;
    CUdevice device;
    CUcontext context;
    CUstream stream;
    int failed;
} gpu;

static void must(CUresult r, const char *what) {
    if (r == CUDA_SUCCESS)
        return;
    if (!gpu.failed)
        fprintf(stderr, "toy: %s failed: %s\n", what, tess_cuda_text(r));
    gpu.failed = 1;
}

int toy_device_open(tess_options *o) {
    const char *name = getenv("TESSERA_DEVICE"), *rank = getenv("LOCAL_RANK");
    CUcontext was;
    char why[240];
    int visible;
    if (!name || !strstr(name, "cuda"))
        return 0;
    o->pointer_mem = 1u << TESS_MEM_CUDA;
    if (getenv("TESSERA_PLAN"))
        return 0;
    if (tess_cuda_get(&gpu.cu, why, sizeof why)) {
        fprintf(stderr, "toy: %s\n", why);
        return -1;
    }
    must(tess_cuda_device_of(gpu.cu, rank ? atoi(rank) : 0, &gpu.device, &visible), "finding the GPU of this rank");
    if (!gpu.failed)
        must(gpu.cu->cuDevicePrimaryCtxRetain(&gpu.context, gpu.device), "making a context");
    if (gpu.failed)
        return -1;
    must(gpu.cu->cuCtxPushCurrent(gpu.context), "making it current");
    if (!gpu.failed) {
        gpu.stream = CU_STREAM_LEGACY;
        if (!getenv("TOY_DEFAULT_STREAM"))
            must(gpu.cu->cuStreamCreateWithPriority(&gpu.stream, CU_STREAM_NON_BLOCKING, 0), "making a stream");
        must(gpu.cu->cuCtxPopCurrent(&was), "leaving the context");
    }
    if (gpu.failed)
        toy_device_close();
    o->stream = gpu.stream == CU_STREAM_LEGACY ? NULL : gpu.stream;
    return gpu.failed ? -1 : 0;
}

void toy_device_close(void) {
    CUcontext was;
    if (!gpu.context)
        return;
    if (gpu.stream && gpu.stream != CU_STREAM_LEGACY && gpu.cu->cuCtxPushCurrent(gpu.context) == CUDA_SUCCESS) {
        gpu.cu->cuStreamDestroy(gpu.stream);
        gpu.cu->cuCtxPopCurrent(&was);
    }
    gpu.cu->cuDevicePrimaryCtxRelease(gpu.device);
    gpu.context = NULL;
    gpu.stream = NULL;
}

int toy_on_device(void) {
    return gpu.stream != NULL;
}

int toy_device_failed(void) {
    return gpu.failed;
}

void toy_read(void *host, const void *at, size_t bytes) {
    CUcontext was;
    if (!gpu.stream) {
        memcpy(host, at, bytes);
        return;
    }
    must(gpu.cu->cuCtxPushCurrent(gpu.context), "making the context current");
    must(gpu.cu->cuMemcpyDtoHAsync(host, (CUdeviceptr)(uintptr_t)at, bytes, gpu.stream), "a copy from the GPU");
    must(gpu.cu->cuStreamSynchronize(gpu.stream), "the stream");
    must(gpu.cu->cuCtxPopCurrent(&was), "leaving the context");
}

void toy_write(void *at, const void *host, size_t bytes) {
    CUcontext was;
    if (!gpu.stream) {
        memcpy(at, host, bytes);
        return;
    }
    must(gpu.cu->cuCtxPushCurrent(gpu.context), "making the context current");
    must(gpu.cu->cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)at, host, bytes, gpu.stream), "a copy to the GPU");
    must(gpu.cu->cuStreamSynchronize(gpu.stream), "the stream");
    must(gpu.cu->cuCtxPopCurrent(&was), "leaving the context");
}
#else
int toy_device_open(tess_options *o) {
    (void)o;
    return 0;
}
void toy_device_close(void) {}
int toy_on_device(void) {
    return 0;
}
int toy_device_failed(void) {
    return 0;
}
void toy_read(void *host, const void *at, size_t bytes) {
    memcpy(host, at, bytes);
}
void toy_write(void *at, const void *host, size_t bytes) {
    memcpy(at, host, bytes);
}
#endif
