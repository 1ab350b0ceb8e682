/* SPDX-License-Identifier: BSD-3-Clause */
/* An NVIDIA driver that writes down its calls and does nothing else, in place of libcuda.so.1. Tests see what a plugin
 * asks of it, in which order, and what it gives back when the n-th call fails. Things have small numbers in the order
 * of their making. To be included once by a test, after cmocka.h. */
#ifndef TEST_WRITTEN_DRIVER_H
#define TEST_WRITTEN_DRIVER_H
#include <stdint.h>

#include "tests/unit/plugins/failing.h"

#include <cuda.h>
#undef CUDA_VERSION
#define CUDA_VERSION 13020 /* whatever the toolkit's is */
static void *written_open(const char *name, int mode);
static void *written_symbol(void *handle, const char *name);
#define dlopen written_open
#define dlsym written_symbol
#include "plugins/cuda-common/cuda_driver.c"
#undef dlopen
#undef dlsym

enum { WRITTEN_DEVICES = 2, WRITTEN_FUNCTIONS = 64, WRITTEN_NO_CALL = -1 };
typedef void written_launch_fn(const char *kernel, const void *args); /* says the arguments of a launch */
static struct {
    const char *missing;      /* a function that there is not; "all": no library */
    const char *more_address; /* behind each PCI address */
    int version, devices, major, minor, processors, pools, shared_bytes;
    size_t free_bytes;
    CUresult busy; /* the answer about work in streams and at events */
    int busy_for;  /* so many times; then CUDA_SUCCESS */
    /* So many calls from now; 0: none does. All that gives back succeeds; entering the context for it may fail. */
    int fails_in;
    CUresult fails_with;
    int calls, made, contexts; /* contexts: pushed and not popped */
    struct {
        int streams, events, pools, memory, locked, graphs, execs, modules, retained;
    } live;
    float ms;
    const char *functions[WRITTEN_FUNCTIONS];
    int n_functions;
    written_launch_fn *launch;
    const char *who; /* begins the plugin's messages */
} written;

static void written_begin(void) {
    memset(&written, 0, sizeof written);
    written.version = CUDA_VERSION;
    written.devices = WRITTEN_DEVICES;
    written.major = 9, written.processors = 10, written.pools = 1;
    written.shared_bytes = 200000;
    written.free_bytes = (size_t)60 << 30;
    said_so_far[0] = 0;
}

/* The process has not looked for the driver yet. */
static inline void written_forget(void) {
    once = (pthread_once_t)PTHREAD_ONCE_INIT;
    status = TESS_OK;
    memset(&cuda, 0, sizeof cuda);
}

/** All that was made has been given back, and each context that was pushed was popped. */
static inline void is_clean(void) {
    static const __typeof__(written.live) none;
    assert_true(written.contexts == 0 && memcmp(&written.live, &none, sizeof none) == 0);
}

