/* SPDX-License-Identifier: BSD-3-Clause */
/* The timeline of a device whose clock gives floats of milliseconds, as CUDA's does, over two hours in which something
 * is always in flight. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>
#include <time.h>

#include "core/runtime/streams.h"
#include "core/runtime/timeline.h"

enum { SECONDS = 7200, EVENTS = 2 * TESS__TIMED + 2 };

struct tess_event {
    double ms; /* when it was recorded */
    int passed;
};

static tess_event events[EVENTS];
static int n_streams;
static int n_events, only_waited; /* only_waited: nothing has passed that nobody waited for */
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
    (void)e;
    assert_int_equal(timeout_ns, -1);
    for (int i = 0; i < n_events; i++) /* with it all that came before */
        events[i].passed |= events[i].ms <= event->ms;
    return TESS_OK;
}

/* All that was recorded before now has passed; nobody asks for what lies before `from`. */
static tess_status elapsed(tess_event *from, tess_event *to, int64_t *out) {
    if ((to->ms >= now_ms || only_waited) && !to->passed)
        return TESS_PENDING;
    assert_true(to->ms >= from->ms);
    *out = (int64_t)((double)(float)(to->ms - from->ms) * 1e6);
    return TESS_OK;
}

static tess_status stream(tess_device *d, uint32_t role, tess_stream *out, tess_error *e) {
    (void)d;
    (void)role;
    (void)e;
    *out = (tess_stream){ .mem = TESS_MEM_CUDA, .handle = &now_ms };
    n_streams++;
    return TESS_OK;
}

static void end_stream(tess_device *d, tess_stream *s) {
    (void)d;
    assert_ptr_equal(s->handle, &now_ms);
}

static tess_status stream_waits(tess_event *event, const tess_stream *s, tess_error *e) {
    (void)event;
    (void)s;
    (void)e;
    return TESS_OK;
}

/* Takes two milliseconds. */
static tess_status copy(tess_device *d, void *to, uint32_t to_mem, const void *from, uint32_t from_mem, uint64_t bytes,
                        const tess_stream *s, tess_error *e) {
    (void)d, (void)to, (void)to_mem, (void)from, (void)from_mem, (void)bytes, (void)s, (void)e;
    now_ms += 2;
    return TESS_OK;
}

static const tess_device_ops ops = {
    .struct_size = sizeof ops,
    .stream_create = stream,
    .stream_destroy = end_stream,
    .event_create = create,
    .event_destroy = destroy,
    .event_record = record,
    .event_wait = wait_for,
    .event_stream_wait = stream_waits,
    .copy = copy,
    .event_elapsed_ns = elapsed,
};

/* At time 0, with the device's events free again. */
static tess__trace *begin_at_zero(tess__timeline *t, const tess__device *device, int apart, uint64_t spans) {
    tess__trace *trace;
    now_ms = 0;
    n_events = n_streams = 0;
    assert_int_equal(tess__trace_create(spans, &trace), TESS_OK);
    assert_int_equal(tess__timeline_start(t, device, apart, trace), TESS_OK);
    assert_int_equal(n_streams, TESS__TIMELINES);
    return trace;
}

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
        else if (fabs(spans[i].start - round(spans[i].start)) > 3e-3 || fabs(spans[i].start - (double)i / 2) > 2)
            fail_msg("span %llu begins at %.9f s", (unsigned long long)i, spans[i].start);
    tess__timeline_end(&t);
    tess__trace_destroy(trace);
}

/* ---- collectives and waits ----------------------------------------------------------------------------------------
 */

typedef struct {
    uint32_t op, track;
    double begin_ms, end_ms;
} passed;

static void check_spans(int apart, const passed *put, int n_put, const passed *expected, uint64_t n) {
    const tess__device device = { .ops = &ops, .mem = TESS_MEM_CUDA };
    tess__span spans[8];
    tess__timeline t;
    tess__timed *span;
    tess__trace *trace = begin_at_zero(&t, &device, apart, 8);
    for (int i = 0; i < n_put; i++) {
        const tess__instr in = { .op = (uint8_t)put[i].op };
        now_ms = put[i].begin_ms;
        assert_int_equal(tess__timeline_begin(&t, &device.compute, &span), TESS_OK);
        now_ms = put[i].end_ms;
        assert_int_equal(tess__timeline_stop(&t, span, &device.compute, put[i].track, &in, NULL, 3), TESS_OK);
    }
    now_ms = 100;
    assert_int_equal(tess__timeline_read(&t), TESS_OK);
    assert_int_equal(tess__trace_read(trace, 3, spans, 8), n);
    for (uint64_t i = 0; i < n; i++) {
        assert_int_equal(spans[i].op, expected[i].op);
        assert_int_equal(spans[i].track, expected[i].track);
        assert_true(fabs(1e3 * spans[i].start - (expected[i].begin_ms - expected[0].begin_ms)) < 1e-4);
        assert_true(fabs(1e3 * spans[i].seconds - (expected[i].end_ms - expected[i].begin_ms)) < 1e-4);
    }
    tess__timeline_end(&t);
    tess__trace_destroy(trace);
}

