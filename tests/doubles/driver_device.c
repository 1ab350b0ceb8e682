/* SPDX-License-Identifier: BSD-3-Clause */
/* Initialisation, devices, contexts, names of errors. */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STACK = 32 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int initialised, retained[DOUBLE_DEVICES];
static char contexts[DOUBLE_DEVICES]; /* a context's handle is the address of its byte */
static __thread int stack[STACK], depth;

static int device_count(void) {
    int64_t n = double__number("DEVICES", 4);
    return n < 0 ? 0 : n > DOUBLE_DEVICES ? DOUBLE_DEVICES : (int)n;
}

static CUcontext context_of(int device) {
    return device < 0 ? NULL : (CUcontext)(void *)&contexts[device];
}

static int device_of(CUcontext context) {
    char *at = (char *)context;
    return at >= contexts && at < contexts + DOUBLE_DEVICES ? (int)(at - contexts) : -1;
}

int double__current_device(void) {
    int device = depth ? stack[depth - 1] : -1;
    return device >= 0 && retained[device] ? device : -1;
}

CUresult double__enter(const char *name, CUresult usual) {
    int code = double__fails(name);
    if (code)
        return code == -1 ? usual : (CUresult)code;
    return initialised ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult double__enter_context(const char *name, CUresult usual) {
    CUresult entered = double__enter(name, usual);
    int device = double__current_device();
    if (entered == CUDA_SUCCESS && device < 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (device >= 0 && (entered == CUDA_ERROR_LAUNCH_FAILED || entered == CUDA_ERROR_ILLEGAL_ADDRESS))
        double__spoil(device, (int)entered);
    return entered == CUDA_SUCCESS ? (CUresult)double__spoilt(device) : entered;
}

double_stream *double__stream_of(CUstream handle) {
    int device = double__current_device();
    if (handle == NULL || handle == CU_STREAM_LEGACY)
        return double__null_stream(device);
    double_stream *s = (double_stream *)(void *)handle;
    return double__stream_known(s) && double__stream_device(s) == device ? s : NULL;
}

DOUBLE_API CUresult cuInit(unsigned flags) {
    int code = double__fails("cuInit");
    if (code)
        return code == -1 ? CUDA_ERROR_NO_DEVICE : (CUresult)code;
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_count() == 0)
        return CUDA_ERROR_NO_DEVICE;
    initialised = 1;
    return CUDA_SUCCESS;
}

DOUBLE_API CUresult cuDriverGetVersion(int *version) {
    int code = double__fails("cuDriverGetVersion");
    if (code)
        return code == -1 ? CUDA_ERROR_UNKNOWN : (CUresult)code;
    *version = (int)double__number("DRIVER_VERSION", CUDA_VERSION);
    return CUDA_SUCCESS;
}

DOUBLE_API CUresult cuDeviceGetCount(int *count) {
    ENTER("cuDeviceGetCount", CUDA_ERROR_UNKNOWN);
    *count = device_count();
    return CUDA_SUCCESS;
}

DOUBLE_API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    ENTER("cuDeviceGet", CUDA_ERROR_UNKNOWN);
    if (ordinal < 0 || ordinal >= device_count())
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

/* The host's number of a GPU: a launcher may show each rank only its own. */
static int number_of(CUdevice device) {
    return device + (int)double__number("FIRST", 0);
}

static int known(CUdevice device) {
    return device >= 0 && device < device_count();
}

DOUBLE_API CUresult cuDeviceGetName(char *name, int room, CUdevice device) {
    ENTER("cuDeviceGetName", CUDA_ERROR_UNKNOWN);
    if (!known(device))
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)room, "CUDA test double %d", device);
    return CUDA_SUCCESS;
}

static CUresult uuid_of(const char *call, CUuuid *uuid, CUdevice device) {
    ENTER(call, CUDA_ERROR_UNKNOWN);
    if (!known(device))
        return CUDA_ERROR_INVALID_DEVICE;
    memset(uuid, 0, sizeof *uuid);
    memcpy(uuid->bytes, "tessera-double", 14);
    uuid->bytes[15] = (char)number_of(device);
    return CUDA_SUCCESS;
}

#undef cuDeviceGetUuid
DOUBLE_API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    return uuid_of("cuDeviceGetUuid", uuid, device);
}
DOUBLE_API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    return uuid_of("cuDeviceGetUuid", uuid, device);
}

DOUBLE_API CUresult cuDeviceGetPCIBusId(char *id, int room, CUdevice device) {
    ENTER("cuDeviceGetPCIBusId", CUDA_ERROR_UNKNOWN);
    if (!known(device) || room < 13)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(id, (size_t)room, "00de:%02x:00.0", number_of(device));
    return CUDA_SUCCESS;
}

DOUBLE_API CUresult cuDeviceGetByPCIBusId(CUdevice *out, const char *id) {
    ENTER("cuDeviceGetByPCIBusId", CUDA_ERROR_UNKNOWN);
    unsigned number;
    if (sscanf(id, "00de:%2x:00.0", &number) != 1 || !known((CUdevice)number - number_of(0)))
        return CUDA_ERROR_INVALID_DEVICE;
    *out = (CUdevice)number - number_of(0);
    return CUDA_SUCCESS;
}

