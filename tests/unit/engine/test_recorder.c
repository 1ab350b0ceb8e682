/* SPDX-License-Identifier: BSD-3-Clause */
/* The notes of a program that runs, alone. These tests hold which instructions have spans, by whose clock, and where a
 * collective begins and ends. A point of the ledger says what is held; observers are taken off and put back. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/status.h"
#include "core/engine/state.h"
#include "tests/unit/noted.h"

static struct {
    const char *fails;
    int64_t now_ns;
    int can_time, apart, no_memory, hooked;
    tess_ledger_point point;
} world;
static tess t;
static tess__program program;
static tess__mark marks[4];
static tess__timed *const timed = (tess__timed *)&world;
static tess__trace *const trace = (tess__trace *)&marks;

#define note(...) noted(&world.fails, 1, __VA_ARGS__)
static void add(const tess__trace *to, uint32_t track, const tess__instr *in, const tess__event *e, uint64_t step,
                int64_t begin_ns) {
    assert_ptr_equal(to, trace);
    say("span %s %d.%d",
        track == TESS__TRACK_COMPUTE ? "compute"
        : track == TESS__TRACK_COMM  ? "comm"
                                     : "other",
        in->op, in->index);
    if (e)
        say(" event %d.%d", e->type, e->scope);
    say(" step %d from %d; ", (int)step, (int)begin_ns);
}
static tess_status begin_timed(const tess__timeline *line, const tess_stream *stream, tess__timed **out) {
    assert_true(line == &t.recorder.timeline && stream == &t.device.compute);
    *out = timed;
    return note("timed");
}
static tess_status stop_timed(const tess__timeline *line, const tess__timed *span, const tess_stream *stream,
                              uint32_t track, const tess__instr *in, const tess__event *e, uint64_t step) {
    assert_true(line == &t.recorder.timeline && (span == timed || !span));
    int where = -1;
    for (int i = 0; i < TESS__TIMELINES; i++)
        where = stream == &line->observers[i] ? i : where;
    return note("stop %s %d.%d at %d%s step %d%s", track == TESS__TRACK_COMPUTE ? "compute" : "comm", in->op, in->index,
                where, span ? "" : " nothing", (int)step, e ? " event" : "");
}
static tess_status wait_on(const tess_request *r, const tess_stream *s) {
    assert_ptr_equal(r, &program);
    return note("observer %d", (int)(s - t.recorder.timeline.observers));
}
static tess_status make_trace(uint64_t n, tess__trace **out) {
    *out = trace;
    assert_int_equal(n, 99);
    return note("trace");
}
static void end_trace(const tess__trace *of) {
    say(of ? "trace-end; " : "no-trace; ");
}
static tess_status start_line(const tess__timeline *line, int apart, const tess__trace *of) {
    assert_true(line == &t.recorder.timeline && of == trace && apart == world.apart);
    return note("line");
}
static void ask(const tess__held *held, uint64_t booked) {
    say("ask %d%s; ", (int)booked, held ? "" : " nobody");
}
static void make_point(int32_t unit, uint32_t which, tess_ledger_point *out) {
    memset(out, 0x5a, sizeof *out);
    out->point = which;
    say("point %d %u; ", unit, which);
}
static void *get_memory(size_t n, size_t size) {
    return world.no_memory ? NULL : calloc(n, size);
}
#define tess__trace_now() (world.now_ns)
#define tess__trace_add(to, track, in, e, step, begin_ns) add(to, track, in, e, step, begin_ns)
#define tess__trace_create(n, out) make_trace(n, out)
#define tess__trace_destroy(of) end_trace(of)
#define tess__tracing_begin(e) ((e)->recorder.trace ? world.now_ns : 0)
#define tess__timeline_of(line, op) ((op) == TESS__GATHER ? 0 : (op) == TESS__REDUCE ? 1 : 2)
#define tess__timeline_can(d) (world.can_time)
#define tess__timeline_begin(line, stream, out) begin_timed(line, stream, out)
#define tess__timeline_stop(line, span, stream, track, in, e, step) stop_timed(line, span, stream, track, in, e, step)
#define tess__timeline_start(line, d, apart, of) start_line(line, apart, of)
#define tess__timeline_end(line) ((void)note("line-end"))
#define tess__comm_wait_on_stream(c, r, s) wait_on(r, s)
#define tess__comms_apart(c) (world.apart)
#define tess__ledger_point(ledger, l, unit, which, out) make_point(unit, which, out)
#define tess__pass_name(kind) ((kind) == 5 ? "five" : "?")
#define tess__device_backend_bytes(d) 640
#define tess__held_ask(held, booked) ask(held, booked)
#define calloc get_memory
#include "core/engine/recorder.c"
#undef calloc

static int begin(void **state) {
    (void)state;
    memset(&world, 0, sizeof world);
    memset(&t, 0, sizeof t);
    said_so_far[0] = 0;
    t.recorder.trace = trace;
    t.pass.program = &program;
    t.step.steps_done = 6;
    t.plan.model.n_scopes = 2;
    world.now_ns = 50000;
    return 0;
}

static void spans(uint8_t op, uint8_t flags, int64_t took_ns, const char *want) {
    const tess__instr in = { .op = op, .flags = flags, .index = 1 };
    tess__tracing_instr(&t, &in, (tess__mark){ .ns = world.now_ns - took_ns, .timed = timed });
    expect_said(want);
}

static void test_recorder__each_instruction_that_works_has_a_span(void **state) {
    char want[160];
    (void)state;
    snprintf(want, sizeof want, "span compute %d.1 step 6 from 49993; ", TESS__CAST_WIRE);
    spans(TESS__CAST_WIRE, 0, 7, want);
    static const uint8_t none[] = { TESS__ENTER,        TESS__LEAVE,      TESS__FREE,      TESS__ALLOC,
                                    TESS__PREFETCH,     TESS__OFFLOAD,    TESS__RELOAD,    TESS__STATES_FETCH,
                                    TESS__STATES_STORE, TESS__GRAD_FETCH, TESS__GRAD_STORE };
    for (size_t i = 0; i < sizeof none; i++)
        spans(none[i], 0, 7, "");
    spans(TESS__CAST_WIRE, TESS__ASYNC, 7, ""); /* a lane notes its own */
    snprintf(want, sizeof want, "span compute %d.1 step 6 from 49993; ", TESS__ALLOC);
    spans(TESS__ALLOC, TESS__ZERO, 7, want); /* filling is work */
    spans(TESS__GATHER_WAIT, 0, 999, "");    /* who hardly waits has not waited */
    snprintf(want, sizeof want, "span compute %d.1 step 6 from 49000; ", TESS__GATHER_WAIT);
    spans(TESS__GATHER_WAIT, 0, 1000, want);
    assert_int_equal(t.recorder.comm_end_ns, 0);
    static const uint8_t both[] = { TESS__NORM_REDUCE, TESS__SHARE_BUFFERS }; /* posted and waited for in one */
    for (int i = 0; i < 2; i++) {
        t.recorder.comm_end_ns = 0;
        snprintf(want, sizeof want, "span compute %d.1 step 6 from 47000; span comm %d.1 step 6 from 47000; ", both[i],
                 both[i]);
        spans(both[i], 0, 3000, want);
        assert_int_equal(t.recorder.comm_end_ns, world.now_ns);
    }
    t.recorder.timeline.trace = trace; /* a device with streams has its own clock */
    snprintf(want, sizeof want, "stop compute %d.1 at -1 step 6; ", TESS__CAST_WIRE);
    spans(TESS__CAST_WIRE, 0, 7, want);
    spans(TESS__FREE, 0, 7, "");
    t.recorder.trace = NULL;
    spans(TESS__CAST_WIRE, 0, 7, "");
}