#define COMPUTE TESS__TRACK_COMPUTE
#define COMM TESS__TRACK_COMM

static void test_timeline__collectives_of_a_communicator_run_one_behind_another(void **state) {
    (void)state;
    static const passed put[] = { { TESS__GATHER, COMM, 1, 3 },
                                  { TESS__REDUCE, COMM, 2, 5 },
                                  { TESS__REPLICATE, COMM, 2.5, 4 },
                                  { TESS__GATHER, COMM, 2.75, 4 } };
    static const passed together[] = { { TESS__GATHER, COMM, 1, 3 },
                                       { TESS__REPLICATE, COMM, 2.5, 4 },
                                       { TESS__REDUCE, COMM, 3, 5 },
                                       { TESS__GATHER, COMM, 5, 5 } };
    static const passed apart[] = { { TESS__GATHER, COMM, 1, 3 },
                                    { TESS__REDUCE, COMM, 2, 5 },
                                    { TESS__REPLICATE, COMM, 2.5, 4 },
                                    { TESS__GATHER, COMM, 3, 4 } };
    check_spans(0, put, 4, together, 4);
    check_spans(1, put, 4, apart, 4);
}

static void test_timeline__short_waits_are_left_out(void **state) {
    (void)state;
    static const passed put[] = { { TESS__GATHER_WAIT, COMPUTE, 1, 1.0005 },
                                  { TESS__GATHER_WAIT, COMPUTE, 2, 2.01 },
                                  { TESS__STEP, COMPUTE, 3, 3.0005 } };
    check_spans(0, put, 3, put + 1, 2);
}

static void test_timeline__a_collective_of_the_engines_thread_is_on_both_tracks(void **state) {
    (void)state;
    static const passed put[] = { { TESS__NORM_REDUCE, COMPUTE, 1, 3 },
                                  { TESS__GATHER, COMM, 2, 5 },
                                  { TESS__STEP, COMPUTE, 4, 6 } };
    static const passed expected[] = { { TESS__NORM_REDUCE, COMPUTE, 1, 3 },
                                       { TESS__NORM_REDUCE, COMM, 1, 3 },
                                       { TESS__GATHER, COMM, 3, 5 },
                                       { TESS__STEP, COMPUTE, 4, 6 } };
    check_spans(0, put, 3, expected, 4);
}

/* More spans than have room between two readings: what has passed goes to the trace, and what is open is given up.
 */
static void test_timeline__a_full_ring_gives_what_has_passed(void **state) {
    (void)state;
    static tess__span spans[TESS__TIMED + 99];
    const tess__device device = { .ops = &ops, .mem = TESS_MEM_CUDA };
    tess__timed *span, *open;
    tess__timeline t;
    tess__trace *trace = begin_at_zero(&t, &device, 0, TESS__TIMED + 99);
    for (int i = 1; i <= TESS__TIMED + 10; i++) {
        now_ms = i;
        assert_int_equal(tess__timeline_begin(&t, &device.compute, &span), TESS_OK);
        assert_non_null(span);
        now_ms += 0.25;
        stop(&t, span);
    }
    assert_int_equal(tess__trace_read(trace, 0, spans, TESS__TIMED + 99), TESS__TIMED);
    assert_int_equal(tess__timeline_begin(&t, &device.compute, &open), TESS_OK);
    assert_int_equal(tess__timeline_read(&t), TESS_OK);
    for (int i = 1; i < TESS__TIMED; i++) {
        assert_int_equal(tess__timeline_begin(&t, &device.compute, &span), TESS_OK);
        assert_non_null(span);
        now_ms += 0.5;
        stop(&t, span);
    }
    assert_int_equal(tess__timeline_begin(&t, &device.compute, &span), TESS_OK);
    assert_ptr_equal(span, open); /* a scope that never ends is given up */
    stop(&t, span);
    stop(&t, span); /* once */
    now_ms += 1;
    assert_int_equal(tess__timeline_read(&t), TESS_OK);
    assert_true(t.oldest == t.next);
    tess__timeline_end(&t);
    tess__trace_destroy(trace);
    assert_int_equal(tess__timeline_begin(NULL, &device.compute, &span), TESS_OK);
    assert_null(span);
}