static CUresult written_call(void) {
    written.calls++;
    return written.fails_in && --written.fails_in == 0 ? written.fails_with : CUDA_SUCCESS;
}
static CUresult written_make(int *live, void **out) {
    CUresult r = written_call();
    if (r == CUDA_SUCCESS) {
        *out = (void *)(uintptr_t)++written.made;
        ++*live;
    }
    return r;
}
static CUresult written_give(int *live, const void *what) {
    written.calls++;
    *live -= what != NULL;
    return what ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
static int number_of(const void *what) {
    return (int)(uintptr_t)what;
}
static CUresult written_answer(void) {
    CUresult r = written_call();
    return r == CUDA_SUCCESS && written.busy_for && written.busy_for-- ? written.busy : r;
}

/* ---- each function ------------------------------------------------------------------------------------------- */

#define WRITTEN_DECLARE(name) static __typeof__(name) written_##name;
TESS_CUDA_FUNCTIONS(WRITTEN_DECLARE)

static CUresult written_cuInit(unsigned flags) {
    say("init %u; ", flags);
    return written_call();
}
static CUresult written_cuDriverGetVersion(int *out) {
    *out = written.version;
    return written_call();
}
static CUresult written_cuDeviceGetCount(int *out) {
    CUresult r = written_call();
    if (r == CUDA_SUCCESS)
        *out = written.devices;
    return r;
}
static CUresult written_cuDeviceGet(CUdevice *out, int i) {
    *out = 100 + i;
    return written_call();
}
static CUresult written_cuDeviceGetName(char *out, int room, CUdevice d) {
    snprintf(out, (size_t)room, "GPU %d", d);
    return written_call();
}
static CUresult written_cuDeviceGetUuid(CUuuid *out, CUdevice d) {
    memset(out, d, sizeof *out);
    return written_call();
}
static CUresult written_cuDeviceGetPCIBusId(char *out, int room, CUdevice d) {
    snprintf(out, (size_t)room, "0000:AB:%02d.0%s", d - 100, written.more_address ? written.more_address : "");
    return written_call();
}
static CUresult written_cuDeviceTotalMem(size_t *out, CUdevice d) {
    *out = (size_t)d << 20;
    return written_call();
}
static CUresult written_cuDeviceGetAttribute(int *out, CUdevice_attribute which, CUdevice d) {
    *out = which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR            ? written.major
           : which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR          ? written.minor
           : which == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT              ? written.processors
           : which == CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED            ? written.pools
           : which == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN ? written.shared_bytes
                                                                            : -1;
    assert_true(d >= 100 && d < 100 + WRITTEN_DEVICES && *out >= 0);
    return written_call();
}
static CUresult written_cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice d) {
    void *made = NULL;
    say("retain %d; ", d);
    CUresult r = written_make(&written.live.retained, &made);
    *out = r ? (CUcontext)1 : made; /* what a failed call leaves there means nothing */
    return r;
}
static CUresult written_cuDevicePrimaryCtxRelease(CUdevice d) {
    say("release %d; ", d);
    assert_int_equal(written.contexts, 0);
    return written_give(&written.live.retained, &written);
}
static CUresult written_cuCtxPushCurrent(CUcontext c) {
    CUresult r = written_call();
    assert_non_null(c);
    written.contexts += r == CUDA_SUCCESS;
    return r;
}
static CUresult written_cuCtxPopCurrent(CUcontext *out) {
    if (out)
        *out = NULL;
    return written_give(&written.contexts, &written);
}
static CUresult written_cuCtxSetCurrent(CUcontext c) {
    say("context %d; ", number_of(c));
    return written_call();
}
static CUresult written_cuCtxGetCurrent(CUcontext *out) {
    *out = NULL;
    return written_call();
}
/* Within the context. */
static CUresult inside(void) {
    assert_int_equal(written.contexts, 1);
    return written_call();
}
static CUresult written_cuCtxSynchronize(void) {
    say("sync all; ");
    assert_int_equal(written.contexts, 1);
    return CUDA_SUCCESS;
}
static CUresult written_cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0, *greatest = -5;
    return inside();
}
static CUresult written_cuMemGetInfo(size_t *free_bytes, size_t *total) {
    *free_bytes = written.free_bytes, *total = (size_t)80 << 30;
    return inside();
}
static CUresult written_cuMemAlloc(CUdeviceptr *out, size_t bytes) {
    void *at = NULL;
    say("alloc %zuK; ", bytes >> 10);
    CUresult r = written_make(&written.live.memory, &at);
    *out = (CUdeviceptr)(uintptr_t)at << 32;
    return r;
}
static CUresult written_cuMemFree(CUdeviceptr at) {
    say("free m%d; ", (int)(at >> 32));
    return written_give(&written.live.memory, (void *)(uintptr_t)at);
}
static CUresult written_cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream s) {
    void *at = NULL;
    say("take %zuK of p%d on s%d; ", bytes >> 10, number_of(pool), number_of(s));
    CUresult r = written_make(&written.live.memory, &at);
    *out = (CUdeviceptr)(uintptr_t)at << 32;
    return r;
}
static CUresult written_cuMemFreeAsync(CUdeviceptr at, CUstream s) {
    say("give m%d on s%d; ", (int)(at >> 32), number_of(s));
    return written_give(&written.live.memory, (void *)(uintptr_t)at);
}
static CUresult written_cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *p) {
    assert_true(p->allocType == CU_MEM_ALLOCATION_TYPE_PINNED && p->location.type == CU_MEM_LOCATION_TYPE_DEVICE);
    say("pool of %d; ", p->location.id);
    return written_make(&written.live.pools, (void **)out);
}
static CUresult written_cuMemPoolDestroy(CUmemoryPool p) {
    say("end p%d; ", number_of(p));
    return written_give(&written.live.pools, p);
}
static CUresult written_cuMemPoolSetAttribute(CUmemoryPool p, CUmemPool_attribute which, void *value) {
    say("p%d.%d = %d; ", number_of(p), (int)which, *(int *)value);
    return written_call();
}
static CUresult written_cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
    say("lock %zuK, %u; ", bytes >> 10, flags);
    void *at = NULL;
    CUresult r = written_make(&written.live.locked, &at);
    *out = (void *)((uintptr_t)at << 32);
    return r;
}
static CUresult written_cuMemFreeHost(void *at) {
    say("unlock m%d; ", (int)((uintptr_t)at >> 32));
    return written_give(&written.live.locked, at);
}
static CUresult written_cuMemHostRegister(void *at, size_t bytes, unsigned flags) {
    (void)at;
    say("register %zuK, %u; ", bytes >> 10, flags);
    written.live.locked++;
    return written_call();
}
static CUresult written_cuMemHostUnregister(void *at) {
    say("unregister; ");
    return written_give(&written.live.locked, at);
}
static CUresult copied(const char *how, CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s) {
    say("%s %llx from %llx, %zu on s%d; ", how, to, from, bytes, number_of(s));
    return written_call();
}
static CUresult written_cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s) {
    return copied("copy", to, from, bytes, s);
}
static CUresult written_cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream s) {
    return copied("up", to, (CUdeviceptr)(uintptr_t)from, bytes, s);
}
static CUresult written_cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream s) {
    return copied("down", (CUdeviceptr)(uintptr_t)to, from, bytes, s);
}
static CUresult written_cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s) {
    return copied("within", to, from, bytes, s);
}
static CUresult written_cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t n, CUstream s) {
    say("fill %llx with %u, %zu on s%d; ", at, value, n, number_of(s));
    return written_call();
}
static CUresult written_cuMemsetD32Async(CUdeviceptr at, unsigned value, size_t n, CUstream s) {
    say("fill %llx with words %u, %zu on s%d; ", at, value, n, number_of(s));
    return written_call();
}
static CUresult written_cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) {
    assert_int_equal(flags, CU_STREAM_NON_BLOCKING);
    say("stream of %d; ", priority);
    return written_make(&written.live.streams, (void **)out);
}
static CUresult written_cuStreamDestroy(CUstream s) {
    say("end s%d; ", number_of(s));
    return written_give(&written.live.streams, s);
}
static CUresult written_cuStreamSynchronize(CUstream s) {
    say("sync s%d; ", number_of(s));
    return written_call();
}
static CUresult written_cuStreamQuery(CUstream s) {
    say("ask s%d; ", number_of(s));
    return written_answer();
}
static CUresult written_cuStreamWaitEvent(CUstream s, CUevent e, unsigned flags) {
    assert_int_equal(flags, 0);
    say("s%d waits for e%d; ", number_of(s), number_of(e));
    return written_call();
}
static CUresult written_cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus *out) {
    (void)s;
    *out = CU_STREAM_CAPTURE_STATUS_NONE;
    return written_call();
}
static CUresult written_cuStreamBeginCapture(CUstream s, CUstreamCaptureMode mode) {
    say("record s%d, %d; ", number_of(s), (int)mode);
    return written_call();
}
static CUresult written_cuStreamEndCapture(CUstream s, CUgraph *out) {
    say("recorded s%d; ", number_of(s));
    return written_make(&written.live.graphs, (void **)out);
}
static CUresult written_cuGraphInstantiate(CUgraphExec *out, CUgraph g, unsigned long long flags) {
    say("exec of g%d, %llu; ", number_of(g), flags);
    return written_make(&written.live.execs, (void **)out);
}
static CUresult written_cuGraphLaunch(CUgraphExec x, CUstream s) {
    say("run x%d on s%d; ", number_of(x), number_of(s));
    return written_call();
}
static CUresult written_cuGraphExecDestroy(CUgraphExec x) {
    say("end x%d; ", number_of(x));
    return written_give(&written.live.execs, x);
}
static CUresult written_cuGraphDestroy(CUgraph g) {
    say("end g%d; ", number_of(g));
    return written_give(&written.live.graphs, g);
}
static CUresult written_cuEventCreate(CUevent *out, unsigned flags) {
    say("event, %u; ", flags);
    return written_make(&written.live.events, (void **)out);
}
static CUresult written_cuEventDestroy(CUevent e) {
    say("end e%d; ", number_of(e));
    return written_give(&written.live.events, e);
}
static CUresult written_cuEventRecord(CUevent e, CUstream s) {
    say("e%d in s%d; ", number_of(e), number_of(s));
    return written_call();
}
static CUresult written_cuEventQuery(CUevent e) {
    (void)e;
    return written_answer();
}
static CUresult written_cuEventSynchronize(CUevent e) {
    say("wait for e%d; ", number_of(e));
    return written_call();
}
static CUresult written_elapsed(float *ms, CUevent from, CUevent to) {
    say("from e%d to e%d; ", number_of(from), number_of(to));
    *ms = written.ms;
    return written_answer();
}
static CUresult written_cuLaunchHostFunc(CUstream s, CUhostFn fn, void *data) {
    say("call on s%d; ", number_of(s));
    CUresult r = written_call();
    if (r == CUDA_SUCCESS)
        fn(data);
    return r;
}
static CUresult written_cuModuleLoadData(CUmodule *out, const void *image) {
    assert_non_null(image);
    say("load; ");
    CUresult r = written_make(&written.live.modules, (void **)out);
    if (r)
        *out = (CUmodule)1; /* which means nothing */
    return r;
}
static CUresult written_cuModuleUnload(CUmodule m) {
    say("unload; ");
    written.n_functions = 0;
    return written_give(&written.live.modules, m);
}
static CUresult written_cuModuleGetFunction(CUfunction *out, CUmodule m, const char *name) {
    assert_true(m && written.n_functions < WRITTEN_FUNCTIONS && strncmp(name, "tess_", 5) == 0);
    written.functions[written.n_functions] = name;
    *out = (CUfunction)(uintptr_t)++written.n_functions;
    return written_call();
}
static CUresult written_cuFuncSetAttribute(CUfunction f, CUfunction_attribute which, int value) {
    say("%s.%d = %d; ", written.functions[number_of(f) - 1], (int)which, value);
    return written_call();
}
static CUresult written_cuLaunchKernel(CUfunction f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by,
                                       unsigned bz, unsigned shared, CUstream s, void **params, void **extra) {
    const char *name = written.functions[number_of(f) - 1];
    assert_true(y == 1 && z == 1 && by == 1 && bz == 1 && !extra && written.contexts == 1);
    say("%s %u x %u", name, x, bx);
    if (shared)
        say(", %u bytes", shared);
    say(" on s%d", number_of(s));
    if (written.launch)
        written.launch(name, params[0]);
    say("; ");
    return written_call();
}
static CUresult written_cuGetErrorName(CUresult r, const char **out) {
    *out = r == CUDA_ERROR_NOT_SUPPORTED ? NULL : "NAME";
    return CUDA_SUCCESS;
}
static CUresult written_cuGetErrorString(CUresult r, const char **out) {
    *out = r == CUDA_ERROR_NOT_SUPPORTED ? NULL : "why";
    return CUDA_SUCCESS;
}

