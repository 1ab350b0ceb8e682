/* SPDX-License-Identifier: BSD-3-Clause */
/* Spans of what a device's streams do, timed by its own events, because the host's clock would say when work was
 * queued. Points are recorded as work is queued, and read once they have passed. */
#ifndef TESS_TIMELINE_H
#define TESS_TIMELINE_H
#include "device.h"
#include "trace.h"

enum { TESS__TIMED = 1024 }; /* spans between two readings; a program in flight has some hundreds */

typedef struct { /* one span */
    tess_event *begin, *end;
    int state, base; /* base: among the timeline's */
    uint32_t track;
    tess__instr in;
    tess__event event; /* of ENTER */
    uint64_t step;
} tess__timed;

enum { TESS__TIMELINES = 3 };

typedef struct {
    const tess__device *device;
    tess__trace *trace;                     /* null: not recorded */
    tess_stream observers[TESS__TIMELINES]; /* where collectives end, by tess__timeline_of */
    int64_t comm_end_ns[TESS__TIMELINES];   /* of the collective read last */
    tess_event *bases[2];                   /* passed at bases_ns of the host's clock */
    int64_t bases_ns[2];
    int base;              /* of spans that begin now; */
    int next_base;         /* 1: the other one is recorded, to come after it */
    int64_t last_ns;       /* from the base to the end of the span read last */
    int apart;             /* reductions have a communicator of their own */
    tess__timed *timed;    /* a ring */
    uint64_t oldest, next; /* the first not read yet */
} tess__timeline;

/** Which communicator runs a collective of `op`, for its collectives run one behind another: 0 gathers, 1 reductions, 2
 * the replicas' sums. */
int tess__timeline_of(const tess__timeline *, uint32_t op);
/** Whether the device can say when a point was passed. */
int tess__timeline_can(const tess__device *);
/** Makes the events; waits for the compute stream. */
tess_status tess__timeline_start(tess__timeline *, const tess__device *, int apart, tess__trace *);
void tess__timeline_end(tess__timeline *);
/** Begins a span where the stream is now. Null: there is no timeline, or no room. */
tess_status tess__timeline_begin(tess__timeline *, const tess_stream *, tess__timed **out);
/** Ends the span where the stream is now; nothing when `span` is null. */
tess_status tess__timeline_stop(tess__timeline *, tess__timed *span, const tess_stream *, uint32_t track,
                                const tess__instr *, const tess__event *or_null, uint64_t step);
/** Gives what has passed to the trace. */
tess_status tess__timeline_read(tess__timeline *);
#endif
