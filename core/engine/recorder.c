/* SPDX-License-Identifier: BSD-3-Clause */
/* Writes down what the engine does, for tess_trace and tess_trace_each. */
#include "state.h"
#include "base/status.h"

#include <stdlib.h>

static int is_wait(const tess__instr *in) {
    tess__span span = { .track = TESS__TRACK_COMPUTE, .op = in->op };
    return tess__span_is_wait(&span);
}

static int is_recorded(const tess__instr *in) {
    if (in->op == TESS__ENTER || in->op == TESS__LEAVE || in->op == TESS__FREE || tess__is_beside(in))
        return 0;
    return in->op != TESS__ALLOC || in->flags & TESS__ZERO;
}

/* A failure of the timeline is ignored, because the device reports it with the next work. */
tess__mark tess__tracing_mark(tess *t, const tess__instr *in) {
    tess__mark mark = { .ns = tess__tracing_begin(t) };
    if (t->recorder.timeline.trace) {
        t->streams.step = t->step.steps_done;
        t->streams.doing = in ? *in : (tess__instr){ .op = TESS__ENTER };
        if (!in || is_recorded(in))
            tess__timeline_begin(&t->recorder.timeline, &t->device.compute, &mark.timed);
    }
    return mark;
}

static void stop_span(tess *t, const tess__instr *in, const tess__event *e, tess__mark begin) {
    tess__timeline_stop(&t->recorder.timeline, begin.timed, &t->device.compute, TESS__TRACK_COMPUTE, in, e,
                        t->step.steps_done);
}

void tess__tracing_instr(tess *t, const tess__instr *in, tess__mark begin) {
    const int64_t least_ns = 1000; /* shorter waits are not recorded */
    int64_t begin_ns = begin.ns;
    if (!t->recorder.trace || !is_recorded(in))
        return;
    if (t->recorder.timeline.trace) {
        stop_span(t, in, NULL, begin);
        return;
    }
    if (is_wait(in) && tess__trace_now() - begin_ns < least_ns)
        return;
    tess__trace_add(t->recorder.trace, TESS__TRACK_COMPUTE, in, NULL, t->step.steps_done, begin_ns);
    if (in->op == TESS__NORM_REDUCE || in->op == TESS__SHARE_BUFFERS) {
        tess__trace_add(t->recorder.trace, TESS__TRACK_COMM, in, NULL, t->step.steps_done, begin_ns);
        t->recorder.comm_end_ns = tess__trace_now();
    }
}

/* The observer stream waits for the request alone, so its position is where the collective ends. */
tess_status tess__tracing_posted(tess *t, const tess__instr *in, tess_request *request) {
    tess__timeline *line = &t->recorder.timeline;
    tess_stream *observer = &line->observers[tess__timeline_of(line, in->op)];
    tess__timed *span;
    if (!line->trace || !t->streams.comm_waits)
        return TESS_OK;
    TRY(tess__timeline_begin(line, &t->device.compute, &span));
    TRY(tess__comm_wait_on_stream(&t->comms, request, observer));
    return tess__timeline_stop(line, span, observer, TESS__TRACK_COMM, in, NULL, t->step.steps_done);
}

/* Collectives run one after another, and the plugin does not say when. So one begins with its post or with the end
 * of the one before. It ends when the engine's wait for it ends, at the latest. */
void tess__tracing_comm(tess *t, const tess__instr *wait, int64_t posted_ns) {
    tess__instr collective = *wait;
    if (!t->recorder.trace)
        return;
    collective.op = (uint8_t)(wait->op - 1); /* each wait is listed behind its collective */
    tess__trace_add(t->recorder.trace, TESS__TRACK_COMM, &collective, NULL, t->step.steps_done,
                    posted_ns > t->recorder.comm_end_ns ? posted_ns : t->recorder.comm_end_ns);
    t->recorder.comm_end_ns = tess__trace_now();
}

void tess__tracing_job(tess *t, uint32_t track, uint8_t op, int32_t index, int64_t begin_ns) {
    tess__instr in = { .op = op, .index = index };
    tess__trace_add(t->recorder.trace, track, &in, NULL, t->step.steps_done, begin_ns);
}

void tess__tracing_event(tess *t, const tess__event *e, tess__mark begin) {
    tess__instr in = { .op = TESS__ENTER };
    if (t->recorder.timeline.trace)
        stop_span(t, &in, e, begin);
    else
        tess__trace_add(t->recorder.trace, TESS__TRACK_COMPUTE, &in, e, t->step.steps_done, begin.ns);
}

/* ---- the beginning and the end of a trace ---- */

static tess_status begin_trace(tess *t, uint64_t spans) {
    tess__recorder *r = &t->recorder;
    TRY(tess__trace_create(spans, &r->trace));
    r->entered = calloc(2 * (size_t)t->plan.model.n_scopes, sizeof *r->entered);
    if (!r->entered)
        return tess__fail(TESS_E_NOMEM, "no memory for a trace of %d scopes", t->plan.model.n_scopes);
    if (!t->streams.on || !tess__timeline_can(&t->device))
        return TESS_OK;
    TRY(tess__timeline_start(&r->timeline, &t->device, tess__comms_apart(&t->comms), r->trace));
    t->streams.timeline = &r->timeline;
    return TESS_OK;
}

tess_status tess__tracing_start(tess *t, uint64_t spans) {
    tess_status s = begin_trace(t, spans);
    if (s)
        tess__tracing_end(t);
    return s;
}

void tess__tracing_end(tess *t) {
    t->streams.timeline = NULL;
    tess__timeline_end(&t->recorder.timeline);
    tess__trace_destroy(t->recorder.trace);
    free(t->recorder.entered);
    t->recorder.trace = NULL;
    t->recorder.entered = NULL;
}

tess__watchers tess__recorder_hide(tess *t) {
    tess__recorder *r = &t->recorder;
    tess__watchers seen = { r->trace, r->timeline.trace, r->ledger_hook };
    r->trace = r->timeline.trace = NULL;
    r->ledger_hook = NULL;
    return seen;
}

void tess__recorder_show(tess *t, const tess__watchers *seen) {
    tess__recorder *r = &t->recorder;
    r->trace = seen->trace;
    r->timeline.trace = seen->timeline_trace;
    r->ledger_hook = seen->ledger_hook;
}

/* ---- points of the ledger ---- */

void tess__ledger_reach(tess *t, const tess__point *at) {
    if (t->recorder.ledger_hook) {
        tess_ledger_point p;
        tess__ledger_point(&t->memory.ledger, &t->plan.layout, at->unit, at->point, &p);
        p.pass = tess__pass_name(t->pass.program->kind);
        p.backend_bytes = tess__device_backend_bytes(&t->device);
        tess__held_ask(t->memory.held, t->memory.ledger.total[TESS_DOMAIN_DEVICE]);
        p.held_bytes = t->memory.held ? t->memory.held->now : 0;
        t->recorder.ledger_hook(t->recorder.ledger_user, &p);
    }
    t->memory.ledger.n_points++;
}
