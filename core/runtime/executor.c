/* SPDX-License-Identifier: BSD-3-Clause */
#include "executor.h"

#include "base/status.h"
#include "kernels/kernels.h"

/* ---- the compute stream: whatever follows there follows the work ---- */

static tess_status compute_kernel(void *executor, tess_kernel *k) {
    return tess__device_kernel(((tess__executor *)executor)->device, k, NULL);
}

static tess_status compute_post(tess__executor *x, const tess__job *job, uint64_t *ticket) {
    (void)ticket;
    return x->run(x, job);
}

void tess__executor_compute(tess__executor *x, const tess__device *device) {
    x->kernel = compute_kernel;
    x->post = compute_post;
    x->device = device;
}

/* ---- a stream for transfers ---- */

static tess_status stream_kernel(void *executor, tess_kernel *k) {
    const tess__executor *x = executor;
    return tess__stream_kernel(x->streams, x->stream, k);
}

static tess_status stream_copy(tess__executor *x, void *dst, uint32_t dst_mem, const void *src, uint32_t src_mem,
                               uint64_t bytes) {
    return tess__stream_copy(x->streams, x->stream, dst, dst_mem, src, src_mem, bytes);
}

static tess_status stream_post(tess__executor *x, const tess__job *job, uint64_t *ticket) {
    tess_status s = x->run(x, job);
    *ticket = s ? 0 : x->stream->posted;
    return s;
}

static tess_status stream_wait(tess__executor *x, uint64_t ticket) {
    return tess__stream_wait(x->streams, x->stream, ticket);
}

void tess__executor_stream(tess__executor *x, tess__streams *streams, tess__stream *stream) {
    x->kernel = stream_kernel;
    x->copy = stream_copy;
    x->post = stream_post;
    x->wait = stream_wait;
    x->streams = streams;
    x->stream = stream;
}

/* ---- a lane of the host ---- */

static tess_status lane_kernel(void *executor, tess_kernel *k) {
    tess_error e = { .struct_size = sizeof e };
    k->struct_size = sizeof *k;
    tess_status s = tess__kernel_run(k, ((tess__executor *)executor)->pool, &e);
    return s ? tess__fail(s, "on the host: %s", e.message) : TESS_OK;
}

static tess_status lane_copy(tess__executor *x, void *dst, uint32_t dst_mem, const void *src, uint32_t src_mem,
                             uint64_t bytes) {
    const void *in[1] = { src };
    tess_kernel k = { .kernel = TESS_K_CAST, .in_dtype = TESS_U8, .out_dtype = TESS_U8 };
    (void)dst_mem, (void)src_mem; /* both are the host's */
    k.n_in = 1;
    k.in = in;
    k.out = dst;
    k.elems = bytes;
    return lane_kernel(x, &k);
}

static tess_status run_behind(void *executor, const tess__job *job) {
    tess__executor *x = executor;
    if (x->behind)
        TRY(tess__stream_finish(x->streams, x->behind, job->after));
    return x->run(x, job);
}

static tess_status lane_post(tess__executor *x, const tess__job *job, uint64_t *ticket) {
    tess__job own = *job;
    own.after = x->behind ? x->behind->posted : 0;
    *ticket = tess__lane_post(x->lane, run_behind, x, &own);
    return TESS_OK;
}

static tess_status lane_wait(tess__executor *x, uint64_t ticket) {
    return tess__lane_wait(x->lane, ticket);
}

tess_status tess__executor_lane(tess__executor *x, const char *cpus, tess__pool *pool, tess__streams *streams,
                                tess__stream *behind) {
    x->kernel = lane_kernel;
    x->copy = lane_copy;
    x->post = lane_post;
    x->wait = lane_wait;
    x->pool = pool;
    x->streams = streams;
    x->behind = behind;
    return tess__lane_create(cpus, &x->lane);
}

/* ---- all of them ---- */

void tess__executor_end(tess__executor *x) {
    tess__lane_destroy(x->lane);
    *x = (tess__executor){ .lane = NULL };
}

tess_status tess__executor_wait(tess__executor *x, uint64_t *ticket) {
    uint64_t waited = *ticket;
    *ticket = 0;
    return waited ? x->wait(x, waited) : TESS_OK;
}
