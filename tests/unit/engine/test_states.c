/* SPDX-License-Identifier: BSD-3-Clause */
/* Optimizer states that rest in a store: which requests each instruction posts and waits for, what a failure leaves
 * under way, and what a trace is told. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "core/base/status.h"
#include "core/engine/state.h"

enum { MOST = 32, ALIGN = 512 };
typedef struct {
    uint32_t op; /* 0: a wait */
    int32_t state;
    uint64_t bytes;
} call;
static struct {
    call calls[MOST];
    int n, jobs;
    int fail_post, fail_wait[8]; /* posts count from 1, waits by the request's number */
    int n_handed, fail_lane;     /* jobs that the lane has; what a wait for one of them says */
    tess__job handed;
    uint32_t track;
    uint8_t op;
    int32_t index;
    int64_t began;
} world;
static tess engine;
enum { PARAM = TESS__MAX_STATES /* the place of the parameters beside their states */ };
static char requests[8], rests[8], staged[8];
enum { SUM = TESS__MAX_STATES + 1 /* behind them gradients: three sums */, LANE = 99 };

static void note(uint32_t op, int32_t state, uint64_t bytes) {
    assert_in_range(world.n, 0, MOST - 1);
    world.calls[world.n++] = (call){ op, state, bytes };
}

static tess_status post_states(const tess__offload_store *x, uint32_t op, const void *at, void *memory, uint64_t bytes,
                               tess_request **out) {
    const int k = (int)((const char *)at - rests);
    assert_ptr_equal(x, &engine.memory.store);
    assert_ptr_equal(memory, staged + k);
    tess__in_flight *f = &engine.transfers.in_flight[1];
    assert_ptr_equal(out, k < SUM ? &f->staged[k] : &f->sums[k - SUM]);
    note(op, k, bytes);
    if (world.fail_post && --world.fail_post == 0)
        return tess__fail(TESS_E_SYSTEM, "state %d is not posted", k);
    *out = (tess_request *)(void *)&requests[k];
    return TESS_OK;
}

static tess_status wait_states(const tess__offload_store *x, tess_request **r) {
    const int k = (int)((char *)*r - requests);
    assert_ptr_equal(x, &engine.memory.store);
    note(0, k, 0);
    *r = NULL;
    return world.fail_wait[k] ? tess__fail((tess_status)world.fail_wait[k], "state %d is lost", k) : TESS_OK;
}

static void trace_job(tess *t, uint32_t track, uint8_t op, int32_t index, int64_t began) {
    assert_ptr_equal(t, &engine);
    world.jobs++;
    world.track = track;
    world.op = op;
    world.index = index;
    world.began = began;
}

static tess_status run_param(const tess__offload_store *x, uint32_t op, const void *at, void *memory, uint64_t bytes) {
    assert_true(x == &engine.memory.store && at == &rests[PARAM] && memory == &staged[PARAM]);
    note(op, PARAM, bytes);
    return TESS_OK;
}

static tess_status hand_to_lane(tess__executor *x, const tess__job *job, uint64_t *ticket) {
    assert_ptr_equal(x, &engine.transfers.down);
    world.handed = *job;
    *ticket = (uint64_t)++world.n_handed;
    return TESS_OK;
}

static tess_status wait_for_lane(tess__executor *x, uint64_t *ticket) {
    assert_ptr_equal(x, &engine.transfers.down);
    int asked = *ticket != 0;
    *ticket = 0;
    if (asked)
        note(0, LANE, 0);
    return asked && world.fail_lane ? tess__fail((tess_status)world.fail_lane, "the lane has failed") : TESS_OK;
}

#define tess__executor_wait wait_for_lane
#define tess__offload_run run_param
#define tess__offload_post post_states
#define tess__offload_wait wait_states
#define tess__tracing_job trace_job
#define tess__tracing_begin(t) 4711
#include "core/engine/states.c"