#define WRITTEN_TEXT_OF(name) #name
#define WRITTEN_TEXT(name) WRITTEN_TEXT_OF(name)
#define WRITTEN_ROW(name) { WRITTEN_TEXT(name), (void (*)(void))written_##name },
static const struct {
    const char *name;
    void (*function)(void);
} written_functions[] = { TESS_CUDA_FUNCTIONS(WRITTEN_ROW){ "cuEventElapsedTime", (void (*)(void))written_elapsed } };

static void *written_open(const char *name, int mode) {
    say("open %s, %x; ", name, (unsigned)mode);
    return written.missing && strcmp(written.missing, "all") == 0 ? NULL : &written;
}
static void *written_symbol(void *handle, const char *name) {
    void *found = NULL;
    assert_ptr_equal(handle, &written);
    for (size_t i = 0; i < sizeof written_functions / sizeof *written_functions; i++)
        if (strcmp(written_functions[i].name, name) == 0 && (!written.missing || strcmp(written.missing, name) != 0))
            memcpy(&found, &written_functions[i].function, sizeof found);
    return found;
}

/* ---- failures ------------------------------------------------------------------------------------------------- */

/* The end of what `work` below has made: whichever call is to fail, it is none of these. */
#define WITHOUT_FAILURES(call)                                                                                         \
    do {                                                                                                               \
        int left_ = written.fails_in;                                                                                  \
        written.fails_in = 0;                                                                                          \
        call;                                                                                                          \
        written.fails_in = left_;                                                                                      \
    } while (0)

