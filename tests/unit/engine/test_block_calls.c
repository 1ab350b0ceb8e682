/* SPDX-License-Identifier: BSD-3-Clause */
/* The parts of tess_run, each alone: what a block is called with, which program runs, which calls are refused. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "core/base/status.h"
#include "core/engine/state.h"
#include "tests/unit/noted.h"

enum { BLOCKS = 3 };
static struct {
    const char *fails; /* the call that fails, by its first word */
    tess_block_call call;
    int quiet; /* the block fails without a word */
} world;
static tess t;

#define note(...) noted(&world.fails, 1, __VA_ARGS__)
static tess_status pointers_of(tess *engine, int32_t scope, int with_grads, int32_t flags) {
    assert_ptr_equal(engine, &t);
    assert_int_equal(flags, 0);
    return note("pointers %d%s", scope, with_grads ? " grads" : "");
}
static tess_status take_back(int32_t scope, int backward, const char *what) {
    return note("%s %d %s", what, scope, backward ? "back" : "on");
}
static tess_status run_block(const char *what, void *user, const tess_block_call *c) {
    assert_ptr_equal(user, &world);
    world.call = *c;
    return world.quiet ? TESS_E_DEVICE : note("%s", what);
}
static tess_status forward(void *user, const tess_block_call *c) {
    return run_block("runs-forward", user, c);
}
static tess_status backward(void *user, const tess_block_call *c) {
    return run_block("runs-backward", user, c);
}
#define tess__scope_pointers(e, scope, params, grads, flags)                                                           \
    ((void)(params), pointers_of(e, scope, (grads) != NULL, flags))
#define tess__take_back(e, scope, backward, what) take_back(scope, backward, what)
#define tess__grad_place(model, i) ((i) + 10)
#define tess__saves_selectively(model, setup, i) ((i) == 1)
#define tess__step_needs_norm(e, step) ((step)->clip_norm > 0)
#define tess__steps_in_pass(model, setup) ((setup)->step_in_pass)
#define tess__steps_by_unit(model, setup) ((setup)->no_clip)
#include "core/engine/blocks.c"

static tess__scope scopes[BLOCKS + 1];
static tess__block blocks[BLOCKS];
static char at[TESS__N_ROLES][16];
static void *address[TESS__N_ROLES][16];
static uint8_t booked[TESS__N_ROLES][16];
static tess_run_options run;
static const void *params[1];
static void *grads[1];

static int begin(void **state) {
    (void)state;
    memset(&world, 0, sizeof world);
    said_so_far[0] = 0;
    memset(&t, 0, sizeof t);
    memset(booked, 1, sizeof booked);
    for (int role = 0; role < TESS__N_ROLES; role++) {
        for (int i = 0; i < 16; i++)
            address[role][i] = &at[role][i];
        t.memory.address[role] = address[role];
        t.memory.booked[role] = booked[role];
    }
    for (int32_t i = 0; i < BLOCKS; i++) {
        scopes[i + 1] = (tess__scope){ .block = i };
        blocks[i] = (tess__block){
            .scope = i + 1,
            .options = { .name = "b", .user = &world, .forward = forward, .backward = backward },
        };
    }
    t.plan.model.scopes = scopes;
    t.plan.model.blocks = blocks;
    t.plan.model.n_blocks = BLOCKS;
    t.plan.setup.accum = 1;
    t.plan.setup.threads = 5;
    t.pass.kind = TESS_PASS_TRAIN | 16;
    t.pass.block_params = (void *)params;
    t.pass.block_grads = (void *)grads;
    run = (tess_run_options){ .struct_size = sizeof run, .kind = TESS_PASS_TRAIN, .batch = &world, .microbatch = 7 };
    t.pass.run = &run;
    t.step.steps_done = 9;
    t.sharded = 1;
    return 0;
}

static tess_status calls(uint8_t type, int32_t block) {
    const tess__event e = { .type = type, .scope = block + 1 };
    return call_block(&t, &e);
}

static void expect_call(const char *said, int32_t i, int recompute, int back) {
    const tess_block_call *c = &world.call;
    expect_said(said);
    assert_true(c->struct_size == sizeof *c && c->pass == TESS_PASS_TRAIN && c->step == 9 && c->microbatch == 7);
    assert_true(c->threads == 5 && (int)c->recompute == recompute && (int)c->selective == (i == 1));
    assert_true(c->params == (void *)params && c->grads == (void *)grads);
    assert_ptr_equal(c->batch, &at[TESS__INPUT][0]);
    assert_ptr_equal(c->input, i ? &at[TESS__OUTPUT][i - 1] : NULL);
    assert_ptr_equal(c->output, &at[TESS__OUTPUT][i]);
    assert_ptr_equal(c->saved, &at[TESS__SAVED][i]);
    assert_ptr_equal(c->scratch, &at[TESS__SCRATCH][i]);
    assert_ptr_equal(c->grad_output, back ? &at[TESS__OUTPUT_GRAD][i + 10] : NULL);
    assert_ptr_equal(c->grad_input, back && i ? &at[TESS__OUTPUT_GRAD][i + 9] : NULL);
}

