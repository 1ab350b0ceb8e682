/* SPDX-License-Identifier: BSD-3-Clause */
/* The device of an engine. All calls of its plugin go through here, which gives a missing slot its default and words
 * an error once, as "device cuda: …". */
#ifndef TESS_ENGINE_DEVICE_H
#define TESS_ENGINE_DEVICE_H
#include "plugin/open.h"

typedef struct {
    const tess_device_ops *ops;
    const tess__plugin *plugin;
    uint32_t mem;        /* TESS_MEM_…: its memory's kind */
    tess_device *handle; /* null: not created */
    tess_stream compute;
    int own_stream; /* `compute` was made here */
} tess__device;

void tess__device_use(tess__device *, const tess__plugin *); /* before all else */

/** Describes a device; `index` -1 asks what all of its kind have in common. */
tess_status tess__device_describe(const tess__device *, int32_t index, tess_device_info *out);
/** Creates the device. `stream` is the program's. If it is null the engine makes its own when `own` or when the
 * device is the host; else it takes the device's default. */
tess_status tess__device_create(tess__device *, int32_t index, uint64_t budget_bytes, void *stream, int own);
void tess__device_destroy(tess__device *);          /* not created is fine */
int tess__device_has_streams(const tess__device *); /* of its own, whose memory the host may not touch */

tess_status tess__device_alloc(const tess__device *, const tess_alloc_request *, tess_buffer *out);
void tess__device_free(const tess__device *, tess_buffer *);
uint64_t tess__device_backend_bytes(const tess__device *); /* its libraries' own; 0 when it does not say */
/** Fill and copy run on `stream`, or on the compute stream when it is null. */
tess_status tess__device_fill(const tess__device *, void *at, uint8_t byte, uint64_t bytes);
tess_status tess__device_copy(const tess__device *, void *dst, uint32_t dst_mem, const void *src, uint32_t src_mem,
                              uint64_t bytes, const tess_stream *stream);
/** Ranges of the device's profiler. Make a `name` only when `tess__device_is_profiled`. */
int tess__device_is_profiled(const tess__device *);
void tess__device_range_push(const tess__device *, const char *name);
void tess__device_range_pop(const tess__device *);
int tess__device_times_events(const tess__device *);
/** Nanoseconds between two points; TESS_PENDING: not passed yet. */
tess_status tess__device_elapsed(const tess__device *, tess_event *from, tess_event *to, int64_t *out);
int tess__device_offers(const tess__device *, tess_kernel *); /* such a kernel */
tess_status tess__device_kernel(const tess__device *, tess_kernel *, const tess_stream *stream);

/** The four slots for graphs, and optimizer_prepare. */

tess_status tess__device_record_begin(const tess__device *);
/** `out` null: what was recorded is dropped. */
tess_status tess__device_record_end(const tess__device *, tess_graph **out);
tess_status tess__device_graph_run(const tess__device *, tess_graph *);
void tess__device_graph_end(const tess__device *, tess_graph *); /* null is fine */
tess_status tess__device_prepare(const tess__device *, const tess_optimizer *, void *out);

tess_status tess__device_stream(const tess__device *, uint32_t role, tess_stream *out);
void tess__device_stream_end(const tess__device *, tess_stream *); /* none is fine */
tess_status tess__device_event(const tess__device *, tess_event **out);
void tess__device_event_end(const tess__device *, tess_event *); /* null is fine */
tess_status tess__device_record(const tess__device *, tess_event *, const tess_stream *);
tess_status tess__device_stream_wait(const tess__device *, tess_event *, const tess_stream *);
tess_status tess__device_event_wait(const tess__device *, tess_event *, int64_t timeout_ns); /* -1: no limit */

/** Whether the host alone reads its memory, so that it may be poisoned while it is free. A device's streams still read
 * host memory after the engine's thread has gone on. */
static inline int tess__host_reads(const tess__device *d) {
    return d->mem == TESS_MEM_HOST;
}
#endif
