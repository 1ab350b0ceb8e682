/* SPDX-License-Identifier: BSD-3-Clause */
/* Names for a profiler, by NVTX: what nsys shows above the kernels. */
#include "device.h"

#include <stdlib.h>

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

/* A profiler tells NVTX by this variable where to find it (nvtx3/nvtxDetail/nvtxInit.h). */
int cuda_is_profiled(void) {
    const char *path = getenv("NVTX_INJECTION64_PATH");
    return path && *path;
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
int cuda_is_profiled(void) {
    return 0;
}

void cuda_range_push(tess_device *d, const char *name) {
    (void)d, (void)name;
}

void cuda_range_pop(tess_device *d) {
    (void)d;
}
#endif