/* Where nothing has passed yet a full ring waits for its oldest. */
static void test_timeline__a_full_ring_waits(void **state) {
    (void)state;
    static tess__span spans[TESS__TIMED + 3];
    const tess__device device = { .ops = &ops, .mem = TESS_MEM_CUDA };
    tess__timed *span;
    tess__timeline t;
    only_waited = 1;
    tess__trace *trace = begin_at_zero(&t, &device, 0, TESS__TIMED + 3);
    for (int i = 1; i <= TESS__TIMED + 3; i++) {
        now_ms = i;
        assert_int_equal(tess__timeline_begin(&t, &device.compute, &span), TESS_OK);
        assert_non_null(span);
        now_ms += 0.25;
        stop(&t, span);
    }
    assert_int_equal(tess__trace_read(trace, 0, spans, TESS__TIMED + 3), 3);
    only_waited = 0;
    tess__timeline_end(&t);
    tess__trace_destroy(trace);
}

/* A timeline that is read while nothing is in flight begins anew, at the time that it is then. */
static void test_timeline__times_go_on_after_a_pause(void **state) {
    (void)state;
    const tess__device device = { .ops = &ops, .mem = TESS_MEM_CUDA };
    tess__span spans[2];
    tess__timed *span;
    tess__timeline t;
    const int64_t before_ns = tess__trace_now();
    tess__trace *trace = begin_at_zero(&t, &device, 0, 2);
    for (int i = 0; i < 2; i++) { /* each half a millisecond behind its base */
        now_ms += 0.5;
        assert_int_equal(tess__timeline_begin(&t, &device.compute, &span), TESS_OK);
        now_ms += 0.25;
        stop(&t, span);
        now_ms += 1;
        assert_int_equal(tess__timeline_read(&t), TESS_OK);
    }
    const double most = (double)(tess__trace_now() - before_ns) * 1e-9;
    assert_int_equal(tess__trace_read(trace, 0, spans, 2), 2);
    assert_true(spans[0].start == 0 && spans[1].start > 0 && spans[1].start <= most);
    tess__timeline_end(&t);
    tess__trace_destroy(trace);
}

/* A base that was recorded for spans in flight is of no use once they have passed. */
static void test_timeline__a_pause_leaves_no_base_behind(void **state) {
    (void)state;
    const tess__device device = { .ops = &ops, .mem = TESS_MEM_CUDA };
    tess__span spans[4];
    tess__timed *span, *open;
    tess__timeline t;
    tess__trace *trace = begin_at_zero(&t, &device, 0, 4);
    for (int i = 0; i < 2; i++) { /* 11 s behind the base another is recorded, and then all has passed */
        now_ms += 5500;
        assert_int_equal(tess__timeline_begin(&t, &device.compute, &span), TESS_OK);
        stop(&t, span);
        assert_int_equal(tess__timeline_begin(&t, &device.compute, &open), TESS_OK);
        now_ms += 5500;
        stop(&t, open);
        assert_int_equal(tess__timeline_read(&t), TESS_OK);
        assert_int_equal(t.next_base, 0);
        now_ms += 1;
        assert_int_equal(tess__timeline_read(&t), TESS_OK);
        assert_true(t.oldest == t.next);
    }
    assert_int_equal(tess__trace_read(trace, 0, spans, 4), 4);
    tess__timeline_end(&t);
    tess__trace_destroy(trace);
}

/* Transfers are on the tracks of their streams, under the instruction that they are of. */
static void test_timeline__transfers_are_on_their_tracks(void **state) {
    (void)state;
    const tess__device device = { .ops = &ops, .mem = TESS_MEM_CUDA };
    tess__span spans[3];
    tess__timeline t;
    tess_event at[1 + 2 * TESS__STREAM_EVENTS];
    tess__streams q = { .on = 1, .device = &device, .timeline = &t, .reached = at, .step = 3 };
    for (int i = 0; i < TESS__STREAM_EVENTS; i++) {
        q.up.events[i] = &at[1 + 2 * i];
        q.down.events[i] = &at[2 + 2 * i];
    }
    tess__trace *trace = begin_at_zero(&t, &device, 0, 3);
    q.doing = (tess__instr){ .op = TESS__PREFETCH, .index = 5 };
    assert_int_equal(tess__stream_copy(&q, &q.up, at, 0, at, 0, 1), TESS_OK);
    q.doing = (tess__instr){ .op = TESS__OFFLOAD, .index = 6 };
    assert_int_equal(tess__stream_copy(&q, &q.down, at, 0, at, 0, 1), TESS_OK);
    now_ms += 1;
    assert_int_equal(tess__timeline_read(&t), TESS_OK);
    assert_int_equal(tess__trace_read(trace, 3, spans, 3), 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(spans[i].track, i ? TESS__TRACK_DOWN : TESS__TRACK_UP);
        assert_int_equal(spans[i].op, i ? TESS__OFFLOAD : TESS__PREFETCH);
        assert_int_equal(spans[i].index, 5 + i);
        assert_true(fabs(spans[i].seconds - 2e-3) < 1e-9 && fabs(spans[i].start - 2e-3 * i) < 1e-9);
    }
    tess__timeline_end(&t);
    tess__trace_destroy(trace);
}