static void test_recorder__a_mark_is_where_the_clock_or_the_stream_is(void **state) {
    const tess__instr cast = { .op = TESS__CAST_WIRE, .index = 3 }, gone = { .op = TESS__FREE };
    (void)state;
    tess__mark m = tess__tracing_mark(&t, &cast);
    assert_true(m.ns == 50000 && !m.timed);
    expect_said("");
    t.recorder.timeline.trace = trace;
    m = tess__tracing_mark(&t, &cast);
    assert_true(m.ns == 50000 && m.timed == timed && t.streams.step == 6 && t.streams.doing.op == TESS__CAST_WIRE);
    assert_int_equal(t.streams.doing.index, 3);
    expect_said("timed; ");
    m = tess__tracing_mark(&t, &gone);
    assert_true(!m.timed && t.streams.doing.op == TESS__FREE);
    expect_said("");
    m = tess__tracing_mark(&t, NULL); /* the program's own code */
    assert_true(m.timed == timed && t.streams.doing.op == TESS__ENTER);
    expect_said("timed; ");
    t.recorder.trace = t.recorder.timeline.trace = NULL;
    m = tess__tracing_mark(&t, &cast);
    assert_true(!m.ns && !m.timed);
    expect_said("");
}

static void test_recorder__collectives_run_one_behind_another(void **state) {
    const tess__instr wait = { .op = TESS__REDUCE_WAIT, .index = 1 };
    char want[128];
    (void)state;
    t.recorder.comm_end_ns = 40000;
    snprintf(want, sizeof want, "span comm %d.1 step 6 from 40000; ", TESS__REDUCE);
    tess__tracing_comm(&t, &wait, 39000); /* it began when the one before had ended */
    expect_said(want);
    assert_int_equal(t.recorder.comm_end_ns, 50000);
    world.now_ns = 60000;
    snprintf(want, sizeof want, "span comm %d.1 step 6 from 50001; ", TESS__REDUCE);
    tess__tracing_comm(&t, &wait, 50001); /* or with its post */
    expect_said(want);
    t.recorder.trace = NULL;
    tess__tracing_comm(&t, &wait, 39000);
    expect_said("");
    assert_int_equal(t.recorder.comm_end_ns, 60000);
    static const uint8_t posts[] = { TESS__GATHER, TESS__REDUCE, TESS__REPLICATE };
    t.recorder.timeline.trace = trace;
    for (int i = 0; i < 3; i++) { /* on a stream it ends where its observer is */
        const tess__instr in = { .op = posts[i], .index = 2 };
        t.streams.comm_waits = 1;
        snprintf(want, sizeof want, "timed; observer %d; stop comm %d.2 at %d step 6; ", i, posts[i], i);
        assert_int_equal(tess__tracing_posted(&t, &in, (tess_request *)&program), TESS_OK);
        expect_said(want);
        static const char *const calls[] = { "timed", "observer", "stop" };
        for (int k = 0; k < 3; k++) {
            world.fails = calls[k];
            assert_int_equal(tess__tracing_posted(&t, &in, (tess_request *)&program), TESS_E_DEVICE);
            assert_int_equal(strstr(said_so_far, "observer") != NULL, k > 0);
            assert_int_equal(strstr(said_so_far, "stop") != NULL, k > 1);
            said_so_far[0] = 0;
        }
        world.fails = NULL;
        t.streams.comm_waits = 0; /* the host waits, and sees the end itself */
        assert_int_equal(tess__tracing_posted(&t, &in, (tess_request *)&program), TESS_OK);
        expect_said("");
    }
    t.streams.comm_waits = 1;
    t.recorder.timeline.trace = NULL;
    assert_int_equal(tess__tracing_posted(&t, &(tess__instr){ .op = TESS__GATHER }, NULL), TESS_OK);
    expect_said("");
}