/* Group 1 of three has states of 4, 4 and 1 bytes for each element; the others have none in flight. */
static void begin(void) {
    static tess__group groups[3];
    static tess__in_flight flights[3];
    static void *rest[TESS__N_ROLES][3];
    memset(&world, 0, sizeof world);
    memset(&engine, 0, sizeof engine);
    memset(flights, 0, sizeof flights);
    groups[1] = (tess__group){ .shard_elems = 200, .step = { .n_states = 3 } };
    groups[1].step.state[0] = groups[1].step.state[1] = (tess_state){ TESS_F32, 1, "" };
    groups[1].step.state[2] = (tess_state){ TESS_U8, 1, "" };
    groups[1].master = TESS_F32;
    groups[1].state_rest.stored = 1;
    rest[TESS__MASTER][1] = &rests[PARAM];
    rest[TESS__STAGED_PARAM][1] = &staged[PARAM];
    for (int k = 0; k < 3; k++) {
        rest[TESS__STATE0 + k][1] = &rests[k];
        rest[TESS__STAGED0 + k][1] = &staged[k];
    }
    for (int k = 0; k < 3; k++) {
        rest[k ? TESS__SUM0 + k : TESS__SHARD_GRAD][1] = &rests[SUM + k];
        rest[TESS__STAGED_GRAD0 + k][1] = &staged[SUM + k];
    }
    groups[1].grad_shard = TESS_F32;
    groups[1].grad_rest.stored = 1;
    for (int r = 0; r < TESS__N_ROLES; r++)
        engine.memory.address[r] = rest[r];
    engine.plan.layout = (tess__layout){ .groups = groups, .n_groups = 3, .store_align = ALIGN };
    engine.transfers.in_flight = flights;
    engine.transfers.down.post = hand_to_lane;
}

static tess_status run(uint8_t op) {
    const tess__instr in = { .op = op, .index = 1 };
    return tess__states_instr(&engine, &in);
}

static void expect(const call *want, int n) {
    assert_int_equal(world.n, n);
    for (int i = 0; i < n; i++) {
        assert_int_equal(world.calls[i].op, want[i].op);
        assert_int_equal(world.calls[i].state, want[i].state);
        assert_int_equal(world.calls[i].bytes, want[i].bytes);
    }
    world.n = 0;
}

static tess_status run_behind_lane(uint8_t op) {
    const tess__instr in = { .op = op, .index = 1, .flags = TESS__ASYNC };
    return tess__states_instr(&engine, &in);
}

static const call waits[] = { { 0, 0, 0 }, { 0, 1, 0 }, { 0, 2, 0 } };

static void test_states__come_and_go_whole_and_rounded_up(void **state) {
    (void)state;
    static const uint8_t ops[2][2] = { { TESS__STATES_FETCH, TESS__STATES_FETCH_WAIT },
                                       { TESS__STATES_STORE, TESS__STATES_STORE_WAIT } };
    begin();
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t op = i ? TESS_STORE_WRITE : TESS_STORE_READ;
        const call posts[] = { { op, 0, 1024 }, { op, 1, 1024 }, { op, 2, 512 } };
        assert_int_equal(run(ops[i][0]), TESS_OK);
        expect(posts, 3);
        assert_int_equal(engine.transfers.in_flight[1].staged_ns, 4711);
        assert_int_equal(run(ops[i][1]), TESS_OK);
        expect(waits, 3);
        assert_int_equal(world.jobs, 1 + (int)i);
        assert_int_equal(world.track, i ? TESS__TRACK_DOWN : TESS__TRACK_UP);
        assert_int_equal(world.op, ops[i][0]);
        assert_int_equal(world.index, 1);
        assert_int_equal(world.began, 4711);
    }
    assert_int_equal(run(TESS__STATES_STORE_WAIT), TESS_OK); /* there is nothing to wait for any more */
    assert_int_equal(run(TESS__STATES_FETCH_WAIT), TESS_OK);
    expect(NULL, 0);
    assert_int_equal(world.jobs, 2);
}

/* Parameters come and go with their states, or alone. */
static void test_states__parameters_in_the_store_go_the_same_way(void **state) {
    (void)state;
    for (int alone = 0; alone < 2; alone++) {
        const call posts[] = { { TESS_STORE_READ, 0, 1024 },
                               { TESS_STORE_READ, 1, 1024 },
                               { TESS_STORE_READ, 2, 512 },
                               { TESS_STORE_READ, PARAM, 1024 } };
        const call all[] = { { 0, 0, 0 }, { 0, 1, 0 }, { 0, 2, 0 }, { 0, PARAM, 0 } };
        begin();
        tess__group *g = &engine.plan.layout.groups[1];
        assert_int_equal(tess__param_fetch(&engine, 1), TESS_OK); /* they rest in memory */
        expect(NULL, 0);
        g->param_rest.stored = 1;
        g->state_rest.stored = !alone;
        assert_int_equal(run(TESS__STATES_FETCH), TESS_OK);
        expect(posts + 3 * alone, 4 - 3 * alone);
        assert_int_equal(run(TESS__STATES_FETCH_WAIT), TESS_OK);
        expect(all + 3 * alone, 4 - 3 * alone);
        assert_int_equal(world.jobs, 1);
        assert_int_equal(tess__param_fetch(&engine, 1), TESS_OK);
        expect(posts + 3, 1);
    }
    begin();
    engine.plan.layout.groups[1].state_rest.stored = 0; /* neither */
    assert_int_equal(run(TESS__STATES_STORE), TESS_OK);
    expect(NULL, 0);
}

