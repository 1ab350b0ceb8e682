/* The engine writing down what it does, for tess_trace and tess_trace_each. */
#include "engine.h"
#include "status.h"
#include "try.h"

#include <stdlib.h>

static int on_a_lane(const tess *t, const tess__instr *in) {
    int moves = in->op == TESS__FETCH || in->op == TESS__STOW || in->op == TESS__UNSTOW;
    return in->flags & TESS__ASYNC || (moves && (t->up || t->queues.on));
}

static int is_wait(const tess__instr *in) {
    tess__span span = { .lane = TESS__LANE_COMPUTE, .op = in->op };
    return tess__span_is_wait(&span);
}

void tess__tracing_instr(tess *t, const tess__instr *in, int64_t begin_ns) {
    const int64_t least_ns = 1000; /* a wait for what is there already is none */
    if (!t->trace || in->op == TESS__ENTER || in->op == TESS__LEAVE || in->op == TESS__FREE || on_a_lane(t, in))
        return;
    if (in->op == TESS__BOOK && !(in->flags & TESS__ZERO))
        return;
    if (is_wait(in) && tess__trace_now() - begin_ns < least_ns)
        return;
    tess__trace_add(t->trace, TESS__LANE_COMPUTE, in, NULL, t->steps_done, begin_ns);
    if (in->op == TESS__NORM_REDUCE || in->op == TESS__SHARE_BUFFERS) {
        tess__trace_add(t->trace, TESS__LANE_COMM, in, NULL, t->steps_done, begin_ns);
        t->comm_end_ns = tess__trace_now();
    }
}

/* Collectives run one after another; the plugin does not say when, so one begins with its post or the end of the one
 * before, and ends at the latest when the engine's wait for it does. */
void tess__tracing_comm(tess *t, const tess__instr *wait, int64_t posted_ns) {
    tess__instr collective = *wait;
    if (!t->trace)
        return;
    collective.op = wait->op == TESS__GATHER_WAIT   ? TESS__GATHER
                    : wait->op == TESS__REDUCE_WAIT ? TESS__REDUCE
                                                    : TESS__REPLICATE;
    tess__trace_add(t->trace, TESS__LANE_COMM, &collective, NULL, t->steps_done,
                    posted_ns > t->comm_end_ns ? posted_ns : t->comm_end_ns);
    t->comm_end_ns = tess__trace_now();
}

void tess__tracing_job(tess *t, uint32_t lane, uint8_t op, int32_t index, int64_t begin_ns) {
    tess__instr in = { .op = op, .index = index };
    tess__trace_add(t->trace, lane, &in, NULL, t->steps_done, begin_ns);
}

void tess__tracing_event(tess *t, const tess__event *e, int64_t begin_ns) {
    tess__instr in = { .op = TESS__ENTER };
    tess__trace_add(t->trace, TESS__LANE_COMPUTE, &in, e, t->steps_done, begin_ns);
}

/* ---- tess_trace ---- */

void tess__tracing_end(tess *t) {
    tess__trace_destroy(t->trace);
    free(t->entered_ns);
    t->trace = NULL;
    t->entered_ns = NULL;
}

static tess_status start(tess *t, uint64_t spans) {
    TRY(tess__pass_finish(t));
    if (!t->sharded || t->plan_only)
        return tess__fail(TESS_E_INVALID, "tess_trace before tess_shard");
    tess__tracing_end(t);
    if (!spans)
        return TESS_OK;
    TRY(tess__trace_create(spans, &t->trace));
    t->entered_ns = calloc(2 * (size_t)t->model.n_scopes, sizeof *t->entered_ns);
    if (t->entered_ns)
        return TESS_OK;
    tess__tracing_end(t);
    return tess__fail(TESS_E_NOMEM, "no memory for a trace of %d scopes", t->model.n_scopes);
}

tess_status tess_trace(tess *t, uint64_t spans) {
    TRY(tess__engine_check(t));
    tess_status s = start(t, spans);
    return s ? tess__engine_fail(t, s) : TESS_OK;
}

static tess_status each(const tess *t, uint64_t step, tess_span_fn fn, void *user) {
    uint64_t n = tess__trace_read(t->trace, step, NULL, 0);
    tess__span *spans = malloc((n + 1) * sizeof *spans);
    tess_status s = TESS_OK;
    if (!spans)
        return tess__fail(TESS_E_NOMEM, "no memory for %llu spans", (unsigned long long)n);
    tess__trace_read(t->trace, step, spans, n);
    for (uint64_t i = 0; i < n && !s; i++) {
        tess_span span = { .struct_size = sizeof span,
                           .lane = tess__lane_name(spans[i].lane),
                           .op = tess__span_op(&spans[i]),
                           .unit = tess__span_unit(&spans[i], &t->model, &t->layout),
                           .step = step,
                           .start = spans[i].start,
                           .seconds = spans[i].seconds };
        s = fn(user, &span);
    }
    free(spans);
    return s;
}

tess_status tess_trace_each(tess *t, uint64_t step, tess_span_fn fn, void *user) {
    TRY(tess__engine_check(t));
    if (!fn || !t->trace)
        return tess__fail(TESS_E_INVALID, "tess_trace_each: %s",
                          fn ? "nothing was recorded: tess_trace comes first" : "the function is missing");
    return each(t, step, fn, user);
}