static void test_recorder__jobs_and_events_have_spans_too(void **state) {
    const tess__event e = { .type = TESS__BACKWARD_BEGIN, .scope = 1 };
    char want[128];
    (void)state;
    tess__tracing_job(&t, 77, TESS__OPTIMIZE, 2, 41000);
    snprintf(want, sizeof want, "span other %d.2 step 6 from 41000; ", TESS__OPTIMIZE);
    expect_said(want);
    tess__tracing_event(&t, &e, (tess__mark){ .ns = 42000 });
    snprintf(want, sizeof want, "span compute %d.0 event 3.1 step 6 from 42000; ", TESS__ENTER);
    expect_said(want);
    t.recorder.timeline.trace = trace;
    tess__tracing_event(&t, &e, (tess__mark){ .ns = 42000, .timed = timed });
    snprintf(want, sizeof want, "stop compute %d.0 at -1 step 6 event; ", TESS__ENTER);
    expect_said(want);
}

/* ---- beginning and end ---- */

static void test_recorder__a_trace_is_there_as_a_whole_or_not(void **state) {
    (void)state;
    t.recorder.trace = NULL;
    assert_int_equal(tess__tracing_start(&t, 99), TESS_OK);
    expect_said("trace; ");
    assert_true(t.recorder.trace == trace && t.recorder.entered && !t.streams.timeline);
    for (int i = 0; i < 4; i++)
        assert_int_equal(t.recorder.entered[i].ns, 0);
    tess__tracing_end(&t);
    expect_said("line-end; trace-end; ");
    assert_true(!t.recorder.trace && !t.recorder.entered);
    for (int i = 0; i < 4; i++) {
        t.streams.on = i & 1;
        world.can_time = i >> 1;
        world.apart = 1;
        assert_int_equal(tess__tracing_start(&t, 99), TESS_OK);
        expect_said(i == 3 ? "trace; line; " : "trace; ");
        assert_ptr_equal(t.streams.timeline, i == 3 ? &t.recorder.timeline : NULL);
        tess__tracing_end(&t);
        assert_null(t.streams.timeline);
        said_so_far[0] = 0;
    }
    static const char *const calls[] = { "trace", "line" };
    for (int i = 0; i < 2; i++) {
        world.fails = calls[i];
        assert_int_equal(tess__tracing_start(&t, 99), TESS_E_DEVICE);
        assert_true(!t.recorder.trace && !t.recorder.entered && !t.streams.timeline);
        expect_said(i ? "trace; line; line-end; trace-end; " : "trace; line-end; trace-end; ");
    }
    world.fails = NULL;
    world.no_memory = 1;
    assert_int_equal(tess__tracing_start(&t, 99), TESS_E_NOMEM);
    assert_string_equal(tess_last_error(), "no memory for a trace of 2 scopes");
    expect_said("trace; line-end; trace-end; ");
}