/* Which sums come and go, as bits: in the binary counter those that the microbatch adds up, and all for the last one,
 * which leaves the gradient. In their order, the one sum. Where no shards are summed, and apart from passes, the
 * gradient alone. */
static uint32_t moved(uint8_t op, uint32_t wanted) {
    uint32_t sums = 0;
    assert_int_equal(run(op), TESS_OK);
    for (int i = 0; i < world.n; i++) {
        assert_int_equal(world.calls[i].op, wanted);
        assert_int_equal(world.calls[i].bytes, 1024);
        sums |= 1u << (world.calls[i].state - SUM);
    }
    assert_int_equal(run((uint8_t)(op + 1)), TESS_OK);
    assert_int_equal(world.jobs, sums != 0);
    world.n = world.jobs = 0;
    return sums;
}

static void test_states__sums_of_gradients_come_and_go_as_they_are_needed(void **state) {
    (void)state;
    static const struct {
        uint32_t deterministic, at_end, pass, come[5], go[5];
    } all[] = { { 1, 0, 1, { 0, 1, 0, 1 | 2, 4 }, { 1, 2, 1, 4, 1 } },
                { 0, 0, 1, { 0, 1, 1, 1, 1 }, { 1, 1, 1, 1, 1 } },
                { 1, 1, 1, { 1, 1, 1, 1, 1 }, { 1, 1, 1, 1, 1 } },
                { 1, 0, 0, { 1, 1, 1, 1, 1 }, { 1, 1, 1, 1, 1 } } };
    tess__program program = { 0 };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int k = 0; k < 5; k++) {
            begin();
            program.kind = all[i].pass ? TESS_PASS_TRAIN : TESS__PASS_CLIP;
            engine.pass.program = &program;
            engine.pass.microbatch = k;
            engine.plan.setup.accum = 5;
            engine.plan.setup.sync_each = !all[i].at_end;
            engine.plan.setup.deterministic = (int)all[i].deterministic;
            assert_int_equal(moved(TESS__GRAD_FETCH, TESS_STORE_READ), all[i].come[k]);
            assert_int_equal(world.track, all[i].come[k] ? TESS__TRACK_UP : 0);
            assert_int_equal(moved(TESS__GRAD_STORE, TESS_STORE_WRITE), all[i].go[k]);
            assert_int_equal(world.track, TESS__TRACK_DOWN);
            assert_int_equal(world.op, TESS__GRAD_STORE);
        }
    world.fail_wait[SUM] = TESS_E_DATA;
    assert_int_equal(run(TESS__GRAD_FETCH), TESS_OK);
    assert_int_equal(run(TESS__GRAD_FETCH_WAIT), TESS_E_DATA);
    assert_int_equal(run(TESS__GRAD_STORE), TESS_OK);
    world.n = 0;
    tess__states_forget(&engine);
    assert_int_equal(world.n, 1);
    assert_null(engine.transfers.in_flight[1].sums[0]);
}

/* The lane that steps them hands them over in its turn. Their wait is for the lane first, which knows the requests. */
static void test_states__a_lane_hands_over_what_it_has_stepped(void **state) {
    (void)state;
    const call posts[] = { { TESS_STORE_WRITE, 0, 1024 }, { TESS_STORE_WRITE, 1, 1024 }, { TESS_STORE_WRITE, 2, 512 } },
               ends[] = { { 0, LANE, 0 }, { 0, 0, 0 }, { 0, 1, 0 }, { 0, 2, 0 } };
    begin();
    assert_int_equal(run_behind_lane(TESS__STATES_STORE), TESS_OK);
    expect(NULL, 0);
    assert_true(world.n_handed == 1 && world.handed.op == TESS__STATES_STORE && world.handed.index == 1);
    assert_int_equal(tess__states_job(&engine, &world.handed), TESS_OK);
    expect(posts, 3);
    assert_int_equal(run(TESS__STATES_STORE_WAIT), TESS_OK);
    expect(ends, 4);
    assert_true(world.jobs == 1 && world.op == TESS__STATES_STORE && world.began == 4711);
    assert_int_equal(run_behind_lane(TESS__STATES_STORE), TESS_OK);
    world.fail_lane = TESS_E_DATA; /* a lane that has failed hands nothing over */
    assert_int_equal(run(TESS__STATES_STORE_WAIT), TESS_E_DATA);
    expect(ends, 1);
    assert_int_equal(world.jobs, 1);
    begin();
    engine.step.skips = 1;
    assert_int_equal(run_behind_lane(TESS__STATES_STORE), TESS_OK);
    assert_int_equal(world.n_handed, 0);
}

