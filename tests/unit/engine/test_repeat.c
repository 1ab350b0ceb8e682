/* SPDX-License-Identifier: BSD-3-Clause */
/* Passes that a device records: when they may be, in which order host and device do what, on what the ranks agree, and
 * that a recording which fails leaves nothing behind. What the engine calls is written down here. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "core/base/status.h"
#include "core/engine/state.h"
#include "tests/unit/logged.h"
#include "tests/unit/said.h"

static struct {
    int segments, on_host, in_plugin, clips, needs_norm, known;
    tess_status record, calls, end, run, exchange;
    char others[4]; /* who of the other ranks could not record */
    uint64_t tag;
    tess__recorded r;
} world;
static tess t;
static tess_run_options run;
static tess_optimizer_options step = { .struct_size = sizeof step };
static char numbers[64], batch_at[64], batch[8] = "batch 1";
static tess__instr instrs[4];
static tess__buffer buffers[1];

static tess_status note(const char *what, tess_status s) {
    say("%s; ", what);
    return s ? tess__fail(s, "%s failed", what) : TESS_OK;
}
static tess_status agree(const char *how, const tess_collective *c, const char *doing) {
    char text[256];
    assert_true(c->op == TESS_BARRIER && c->send_dtype == TESS_U8 && c->recv_dtype == TESS_U8 && c->scale == 1);
    world.tag = c->tag;
    snprintf(text, sizeof text, "%s %s", how, doing);
    return note(text, TESS_OK);
}
static tess_status exchange(const char *mine, char *all) {
    memcpy(all, world.others, 4);
    all[t.comms.world.rank] = *mine;
    return note(*mine ? "could not" : "could", world.exchange);
}
static tess_status end_record(tess_graph **out) {
    if (!out)
        return note("drop recording", TESS_OK);
    *out = (tess_graph *)&world;
    return note("end recording", world.end);
}
static tess_status copy_numbers(void *to, const void *from, uint64_t bytes) {
    assert_true(to == numbers + 8 && from == numbers && bytes == 3 * TESS_PREPARED_BYTES);
    return note("copy numbers", TESS_OK);
}
static void *of_pass(int role, uint64_t bytes) {
    assert_int_equal(bytes, role == TESS__BATCH ? 8 : 40);
    return role == TESS__BATCH ? batch_at : numbers;
}
#define tess__steps_on_host(e, g) ((void)(g), world.on_host)
#define tess__plugin_steps_on_device(e, g) ((void)(g), world.in_plugin)
#define tess__device_clips(e) (world.clips)
#define tess__step_needs_norm(e, s) ((void)(s), world.needs_norm)
#define tess__comm_run(c, which, x, doing) agree("run", x, doing)
#define tess__stream_collective(q, which, x, doing) agree("stream", x, doing)
#define tess__of_pass(e, role, bytes) of_pass(role, bytes)
#define tess__segments_of(s, l, g, o) ((void)(o), world.segments += (g) == -1)
#define tess__device_prepare(d, o, at) ((void)(o), note("prepare", (at) == numbers ? TESS_OK : TESS_E_INTERNAL))
#define tess__address_of(e, role, i) ((i) == 0 ? numbers + 8 : NULL)
#define tess__device_copy(d, to, to_mem, from, from_mem, bytes, s) copy_numbers(to, from, bytes)
#define tess__streams_join(q) note("join", TESS_OK)
#define tess__streams_record(q) ((void)note("streams", TESS_OK))
#define tess__streams_idle(q) ((void)note("idle", TESS_OK))
#define tess__drop_requests(e) ((void)note("drop requests", TESS_OK))
#define tess__transfers_forget(e) ((void)note("forget transfers", TESS_OK))
#define tess__memory_forget(m, p) ((void)note("forget memory", TESS_OK))
#define tess__pass_begins(e, p, kind)                                                                                  \
    ((void)(kind), assert_int_equal((e)->pass.microbatch, 0), (e)->pass.program = (p), (void)note("begin", TESS_OK))
#define tess__comms_skip(c, n) ((c)->n_collectives = (n))
#define tess__comms_exchange_in_step(c, what, mine, bytes, all) exchange(mine, (bytes) == 1 ? all : NULL)
#define tess__device_graph_end(d, g) ((void)note((g) ? "end graph" : "no graph", TESS_OK))
#define tess__device_record_begin(d) note("record", world.record)
#define tess__device_record_end(d, out) end_record(out)
#define tess__device_graph_run(d, g) note("launch", (g) ? world.run : TESS_E_INTERNAL)
#define tess__step_begin(e, s) note((s) == &step ? "begin step" : "another step", TESS_OK)
#define tess__step_end(e) note("end step", TESS_OK)
#define tess__grad_release(e) note("release", TESS_OK)
#define tess__pass_over(e, train) ((void)note((train) ? "over" : "over?", TESS_OK))
#define tess__result_again(q, was, to) ((void)note((was) == &world.r.late ? "result" : "another result", TESS_OK))
static tess__recorded *find(const tess__graph_key *key) {
    world.r.key = *key;
    return &world.r;
}
#define tess__graphs_find(g, d, key) find(key)
#include "core/engine/repeat.c"