/* ---- observers ---- */

static void hook(void *user, const tess_ledger_point *p) {
    assert_ptr_equal(user, &world.point);
    world.point = *p;
    world.hooked++;
}

static void test_recorder__a_point_says_what_is_held_then(void **state) {
    tess__held held = { .now = 33 };
    (void)state;
    program.kind = 5;
    t.memory.ledger.total[TESS_DOMAIN_DEVICE] = 44;
    tess__ledger_reach(&t, &(tess__point){ .unit = 2, .point = 7 }); /* counted, whoever listens */
    assert_int_equal(t.memory.ledger.n_points, 1);
    expect_said("");
    t.recorder.ledger_hook = hook;
    t.recorder.ledger_user = &world.point;
    tess__ledger_reach(&t, &(tess__point){ .unit = 2, .point = 7 });
    expect_said("point 2 7; ask 44 nobody; ");
    assert_true(world.point.held_bytes == 0 && world.point.backend_bytes == 640 && world.point.point == 7);
    assert_string_equal(world.point.pass, "five");
    t.memory.held = &held;
    tess__ledger_reach(&t, &(tess__point){ .unit = -1, .point = 8 });
    expect_said("point -1 8; ask 44; ");
    assert_true(world.point.held_bytes == 33 && world.hooked == 2 && t.memory.ledger.n_points == 3);
}

static void test_recorder__observers_are_put_back(void **state) {
    (void)state;
    t.recorder.timeline.trace = (tess__trace *)&world;
    t.recorder.ledger_hook = hook;
    const tess__watchers seen = tess__recorder_hide(&t);
    assert_true(!t.recorder.trace && !t.recorder.timeline.trace && !t.recorder.ledger_hook);
    tess__recorder_show(&t, &seen);
    assert_true(t.recorder.trace == trace && t.recorder.timeline.trace == (tess__trace *)&world);
    assert_true(t.recorder.ledger_hook == hook);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_recorder__each_instruction_that_works_has_a_span, begin),
        cmocka_unit_test_setup(test_recorder__a_mark_is_where_the_clock_or_the_stream_is, begin),
        cmocka_unit_test_setup(test_recorder__collectives_run_one_behind_another, begin),
        cmocka_unit_test_setup(test_recorder__jobs_and_events_have_spans_too, begin),
        cmocka_unit_test_setup(test_recorder__a_trace_is_there_as_a_whole_or_not, begin),
        cmocka_unit_test_setup(test_recorder__a_point_says_what_is_held_then, begin),
        cmocka_unit_test_setup(test_recorder__observers_are_put_back, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