/* Which sums go is known when the job is handed over: the lane may come to it in a later microbatch. */
static void test_states__a_lane_hands_over_the_sums_of_its_microbatch(void **state) {
    (void)state;
    tess__program program = { .kind = TESS_PASS_TRAIN };
    begin();
    engine.pass.program = &program;
    engine.plan.setup = (tess__setup){ .accum = 5, .sync_each = 1, .deterministic = 1 };
    engine.pass.microbatch = 1;
    assert_int_equal(run_behind_lane(TESS__GRAD_STORE), TESS_OK);
    engine.pass.microbatch = 2;
    assert_int_equal(tess__states_job(&engine, &world.handed), TESS_OK);
    const call post[] = { { TESS_STORE_WRITE, SUM + 1, 1024 } }, ends[] = { { 0, LANE, 0 }, { 0, SUM + 1, 0 } };
    expect(post, 1);
    assert_int_equal(run(TESS__GRAD_STORE_WAIT), TESS_OK);
    expect(ends, 2);
}

/* A step that is left out has changed nothing: its states come, and need not go back. */
static void test_states__a_step_that_is_left_out_writes_nothing(void **state) {
    (void)state;
    begin();
    engine.step.skips = 1;
    assert_int_equal(run(TESS__STATES_STORE), TESS_OK);
    assert_int_equal(run(TESS__STATES_STORE_WAIT), TESS_OK);
    expect(NULL, 0);
    assert_int_equal(world.jobs, 0);
    assert_int_equal(run(TESS__STATES_FETCH), TESS_OK);
    assert_int_equal(world.n, 3);
}

static void test_states__all_are_waited_for_and_the_first_failure_counts(void **state) {
    (void)state;
    for (int failing = 1; failing < 8; failing++) {
        begin();
        for (int k = 0; k < 3; k++)
            world.fail_wait[k] = failing >> k & 1 ? TESS_E_DATA + (k ? -k : 0) : 0;
        assert_int_equal(run(TESS__STATES_FETCH), TESS_OK);
        world.n = 0;
        const int first = failing & 1 ? 0 : failing & 2 ? 1 : 2;
        assert_int_equal(run(TESS__STATES_FETCH_WAIT), world.fail_wait[first]);
        expect(waits, 3);
        assert_int_equal(world.jobs, 0); /* what has failed is no span of a trace */
    }
}

/* What was posted before a failure stays under way until somebody waits for it. */
static void test_states__a_post_that_fails_is_the_end_of_them(void **state) {
    (void)state;
    for (int at = 1; at <= 3; at++) {
        char want[32];
        begin();
        world.fail_post = at;
        assert_int_equal(run(TESS__STATES_FETCH), TESS_E_SYSTEM);
        snprintf(want, sizeof want, "state %d is not posted", at - 1);
        assert_string_equal(tess_last_error(), want);
        assert_int_equal(world.n, at);
        world.n = 0;
        tess__states_forget(&engine);
        expect(waits, at - 1);
    }
}

static void test_states__what_is_forgotten_is_waited_for_whatever_it_says(void **state) {
    (void)state;
    begin();
    assert_int_equal(run(TESS__STATES_STORE), TESS_OK);
    world.n = 0;
    world.fail_wait[0] = TESS_E_DATA;
    tess__states_forget(&engine);
    expect(waits, 3);
    tess__states_forget(&engine);
    expect(NULL, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states__come_and_go_whole_and_rounded_up),
        cmocka_unit_test(test_states__parameters_in_the_store_go_the_same_way),
        cmocka_unit_test(test_states__sums_of_gradients_come_and_go_as_they_are_needed),
        cmocka_unit_test(test_states__a_lane_hands_over_what_it_has_stepped),
        cmocka_unit_test(test_states__a_lane_hands_over_the_sums_of_its_microbatch),
        cmocka_unit_test(test_states__a_step_that_is_left_out_writes_nothing),
        cmocka_unit_test(test_states__all_are_waited_for_and_the_first_failure_counts),
        cmocka_unit_test(test_states__a_post_that_fails_is_the_end_of_them),
        cmocka_unit_test(test_states__what_is_forgotten_is_waited_for_whatever_it_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
