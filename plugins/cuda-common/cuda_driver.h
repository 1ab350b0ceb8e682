/* SPDX-License-Identifier: BSD-3-Clause */
/* libcuda.so.1, looked up at run time: nothing here links CUDA, so that a command built with it starts where there is
 * no driver. One list of functions for all who call the driver; the fields have the names of <cuda.h>:
 *
 *     const tess_cuda *cu;
 *     tess_status s = tess_cuda_get(&cu, message, sizeof message);
 *     CUresult r = cu->cuMemAlloc(&at, bytes);
 *     if (r) … tess_cuda_text(r) …
 *
 * Contexts: everyone uses the primary context of a device (tess_cuda_retain), which cuBLAS, cuDNN and NCCL share, and
 * pushes it around what it does, since any thread may call in. */
#ifndef TESS_CUDA_DRIVER_H
#define TESS_CUDA_DRIVER_H
#include <cuda.h>
#include <stddef.h>
#include <tessera/plugin.h>

/* The oldest cuDriverGetVersion that loads what this toolkit compiles, the first of its major version: a driver takes
 * machine code of that and of earlier ones, at least 12.0 for the functions below. */
enum { TESS_CUDA_OLDEST = CUDA_VERSION / 1000 > 12 ? CUDA_VERSION / 1000 * 1000 : 12000 };

#define TESS_CUDA_FUNCTIONS(X)                                                                                         \
    X(cuInit)                                                                                                          \
    X(cuDriverGetVersion)                                                                                              \
    X(cuDeviceGetCount)                                                                                                \
    X(cuDeviceGet)                                                                                                     \
    X(cuDeviceGetName)                                                                                                 \
    X(cuDeviceGetUuid)                                                                                                 \
    X(cuDeviceGetPCIBusId)                                                                                             \
    X(cuDeviceTotalMem)                                                                                                \
    X(cuDeviceGetAttribute)                                                                                            \
    X(cuDevicePrimaryCtxRetain)                                                                                        \
    X(cuDevicePrimaryCtxRelease)                                                                                       \
    X(cuCtxPushCurrent)                                                                                                \
    X(cuCtxPopCurrent)                                                                                                 \
    X(cuCtxSetCurrent)                                                                                                 \
    X(cuCtxGetCurrent)                                                                                                 \
    X(cuCtxSynchronize)                                                                                                \
    X(cuCtxGetStreamPriorityRange)                                                                                     \
    X(cuMemGetInfo)                                                                                                    \
    X(cuMemAlloc)                                                                                                      \
    X(cuMemFree)                                                                                                       \
    X(cuMemAllocFromPoolAsync)                                                                                         \
    X(cuMemFreeAsync)                                                                                                  \
    X(cuMemPoolCreate)                                                                                                 \
    X(cuMemPoolDestroy)                                                                                                \
    X(cuMemPoolSetAttribute)                                                                                           \
    X(cuMemHostAlloc)                                                                                                  \
    X(cuMemFreeHost)                                                                                                   \
    X(cuMemHostRegister)                                                                                               \
    X(cuMemHostUnregister)                                                                                             \
    X(cuMemcpyAsync)                                                                                                   \
    X(cuMemcpyHtoDAsync)                                                                                               \
    X(cuMemcpyDtoHAsync)                                                                                               \
    X(cuMemcpyDtoDAsync)                                                                                               \
    X(cuMemsetD8Async)                                                                                                 \
    X(cuMemsetD32Async)                                                                                                \
    X(cuStreamCreateWithPriority)                                                                                      \
    X(cuStreamDestroy)                                                                                                 \
    X(cuStreamSynchronize)                                                                                             \
    X(cuStreamQuery)                                                                                                   \
    X(cuStreamWaitEvent)                                                                                               \
    X(cuStreamIsCapturing)                                                                                             \
    X(cuStreamBeginCapture)                                                                                            \
    X(cuStreamEndCapture)                                                                                              \
    X(cuGraphInstantiate)                                                                                              \
    X(cuGraphLaunch)                                                                                                   \
    X(cuGraphExecDestroy)                                                                                              \
    X(cuGraphDestroy)                                                                                                  \
    X(cuEventCreate)                                                                                                   \
    X(cuEventDestroy)                                                                                                  \
    X(cuEventRecord)                                                                                                   \
    X(cuEventQuery)                                                                                                    \
    X(cuEventSynchronize)                                                                                              \
    X(cuLaunchHostFunc)                                                                                                \
    X(cuModuleLoadData)                                                                                                \
    X(cuModuleUnload)                                                                                                  \
    X(cuModuleGetFunction)                                                                                             \
    X(cuFuncSetAttribute)                                                                                              \
    X(cuLaunchKernel)                                                                                                  \
    X(cuGetErrorName)                                                                                                  \
    X(cuGetErrorString)

typedef struct {
    int driver_version; /* 13000 is 13.0 */
#define TESS_CUDA_FIELD(name) __typeof__(name) *name;
    TESS_CUDA_FUNCTIONS(TESS_CUDA_FIELD)
#undef TESS_CUDA_FIELD
    CUresult(CUDAAPI *event_elapsed_time)(float *, CUevent, CUevent); /* its first name, which every driver exports */
} tess_cuda;

/** Loads the driver and initialises it, once per process; the same answer every time. It stays loaded. On failure
 * `message` has one line: TESS_E_UNSUPPORTED no libcuda.so.1 (no driver); TESS_E_VERSION too old; TESS_E_DEVICE no
 * device, or it does not start. Any thread. */
tess_status tess_cuda_get(const tess_cuda **out, char *message, size_t room);
/** The GPU of a local rank among those that are visible: the one of that number, or the only one, since a launcher may
 * show each rank its own (Slurm's --gpus-per-task=1). A number that no rank of a host has gets none of them.
 * *count: how many are visible. CUDA_ERROR_INVALID_DEVICE: none. */
#define TESS_CUDA_RANKS_OF_A_HOST 4096
CUresult tess_cuda_device_of(const tess_cuda *, int local_rank, CUdevice *out, int *count);
/** Takes the primary context of a GPU. Null after a failure; cuDevicePrimaryCtxRelease gives it back. */
CUresult tess_cuda_retain(const tess_cuda *, CUdevice, CUcontext *out);
/** Loads kernels that this build's toolkit compiled. On failure `message` has one line with the reason and the limits
 * of driver and GPU. Call it in the GPU's context. */
CUresult tess_cuda_load_module(const tess_cuda *, CUdevice, const void *image, CUmodule *out, char *message,
                               size_t room);
/** "CUDA_ERROR_OUT_OF_MEMORY (out of memory)"; lives as long as the thread, until its next call. */
const char *tess_cuda_text(CUresult);
/** The plugin's status for a failed call: NOMEM, INVALID, UNSUPPORTED or DEVICE. */
tess_status tess_cuda_status(CUresult);
#endif