/* The pass, as if each instruction were called. */
static tess_status calls(tess *e, const tess_run_options *o) {
    assert_true(e == &t && o == &run);
    t.pass.microbatch++;
    t.step.options = t.graphs.recording ? &step : t.step.options;
    t.pass.pending_grads = t.graphs.recording;
    t.step.steps_done += 5;
    t.comms.n_collectives += 7;
    t.comms.common = 99;
    t.streams.passes[t.streams.pass].retired = 6;
    return note(t.graphs.recording ? (t.recorder.trace ? "recorded, seen" : "recorded calls") : "calls", world.calls);
}

static int begin(void **state) {
    static int32_t first_segment[] = { 0, 1, 3 };
    (void)state;
    memset(&world, 0, sizeof world);
    memset(&logged, 0, sizeof logged);
    said_so_far[0] = 0;
    memset(&t, 0, sizeof t);
    memset(instrs, 0, sizeof instrs);
    memset(buffers, 0, sizeof buffers);
    world.clips = 1;
    t.comms.world.nranks = 4;
    t.comms.world.rank = 2;
    t.plan.setup.accum = 1;
    t.plan.layout.n_groups = 2;
    t.plan.layout.prepared_bytes = 40;
    t.step.first_segment = first_segment;
    t.pass.program = &t.plan.programs[TESS__P_TRAIN];
    for (int i = 0; i < TESS__N_PROGRAMS; i++)
        t.plan.programs[i] = (tess__program){ .instrs = instrs, .buffers = buffers, .hash = (uint64_t)i };
    t.graphs.on = 1;
    t.pass.repeat = 3;
    t.recorder.trace = (void *)&world;
    run = (tess_run_options){ .struct_size = sizeof run, .kind = TESS_PASS_TRAIN, .batch = batch };
    return 0;
}

static void runs(const char *want) {
    assert_int_equal(tess__repeat_pass(&t, &run, calls), TESS_OK);
    expect_said(want);
    t.pass.microbatch = 0;
}

static void test_repeat__the_first_is_called_the_second_recorded_and_the_rest_launched(void **state) {
    (void)state;
    run.step = &step;
    t.plan.setup.input_bytes = 8;
    runs("calls; ");
    runs(
        "run the recording of a training pass (repeat 3, microbatch 0); record; streams; copy numbers; recorded calls; "
        "join; end recording; could; prepare; launch; ");
    assert_true(t.recorder.trace && !t.graphs.recording && t.streams.passes[0].is_recorded);
    assert_true(world.r.late.retired == 6 && !world.r.late.is_recorded);
    runs(
        "begin step; stream a recorded training pass (repeat 3, microbatch 0); prepare; result; launch; over; release; "
        "end step; ");
    assert_memory_equal(batch_at, batch, 8);
    assert_int_equal(world.segments, 2); /* all of them, each time */
    run.step = NULL;                     /* without a step, and a batch */
    t.plan.setup.input_bytes = 0;
    runs("stream a recorded training pass (repeat 3, microbatch 0); result; launch; over; ");
    world.r.graph = NULL;
    runs("run the recording of a training pass (repeat 3, microbatch 0); record; streams; recorded calls; join; end "
         "recording; could; launch; ");
    t.comms.world.nranks = 1; /* a rank alone agrees with itself */
    t.comms.world.rank = 0;
    t.recorder.trace = NULL;
    runs("result; launch; over; ");
    world.r.graph = NULL;
    runs("record; streams; recorded calls; join; end recording; launch; ");
    t.recorder.trace = (void *)&world; /* and is watched by itself */
    runs("calls; ");
}

static void test_repeat__what_does_not_repeat_is_called(void **state) {
    for (int i = 0; i < 3; i++) {
        begin(state);
        world.r.known = 1;
        t.graphs.on = i != 0;
        t.pass.repeat = i == 1 ? 0 : 3;
        run.kind = i == 2 ? TESS_PASS_EVAL : TESS_PASS_TRAIN;
        runs("calls; ");
    }
}