static void test_block_calls__a_block_gets_what_lives_for_it(void **state) {
    char said[96];
    for (int32_t i = 0; i < BLOCKS; i++)
        for (int how = 0; how < 3; how++) {
            begin(state);
            assert_int_equal(calls(how == 0   ? TESS__FORWARD_BEGIN
                                   : how == 1 ? TESS__RECOMPUTE_BEGIN
                                              : TESS__BACKWARD_BEGIN,
                                   i),
                             TESS_OK);
            snprintf(said, sizeof said, "pointers %d%s; runs-%s; %s %d %s; ", i + 1, how == 2 ? " grads" : "",
                     how == 2 ? "backward" : "forward", how == 2 ? "backward" : "forward", i + 1,
                     how == 2 ? "back" : "on");
            expect_call(said, i, how == 1, how == 2);
        }
    begin(state); /* nothing lives: no pointer */
    memset(booked, 0, sizeof booked);
    assert_int_equal(calls(TESS__BACKWARD_BEGIN, 2), TESS_OK);
    const tess_block_call *c = &world.call;
    assert_true(!c->batch && !c->input && !c->output && !c->saved && !c->scratch && !c->grad_output && !c->grad_input);
}

static void test_block_calls__a_block_that_fails_is_named(void **state) {
    for (int quiet = 0; quiet < 2; quiet++)
        for (int back = 0; back < 2; back++) {
            begin(state);
            world.fails = back ? "runs-backward" : "runs-forward";
            world.quiet = quiet;
            assert_int_equal(calls(back ? TESS__BACKWARD_BEGIN : TESS__FORWARD_BEGIN, 1), TESS_E_DEVICE);
            assert_non_null(strstr(tess_last_error(), quiet && back ? "backward of block \"b\" failed with "
                                                      : quiet       ? "forward of block \"b\" failed with "
                                                      : back        ? "runs-backward failed"
                                                                    : "runs-forward failed"));
            assert_null(strstr(said_so_far, back ? "back; " : "on; "));
        }
    begin(state);
    world.fails = "pointers";
    assert_int_equal(calls(TESS__FORWARD_BEGIN, 1), TESS_E_DEVICE);
    expect_said("pointers 2; ");
    begin(state);
    world.fails = "forward";
    assert_int_equal(calls(TESS__FORWARD_BEGIN, 1), TESS_E_DEVICE);
}

static void test_block_calls__each_kind_of_pass_has_its_program(void **state) {
    (void)state;
    tess_optimizer_options step = { .struct_size = sizeof step };
    assert_ptr_equal(choose_program(&t, &run), &t.plan.programs[TESS__P_TRAIN]);
    run.step = &step;
    assert_ptr_equal(choose_program(&t, &run), &t.plan.programs[TESS__P_FUSED]);
    step.clip_norm = 1; /* the step waits for the norm */
    assert_ptr_equal(choose_program(&t, &run), &t.plan.programs[TESS__P_TRAIN]);
    step.clip_norm = 0;
    t.plan.setup.accum = 3;
    for (int each = 0; each < 2; each++)
        for (int32_t k = 0; k < 3; k++) {
            t.plan.setup.sync_each = each;
            t.pass.microbatch = k;
            assert_ptr_equal(choose_program(&t, &run),
                             &t.plan.programs[each || k == 2 ? TESS__P_TRAIN : TESS__P_NO_SYNC]);
        }
    run.kind = TESS_PASS_EVAL;
    t.plan.setup.sync_each = 0;
    t.pass.microbatch = 0;
    assert_ptr_equal(choose_program(&t, &run), &t.plan.programs[TESS__P_EVAL]);
}

static void refuses(const char *why) {
    assert_int_equal(check_run(&t, &run), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), why);
}

static void test_block_calls__what_cannot_run_is_said(void **state) {
    char accum_text[] = " (2 ranks go on)";
    tess_optimizer_options step = { .struct_size = sizeof step };
    assert_int_equal(check_run(&t, &run), TESS_OK);
    for (int i = 0; i < 3; i++) {
        begin(state);
        t.sharded = i != 0;
        t.settings.plan_only = i == 1;
        t.plan.model.n_blocks = i == 2 ? 0 : BLOCKS;
        refuses("tess_run needs declared blocks and tess_shard");
    }
    begin(state);
    run.kind = 77;
    refuses("tess_run: 77 is no kind of pass");
    begin(state);
    t.plan.setup.step_in_pass = 1;
    refuses("tess_run: a training pass without a step, and tess_options.flags has TESS_OPTIONS_STEP_IN_PASS");
    run.step = &step;
    assert_int_equal(check_run(&t, &run), TESS_OK);
    t.plan.setup.no_clip = 1;
    assert_int_equal(check_run(&t, &run), TESS_OK);
    step.clip_norm = 1;
    refuses("tess_run: a step with clipping, and tess_options.flags has TESS_OPTIONS_NO_CLIP");
    run.kind = TESS_PASS_EVAL; /* an evaluation has no step */
    run.step = NULL;
    assert_int_equal(check_run(&t, &run), TESS_OK);
    begin(state);
    run.batch = NULL;
    assert_int_equal(check_run(&t, &run), TESS_OK);
    t.plan.setup.input_bytes = 24;
    refuses("tess_run: the batch of 24 bytes is missing");
    begin(state);
    t.pass.microbatch = 1;
    snprintf(t.settings.accum_text, sizeof t.settings.accum_text, "%s", accum_text);
    refuses("tess_run: all 1 microbatches of the step have run (2 ranks go on); tess_step comes next");
    run.kind = TESS_PASS_EVAL;
    assert_int_equal(check_run(&t, &run), TESS_OK);
    begin(state);
    t.pass.summoned = 1;
    refuses("tess_run while parameters are summoned");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_block_calls__a_block_gets_what_lives_for_it, begin),
        cmocka_unit_test_setup(test_block_calls__a_block_that_fails_is_named, begin),
        cmocka_unit_test_setup(test_block_calls__each_kind_of_pass_has_its_program, begin),
        cmocka_unit_test_setup(test_block_calls__what_cannot_run_is_said, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
