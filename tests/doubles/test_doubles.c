/* SPDX-License-Identifier: BSD-3-Clause */
/* The double of the CUDA driver: it must be as strict as the real thing, or what is tested on it shows nothing. Each
 * test runs in a process of its own, since a spoilt context stays so. */
#include "driver.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static CUcontext context;

static void open_device(int device) {
    CUdevice d;
    assert_int_equal(cuInit(0), CUDA_SUCCESS);
    assert_int_equal(cuDeviceGet(&d, device), CUDA_SUCCESS);
    assert_int_equal(cuDevicePrimaryCtxRetain(&context, d), CUDA_SUCCESS);
    assert_int_equal(cuCtxPushCurrent(context), CUDA_SUCCESS);
}

static void close_device(int device) {
    assert_int_equal(cuCtxPopCurrent(NULL), CUDA_SUCCESS);
    assert_int_equal(cuDevicePrimaryCtxRelease(device), CUDA_SUCCESS);
}

static CUstream stream(void) {
    CUstream s;
    assert_int_equal(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    return s;
}

static CUdeviceptr memory(size_t bytes) {
    CUdeviceptr at;
    assert_int_equal(cuMemAlloc(&at, bytes), CUDA_SUCCESS);
    return at;
}

/* ---- order -------------------------------------------------------------------------------------- */

static void hold(void *gate) { /* a stream stands still until the test lets it go */
    while (!__atomic_load_n((int *)gate, __ATOMIC_ACQUIRE))
        usleep(100);
}

static void let_go(int *gate) {
    __atomic_store_n(gate, 1, __ATOMIC_RELEASE);
}

static void test_doubles__two_streams_without_event_run_out_of_order(void **state) {
    (void)state;
    open_device(0);
    CUstream a = stream(), b = stream();
    CUdeviceptr at = memory(4);
    int gate = 0, *value;
    assert_int_equal(cuMemHostAlloc((void **)&value, 4, 0), CUDA_SUCCESS);
    assert_int_equal(cuLaunchHostFunc(a, hold, &gate), CUDA_SUCCESS);
    assert_int_equal(cuMemsetD32Async(at, 1, 1, a), CUDA_SUCCESS); /* issued first, done last */
    assert_int_equal(cuMemsetD32Async(at, 2, 1, b), CUDA_SUCCESS);
    assert_int_equal(cuStreamSynchronize(b), CUDA_SUCCESS);
    assert_int_equal(cuStreamQuery(a), CUDA_ERROR_NOT_READY);
    let_go(&gate);
    assert_int_equal(cuStreamSynchronize(a), CUDA_SUCCESS);
    assert_int_equal(cuMemcpyDtoH(value, at, 4), CUDA_SUCCESS);
    assert_int_equal(*value, 1);
    assert_int_equal(cuStreamDestroy(a), CUDA_SUCCESS);
    assert_int_equal(cuStreamDestroy(b), CUDA_SUCCESS);
    assert_int_equal(cuMemFreeHost(value), CUDA_SUCCESS);
    assert_int_equal(cuMemFree(at), CUDA_SUCCESS);
    close_device(0);
}

static void test_doubles__event_between_streams_orders_them(void **state) {
    (void)state;
    open_device(0);
    CUstream a = stream(), b = stream();
    CUdeviceptr at = memory(4);
    CUevent event;
    int gate = 0, *value;
    assert_int_equal(cuMemHostAlloc((void **)&value, 4, 0), CUDA_SUCCESS);
    assert_int_equal(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    assert_int_equal(cuEventQuery(event), CUDA_SUCCESS); /* never recorded: nothing to wait for */
    assert_int_equal(cuLaunchHostFunc(a, hold, &gate), CUDA_SUCCESS);
    assert_int_equal(cuMemsetD32Async(at, 1, 1, a), CUDA_SUCCESS);
    assert_int_equal(cuEventRecord(event, a), CUDA_SUCCESS);
    assert_int_equal(cuStreamWaitEvent(b, event, 0), CUDA_SUCCESS);
    assert_int_equal(cuMemsetD32Async(at, 2, 1, b), CUDA_SUCCESS);
    usleep(20000);
    assert_int_equal(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    assert_int_equal(cuStreamQuery(b), CUDA_ERROR_NOT_READY);
    let_go(&gate);
    assert_int_equal(cuMemcpyDtoHAsync(value, at, 4, b), CUDA_SUCCESS);
    assert_int_equal(cuStreamSynchronize(b), CUDA_SUCCESS);
    assert_int_equal(*value, 2);
    assert_int_equal(cuEventQuery(event), CUDA_SUCCESS);
    assert_int_equal(cuEventDestroy(event), CUDA_SUCCESS);
    assert_int_equal(cuStreamDestroy(a), CUDA_SUCCESS);
    assert_int_equal(cuStreamDestroy(b), CUDA_SUCCESS);
    assert_int_equal(cuMemFreeHost(value), CUDA_SUCCESS);
    assert_int_equal(cuMemFree(at), CUDA_SUCCESS);
    close_device(0);
}

/* An event recorded anew does not move a wait that was asked for before. */
static void test_doubles__event_recorded_again_keeps_earlier_waits(void **state) {
    (void)state;
    open_device(0);
    CUstream a = stream(), b = stream();
    CUevent event;
    int gate = 0;
    assert_int_equal(cuEventCreate(&event, 0), CUDA_SUCCESS);
    assert_int_equal(cuEventRecord(event, a), CUDA_SUCCESS);
    assert_int_equal(cuStreamWaitEvent(b, event, 0), CUDA_SUCCESS);
    assert_int_equal(cuLaunchHostFunc(a, hold, &gate), CUDA_SUCCESS);
    assert_int_equal(cuEventRecord(event, a), CUDA_SUCCESS);
    assert_int_equal(cuStreamSynchronize(b), CUDA_SUCCESS);
    assert_int_equal(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    let_go(&gate);
    assert_int_equal(cuEventSynchronize(event), CUDA_SUCCESS);
    assert_int_equal(cuEventDestroy(event), CUDA_SUCCESS);
    assert_int_equal(cuStreamDestroy(a), CUDA_SUCCESS);
    assert_int_equal(cuStreamDestroy(b), CUDA_SUCCESS);
    close_device(0);
}

/* What follows a wait has the time of what was waited for, however late the stream's thread runs. */
static void test_doubles__waits_and_marks_take_no_time(void **state) {
    (void)state;
    open_device(0);
    CUstream a = stream(), b = stream();
    CUevent begin, there, behind;
    int gate = 0;
    float took = 0, late = -1;
    assert_int_equal(cuEventCreate(&begin, 0), CUDA_SUCCESS);
    assert_int_equal(cuEventCreate(&there, 0), CUDA_SUCCESS);
    assert_int_equal(cuEventCreate(&behind, 0), CUDA_SUCCESS);
    assert_int_equal(cuEventRecord(begin, a), CUDA_SUCCESS);
    assert_int_equal(cuLaunchHostFunc(a, hold, &gate), CUDA_SUCCESS);
    assert_int_equal(cuEventRecord(there, a), CUDA_SUCCESS);
    assert_int_equal(cuStreamWaitEvent(b, there, 0), CUDA_SUCCESS);
    assert_int_equal(cuEventRecord(behind, b), CUDA_SUCCESS);
    usleep(20000);
    let_go(&gate);
    assert_int_equal(cuEventSynchronize(behind), CUDA_SUCCESS);
    assert_int_equal(cuEventElapsedTime(&took, begin, there), CUDA_SUCCESS);
    assert_int_equal(cuEventElapsedTime(&late, there, behind), CUDA_SUCCESS);
    assert_true(took >= 20);
    assert_true(late == 0);
    assert_int_equal(cuEventDestroy(begin), CUDA_SUCCESS);
    assert_int_equal(cuEventDestroy(there), CUDA_SUCCESS);
    assert_int_equal(cuEventDestroy(behind), CUDA_SUCCESS);
    assert_int_equal(cuStreamDestroy(a), CUDA_SUCCESS);
    assert_int_equal(cuStreamDestroy(b), CUDA_SUCCESS);
    close_device(0);
}

static void test_doubles__blocking_stream_waits_for_null_stream(void **state) {
    (void)state;
    open_device(0);
    CUstream blocking, apart = stream();
    int gate = 0;
    assert_int_equal(cuStreamCreate(&blocking, CU_STREAM_DEFAULT), CUDA_SUCCESS);
    assert_int_equal(cuLaunchHostFunc(NULL, hold, &gate), CUDA_SUCCESS);
    CUdeviceptr at = memory(8);
    assert_int_equal(cuMemsetD32Async(at, 1, 1, blocking), CUDA_SUCCESS);
    assert_int_equal(cuMemsetD32Async(at, 1, 1, apart), CUDA_SUCCESS);
    assert_int_equal(cuStreamSynchronize(apart), CUDA_SUCCESS);
    assert_int_equal(cuStreamQuery(blocking), CUDA_ERROR_NOT_READY);
    let_go(&gate);
    assert_int_equal(cuCtxSynchronize(), CUDA_SUCCESS);
    assert_int_equal(cuStreamQuery(blocking), CUDA_SUCCESS);
    assert_int_equal(cuStreamDestroy(blocking), CUDA_SUCCESS);
    assert_int_equal(cuStreamDestroy(apart), CUDA_SUCCESS);
    assert_int_equal(cuMemFree(at), CUDA_SUCCESS);
    close_device(0);
}

/* ---- memory ------------------------------------------------------------------------------------- */

static void test_doubles__ranges_and_kinds_are_checked(void **state) {
    (void)state;
    open_device(0);
    CUdeviceptr at = memory(1000);
    char host[100] = { 0 };
    assert_int_equal(cuMemcpyHtoD(at + 900, host, 100), CUDA_SUCCESS);
    assert_int_equal(cuMemcpyHtoD(at + 901, host, 100), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemcpyDtoH(host, at + 1000, 1), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemcpyDtoD(at, (CUdeviceptr)host, 10), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemcpyHtoD(at, (void *)at, 10), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemsetD8(at, 0, 1001), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemsetD32(at + 2, 0, 1), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemFree(at + 512), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemFreeHost((void *)at), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemFree(at), CUDA_SUCCESS);
    assert_int_equal(cuMemFree(at), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemFree(0), CUDA_SUCCESS);
    close_device(0);
}

static void test_doubles__memory_ends_at_the_capacity(void **state) {
    (void)state;
    open_device(1);
    size_t room, total;
    CUdeviceptr most, more;
    assert_int_equal(cuMemGetInfo(&room, &total), CUDA_SUCCESS);
    assert_int_equal(total, 1 << 20);
    assert_int_equal(cuMemAlloc(&most, room), CUDA_SUCCESS);
    assert_int_equal(cuMemAlloc(&more, 1), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(cuMemFree(most), CUDA_SUCCESS);
    assert_int_equal(cuMemAlloc(&more, 1), CUDA_SUCCESS);
    assert_int_equal(cuMemFree(more), CUDA_SUCCESS);
    close_device(1);
}

static void test_doubles__host_access_to_device_memory_is_a_fault(void **state) {
    (void)state;
    open_device(0);
    volatile char *at = (char *)memory(64);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        at[0] = 1;
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(!WIFEXITED(status) || WEXITSTATUS(status) != 0);
    assert_int_equal(cuMemFree((CUdeviceptr)at), CUDA_SUCCESS);
    close_device(0);
}

static void test_doubles__registered_memory_copies_without_waiting(void **state) {
    (void)state;
    open_device(0);
    static char host[4096];
    CUstream s = stream();
    CUdeviceptr at = memory(sizeof host);
    int gate = 0;
    assert_int_equal(cuMemHostRegister(host, sizeof host, 0), CUDA_SUCCESS);
    assert_int_equal(cuMemHostRegister(host + 100, 8, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    assert_int_equal(cuLaunchHostFunc(s, hold, &gate), CUDA_SUCCESS);
    assert_int_equal(cuMemcpyHtoDAsync(at, host, sizeof host, s), CUDA_SUCCESS); /* would hang if it waited */
    let_go(&gate);
    assert_int_equal(cuStreamSynchronize(s), CUDA_SUCCESS);
    assert_int_equal(cuMemHostUnregister(host), CUDA_SUCCESS);
    assert_int_equal(cuMemHostUnregister(host), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuStreamDestroy(s), CUDA_SUCCESS);
    assert_int_equal(cuMemFree(at), CUDA_SUCCESS);
    close_device(0);
}

/* ---- contexts, kernels -------------------------------------------------------------------------- */

static void test_doubles__calls_need_a_context(void **state) {
    (void)state;
    CUdeviceptr at;
    CUdevice device;
    CUstream s;
    assert_int_equal(cuDeviceGet(&device, 0), CUDA_ERROR_NOT_INITIALIZED);
    assert_int_equal(cuInit(0), CUDA_SUCCESS);
    assert_int_equal(cuDeviceGet(&device, 4), CUDA_ERROR_INVALID_DEVICE);
    assert_int_equal(cuMemAlloc(&at, 4), CUDA_ERROR_INVALID_CONTEXT);
    open_device(0);
    s = stream();
    assert_int_equal(cuCtxPopCurrent(NULL), CUDA_SUCCESS);
    assert_int_equal(cuStreamQuery(s), CUDA_ERROR_INVALID_CONTEXT);
    open_device(1); /* another context's stream */
    assert_int_equal(cuMemAlloc(&at, 4), CUDA_SUCCESS);
    assert_int_equal(cuMemsetD32Async(at, 0, 1, s), CUDA_ERROR_INVALID_HANDLE);
    assert_int_equal(cuMemFree(at), CUDA_SUCCESS);
    close_device(1);
    assert_int_equal(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    assert_int_equal(cuCtxPushCurrent(context), CUDA_SUCCESS);
    assert_int_equal(cuStreamDestroy(s), CUDA_SUCCESS);
    assert_int_equal(cuStreamDestroy(s), CUDA_ERROR_INVALID_HANDLE);
    close_device(0);
    assert_int_equal(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
    assert_int_equal(cuDevicePrimaryCtxRelease(0), CUDA_ERROR_INVALID_CONTEXT);
}

struct increment {
    CUdeviceptr in, out;
    uint64_t elems;
    int32_t by;
};

/* A fat binary with machine code for one chip, as nvcc of CUDA 12 or 13 lays it out. */
static const void *image_for(uint32_t chip, unsigned char elf_abi) {
    static _Alignas(8) unsigned char image[16 + 64 + 64];
    memset(image, 0, sizeof image);
    memcpy(image, &(uint32_t){ 0xba55ed50 }, 4);
    memcpy(image + 6, &(uint16_t){ 16 }, 2);
    memcpy(image + 8, &(uint64_t){ 64 + 64 }, 8);
    memcpy(image + 16, &(uint16_t){ 2 }, 2); /* machine code */
    memcpy(image + 20, &(uint32_t){ 64 }, 4);
    memcpy(image + 24, &(uint64_t){ 64 }, 8);
    memcpy(image + 44, &chip, 4);
    memcpy(image + 80, "\177ELF", 4);
    image[80 + 8] = elf_abi;
    return image;
}

static void test_doubles__image_is_refused_as_by_the_driver(void **state) {
    CUmodule module;
    (void)state;
    open_device(0);
    assert_int_equal(cuModuleLoadData(&module, "no image at all"), CUDA_ERROR_INVALID_IMAGE);
    assert_int_equal(cuModuleLoadData(&module, image_for(100, 8)), CUDA_ERROR_NO_BINARY_FOR_GPU);
    setenv("TESSERA_DOUBLE_DRIVER_VERSION", "12090", 1);
    assert_int_equal(cuModuleLoadData(&module, image_for(90, 8)), CUDA_ERROR_NO_BINARY_FOR_GPU);
    assert_int_equal(cuModuleLoadData(&module, image_for(90, 7)), CUDA_SUCCESS);
    unsetenv("TESSERA_DOUBLE_DRIVER_VERSION");
    assert_int_equal(cuModuleUnload(module), CUDA_SUCCESS);
    close_device(0);
}

static CUresult launch(CUstream s, struct increment *args, unsigned blocks) {
    CUmodule module;
    CUfunction f;
    void *params[] = { args };
    assert_int_equal(cuModuleLoadData(&module, image_for(90, 8)), CUDA_SUCCESS);
    assert_int_equal(cuModuleGetFunction(&f, module, "no_such_kernel"), CUDA_ERROR_NOT_FOUND);
    assert_int_equal(cuModuleGetFunction(&f, module, "double_increment"), CUDA_SUCCESS);
    CUresult result = cuLaunchKernel(f, blocks, 1, 1, 4, 1, 1, 0, s, params, NULL);
    cuModuleUnload(module);
    return result;
}

static void test_doubles__kernel_runs_in_the_stream_over_its_grid(void **state) {
    (void)state;
    open_device(0);
    CUstream s = stream();
    CUdeviceptr at = memory(40);
    int32_t host[10] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 };
    struct increment args = { at, at, 10, 100 };
    assert_int_equal(cuMemcpyHtoDAsync(at, host, sizeof host, s), CUDA_SUCCESS);
    assert_int_equal(launch(s, &args, 2), CUDA_SUCCESS); /* 8 threads: the last two are left alone */
    args.by = 7;                                         /* taken at the call */
    assert_int_equal(cuMemcpyDtoHAsync(host, at, sizeof host, s), CUDA_SUCCESS);
    for (int i = 0; i < 10; i++)
        assert_int_equal(host[i], i < 8 ? 100 + i : i);
    assert_int_equal(launch(s, &args, 0), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuStreamDestroy(s), CUDA_SUCCESS);
    assert_int_equal(cuMemFree(at), CUDA_SUCCESS);
    close_device(0);
}

static CUresult launch_with(CUfunction f, CUstream s, struct increment *args, unsigned shared) {
    void *params[] = { args };
    return cuLaunchKernel(f, 1, 1, 1, 4, 1, 1, shared, s, params, NULL);
}

/* More than 48 KiB of shared memory only where it was allowed: in this context, since the function was found. */
static void test_doubles__much_shared_memory_has_to_be_allowed(void **state) {
    const CUfunction_attribute most = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    (void)state;
    open_device(0);
    CUstream s = stream();
    CUdeviceptr at = memory(40);
    struct increment args = { at, at, 10, 1 };
    CUmodule module;
    CUfunction f, other;
    assert_int_equal(cuModuleLoadData(&module, image_for(90, 8)), CUDA_SUCCESS);
    assert_int_equal(cuModuleGetFunction(&f, module, "double_large"), CUDA_SUCCESS);
    assert_int_equal(cuModuleGetFunction(&other, module, "double_increment"), CUDA_SUCCESS);
    assert_int_equal(launch_with(other, s, &args, 48 << 10), CUDA_SUCCESS);
    assert_int_equal(launch_with(other, s, &args, (48 << 10) + 1), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(launch_with(f, s, &args, 64 << 10), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuFuncSetAttribute(f, most, 232449), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuFuncSetAttribute(f, most, 64 << 10), CUDA_SUCCESS);
    assert_int_equal(launch_with(f, s, &args, (64 << 10) + 1), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(launch_with(f, s, &args, 64 << 10), CUDA_SUCCESS);
    open_device(1);
    assert_int_equal(launch_with(f, NULL, &args, 64 << 10), CUDA_ERROR_INVALID_VALUE);
    close_device(1);
    assert_int_equal(cuModuleGetFunction(&f, module, "double_large"), CUDA_SUCCESS);
    assert_int_equal(launch_with(f, s, &args, 64 << 10), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(launch_with(f, s, &args, 0), CUDA_ERROR_ILLEGAL_ADDRESS); /* it shares 64 KiB, given or not */
    assert_int_equal(cuMemFree(at), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(cuModuleUnload(module), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(cuStreamDestroy(s), CUDA_ERROR_ILLEGAL_ADDRESS);
    close_device(0);
}

static void test_doubles__failed_launch_spoils_the_context(void **state) {
    (void)state;
    setenv("TESSERA_DOUBLE_FAIL", "cuLaunchKernel:2", 1);
    open_device(0);
    CUstream s = stream();
    CUdeviceptr at = memory(40), more;
    struct increment args = { at, at, 10, 1 };
    CUmodule module;
    assert_int_equal(launch(s, &args, 1), CUDA_SUCCESS);
    assert_int_equal(launch(s, &args, 1), CUDA_ERROR_LAUNCH_FAILED);
    assert_int_equal(cuMemAlloc(&more, 4), CUDA_ERROR_LAUNCH_FAILED);
    assert_int_equal(cuStreamSynchronize(s), CUDA_ERROR_LAUNCH_FAILED);
    assert_int_equal(cuModuleLoadData(&module, image_for(90, 8)), CUDA_ERROR_LAUNCH_FAILED);
    assert_int_equal(cuStreamDestroy(s), CUDA_ERROR_LAUNCH_FAILED); /* given back all the same */
    assert_int_equal(cuMemFree(at), CUDA_ERROR_LAUNCH_FAILED);
    assert_int_equal(cuCtxPopCurrent(NULL), CUDA_SUCCESS);
    assert_int_equal(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
}

static void test_doubles__failed_work_shows_at_the_next_call(void **state) {
    (void)state;
    setenv("TESSERA_DOUBLE_FAIL", "work:1", 1);
    open_device(0);
    CUstream s = stream();
    CUdeviceptr at = memory(4);
    assert_int_equal(cuMemsetD32Async(at, 1, 1, s), CUDA_SUCCESS);
    assert_int_equal(cuStreamSynchronize(s), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(cuStreamDestroy(s), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(cuMemFree(at), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(cuCtxPopCurrent(NULL), CUDA_SUCCESS);
    assert_int_equal(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
}

/* Seen by AddressSanitizer: the list of variables moves as it grows. */
static void test_doubles__variables_may_be_set_while_work_asks_for_some(void **state) {
    enum { VARIABLES = 2000 };
    char name[32];
    (void)state;
    open_device(0);
    CUstream s = stream();
    CUdeviceptr at = memory(4);
    for (int i = 0; i < VARIABLES; i++) {
        assert_int_equal(cuMemsetD32Async(at, 1, 1, s), CUDA_SUCCESS);
        snprintf(name, sizeof name, "TESSERA_DOUBLE_%d", i);
        assert_int_equal(setenv(name, "1", 1), 0);
    }
    for (int i = 0; i < VARIABLES; i++) {
        snprintf(name, sizeof name, "TESSERA_DOUBLE_%d", i);
        assert_int_equal(unsetenv(name), 0);
    }
    assert_int_equal(cuStreamDestroy(s), CUDA_SUCCESS);
    assert_int_equal(cuMemFree(at), CUDA_SUCCESS);
    close_device(0);
}

static void test_doubles__named_call_fails_once(void **state) {
    (void)state;
    setenv("RANK", "3", 1);
    setenv("TESSERA_DOUBLE_FAIL", "cuMemAlloc:2@3,cuStreamCreate:1@2,cuEventCreate:1:801", 1);
    open_device(0);
    CUdeviceptr a, b, c;
    CUstream s;
    CUevent e;
    assert_int_equal(cuMemAlloc(&a, 4), CUDA_SUCCESS);
    assert_int_equal(cuMemAlloc(&b, 4), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(cuMemAlloc(&c, 4), CUDA_SUCCESS);
    assert_int_equal(cuStreamCreate(&s, 0), CUDA_SUCCESS); /* another rank's */
    assert_int_equal(cuEventCreate(&e, 0), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(cuStreamDestroy(s), CUDA_SUCCESS);
    assert_int_equal(cuMemFree(a), CUDA_SUCCESS);
    assert_int_equal(cuMemFree(c), CUDA_SUCCESS);
    close_device(0);
}

static void test_doubles__leaks_are_told(void **state) {
    (void)state;
    open_device(0);
    CUevent e;
    memory(100);
    assert_int_equal(cuEventCreate(&e, 0), CUDA_SUCCESS);
    close_device(0);
}

/* ---- each in a process of its own --------------------------------------------------------------- */

/* ---- recordings ---------------------------------------------------------------------------------- */

static CUgraphExec record_copy(CUstream s, CUdeviceptr to, CUdeviceptr from, int *pinned) {
    CUgraph graph;
    CUgraphExec exec;
    assert_int_equal(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    assert_int_equal(cuMemcpyDtoDAsync(to, from, 4, s), CUDA_SUCCESS);
    assert_int_equal(cuMemsetD32Async(from, 9, 1, s), CUDA_SUCCESS);
    assert_int_equal(cuMemcpyDtoHAsync(pinned, to, 4, s), CUDA_SUCCESS);
    assert_int_equal(cuStreamEndCapture(s, &graph), CUDA_SUCCESS);
    assert_int_equal(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
    assert_int_equal(cuGraphDestroy(graph), CUDA_SUCCESS);
    return exec;
}

static void test_doubles__recorded_work_runs_when_launched(void **state) {
    (void)state;
    open_device(0);
    CUstream s = stream();
    CUdeviceptr a = memory(4), b = memory(4);
    int *seen;
    assert_int_equal(cuMemHostAlloc((void **)&seen, 4, 0), CUDA_SUCCESS);
    *seen = 1;
    CUgraphExec exec = record_copy(s, b, a, seen);
    assert_int_equal(cuMemsetD32Async(a, 5, 1, s), CUDA_SUCCESS);
    assert_int_equal(cuStreamSynchronize(s), CUDA_SUCCESS);
    assert_int_equal(*seen, 1); /* it was recorded, and did not run */
    for (int expected = 5; expected <= 9; expected += 4) {
        assert_int_equal(cuGraphLaunch(exec, s), CUDA_SUCCESS);
        assert_int_equal(cuStreamSynchronize(s), CUDA_SUCCESS);
        assert_int_equal(*seen, expected);
    }
    assert_int_equal(cuGraphExecDestroy(exec), CUDA_SUCCESS);
    assert_int_equal(cuGraphExecDestroy(exec), CUDA_ERROR_INVALID_HANDLE);
    assert_int_equal(cuGraphLaunch(exec, s), CUDA_ERROR_INVALID_HANDLE);
    cuMemFreeHost(seen);
    cuMemFree(a);
    cuMemFree(b);
    cuStreamDestroy(s);
    close_device(0);
}

enum { SYNCHRONIZE, QUERY, ALLOCATE, PAGEABLE, WAIT, FOREIGN_EVENT, RECORDED_EVENT, NULL_STREAM, N_BROKEN };
static CUresult break_it(int how, CUstream s, CUdeviceptr at, CUevent event) {
    int pageable = 0;
    CUdeviceptr more;
    switch (how) {
    case SYNCHRONIZE: return cuStreamSynchronize(s);
    case QUERY: return cuStreamQuery(s);
    case ALLOCATE: return cuMemAlloc(&more, 4);
    case PAGEABLE: return cuMemcpyHtoDAsync(at, &pageable, 4, s);
    case WAIT: return cuEventSynchronize(event);
    case FOREIGN_EVENT: return cuStreamWaitEvent(s, event, 0);
    case RECORDED_EVENT: assert_int_equal(cuEventRecord(event, s), CUDA_SUCCESS); return cuEventQuery(event);
    default: return cuMemsetD32Async(at, 0, 1, NULL);
    }
}

static void test_doubles__what_a_recording_cannot_hold_breaks_it(void **state) {
    static const CUresult expected[N_BROKEN] = {
        [FOREIGN_EVENT] = CUDA_ERROR_STREAM_CAPTURE_ISOLATION, [NULL_STREAM] = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
    };
    (void)state;
    open_device(0);
    CUdeviceptr at = memory(4);
    CUevent event;
    CUgraph graph;
    assert_int_equal(cuEventCreate(&event, 0), CUDA_SUCCESS);
    for (int how = 0; how < N_BROKEN; how++) {
        CUstream s;
        assert_int_equal(cuStreamCreate(&s, how == NULL_STREAM ? 0 : CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
        assert_int_equal(cuEventRecord(event, s), CUDA_SUCCESS);
        assert_int_equal(cuStreamSynchronize(s), CUDA_SUCCESS);
        assert_int_equal(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
        assert_int_equal(break_it(how, s, at, event),
                         expected[how] ? expected[how] : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        assert_int_equal(cuMemsetD32Async(at, 0, 1, s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        assert_int_equal(cuStreamEndCapture(s, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        assert_null(graph);
        if (how == RECORDED_EVENT)
            assert_int_equal(cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
        assert_int_equal(cuMemsetD32Async(at, 0, 1, s), CUDA_SUCCESS); /* as before */
        assert_int_equal(cuStreamSynchronize(s), CUDA_SUCCESS);
        assert_int_equal(cuStreamDestroy(s), CUDA_SUCCESS);
    }
    assert_int_equal(cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_int_equal(cuStreamEndCapture(NULL, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    cuEventDestroy(event);
    cuMemFree(at);
    close_device(0);
}

/* ---- streams of one recording ---- */

typedef struct {
    CUstream first, second;
    CUevent there, back;
    CUdeviceptr a, b;
} fork_of;

static fork_of fork_open(void) {
    fork_of f = { .first = stream(), .second = stream(), .a = memory(4), .b = memory(4) };
    assert_int_equal(cuEventCreate(&f.there, 0), CUDA_SUCCESS);
    assert_int_equal(cuEventCreate(&f.back, 0), CUDA_SUCCESS);
    return f;
}

static void fork_close(const fork_of *f) {
    cuEventDestroy(f->there);
    cuEventDestroy(f->back);
    cuStreamDestroy(f->first);
    cuStreamDestroy(f->second);
    cuMemFree(f->a);
    cuMemFree(f->b);
}

/* Copies a to b on the second stream; `joins`: the first waits for it, and then writes a. */
static CUresult record_fork(const fork_of *f, int joins, CUgraphExec *exec) {
    CUgraph graph;
    assert_int_equal(cuStreamBeginCapture(f->first, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    assert_int_equal(cuMemsetD32Async(f->a, 3, 1, f->first), CUDA_SUCCESS);
    assert_int_equal(cuEventRecord(f->there, f->first), CUDA_SUCCESS);
    assert_int_equal(cuStreamWaitEvent(f->second, f->there, 0), CUDA_SUCCESS);
    CUstreamCaptureStatus status;
    assert_int_equal(cuStreamIsCapturing(f->second, &status), CUDA_SUCCESS);
    assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    assert_int_equal(cuMemcpyDtoDAsync(f->b, f->a, 4, f->second), CUDA_SUCCESS);
    assert_int_equal(cuEventRecord(f->back, f->second), CUDA_SUCCESS);
    if (joins)
        assert_int_equal(cuStreamWaitEvent(f->first, f->back, 0), CUDA_SUCCESS);
    assert_int_equal(cuMemsetD32Async(f->a, 4, 1, f->first), CUDA_SUCCESS);
    CUresult ended = cuStreamEndCapture(f->first, &graph);
    if (ended != CUDA_SUCCESS)
        return ended;
    assert_int_equal(cuGraphInstantiate(exec, graph, 0), CUDA_SUCCESS);
    return cuGraphDestroy(graph);
}

static uint32_t read_word(CUdeviceptr at, CUstream s) {
    uint32_t word = 0;
    assert_int_equal(cuMemcpyDtoHAsync(&word, at, 4, s), CUDA_SUCCESS); /* pageable: it waits */
    return word;
}

static void test_doubles__streams_join_a_recording(void **state) {
    (void)state;
    open_device(0);
    fork_of f = fork_open();
    CUgraphExec exec;
    CUstreamCaptureStatus status;
    assert_int_equal(record_fork(&f, 1, &exec), CUDA_SUCCESS);
    assert_int_equal(cuStreamIsCapturing(f.second, &status), CUDA_SUCCESS);
    assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_NONE);
    assert_int_equal(cuStreamWaitEvent(f.second, f.back, 0), CUDA_ERROR_CAPTURED_EVENT); /* of what is over */
    for (int i = 0; i < 20; i++) {
        assert_int_equal(cuMemsetD32Async(f.b, 7, 1, f.first), CUDA_SUCCESS);
        assert_int_equal(cuGraphLaunch(exec, f.first), CUDA_SUCCESS);
        assert_int_equal(read_word(f.b, f.first), 3); /* what follows the graph follows both streams */
        assert_int_equal(read_word(f.a, f.first), 4);
    }
    assert_int_equal(cuStreamSynchronize(f.first), CUDA_SUCCESS);
    assert_int_equal(cuGraphExecDestroy(exec), CUDA_SUCCESS);
    fork_close(&f);
    close_device(0);
}

static void note_priority(void *out) {
    *(int *)out = double__priority();
}

/* Launched with the flag, work of the second stream keeps that one's priority; without it, has the launch's. */
static void test_doubles__nodes_have_their_priority_by_a_flag(void **state) {
    const unsigned long long by_node = CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    (void)state;
    open_device(0);
    fork_of f = fork_open();
    CUgraph graph;
    int seen[2] = { 7, 7 };
    cuStreamDestroy(f.second);
    assert_int_equal(cuStreamCreateWithPriority(&f.second, CU_STREAM_NON_BLOCKING, -9), CUDA_SUCCESS);
    assert_int_equal(cuStreamBeginCapture(f.first, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    assert_int_equal(cuLaunchHostFunc(f.first, note_priority, &seen[0]), CUDA_SUCCESS);
    assert_int_equal(cuEventRecord(f.there, f.first), CUDA_SUCCESS);
    assert_int_equal(cuStreamWaitEvent(f.second, f.there, 0), CUDA_SUCCESS);
    assert_int_equal(cuLaunchHostFunc(f.second, note_priority, &seen[1]), CUDA_SUCCESS);
    assert_int_equal(cuEventRecord(f.back, f.second), CUDA_SUCCESS);
    assert_int_equal(cuStreamWaitEvent(f.first, f.back, 0), CUDA_SUCCESS);
    assert_int_equal(cuStreamEndCapture(f.first, &graph), CUDA_SUCCESS);
    for (int flag = 0; flag < 2; flag++) {
        CUgraphExec exec;
        uint64_t before = double__counted("nodes-of-another-priority");
        assert_int_equal(cuGraphInstantiate(&exec, graph, flag ? by_node : 0), CUDA_SUCCESS);
        assert_int_equal(cuGraphLaunch(exec, f.first), CUDA_SUCCESS);
        assert_int_equal(cuStreamSynchronize(f.first), CUDA_SUCCESS);
        assert_int_equal(seen[0], 0);
        assert_int_equal(seen[1], flag ? -5 : 0);
        assert_int_equal(double__counted("nodes-of-another-priority") - before, !flag);
        assert_int_equal(cuGraphExecDestroy(exec), CUDA_SUCCESS);
    }
    CUgraphExec none;
    assert_int_equal(cuGraphInstantiate(&none, graph, 2), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(cuGraphDestroy(graph), CUDA_SUCCESS);
    fork_close(&f);
    close_device(0);
}

static void test_doubles__streams_that_are_not_joined_break_a_recording(void **state) {
    (void)state;
    open_device(0);
    fork_of f = fork_open();
    CUgraphExec exec;
    CUgraph graph;
    assert_int_equal(record_fork(&f, 0, &exec), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    /* Two recordings do not become one, and one ends where it began. */
    assert_int_equal(cuStreamBeginCapture(f.first, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    assert_int_equal(cuStreamBeginCapture(f.second, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    assert_int_equal(cuEventRecord(f.there, f.first), CUDA_SUCCESS);
    assert_int_equal(cuStreamWaitEvent(f.second, f.there, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
    assert_int_equal(cuStreamEndCapture(f.first, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_int_equal(cuStreamEndCapture(f.second, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_int_equal(cuMemsetD32Async(f.a, 1, 1, f.first), CUDA_SUCCESS);
    assert_int_equal(cuMemsetD32Async(f.a, 1, 1, f.second), CUDA_SUCCESS);
    assert_int_equal(cuStreamSynchronize(f.first), CUDA_SUCCESS);
    assert_int_equal(cuStreamSynchronize(f.second), CUDA_SUCCESS);
    fork_close(&f);
    close_device(0);
}

/* Memory that went since it was recorded. */
static void test_doubles__stale_graphs_spoil_the_context(void **state) {
    (void)state;
    open_device(0);
    fork_of f = fork_open();
    CUgraphExec exec;
    assert_int_equal(record_fork(&f, 1, &exec), CUDA_SUCCESS);
    assert_int_equal(cuGraphLaunch(exec, f.first), CUDA_SUCCESS);
    assert_int_equal(cuStreamSynchronize(f.first), CUDA_SUCCESS);
    assert_int_equal(cuMemFree(f.b), CUDA_SUCCESS);
    assert_int_equal(cuGraphLaunch(exec, f.first), CUDA_SUCCESS);
    assert_int_equal(cuStreamSynchronize(f.first), CUDA_ERROR_ILLEGAL_ADDRESS);
    cuGraphExecDestroy(exec);
    f.b = 0;
    fork_close(&f);
    close_device(0);
}

static const struct {
    const struct CMUnitTest test;
    int exit_code;
    const char *says; /* at the end, on standard error */
} tests[] = {
    { cmocka_unit_test(test_doubles__two_streams_without_event_run_out_of_order), 0, "" },
    { cmocka_unit_test(test_doubles__event_between_streams_orders_them), 0, "" },
    { cmocka_unit_test(test_doubles__event_recorded_again_keeps_earlier_waits), 0, "" },
    { cmocka_unit_test(test_doubles__waits_and_marks_take_no_time), 0, "" },
    { cmocka_unit_test(test_doubles__blocking_stream_waits_for_null_stream), 0, "" },
    { cmocka_unit_test(test_doubles__ranges_and_kinds_are_checked), 0, "" },
    { cmocka_unit_test(test_doubles__memory_ends_at_the_capacity), 0, "" },
    { cmocka_unit_test(test_doubles__host_access_to_device_memory_is_a_fault), 0, "" },
    { cmocka_unit_test(test_doubles__registered_memory_copies_without_waiting), 0, "" },
    { cmocka_unit_test(test_doubles__calls_need_a_context), 0, "" },
    { cmocka_unit_test(test_doubles__kernel_runs_in_the_stream_over_its_grid), 0, "" },
    { cmocka_unit_test(test_doubles__image_is_refused_as_by_the_driver), 0, "" },
    { cmocka_unit_test(test_doubles__much_shared_memory_has_to_be_allowed), 0, "" },
    { cmocka_unit_test(test_doubles__failed_launch_spoils_the_context), 0, "" },
    { cmocka_unit_test(test_doubles__failed_work_shows_at_the_next_call), 0, "" },
    { cmocka_unit_test(test_doubles__variables_may_be_set_while_work_asks_for_some), 0, "" },
    { cmocka_unit_test(test_doubles__named_call_fails_once), 0, "" },
    { cmocka_unit_test(test_doubles__recorded_work_runs_when_launched), 0, "" },
    { cmocka_unit_test(test_doubles__what_a_recording_cannot_hold_breaks_it), 0, "" },
    { cmocka_unit_test(test_doubles__streams_join_a_recording), 0, "" },
    { cmocka_unit_test(test_doubles__nodes_have_their_priority_by_a_flag), 0, "" },
    { cmocka_unit_test(test_doubles__streams_that_are_not_joined_break_a_recording), 0, "" },
    { cmocka_unit_test(test_doubles__stale_graphs_spoil_the_context), 0, "" },
    { cmocka_unit_test(test_doubles__leaks_are_told), 55,
      "doubles: left behind: 1 allocations of device memory\ndoubles: left behind: 1 events\n" },
};

static void one_in_its_own_process(void **state) {
    size_t i = (size_t)*state;
    char number[16], path[64], said[4096] = "", counts[4096] = "";
    snprintf(number, sizeof number, "%zu", i);
    snprintf(path, sizeof path, "/tmp/tessera-doubles-%d-%zu", (int)getpid(), i);
    int out[2];
    assert_int_equal(pipe(out), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(out[1], 2);
        setenv("TESSERA_DOUBLE_LOG", path, 1);
        execl("/proc/self/exe", "test_doubles", number, (char *)NULL);
        _exit(99);
    }
    close(out[1]);
    size_t at = 0;
    for (ssize_t n; (n = read(out[0], said + at, sizeof said - 1 - at)) > 0;)
        at += (size_t)n;
    close(out[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    const char *end = strstr(said, "doubles: ");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != tests[i].exit_code)
        fail_msg("status %#x:\n%s", (unsigned)status, said);
    assert_string_equal(end ? end : "", tests[i].says);
    FILE *log = fopen(path, "r");
    assert_non_null(log);
    assert_true(fread(counts, 1, sizeof counts - 1, log) > 0);
    fclose(log);
    unlink(path);
    assert_non_null(strstr(counts, " cuInit "));
}

int main(int argc, char **argv) {
    enum { N = sizeof tests / sizeof *tests };
    if (argc > 1) {
        const struct CMUnitTest one[] = { tests[atoi(argv[1])].test };
        setenv("TESSERA_DOUBLE_LEAKS", "55", 1);
        setenv("TESSERA_DOUBLE_MEMORY", "1048576", 1);
        return cmocka_run_group_tests(one, NULL, NULL);
    }
    struct CMUnitTest all[N];
    for (size_t i = 0; i < N; i++)
        all[i] = (struct CMUnitTest){ tests[i].test.name, one_in_its_own_process, NULL, NULL, (void *)i };
    return cmocka_run_group_tests(all, NULL, NULL);
}