DOUBLE_API CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device) {
    ENTER("cuDeviceTotalMem", CUDA_ERROR_UNKNOWN);
    if (!known(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = double__capacity();
    return CUDA_SUCCESS;
}

int double__shared_bytes(void) {
    return (int)double__number("SHARED", 232448);
}

DOUBLE_API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    int capability = (int)double__number("CAPABILITY", 90);
    const struct {
        int attribute, value;
    } list[] = {
        { CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, capability / 10 },
        { CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, capability % 10 },
        { CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, (int)double__number("PROCESSORS", DOUBLE_PROCESSORS) },
        { CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024 },
        { CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048 },
        { CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152 },
        { CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, double__shared_bytes() },
        { CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647 },
        { CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535 },
        { CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535 },
        { CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024 },
        { CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32 },
        { CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1000000 },
        { CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1000000 },
        { CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 4096 },
        { CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 1 << 20 },
        { CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1 },
        { CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1 },
        { CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1 },
        { CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1 },
        { CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1 },
        { CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1 },
        { CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, CU_COMPUTEMODE_DEFAULT },
        { CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0xde },
        { CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, -1 },
    };
    ENTER("cuDeviceGetAttribute", CUDA_ERROR_UNKNOWN);
    if (!known(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *value = attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID ? device : 0;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (list[i].attribute == (int)attribute)
            *value = list[i].value;
    return CUDA_SUCCESS;
}

DOUBLE_API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    ENTER("cuDeviceCanAccessPeer", CUDA_ERROR_UNKNOWN);
    *can = known(device) && known(peer) && device != peer;
    return CUDA_SUCCESS;
}

/* ---- contexts ---------------------------------------------------------------------------------------------------- */

DOUBLE_API CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
    ENTER("cuDevicePrimaryCtxRetain", CUDA_ERROR_OUT_OF_MEMORY);
    if (!known(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (double__spoilt(device))
        return (CUresult)double__spoilt(device);
    pthread_mutex_lock(&lock);
    retained[device]++;
    pthread_mutex_unlock(&lock);
    double__live("retained contexts", 1);
    *out = context_of(device);
    return CUDA_SUCCESS;
}

DOUBLE_API CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    CUresult entered = double__enter("cuDevicePrimaryCtxRelease", CUDA_ERROR_UNKNOWN);
    pthread_mutex_lock(&lock);
    int held = known(device) && retained[device] > 0;
    if (held)
        retained[device]--;
    pthread_mutex_unlock(&lock);
    if (held)
        double__live("retained contexts", -1);
    return entered != CUDA_SUCCESS ? entered : held ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

DOUBLE_API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    ENTER("cuDevicePrimaryCtxGetState", CUDA_ERROR_UNKNOWN);
    *flags = 0;
    *active = known(device) && retained[device];
    return CUDA_SUCCESS;
}

DOUBLE_API CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
    ENTER("cuDevicePrimaryCtxSetFlags", CUDA_ERROR_UNKNOWN);
    (void)flags;
    return known(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

DOUBLE_API CUresult cuCtxPushCurrent(CUcontext context) {
    ENTER("cuCtxPushCurrent", CUDA_ERROR_INVALID_CONTEXT);
    int device = device_of(context);
    if (device < 0 || !retained[device] || depth == STACK)
        return CUDA_ERROR_INVALID_CONTEXT;
    stack[depth++] = device;
    return CUDA_SUCCESS;
}

DOUBLE_API CUresult cuCtxPopCurrent(CUcontext *out) {
    CUresult entered = double__enter("cuCtxPopCurrent", CUDA_ERROR_INVALID_CONTEXT);
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (out)
        *out = context_of(stack[depth]);
    return entered;
}

DOUBLE_API CUresult cuCtxSetCurrent(CUcontext context) {
    ENTER("cuCtxSetCurrent", CUDA_ERROR_INVALID_CONTEXT);
    int device = device_of(context);
    if (context && (device < 0 || !retained[device]))
        return CUDA_ERROR_INVALID_CONTEXT;
    depth -= depth > 0;
    if (context)
        stack[depth++] = device;
    return CUDA_SUCCESS;
}

DOUBLE_API CUresult cuCtxGetCurrent(CUcontext *out) {
    ENTER("cuCtxGetCurrent", CUDA_ERROR_UNKNOWN);
    *out = context_of(double__current_device());
    return CUDA_SUCCESS;
}

DOUBLE_API CUresult cuCtxGetDevice(CUdevice *out) {
    ENTER_CONTEXT("cuCtxGetDevice", CUDA_ERROR_UNKNOWN);
    *out = double__current_device();
    return CUDA_SUCCESS;
}

DOUBLE_API CUresult cuCtxSynchronize(void) {
    ENTER_UNSAFE("cuCtxSynchronize", CUDA_ERROR_UNKNOWN);
    double__fails("waits-that-drain"); /* counts */
    double__finish_device(double__current_device());
    return (CUresult)double__spoilt(double__current_device());
}

DOUBLE_API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    ENTER_CONTEXT("cuCtxGetStreamPriorityRange", CUDA_ERROR_UNKNOWN);
    *least = DOUBLE_LEAST;
    *greatest = DOUBLE_GREATEST;
    return CUDA_SUCCESS;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static const struct {
    CUresult code;
    const char *name, *text;
} errors[] = {
    { CUDA_SUCCESS, "CUDA_SUCCESS", "no error" },
    { CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument" },
    { CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory" },
    { CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error" },
    { CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected" },
    { CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal" },
    { CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid" },
    { CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
      "no kernel image is available for execution on the device" },
    { CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
      "the provided PTX was compiled with an unsupported toolchain." },
    { CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context" },
    { CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle" },
    { CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found" },
    { CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready" },
    { CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered" },
    { CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure" },
    { CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
      "part or all of the requested memory range is already mapped" },
    { CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported" },
    { CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error" },
};

DOUBLE_API CUresult cuGetErrorName(CUresult code, const char **out) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) {
            *out = errors[i].name;
            return CUDA_SUCCESS;
        }
    *out = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

DOUBLE_API CUresult cuGetErrorString(CUresult code, const char **out) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) {
            *out = errors[i].text;
            return CUDA_SUCCESS;
        }
    *out = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}