/* Fails each call of the driver once, with this result. `work` says so with the result's status and number, names the
 * plugin, and has left the context; then `clean`, if there is one, looks at what is left. Returns how many calls may
 * fail. */
static inline int fail_each_call(tess_status (*work)(void), CUresult result, void (*clean)(void)) {
    for (int n = 1;; n++) {
        int contexts = written.contexts;
        no_error();
        written.fails_in = n;
        written.fails_with = result;
        tess_status s = work();
        int reached = written.fails_in == 0;
        written.fails_in = 0;
        said_so_far[0] = 0;
        assert_int_equal(written.contexts, contexts);
        if (!reached) {
            assert_int_equal(s, TESS_OK);
            return n - 1;
        }
        if (s != tess_cuda_status(result) || !strstr(e.message, written.who) || e.code != s)
            fail_msg("call %d of the driver fails: status %d, \"%s\"", n, s, e.message);
        if (clean)
            clean();
    }
}

/* The same with results of three kinds. */
static inline int fail_each_call_thrice(tess_status (*work)(void), void (*clean)(void)) {
    int calls = fail_each_call(work, CUDA_ERROR_UNKNOWN, clean);
    assert_int_equal(fail_each_call(work, CUDA_ERROR_OUT_OF_MEMORY, clean), calls);
    assert_int_equal(fail_each_call(work, CUDA_ERROR_INVALID_VALUE, clean), calls);
    return calls;
}
#endif