static void test_repeat__the_reason_is_said_once_by_one_rank(void **state) {
    static const char *const why[] = { "digests are made on the host",
                                       "draws of stochastic rounding are others at each step",
                                       "a gradient that rests on the host is zeroed there",
                                       "the host steps what rests there",
                                       "the optimizer plugin's steps have their numbers from the host",
                                       "the host needs the norm",
                                       "the scale of losses changes" };
    for (int i = 0; i < 7; i++)
        for (int in_step = 0; in_step < 3; in_step++) { /* in the pass, in the step behind it, with clipping */
            char want[160];
            begin(state);
            t.comms.world.rank = 0;
            run.step = in_step ? &step : NULL;
            world.needs_norm = in_step == 2;
            tess__program *p = &t.plan.programs[in_step == 0   ? TESS__P_TRAIN
                                                : in_step == 1 ? TESS__P_STEP
                                                               : TESS__P_CLIP];
            p->n_instrs = 3;
            t.proof = i == 0 ? (void *)&world : NULL;
            t.transfers.runs = i == 1 ? (void *)&world : NULL;
            instrs[2] = (tess__instr){ .op = i == 2   ? TESS__ALLOC
                                             : i == 5 ? TESS__NORM_FINISH
                                                      : TESS__OPTIMIZE,
                                       .flags = i == 2 ? TESS__ZERO : 0 };
            buffers[0].domain = TESS_DOMAIN_HOST;
            world.on_host = i == 3;
            world.in_plugin = i == 4;
            world.clips = i != 5;
            t.scaler.how.init = i == 6;
            for (int k = 0; k < 3; k++)
                runs("calls; ");
            snprintf(want, sizeof want, "passes that repeat are called and not recorded: %s", why[i]);
            expect_logged(1, TESS_LOG_INFO, want);
            world.r.known = 0; /* another pass */
            runs("calls; ");
            assert_int_equal(logged.n, 0);
        }
    begin(state); /* other instructions have no part on the host */
    t.plan.programs[TESS__P_TRAIN].n_instrs = 2;
    instrs[0] = instrs[1] = (tess__instr){ .op = TESS__REDUCE };
    world.on_host = world.in_plugin = 1;
    world.clips = 0;
    assert_null(why_not(&t, &run));
    t.plan.programs[TESS__P_TRAIN].n_instrs = 1; /* nor has what lies behind the last */
    instrs[1] = (tess__instr){ .op = TESS__OPTIMIZE };
    assert_null(why_not(&t, &run));
    instrs[0] = instrs[1];
    assert_non_null(why_not(&t, &run));
    begin(state); /* memory of the device is zeroed there; other buffers are not zeroed */
    t.plan.programs[TESS__P_TRAIN].n_instrs = 2;
    instrs[0] = instrs[1] = (tess__instr){ .op = TESS__ALLOC };
    instrs[1].flags = TESS__ZERO;
    buffers[0].domain = TESS_DOMAIN_DEVICE;
    assert_null(why_not(&t, &run));
    instrs[1].flags = 0;
    buffers[0].domain = TESS_DOMAIN_HOST;
    assert_null(why_not(&t, &run));
    run.step = &step; /* a fused pass has its step within */
    t.plan.programs[TESS__P_STEP].n_instrs = 2;
    instrs[1] = (tess__instr){ .op = TESS__OPTIMIZE };
    world.on_host = 1;
    t.pass.program = &t.plan.programs[TESS__P_FUSED];
    assert_null(why_not(&t, &run));
    t.comms.world.rank = 1;
    t.pass.program = &t.plan.programs[TESS__P_TRAIN];
    runs("calls; ");
    assert_int_equal(logged.n, 0); /* rank 0 says it */
}

static void test_repeat__ranks_agree_on_all_that_a_recording_depends_on(void **state) {
    uint64_t seen[9];
    for (int i = 0; i < 9; i++) {
        begin(state);
        tess__graph_key key = { .program = &t.plan.programs[i == 1],
                                .repeat = i == 2 ? 4 : 3,
                                .pass = i == 3,
                                .microbatch = i == 4,
                                .grad_scale = i == 5 ? 2 : 0,
                                .clip_norm = i == 6 ? 2 : 0 };
        assert_int_equal(agree_on_pass(&t, &key, i == 7), TESS_OK);
        seen[i] = world.tag;
        for (int k = 0; k < i; k++)
            assert_true((seen[k] == seen[i]) == (i == 8 && k == 0));
    }
    begin(state);
    t.plan.setup.accum = 4;
    step.grad_scale = 3, step.clip_norm = 5;
    run.step = &step;
    t.streams.pass = 1;
    for (int32_t m = 0; m < 4; m++) /* those between the first and the last are one */
        for (int tree = 0; tree < 2; tree++) {
            t.plan.setup.deterministic = tree;
            t.pass.microbatch = m;
            tess__graph_key key = key_of(&t, &run);
            assert_true(key.program == t.pass.program && key.repeat == 3 && key.pass == 1);
            assert_int_equal(key.microbatch, tree || m == 0 || m == 3 ? m : 1);
            assert_true(key.has_step == (m == 3) && key.grad_scale == (m == 3 ? 3 : 0));
            assert_true(key.clip_norm == (m == 3 ? 5 : 0));
        }
    step.grad_scale = step.clip_norm = 0;
}

