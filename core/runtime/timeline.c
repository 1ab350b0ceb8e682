/* SPDX-License-Identifier: BSD-3-Clause */
#include "timeline.h"

#include "base/status.h"

#include <stdlib.h>

enum { FREE, OPEN, CLOSED };

/* ---- made and given back ---- */

int tess__timeline_can(const tess__device *d) {
    return tess__device_has_streams(d) && tess__device_times_events(d);
}

static tess_status make_events(tess__timeline *t) {
    TRY(tess__device_event(t->device, &t->bases[0]));
    TRY(tess__device_event(t->device, &t->bases[1]));
    for (int i = 0; i < TESS__TIMED; i++) {
        TRY(tess__device_event(t->device, &t->timed[i].begin));
        TRY(tess__device_event(t->device, &t->timed[i].end));
    }
    for (int i = 0; i < TESS__TIMELINES; i++)
        TRY(tess__device_stream(t->device, TESS_STREAM_GATHER, &t->observers[i]));
    return TESS_OK;
}

int tess__timeline_of(const tess__timeline *t, uint32_t op) {
    return op == TESS__REPLICATE ? 2 : t->apart && op == TESS__REDUCE;
}

static tess_status set_base(tess__timeline *t) {
    tess_event *base = t->bases[t->base];
    TRY(tess__device_record(t->device, base, &t->device->compute));
    TRY(tess__device_event_wait(t->device, base, -1));
    t->bases_ns[t->base] = tess__trace_now();
    t->next_base = 0;
    t->last_ns = 0;
    return TESS_OK;
}

tess_status tess__timeline_start(tess__timeline *t, const tess__device *device, int apart, tess__trace *trace) {
    *t = (tess__timeline){ .device = device, .apart = apart, .timed = calloc(TESS__TIMED, sizeof *t->timed) };
    if (!t->timed)
        return tess__fail(TESS_E_NOMEM, "no memory for a timeline");
    TRY(make_events(t));
    TRY(set_base(t));
    t->trace = trace;
    return TESS_OK;
}

void tess__timeline_end(tess__timeline *t) {
    for (int i = 0; t->timed && i < TESS__TIMED; i++) {
        tess__device_event_end(t->device, t->timed[i].begin);
        tess__device_event_end(t->device, t->timed[i].end);
    }
    if (t->device) {
        tess__device_event_end(t->device, t->bases[0]);
        tess__device_event_end(t->device, t->bases[1]);
        for (int i = 0; i < TESS__TIMELINES; i++)
            tess__device_stream_end(t->device, &t->observers[i]);
    }
    free(t->timed);
    *t = (tess__timeline){ .trace = NULL };
}

/* ---- read ---- */

static int is_wait(const tess__timed *s) {
    tess__span span = { .track = (uint8_t)s->track, .op = s->in.op };
    return tess__span_is_wait(&span);
}

static void give_span(tess__timeline *t, const tess__timed *s, int64_t begin_ns, int64_t end_ns) {
    const int64_t least_ns = 1000; /* shorter waits are not recorded */
    int collective = s->in.op == TESS__NORM_REDUCE || s->in.op == TESS__SHARE_BUFFERS;
    int64_t *before_ns = &t->comm_end_ns[tess__timeline_of(t, s->in.op)];
    if (s->track == TESS__TRACK_COMM) { /* one of a communicator runs after another */
        begin_ns = begin_ns > *before_ns ? begin_ns : *before_ns;
        end_ns = end_ns > begin_ns ? end_ns : begin_ns;
    }
    if (is_wait(s) && end_ns - begin_ns < least_ns)
        return;
    const tess__event *event = s->in.op == TESS__ENTER ? &s->event : NULL;
    tess__trace_add_span(t->trace, s->track, &s->in, event, s->step, begin_ns, end_ns);
    if (collective)
        tess__trace_add_span(t->trace, TESS__TRACK_COMM, &s->in, NULL, s->step, begin_ns, end_ns);
    if (collective || s->track == TESS__TRACK_COMM)
        *before_ns = end_ns;
}

static int has_passed(tess__timeline *t, tess__timed *s) {
    tess_event *base = t->bases[s->base];
    int64_t begin, end, from = t->bases_ns[s->base];
    if (tess__device_elapsed(t->device, base, s->begin, &begin) != TESS_OK ||
        tess__device_elapsed(t->device, base, s->end, &end) != TESS_OK)
        return 0;
    give_span(t, s, from + begin, from + end);
    if (s->base == t->base)
        t->last_ns = end;
    s->state = FREE;
    return 1;
}

/* In the order of their beginning; what is still open, or has not passed, stays. */
static void read_passed(tess__timeline *t) {
    for (uint64_t i = t->oldest; i < t->next; i++)
        if (t->timed[i % TESS__TIMED].state == CLOSED && !has_passed(t, &t->timed[i % TESS__TIMED]))
            break;
    while (t->oldest < t->next && t->timed[t->oldest % TESS__TIMED].state == FREE)
        t->oldest++;
}

/* A pass that goes on keeps spans in flight, so it takes another base. */
static tess_status follow_base(tess__timeline *t) {
    const int64_t far_ns = 10 * INT64_C(1000000000); /* a float of milliseconds is within a microsecond until then */
    int other = !t->base;
    int64_t between;
    if (t->next_base && tess__device_elapsed(t->device, t->bases[t->base], t->bases[other], &between) == TESS_OK) {
        t->bases_ns[other] = t->bases_ns[t->base] + between;
        t->base = other;
        t->next_base = 0;
        t->last_ns = 0;
    } else if (!t->next_base && t->last_ns > far_ns && t->timed[t->oldest % TESS__TIMED].base == t->base) {
        TRY(tess__device_record(t->device, t->bases[other], &t->device->compute));
        t->next_base = 1;
    }
    return TESS_OK;
}

/* Times since the base are floats: they lose digits. */
tess_status tess__timeline_read(tess__timeline *t) {
    if (!t->trace)
        return TESS_OK;
    read_passed(t);
    return t->oldest == t->next ? set_base(t) : follow_base(t);
}

/* ---- recorded ---- */

/* Room is made by waiting for the oldest; one that never ends, as of a scope left open, is given up. */
static tess_status make_room(tess__timeline *t) {
    tess__timed *s = &t->timed[t->oldest % TESS__TIMED];
    if (t->next - t->oldest < TESS__TIMED)
        return TESS_OK;
    if (s->state == CLOSED)
        TRY(tess__device_event_wait(t->device, s->end, -1));
    if (s->state == OPEN)
        s->state = FREE;
    read_passed(t);
    return TESS_OK;
}

tess_status tess__timeline_begin(tess__timeline *t, const tess_stream *stream, tess__timed **out) {
    *out = NULL;
    if (!t || !t->trace)
        return TESS_OK;
    TRY(make_room(t));
    if (t->next - t->oldest >= TESS__TIMED)
        return TESS_OK;
    tess__timed *s = &t->timed[t->next % TESS__TIMED];
    TRY(tess__device_record(t->device, s->begin, stream));
    s->state = OPEN;
    s->base = t->base;
    t->next++;
    *out = s;
    return TESS_OK;
}

tess_status tess__timeline_stop(tess__timeline *t, tess__timed *s, const tess_stream *stream, uint32_t track,
                                const tess__instr *in, const tess__event *event, uint64_t step) {
    if (!s || s->state != OPEN)
        return TESS_OK;
    TRY(tess__device_record(t->device, s->end, stream));
    s->state = CLOSED;
    s->track = track;
    s->in = *in;
    s->event = event ? *event : (tess__event){ 0 };
    s->step = step;
    return TESS_OK;
}
