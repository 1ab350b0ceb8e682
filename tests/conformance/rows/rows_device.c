/* SPDX-License-Identifier: BSD-3-Clause */
/* Steps rows in a device's memory, behind the stream's other work: the stream copies a piece to the host, calls the
 * step there, and copies it back. It is slow, and needs no kernel. */
#include "rows_device.h"
#include "cuda_driver.h"
#include <tessera/plugin_helpers.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const tess_cuda *cu;
    CUdevice device;
    CUcontext context;
} gpu;

typedef struct { /* copies: the caller's are gone when the stream comes to them */
    tess_optimizer_piece piece;
    tess_param_view param;
    int64_t shape[8];
    int64_t *not_finite; /* page-locked, so the host's too */
    float grad_scale, clip;
    float room[]; /* master, grad, momentum; then a second moment for each row */
} stepped;

static uint64_t row_of(const stepped *x) {
    return (uint64_t)x->shape[x->param.ndim - 1];
}

static void note(const stepped *x) {
    const tess_optimizer_piece *p = &x->piece;
    int64_t none = 0;
    float sum = 0;
    for (uint64_t i = 0; i < p->elems; i++)
        sum += p->master[i] * 0;
    if (x->not_finite && !isfinite(sum))
        __atomic_compare_exchange_n(x->not_finite, &none, (int64_t)p->step, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

static void step_here(void *user) {
    stepped *x = user;
    const uint64_t n = x->piece.elems;
    for (uint64_t i = 0; i < n; i++)
        x->room[n + i] *= x->grad_scale * x->clip;
    rows_step(NULL, &x->piece, NULL);
    if (x->piece.first % row_of(x) || n % row_of(x))
        x->room[0] = NAN; /* the core cuts no row; if it does, the run ends */
    note(x);
}

static tess_status failed(CUresult r, tess_error *e) {
    return r ? tess_plugin_fail(e, tess_cuda_status(r), "optimizer rows: %s", tess_cuda_text(r)) : TESS_OK;
}

tess_status rows_device_open(void *ctx, uint32_t mem, const tess_stream *stream, void **out, tess_error *e) {
    char why[200];
    int n;
    (void)ctx;
    if (mem != TESS_MEM_CUDA)
        return tess_plugin_fail(e, TESS_E_UNSUPPORTED, "optimizer rows: memory of kind %u, expected CUDA's", mem);
    if (!stream)
        return TESS_OK;
    gpu *g = calloc(1, sizeof *g);
    if (!g || tess_cuda_get(&g->cu, why, sizeof why)) {
        free(g);
        return tess_plugin_fail(e, TESS_E_DEVICE, "optimizer rows: no device");
    }
    CUresult r = tess_cuda_device_of(g->cu, stream->device, &g->device, &n);
    if (r == CUDA_SUCCESS)
        r = g->cu->cuDevicePrimaryCtxRetain(&g->context, g->device);
    if (r)
        free(g);
    else
        *out = g;
    return failed(r, e);
}

static stepped *copied(const tess_device_piece *on) {
    const uint64_t n = on->piece->elems;
    stepped *x = calloc(1, sizeof *x + 4 * n * sizeof(float));
    if (!x)
        return NULL;
    x->piece = *on->piece;
    x->param = *on->piece->param;
    x->not_finite = on->not_finite;
    x->grad_scale = on->grad_scale;
    x->clip = 1;
    memcpy(x->shape, on->piece->param->shape, (size_t)x->param.ndim * sizeof x->shape[0]);
    x->param.shape = x->shape;
    x->piece.param = &x->param;
    x->piece.master = x->room;
    x->piece.grad = x->room + n;
    x->piece.state[0] = x->room + 2 * n;
    x->piece.state[1] = x->room + 3 * n;
    return x;
}

static CUdeviceptr at(const void *p) {
    return (CUdeviceptr)(uintptr_t)p;
}

/* Master and states travel there and back, the gradient and the clip's factor only there. */
static CUresult enqueue(const tess_cuda *cu, stepped *x, const tess_device_piece *on, CUstream stream) {
    const tess_optimizer_piece *p = on->piece;
    const uint64_t bytes = p->elems * sizeof(float);
    void *const here[] = { x->piece.master, x->piece.state[0], x->piece.state[1] };
    void *const there[] = { p->master, p->state[0], p->state[1] };
    const uint64_t size[] = { bytes, bytes, bytes / row_of(x) };
    CUresult r = cu->cuMemcpyDtoHAsync(x->room + p->elems, at(p->grad), bytes, stream);
    if (!r && on->clip)
        r = cu->cuMemcpyDtoHAsync(&x->clip, at(on->clip), sizeof x->clip, stream);
    for (int i = 0; !r && i < 3; i++)
        r = cu->cuMemcpyDtoHAsync(here[i], at(there[i]), size[i], stream);
    if (!r)
        r = cu->cuLaunchHostFunc(stream, step_here, x);
    for (int i = 0; !r && i < 3; i++)
        r = cu->cuMemcpyHtoDAsync(at(there[i]), here[i], size[i], stream);
    return r ? r : cu->cuLaunchHostFunc(stream, free, x);
}

tess_status rows_device_step(void *opened, const tess_device_piece *on, const tess_stream *stream, tess_error *e) {
    const gpu *g = opened;
    stepped *x = copied(on);
    if (!x)
        return tess_plugin_fail(e, TESS_E_NOMEM, "optimizer rows: no memory to step");
    CUresult r = g->cu->cuCtxPushCurrent(g->context);
    if (r == CUDA_SUCCESS) {
        r = enqueue(g->cu, x, on, stream->handle);
        g->cu->cuCtxPopCurrent(NULL);
    }
    return failed(r, e); /* a stream that failed may still have x */
}

void rows_device_close(void *opened) {
    gpu *g = opened;
    g->cu->cuDevicePrimaryCtxRelease(g->device);
    free(g);
}