/* All go back to where the pass began, and call it. */
static void test_repeat__a_recording_that_fails_is_taken_back(void **state) {
    for (int i = 0; i < 4; i++) { /* the calls, the end, another rank, an earlier rank too */
        begin(state);
        world.r.known = 1;
        t.pass.pending_grads = 3;
        t.step.steps_done = 20;
        t.comms.n_collectives = 30;
        t.comms.common = 40;
        t.streams.passes[0].retired = 50;
        t.plan.setup.accum = 2;
        t.pass.microbatch = 1;
        world.end = i ? (i == 1 || i == 3 ? TESS_E_DEVICE : TESS_OK) : TESS_OK;
        world.others[3] = i == 2;
        world.others[0] = i == 3;
        if (i == 0)
            world.record = TESS_E_DEVICE;
        assert_int_equal(tess__repeat_pass(&t, &run, calls), TESS_OK);
        const char *begun = "run the recording of a training pass (repeat 3, microbatch 1); record; ";
        const char *rest = "idle; drop requests; forget transfers; forget memory; begin; calls; ";
        char want[512];
        snprintf(want, sizeof want, "%s%s%s; %s; %s", begun,
                 i == 0 ? "" : "streams; recorded calls; join; end recording; ", i == 2 ? "could" : "could not",
                 i == 0 ? "no graph" : "end graph", rest);
        expect_said(want);
        assert_true(!t.graphs.on && !world.r.graph && t.pass.run == &run && !t.step.options);
        assert_true(t.pass.microbatch == 2 && t.pass.pending_grads == 0 && t.step.steps_done == 25);
        assert_true(t.comms.n_collectives == 37 && t.pass.program == &t.plan.programs[TESS__P_TRAIN]);
        snprintf(want, sizeof want, "a pass cannot be recorded, so passes are called from now on: %s failed",
                 i ? "end recording" : "record");
        expect_logged(i < 2, TESS_LOG_WARNING, i < 2 ? want : ""); /* the first of those that failed says it */
    }
    begin(state);
    world.r.known = 1;
    const before_pass before = remember(&t);
    t.pass.pending_grads = 5;
    t.comms.common = 5;
    t.streams.passes[0].retired = 5;
    go_back(&t, &run, &before);
    assert_true(!t.pass.pending_grads && !t.comms.common && !t.streams.passes[0].retired);
    begin(state); /* the calls fail: what was recorded is dropped */
    world.r.known = 1;
    world.calls = TESS_E_DEVICE;
    assert_int_equal(tess__repeat_pass(&t, &run, calls), TESS_E_DEVICE);
    assert_non_null(strstr(said_so_far, "recorded calls; join; drop recording; could not; no graph; "));
    begin(state);
    world.r.known = 1;
    world.exchange = TESS_E_PEER;
    assert_int_equal(tess__repeat_pass(&t, &run, calls), TESS_E_PEER);
    begin(state);
    world.r.known = 1;
    world.run = TESS_E_DEVICE;
    assert_int_equal(tess__repeat_pass(&t, &run, calls), TESS_E_DEVICE);
    for (int more = 0; more < 2; more++) { /* as many ranks as there is room for, and one more */
        begin(state);
        world.r.known = 1;
        world.record = TESS_E_DEVICE;
        t.comms.world.nranks = (1 << 14) + more;
        assert_int_equal(tess__repeat_pass(&t, &run, calls), more ? TESS_E_DEVICE : TESS_OK);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_repeat__the_first_is_called_the_second_recorded_and_the_rest_launched, begin),
        cmocka_unit_test_setup(test_repeat__what_does_not_repeat_is_called, begin),
        cmocka_unit_test_setup(test_repeat__the_reason_is_said_once_by_one_rank, begin),
        cmocka_unit_test_setup(test_repeat__ranks_agree_on_all_that_a_recording_depends_on, begin),
        cmocka_unit_test_setup(test_repeat__a_recording_that_fails_is_taken_back, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
