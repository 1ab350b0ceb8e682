/* SPDX-License-Identifier: BSD-3-Clause */
/* Names for a profiler, by NVTX: what nsys shows above the kernels. */
#include "device.h"

#include <dlfcn.h>
#include <stdlib.h>

#if __has_include(<nvtx3/nvToolsExt.h>)
/* NVTX loads the profiler's library itself, and looks for its path in the environment, which is the host's. */
static const char *library;
#define getenv(variable) ((void)(variable), (char *)(uintptr_t)library)
#include <nvtx3/nvToolsExt.h>
#undef getenv

int cuda_is_profiled(const tess_host *host) {
    library = host->profiler;
    return library != NULL;
}

void cuda_range_push(tess_device *d, const char *name) {
    (void)d;
    nvtxRangePushA(name);
}

void cuda_range_pop(tess_device *d) {
    (void)d;
    nvtxRangePop();
}
#else
int cuda_is_profiled(const tess_host *host) {
    (void)host;
    return 0;
}

void cuda_range_push(tess_device *d, const char *name) {
    (void)d, (void)name;
}

void cuda_range_pop(tess_device *d) {
    (void)d;
}
#endif
