/* SPDX-License-Identifier: BSD-3-Clause */
/* libcuda.so.1 without a GPU, which takes images and never runs them: with it cuDNN compiles kernels for a GPU that is
 * described to it, and makes plans (test_cuda_cudnn). */
#include <stddef.h>

enum { NO_DEVICE = 100 };
#define API __attribute__((visibility("default")))
#define FAILS(name)                                                                                                    \
    API int name(void);                                                                                                \
    API int name(void) {                                                                                               \
        return NO_DEVICE;                                                                                              \
    }
#define MAKES(name)                                                                                                    \
    API int name(void **out);                                                                                          \
    API int name(void **out) {                                                                                         \
        *out = out;                                                                                                    \
        return 0;                                                                                                      \
    }
#define SUCCEEDS(name)                                                                                                 \
    API int name(void);                                                                                                \
    API int name(void) {                                                                                               \
        return 0;                                                                                                      \
    }
FAILS(cuInit)
FAILS(cuDeviceGet)
FAILS(cuDeviceGetCount)
FAILS(cuDriverGetVersion)
FAILS(cuCtxGetCurrent)
FAILS(cuCtxGetLimit)
FAILS(cuCtxPopCurrent)
FAILS(cuCtxPushCurrent)
FAILS(cuStreamGetCtx)
FAILS(cuGetErrorName)
FAILS(cuGetErrorString)
FAILS(cuLaunchKernel)
FAILS(cuLaunchKernelEx)
FAILS(cuLaunchCooperativeKernel)
FAILS(cuLibraryLoadFromFile)
FAILS(cuLinkCreate)
FAILS(cuLinkAddData)
FAILS(cuLinkComplete)
FAILS(cuLinkDestroy)
MAKES(cuLibraryLoadData)
MAKES(cuLibraryGetKernel)
MAKES(cuKernelGetFunction)
SUCCEEDS(cuLibraryUnload)
SUCCEEDS(cuFuncSetAttribute)
SUCCEEDS(cuKernelSetAttribute)
SUCCEEDS(cuKernelGetAttribute)
SUCCEEDS(cuOccupancyMaxActiveBlocksPerMultiprocessor)
SUCCEEDS(cuOccupancyMaxPotentialClusterSize)
