/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static tess_cuda cuda;
static tess_status status;
static char why[240];

__attribute__((format(printf, 2, 3))) static void refuse(tess_status s, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    status = s;
}

/* ISO C has no cast from an object's address to a function's. */
static void find_symbol(void *handle, const char *name, void *field) {
    void *symbol = dlsym(handle, name);
    memcpy(field, &symbol, sizeof symbol);
    if (!symbol && status == TESS_OK)
        refuse(TESS_E_VERSION,
               "libcuda.so.1 has no %s: the NVIDIA driver is too old, one for CUDA %d.0 or later is needed", name,
               TESS_CUDA_OLDEST / 1000);
}

static void start_driver(void) {
    CUresult r = cuda.cuInit(0);
    if (r == CUDA_ERROR_NO_DEVICE)
        refuse(TESS_E_DEVICE, "the NVIDIA driver finds no GPU (is one visible? CUDA_VISIBLE_DEVICES)");
    else if (r)
        refuse(TESS_E_DEVICE, "the NVIDIA driver does not start: cuInit gave %s", tess_cuda_text(r));
    else if ((r = cuda.cuDriverGetVersion(&cuda.driver_version)) != CUDA_SUCCESS)
        refuse(TESS_E_DEVICE, "the NVIDIA driver does not answer: cuDriverGetVersion gave %s", tess_cuda_text(r));
    else if (cuda.driver_version < TESS_CUDA_OLDEST)
        refuse(TESS_E_VERSION,
               "the NVIDIA driver is for CUDA %d.%d; this build, made with CUDA %d.%d, needs %d.0 or later",
               cuda.driver_version / 1000, cuda.driver_version % 1000 / 10, CUDA_VERSION / 1000,
               CUDA_VERSION % 1000 / 10, TESS_CUDA_OLDEST / 1000);
}

static void load_driver(void) {
    void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!handle) {
        refuse(TESS_E_UNSUPPORTED, "no NVIDIA driver here: libcuda.so.1 cannot be loaded");
        return;
    }
#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)
#define FIND(name) find_symbol(handle, TEXT(name), &cuda.name);
    TESS_CUDA_FUNCTIONS(FIND)
    find_symbol(handle, "cuEventElapsedTime", &cuda.event_elapsed_time);
    if (status == TESS_OK)
        start_driver();
}

tess_status tess_cuda_get(const tess_cuda **out, char *message, size_t room) {
    pthread_once(&once, load_driver);
    if (status == TESS_OK)
        *out = &cuda;
    else
        snprintf(message, room, "%s", why);
    return status;
}

CUresult tess_cuda_device_of(const tess_cuda *cu, int local_rank, CUdevice *out, int *count) {
    CUresult r = cu->cuDeviceGetCount(count);
    if (r != CUDA_SUCCESS)
        return r;
    if (*count == 1 && local_rank > 0 && local_rank < TESS_CUDA_RANKS_OF_A_HOST)
        local_rank = 0;
    if (local_rank < 0 || local_rank >= *count)
        return CUDA_ERROR_INVALID_DEVICE;
    return cu->cuDeviceGet(out, local_rank);
}

CUresult tess_cuda_retain(const tess_cuda *cu, CUdevice device, CUcontext *out) {
    CUresult r = cu->cuDevicePrimaryCtxRetain(out, device);
    if (r != CUDA_SUCCESS)
        *out = NULL; /* a failed call may have left something there, which is not ours to release */
    return r;
}

CUresult tess_cuda_load_module(const tess_cuda *cu, CUdevice device, const void *image, CUmodule *out, char *message,
                               size_t room) {
    int major = 0, minor = 0;
    CUresult r = cu->cuModuleLoadData(out, image);
    if (r == CUDA_SUCCESS)
        return r;
    *out = NULL;
    cu->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    cu->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    snprintf(message, room,
             "loading kernels made with CUDA %d.%d on a GPU of compute capability %d.%d with a driver for CUDA %d.%d "
             "failed: %s",
             CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10, major, minor, cu->driver_version / 1000,
             cu->driver_version % 1000 / 10, tess_cuda_text(r));
    return r;
}

const char *tess_cuda_text(CUresult result) {
    static __thread char text[160];
    const char *name = NULL, *said = NULL;
    if (cuda.cuGetErrorName)
        cuda.cuGetErrorName(result, &name);
    if (cuda.cuGetErrorString)
        cuda.cuGetErrorString(result, &said);
    snprintf(text, sizeof text, "%s %d (%s)", name ? name : "CUDA error", (int)result, said ? said : "unknown");
    return text;
}

tess_status tess_cuda_status(CUresult result) {
    switch (result) {
    case CUDA_SUCCESS: return TESS_OK;
    case CUDA_ERROR_OUT_OF_MEMORY: return TESS_E_NOMEM;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_DEVICE: return TESS_E_INVALID;
    case CUDA_ERROR_NOT_SUPPORTED: return TESS_E_UNSUPPORTED;
    default: return TESS_E_DEVICE;
    }
}
