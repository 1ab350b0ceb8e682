/* SPDX-License-Identifier: BSD-3-Clause */
/* Streams and events. */
#include "driver.h"

static CUresult state(void) {
    return (CUresult)double__spoilt(double__current_device());
}

static CUresult new_stream(CUstream *out, unsigned flags, int priority) {
    if (flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    double_stream *s = double__stream_new(double__current_device(), !(flags & CU_STREAM_NON_BLOCKING), priority);
    if (!s)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = (CUstream)(void *)s;
    return CUDA_SUCCESS;
}

DOUBLE_API CUresult cuStreamCreate(CUstream *out, unsigned flags) {
    ENTER_CONTEXT("cuStreamCreate", CUDA_ERROR_OUT_OF_MEMORY);
    return new_stream(out, flags, 0);
}

DOUBLE_API CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) {
    ENTER_CONTEXT("cuStreamCreateWithPriority", CUDA_ERROR_OUT_OF_MEMORY);
    /* The driver takes the nearest of those that it has. */
    return new_stream(out, flags,
                      priority > DOUBLE_LEAST      ? DOUBLE_LEAST
                      : priority < DOUBLE_GREATEST ? DOUBLE_GREATEST
                                                   : priority);
}

DOUBLE_API CUresult cuStreamDestroy(CUstream handle) {
    CUresult entered = double__enter_context("cuStreamDestroy", CUDA_ERROR_UNKNOWN);
    if (!handle || double__current_device() < 0 || !double__stream_of(handle))
        return CUDA_ERROR_INVALID_HANDLE;
    if (double__is_recording(double__stream_of(handle)))
        return double__break(double__stream_of(handle), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    double__stream_end(double__stream_of(handle));
    return entered;
}

DOUBLE_API CUresult cuStreamSynchronize(CUstream handle) {
    ENTER_UNSAFE("cuStreamSynchronize", CUDA_ERROR_UNKNOWN);
    double_stream *s = double__stream_of(handle);
    if (!s)
        return CUDA_ERROR_INVALID_HANDLE;
    double__fails("waits-that-drain");
    double__finish(s);
    return state();
}

DOUBLE_API CUresult cuStreamQuery(CUstream handle) {
    ENTER_UNSAFE("cuStreamQuery", CUDA_ERROR_UNKNOWN);
    double_stream *s = double__stream_of(handle);
    if (!s)
        return CUDA_ERROR_INVALID_HANDLE;
    int idle = double__idle(s);
    return state() != CUDA_SUCCESS ? state() : idle ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

DOUBLE_API CUresult cuStreamGetCtx(CUstream handle, CUcontext *out) {
    ENTER_CONTEXT("cuStreamGetCtx", CUDA_ERROR_UNKNOWN);
    return double__stream_of(handle) ? cuCtxGetCurrent(out) : CUDA_ERROR_INVALID_HANDLE;
}

struct host_call {
    CUhostFn run;
    void *data;
};

static void run_host_call(void *data) {
    struct host_call *c = data;
    c->run(c->data);
}

DOUBLE_API CUresult cuLaunchHostFunc(CUstream handle, CUhostFn run, void *data) {
    ENTER_CONTEXT("cuLaunchHostFunc", CUDA_ERROR_UNKNOWN);
    double_stream *s = double__stream_of(handle);
    struct host_call c = { run, data };
    if (!s)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!run)
        return CUDA_ERROR_INVALID_VALUE;
    TAKES(s);
    double__push(s, run_host_call, &c, sizeof c);
    return CUDA_SUCCESS;
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

static double_event *event_of(CUevent handle) {
    double_event *e = (double_event *)(void *)handle;
    return e && double__event_known(e) ? e : NULL;
}

DOUBLE_API CUresult cuEventCreate(CUevent *out, unsigned flags) {
    ENTER_CONTEXT("cuEventCreate", CUDA_ERROR_OUT_OF_MEMORY);
    (void)flags;
    double_event *e = double__event_new(double__current_device());
    if (!e)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = (CUevent)(void *)e;
    return CUDA_SUCCESS;
}

DOUBLE_API CUresult cuEventDestroy(CUevent handle) {
    CUresult entered = double__enter_context("cuEventDestroy", CUDA_ERROR_UNKNOWN);
    if (!event_of(handle))
        return CUDA_ERROR_INVALID_HANDLE;
    double__event_end(event_of(handle));
    return entered;
}

DOUBLE_API CUresult cuEventRecord(CUevent handle, CUstream stream) {
    ENTER_CONTEXT("cuEventRecord", CUDA_ERROR_UNKNOWN);
    double_event *e = event_of(handle);
    double_stream *s = double__stream_of(stream);
    if (!e || !s || double__event_device(e) != double__stream_device(s))
        return CUDA_ERROR_INVALID_HANDLE;
    TAKES(s);
    double__event_record(e, s);
    return CUDA_SUCCESS;
}

DOUBLE_API CUresult cuStreamWaitEvent(CUstream stream, CUevent handle, unsigned flags) {
    ENTER_CONTEXT("cuStreamWaitEvent", CUDA_ERROR_UNKNOWN);
    double_stream *s = double__stream_of(stream);
    if (!s || !event_of(handle))
        return CUDA_ERROR_INVALID_HANDLE;
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    TAKES(s);
    if (double__asked("SKIP", "cuStreamWaitEvent", double__counted("cuStreamWaitEvent")))
        return CUDA_SUCCESS;
    CUresult r = double__record_wait(s, double__event_recorded(event_of(handle)));
    if (r != CUDA_ERROR_NOT_READY)
        return r;
    double__event_wait(event_of(handle), s);
    return CUDA_SUCCESS;
}

DOUBLE_API CUresult cuEventQuery(CUevent handle) {
    ENTER_UNSAFE("cuEventQuery", CUDA_ERROR_UNKNOWN);
    if (!event_of(handle))
        return CUDA_ERROR_INVALID_HANDLE;
    if (double__event_recorded(event_of(handle)))
        return CUDA_ERROR_CAPTURED_EVENT;
    int passed = double__event_passed(event_of(handle));
    return state() != CUDA_SUCCESS ? state() : passed ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

DOUBLE_API CUresult cuEventSynchronize(CUevent handle) {
    ENTER_UNSAFE("cuEventSynchronize", CUDA_ERROR_UNKNOWN);
    if (!event_of(handle))
        return CUDA_ERROR_INVALID_HANDLE;
    if (double__event_recorded(event_of(handle)))
        return CUDA_ERROR_CAPTURED_EVENT;
    if (double__event_is_last(event_of(handle)))
        double__fails("waits-that-drain"); /* counts */
    double__event_finish(event_of(handle));
    return state();
}

static CUresult elapsed(float *out, CUevent from, CUevent to) {
    ENTER_CONTEXT("cuEventElapsedTime", CUDA_ERROR_UNKNOWN);
    if (!event_of(from) || !event_of(to))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!double__event_passed(event_of(from)) || !double__event_passed(event_of(to)))
        return CUDA_ERROR_NOT_READY;
    int64_t begin = double__event_time(event_of(from)), end = double__event_time(event_of(to));
    if (begin < 0 || end < 0)
        return CUDA_ERROR_INVALID_HANDLE; /* never recorded */
    *out = (float)((double)(end - begin) * 1e-6);
    return CUDA_SUCCESS;
}

#undef cuEventElapsedTime
DOUBLE_API CUresult cuEventElapsedTime(float *out, CUevent from, CUevent to) {
    return elapsed(out, from, to);
}
DOUBLE_API CUresult cuEventElapsedTime_v2(float *out, CUevent from, CUevent to) {
    return elapsed(out, from, to);
}
