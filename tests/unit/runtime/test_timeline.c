/* SPDX-License-Identifier: BSD-3-Clause */
/* The timeline of a device whose clock gives floats of milliseconds, as CUDA's does, over two hours in which something
 * is always in flight. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "core/runtime/timeline.h"

enum { SECONDS = 7200, EVENTS = 2 * TESS__TIMED + 2 };

struct tess_event {
    double ms; /* when it was recorded */
    int passed;
};

static tess_event events[EVENTS];
static int n_events;
static double now_ms;

static tess_status create(tess_device *d, tess_event **out, tess_error *e) {
    (void)d;
    (void)e;
    assert_true(n_events < EVENTS);
    *out = &events[n_events++];
    return TESS_OK;
}

static void destroy(tess_event *event) {
    (void)event;
}

static tess_status record(tess_event *event, const tess_stream *s, tess_error *e) {
    (void)s;
    (void)e;
    *event = (tess_event){ now_ms, 0 };
    return TESS_OK;
}

static tess_status wait_for(tess_event *event, int64_t timeout_ns, tess_error *e) {
    (void)timeout_ns;
    (void)e;
    event->passed = 1;
    return TESS_OK;
}

/* All that was recorded before now has passed; nobody asks for what lies before `from`. */
static tess_status elapsed(tess_event *from, tess_event *to, int64_t *out) {
    if (to->ms >= now_ms && !to->passed)
        return TESS_PENDING;
    assert_true(to->ms >= from->ms);
    *out = (int64_t)((double)(float)(to->ms - from->ms) * 1e6);
    return TESS_OK;
}

static tess_status stream(tess_device *d, uint32_t role, tess_stream *out, tess_error *e) {
    (void)d;
    (void)role;
    (void)e;
    *out = (tess_stream){ .mem = TESS_MEM_CUDA };
    return TESS_OK;
}

static const tess_device_ops ops = {
    .struct_size = sizeof ops,
    .stream_create = stream,
    .event_create = create,
    .event_destroy = destroy,
    .event_record = record,
    .event_wait = wait_for,
    .event_elapsed_ns = elapsed,
};

static void stop(tess__timeline *t, tess__timed *span) {
    const tess__instr in = { .op = TESS__STEP };
    assert_int_equal(tess__timeline_stop(t, span, &t->device->compute, TESS__TRACK_COMPUTE, &in, NULL, 0), TESS_OK);
}

static void test_timeline__after_hours_in_flight_spans_keep_their_digits(void **state) {
    static tess__span spans[SECONDS];
    const tess__device device = { .ops = &ops, .mem = TESS_MEM_CUDA };
    tess__timed *span, *before = NULL;
    tess__trace *trace;
    tess__timeline t;
    (void)state;
    assert_int_equal(tess__trace_create(SECONDS, &trace), TESS_OK);
    assert_int_equal(tess__timeline_start(&t, &device, 0, trace), TESS_OK);
    for (int i = 0; i < SECONDS; i++) { /* each second a quarter of a millisecond, and one span open over the reading */
        now_ms = i * 1e3 + 0.001;
        assert_int_equal(tess__timeline_begin(&t, &device.compute, &span), TESS_OK);
        assert_non_null(span);
        now_ms += 0.25;
        stop(&t, span);
        now_ms += 1;
        if (before)
            stop(&t, before);
        assert_int_equal(tess__timeline_begin(&t, &device.compute, &before), TESS_OK);
        now_ms += 1;
        assert_int_equal(tess__timeline_read(&t), TESS_OK);
    }
    uint64_t n = tess__trace_read(trace, 0, spans, SECONDS);
    assert_true(n > SECONDS / 2);
    for (uint64_t i = 0; i < n; i++)
        if (fabs(spans[i].seconds - 0.25e-3) > 3e-6 && fabs(spans[i].seconds - 1) > 3e-6)
            fail_msg("span %llu lasts %.9f s", (unsigned long long)i, spans[i].seconds);
    tess__timeline_end(&t);
    tess__trace_destroy(trace);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_timeline__after_hours_in_flight_spans_keep_their_digits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
