/* SPDX-License-Identifier: BSD-3-Clause */
/* A step of the program's own optimizer, alone. These tests hold which parameters and pieces it sees, which values
 * lie in place, and which travel and go back. They hold in which order a step begins and ends. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/status.h"
#include "core/engine/finite.h"
#include "core/engine/scaler.h"
#include "core/engine/values.h"
#include "tests/unit/noted.h"

enum { MOST = TESS__CHUNK_ELEMS };
static struct {
    const char *fails;
    int direct; /* bits: 1 the parameter, 2 the gradient, 4 and 8 states that the host may use where they lie */
    uint64_t elems;
    double norm;
    int no_memory, allocated;
} world;
static tess t;
static char at[4][8];

#define note(...) noted(&world.fails, 1, __VA_ARGS__)
static tess__value value_of(uint32_t of) {
    assert_in_range(of, TESS_OF_PARAM, TESS_OF_MOMENT2);
    return (tess__value){ .at = at[of - TESS_OF_PARAM], .dtype = TESS_F32, .mem = of };
}
static int is_direct(const tess__value *v) {
    return world.direct >> (v->mem - TESS_OF_PARAM) & 1;
}
static void *get_memory(size_t n) {
    void *p = world.no_memory ? NULL : malloc(n);
    world.allocated += p != NULL;
    return p;
}
static void give_back(void *p) {
    world.allocated--;
    free(p);
}
static tess_status run_norm(const tess__program *p) {
    assert_ptr_equal(p, &t.plan.programs[TESS__P_NORM]);
    assert_true(t.step.grad_scale == 0.25f);
    t.step.norm = world.norm;
    return note("norm");
}
#define tess__engine_check(e) ((e) ? TESS_OK : TESS_E_INVALID)
#define tess__engine_fail(e, s) (s)
#define tess__layout_piece(l, p, rank) ((tess__piece){ .in_param = 1000, .elems = world.elems })
#define tess__value_owned(e, of, p, piece) value_of(of)
#define tess__value_direct(v) is_direct(v)
#define tess__value_load(e, v, first, n, raw, wide)                                                                    \
    note((e) ? "load %d %d+%d" : "?", (int)(v)->mem, (int)(first), (int)(n))
#define tess__value_store(e, v, first, n, raw, wide) note("store %d %d+%d", (int)(v)->mem, (int)(first), (int)(n))
#define tess__step_ready(e, call) note("ready %s", call)
#define tess__streams_sync(q) note("sync")
#define tess__unscale(e) 0.25f
#define tess__run_program(e, p) run_norm(p)
#define tess__judge_norm(e) ((e)->step.skips = 1, note("judge"))
#define tess__scaler_step(e, finite) ((void)note((finite) ? "scale" : "scale?"))
#define tess__grad_release(e) note("release")
#define tess__step_end(e) note("end")
#define tess__pass_finish(e) note("finish")
#define malloc(n) get_memory(n)
#define free(p) give_back(p)
#include "core/engine/update.c"
#undef malloc
#undef free

static tess_status digest(tess *e, int32_t g, const tess__executor *on) {
    (void)e;
    return note("digest %d%s", g, on == &t.transfers.compute ? "" : "?");
}

/* Says the range, and of each value by how many floats it is in place, where these are the range's; else "beside". */
static tess_status optimize(void *user, const tess_range *r, void *param, const float *grad, float *const *state) {
    const void *given[4] = { param, grad, state[0], state[1] };
    assert_ptr_equal(user, &world);
    say("step %s %d+%d:", r->name, (int)r->first_elem, (int)r->elems);
    for (int i = 0; i < 4; i++)
        if (!given[i])
            say(" none");
        else if ((uintptr_t)given[i] == (uintptr_t)at[i] + 4 * (uintptr_t)(r->first_elem - 1000))
            say(" %d", (int)r->first_elem - 1000);
        else
            say(" beside");
    for (int i = 0; i < 4; i++) /* what travels has rooms of its own */
        for (int k = 0; k < i; k++)
            assert_true(!given[i] || given[i] != given[k]);
    say("; ");
    return world.fails && !strcmp(world.fails, "step") ? TESS_E_DATA : TESS_OK;
}

static tess__param params[5];
static tess__group groups[3];
static char names[5][8] = { "w", "alias", "stat", "frozen", "last" };

static int begin(void **state) {
    static const tess__hooks hooks = { .digest_gradient = digest };
    (void)state;
    memset(&world, 0, sizeof world);
    memset(&t, 0, sizeof t);
    said_so_far[0] = 0;
    for (int i = 0; i < 5; i++)
        params[i] = (tess__param){ .name = names[i], .tied_to = i == 1 ? 0 : i };
    params[2].flags = TESS_BUFFER;
    params[3].flags = TESS_FROZEN;
    for (int i = 0; i < 3; i++)
        groups[i] = (tess__group){ .trainable = i != 1 };
    t.hooks = &hooks;
    t.sharded = 1;
    t.plan.model.params = params;
    t.plan.model.n_params = 5;
    t.plan.layout.groups = groups;
    t.plan.layout.n_groups = 3;
    t.plan.setup.own_optimizer = 1;
    t.plan.setup.n_states = 2;
    world.elems = 6;
    world.direct = 15;
    return 0;
}

#define BEGUN "ready tess_update; sync; "
#define ENDED "scale; release; end; "
static void updates(const char *want) {
    assert_int_equal(tess_update(&t, optimize, &world), TESS_OK);
    expect_said(want);
    assert_true(t.masters_changed && !world.allocated);
}

