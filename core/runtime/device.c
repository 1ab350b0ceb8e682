/* SPDX-License-Identifier: BSD-3-Clause */
#include "device.h"

#include "layout/setup.h"

#define CALL(d, slot, ...)                                                                                             \
    do {                                                                                                               \
        tess_error call_error = { .struct_size = sizeof call_error };                                                  \
        return device_failed(d, (d)->ops->slot(__VA_ARGS__, &call_error), &call_error);                                \
    } while (0)
#define HAS(d, slot) TESS_CAN(tess_device_ops, (d)->ops, slot)

static tess_status device_failed(const tess__device *d, tess_status s, const tess_error *e) {
    return s ? tess__plugin_failed(s, TESS_KIND_DEVICE, d->plugin, e) : TESS_OK;
}

/* ---- made and given back ---- */

void tess__device_use(tess__device *d, const tess__plugin *p) {
    d->plugin = p;
    d->ops = p->ops;
}

tess_status tess__device_describe(const tess__device *d, int32_t index, tess_device_info *out) {
    *out = (tess_device_info){ .struct_size = sizeof *out };
    CALL(d, describe, d->plugin->ctx, index, out);
}

static tess_status create_stream(tess__device *d, void *stream, int own) {
    d->compute = (tess_stream){ .mem = d->mem, .handle = stream };
    d->own_stream = (own || d->mem == TESS_MEM_HOST) && !stream; /* else null is the device's default stream */
    if (d->own_stream && HAS(d, stream_create))
        CALL(d, stream_create, d->handle, TESS_STREAM_COMPUTE, &d->compute);
    if (!d->own_stream && HAS(d, stream_import))
        CALL(d, stream_import, d->handle, stream, &d->compute);
    return TESS_OK;
}

tess_status tess__device_create(tess__device *d, int32_t index, uint64_t budget_bytes, void *stream, int own) {
    tess_error e = { .struct_size = sizeof e };
    tess_status s = d->ops->create(d->plugin->ctx, index, budget_bytes, &d->handle, &e);
    return s ? device_failed(d, s, &e) : create_stream(d, stream, own);
}

void tess__device_destroy(tess__device *d) {
    if (!d->handle)
        return;
    if (d->own_stream)
        tess__device_stream_end(d, &d->compute);
    d->ops->destroy(d->handle);
    d->handle = NULL;
}

int tess__device_has_streams(const tess__device *d) {
    return tess__has_streams(d->ops, d->mem);
}

/* ---- a profiler ---- */

int tess__device_is_profiled(const tess__device *d) {
    return HAS(d, range_push) && HAS(d, range_pop);
}

void tess__device_range_push(const tess__device *d, const char *name) {
    d->ops->range_push(d->handle, name);
}

void tess__device_range_pop(const tess__device *d) {
    d->ops->range_pop(d->handle);
}

/* ---- memory ---- */

tess_status tess__device_alloc(const tess__device *d, const tess_alloc_request *r, tess_buffer *out) {
    CALL(d, mem_alloc, d->handle, r, out);
}

void tess__device_free(const tess__device *d, tess_buffer *b) {
    d->ops->mem_free(d->handle, b);
}

uint64_t tess__device_backend_bytes(const tess__device *d) {
    uint64_t backend = 0, unused;
    if (HAS(d, mem_usage))
        d->ops->mem_usage(d->handle, &backend, &unused);
    return backend;
}

tess_status tess__device_fill(const tess__device *d, void *at, uint8_t byte, uint64_t bytes) {
    CALL(d, fill, d->handle, at, byte, bytes, &d->compute);
}

tess_status tess__device_copy(const tess__device *d, void *dst, uint32_t dst_mem, const void *src, uint32_t src_mem,
                              uint64_t bytes, const tess_stream *stream) {
    CALL(d, copy, d->handle, dst, dst_mem, src, src_mem, bytes, stream ? stream : &d->compute);
}

int tess__device_offers(const tess__device *d, tess_kernel *k) {
    tess_need need = { .struct_size = sizeof need };
    k->struct_size = sizeof *k;
    return d->ops->kernel_need(d->plugin->ctx, k, &need) == TESS_OK;
}

tess_status tess__device_kernel(const tess__device *d, tess_kernel *k, const tess_stream *stream) {
    k->struct_size = sizeof *k;
    CALL(d, kernel, d->handle, k, stream ? stream : &d->compute);
}

/* ---- streams and events ---- */

tess_status tess__device_stream(const tess__device *d, uint32_t role, tess_stream *out) {
    CALL(d, stream_create, d->handle, role, out);
}

void tess__device_stream_end(const tess__device *d, tess_stream *s) {
    if (s->handle && HAS(d, stream_destroy))
        d->ops->stream_destroy(d->handle, s);
}

tess_status tess__device_event(const tess__device *d, tess_event **out) {
    CALL(d, event_create, d->handle, out);
}

void tess__device_event_end(const tess__device *d, tess_event *e) {
    if (e)
        d->ops->event_destroy(e);
}

tess_status tess__device_record(const tess__device *d, tess_event *event, const tess_stream *s) {
    CALL(d, event_record, event, s);
}

tess_status tess__device_stream_wait(const tess__device *d, tess_event *event, const tess_stream *s) {
    CALL(d, event_stream_wait, event, s);
}

tess_status tess__device_event_wait(const tess__device *d, tess_event *event, int64_t timeout_ns) {
    CALL(d, event_wait, event, timeout_ns);
}

int tess__device_times_events(const tess__device *d) {
    return HAS(d, event_elapsed_ns);
}

tess_status tess__device_elapsed(const tess__device *d, tess_event *from, tess_event *to, int64_t *out) {
    return d->ops->event_elapsed_ns(from, to, out);
}

/* ---- what a stream is given, recorded ---- */

tess_status tess__device_record_begin(const tess__device *d) {
    CALL(d, record_begin, d->handle, &d->compute);
}

tess_status tess__device_record_end(const tess__device *d, tess_graph **out) {
    CALL(d, record_end, d->handle, &d->compute, out);
}

tess_status tess__device_graph_run(const tess__device *d, tess_graph *g) {
    CALL(d, graph_run, g, &d->compute);
}

void tess__device_graph_end(const tess__device *d, tess_graph *g) {
    if (g)
        d->ops->graph_destroy(g);
}

tess_status tess__device_prepare(const tess__device *d, const tess_optimizer *o, void *out) {
    tess_status s = d->ops->optimizer_prepare(d->plugin->ctx, o, out);
    return device_failed(
        d, s,
        &(tess_error){ .struct_size = sizeof(tess_error), .message = "the optimizer's numbers of a step are refused" });
}