static void test_trace__a_span_ends_now(void **state) {
    (void)state;
    tess__trace *trace;
    tess__span span;
    struct timespec before, after;
    const tess__instr in = { .op = TESS__ENTER, .index = 5 };
    const tess__event event = { .scope = 9, .type = TESS__BACKWARD_BEGIN };
    clock_gettime(CLOCK_MONOTONIC, &before);
    const int64_t began_ns = tess__trace_now();
    clock_gettime(CLOCK_MONOTONIC, &after);
    assert_true(began_ns <= after.tv_sec * INT64_C(1000000000) + after.tv_nsec);
    assert_true(began_ns / 1000000000 >= before.tv_sec &&
                began_ns >= before.tv_sec * INT64_C(1000000000) + before.tv_nsec);
    assert_int_equal(tess__trace_create(1, &trace), TESS_OK);
    tess__trace_add(trace, COMPUTE, &in, &event, 1, began_ns);
    tess__trace_add(NULL, COMPUTE, &in, &event, 1, began_ns);
    clock_gettime(CLOCK_MONOTONIC, &after);
    assert_int_equal(tess__trace_read(trace, 1, &span, 1), 1);
    assert_int_equal(span.index, 9);
    assert_int_equal(span.event, TESS__BACKWARD_BEGIN);
    assert_int_equal(span.cause, -1);
    assert_true(span.seconds >= 0);
    assert_true(span.seconds <=
                (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec));
    tess__trace_destroy(trace);
}

static void test_trace__the_last_spans_are_kept(void **state) {
    (void)state;
    tess__trace *trace = NULL;
    tess__span spans[3];
    const tess__instr in = { .op = TESS__STEP, .index = 5 };
    assert_int_equal(tess__trace_create(0, &trace), TESS_E_INVALID);
    assert_int_equal(tess__trace_create((UINT64_C(1) << 28) + 1, &trace), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "a trace of 268435457 spans: expected 1 to 2^28");
    assert_null(trace);
    assert_int_equal(tess__trace_create(4, &trace), TESS_OK);
    assert_int_equal(tess__trace_read(trace, 0, spans, 3), 0);
    for (int i = 0; i < 6; i++) /* one of another step; the first two are lost */
        tess__trace_add_span(trace, COMPUTE, &in, NULL, i == 4 ? 8 : 7, 9000 - 1000 * i, 9500 - 1000 * i);
    memset(spans, 0xff, sizeof spans);
    assert_int_equal(tess__trace_read(trace, 7, spans, 2), 3);
    assert_int_equal(spans[2].track, 0xff);
    assert_int_equal(tess__trace_read(trace, 7, spans, 3), 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(spans[i].index, 5);
        assert_int_equal(spans[i].step, 7);
        assert_int_equal(spans[i].event, 0);
        assert_true(fabs(spans[i].start - (i ? i + 1 : 0) * 1e-6) < 1e-12);
        assert_true(fabs(spans[i].seconds - 5e-7) < 1e-12);
    }
    assert_int_equal(tess__trace_read(trace, 8, spans, 3), 1);
    assert_true(spans[0].start == 0);
    assert_int_equal(tess__trace_read(trace, 8, NULL, 0), 1);
    tess__trace_destroy(trace);
    tess__trace_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_timeline__after_hours_in_flight_spans_keep_their_digits),
        cmocka_unit_test(test_timeline__collectives_of_a_communicator_run_one_behind_another),
        cmocka_unit_test(test_timeline__short_waits_are_left_out),
        cmocka_unit_test(test_timeline__a_collective_of_the_engines_thread_is_on_both_tracks),
        cmocka_unit_test(test_timeline__a_full_ring_gives_what_has_passed),
        cmocka_unit_test(test_timeline__a_full_ring_waits),
        cmocka_unit_test(test_timeline__times_go_on_after_a_pause),
        cmocka_unit_test(test_timeline__a_pause_leaves_no_base_behind),
        cmocka_unit_test(test_timeline__transfers_are_on_their_tracks),
        cmocka_unit_test(test_trace__a_span_ends_now),
        cmocka_unit_test(test_trace__the_last_spans_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