static void test_update_calls__each_trained_parameter_is_stepped_once(void **state) {
    (void)state;
    t.step.skips = 1; /* of the step before */
    updates(BEGUN "step w 1000+6: 0 0 0 0; step last 1000+6: 0 0 0 0; " ENDED);
    t.plan.setup.n_states = 0;
    updates(BEGUN "step w 1000+6: 0 0 none none; step last 1000+6: 0 0 none none; " ENDED);
    world.elems = 0; /* this rank owns nothing of them */
    updates(BEGUN ENDED);
    world.elems = 2 * MOST; /* in place all of it is one piece */
    params[4].flags = TESS_FROZEN;
    char want[200];
    snprintf(want, sizeof want, BEGUN "step w 1000+%d: 0 0 none none; " ENDED, 2 * MOST);
    updates(want);
}

static void test_update_calls__what_is_not_in_place_travels_in_chunks(void **state) {
    char want[900];
    (void)state;
    params[4].flags = TESS_FROZEN;
    world.elems = MOST + 3;
    world.direct = 1 | 8; /* gradient and first state do not lie in place */
    snprintf(want, sizeof want,
             BEGUN
             "load 2 0+%d; load 3 0+%d; step w 1000+%d: 0 beside beside 0; store 3 0+%d; load 2 %d+3; load 3 %d+3; "
             "step w %d+3: %d beside beside %d; store 3 %d+3; " ENDED,
             MOST, MOST, MOST, MOST, MOST, MOST, 1000 + MOST, MOST, MOST, MOST);
    updates(want); /* a gradient does not go back */
    world.elems = MOST;
    world.direct = 0;
    snprintf(want, sizeof want,
             BEGUN
             "load 1 0+%d; load 2 0+%d; load 3 0+%d; load 4 0+%d; step w 1000+%d: beside beside beside beside; store 1 "
             "0+%d; store 3 0+%d; store 4 0+%d; " ENDED,
             MOST, MOST, MOST, MOST, MOST, MOST, MOST, MOST);
    updates(want);
    static const char *const calls[] = { "ready", "sync", "load", "store", "release", "end" };
    for (int i = 0; i < 6; i++) {
        world.fails = calls[i];
        assert_int_equal(tess_update(&t, optimize, &world), TESS_E_DEVICE);
        assert_int_equal(world.allocated, 0);
        expect_last(calls[i]);
        said_so_far[0] = 0;
    }
    world.fails = "step";
    assert_int_equal(tess_update(&t, optimize, &world), TESS_E_DATA);
    assert_non_null(strstr(tess_last_error(), "the program's optimizer for parameter \"w\""));
    assert_null(strstr(said_so_far, "store"));
    world.fails = NULL;
    world.no_memory = 1;
    assert_int_equal(tess_update(&t, optimize, &world), TESS_E_NOMEM);
    assert_string_equal(tess_last_error(), "no memory for a chunk of parameters");
}

static void test_update_calls__scaled_gradients_are_judged_first(void **state) {
    (void)state;
    params[4].flags = TESS_FROZEN;
    t.scaler.how.init = 8;
    t.proof = (void *)&world;
    world.norm = 3;
    updates(BEGUN "norm; digest 0; digest 2; step w 1000+6: 0 0 0 0; " ENDED);
    world.norm = INFINITY; /* the step is left out, and the scale has been told */
    updates(BEGUN "norm; judge; digest 0; digest 2; release; end; ");
    static const char *const calls[] = { "norm", "judge", "digest" };
    for (int i = 0; i < 3; i++) {
        world.fails = calls[i];
        t.masters_changed = 0;
        assert_int_equal(tess_update(&t, optimize, &world), TESS_E_DEVICE);
        assert_true(!t.masters_changed && !strstr(said_so_far, "release"));
        said_so_far[0] = 0;
    }
}

static void test_update_calls__calls_at_a_wrong_time_are_refused(void **state) {
    (void)state;
    assert_int_equal(tess_update(&t, NULL, &world), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "tess_update: the function is missing");
    t.plan.setup.own_optimizer = 0;
    t.settings.optimizer = (char *)(uintptr_t) "adamw";
    assert_int_equal(tess_update(&t, optimize, &world), TESS_E_INVALID);
    assert_string_equal(tess_last_error(),
                        "tess_update: this engine was opened with optimizer \"adamw\"; a step of one's "
                        "own needs \"own\"");
    assert_int_equal(tess_update(NULL, optimize, &world), TESS_E_INVALID);
    assert_int_equal(tess_steps_set(&t, 12), TESS_OK);
    expect_said("finish; ");
    assert_true(tess_steps_done(&t) == 12 && tess_steps_done(NULL) == 0);
    t.pass.microbatch = 1;
    t.plan.setup.accum = 2;
    assert_int_equal(tess_steps_set(&t, 13), TESS_E_INVALID);
    assert_string_equal(tess_last_error(),
                        "tess_steps_set: 1 of 2 passes of a step have run; tess_step or tess_grad_drop "
                        "comes first");
    t.pass.microbatch = 0;
    world.fails = "finish";
    assert_int_equal(tess_steps_set(&t, 13), TESS_E_DEVICE);
    t.settings.plan_only = 1;
    assert_int_equal(tess_steps_set(&t, 13), TESS_E_INVALID);
    t.settings.plan_only = t.sharded = 0;
    assert_int_equal(tess_steps_set(&t, 13), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "tess_steps_set before tess_shard");
    assert_int_equal(tess_steps_done(&t), 12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_update_calls__each_trained_parameter_is_stepped_once, begin),
        cmocka_unit_test_setup(test_update_calls__what_is_not_in_place_travels_in_chunks, begin),
        cmocka_unit_test_setup(test_update_calls__scaled_gradients_are_judged_first, begin),
        cmocka_unit_test_setup(test_update_calls__calls_at_a_wrong_time_are_refused, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
