/* SPDX-License-Identifier: BSD-3-Clause */
/* What a program does wrong with its step and its declarations, and in which words it hears of it: each option of a
 * step that ranks give differently is named, since all of them count. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/engine/state.h"
#include "tests/unit/logged.h"
#include "tests/unit/refused.h"

static const char *given;
#define tess__given_text(g, key) (strcmp(key, "optimizer") == 0 ? given : NULL)
#include "core/engine/misuse.c"

static char name_a[] = "a", name_b[] = "b", keep[] = "keep", recompute[] = "recompute", adamw[] = "adamw",
            sgd[] = "sgd";
static tess__param params[3];
static tess__scope scopes[3];
static int32_t of_scope[3][1] = { { 0 }, { 1 }, { 2 } };
static int32_t begun[6];
static tess t;

static int begin(void **state) {
    (void)state;
    memset(&t, 0, sizeof t);
    memset(params, 0, sizeof params);
    memset(begun, 0, sizeof begun);
    for (int32_t i = 0; i < 3; i++) {
        params[i] = (tess__param){ .name = i == 1 ? name_b : name_a, .tied_to = i };
        scopes[i] = (tess__scope){ .name = i == 1 ? name_b : name_a, .params = of_scope[i], .n_params = 1 };
    }
    t.plan.model.params = params;
    t.plan.model.n_params = 2;
    t.plan.model.scopes = scopes;
    t.plan.model.n_scopes = 2;
    t.plan.setup.accum = 1;
    t.comms.world.nranks = 2;
    t.settings.activations = keep;
    t.settings.optimizer = adamw;
    t.pass.begun = begun;
    t.pass.kind = TESS_PASS_TRAIN;
    memset(&logged, 0, sizeof logged);
    given = NULL;
    return 0;
}

static tess_optimizer_options options(void) {
    return (tess_optimizer_options){ .struct_size = sizeof(tess_optimizer_options), .lr = 0.5f };
}

/* ---- a step ---- */

static void test_misuse__each_option_of_a_step_counts_and_is_named(void **state) {
    enum { CASES = 15 };
    static const char *const want[CASES] = { "",
                                             ", beta1 0.25",
                                             ", beta2 0.25",
                                             ", eps 0.25",
                                             ", rho 0.25",
                                             ", momentum 0.25",
                                             ", grad_scale 0.25",
                                             ", weight_decay 0.25",
                                             ", lr_scale 0.25",
                                             ", weight_decay 0.5, lr_scale 0.25, weight_decay 0.25",
                                             ", group_lr 0, group_lr 0.25",
                                             ", group_lr 0.25, group_lr 0",
                                             "",
                                             "",
                                             "" };
    uint64_t seen[CASES];
    for (int i = 0; i < CASES; i++) {
        tess_optimizer_options o = options();
        tess_optimizer_group groups[2] = { { .weight_decay = i == 7 ? 0.25f : 0, .lr_scale = i == 8 ? 0.25f : 0 } };
        float rates[2] = { i == 11 ? 0.25f : 0, i == 10 ? 0.25f : 0 };
        float *fields[] = { NULL, &o.beta1, &o.beta2, &o.eps, &o.rho, &o.momentum, &o.grad_scale };
        begin(state);
        if (i >= 1 && i < 7)
            *fields[i] = 0.25f;
        if (i == 9)
            groups[0] = (tess_optimizer_group){ 0.5f, 0.25f }, groups[1] = (tess_optimizer_group){ 0.25f, 0 };
        if (i >= 7 && i < 12)
            o.groups = groups, o.n_groups = 2;
        if (i == 10 || i == 11)
            o.group_lr = rates;
        o.lr = i == 12 ? 0.25f : 0.5f;
        o.clip_norm = i == 13 ? 2 : 0;
        o.step = i == 14 ? 9 : 0;
        t.step.steps_done = 3;
        assert_int_equal(tess__check_step_options(&t, &o), TESS_OK);
        char text[192];
        snprintf(text, sizeof text, "tess_step %d with lr %g, clip_norm %d%s", i == 14 ? 9 : 4, i == 12 ? 0.25 : 0.5,
                 i == 13 ? 2 : 0, want[i]);
        assert_string_equal(t.comms.common_text, text);
        seen[i] = t.comms.common;
        for (int k = 0; k < i; k++)
            assert_true(seen[k] != seen[i]);
        assert_int_equal(tess__check_step_options(&t, &o), TESS_OK); /* what was before counts too */
        assert_true(t.comms.common != seen[i]);
    }
    begin(state);
    t.comms.world.nranks = 1; /* who has no other to differ from says nothing */
    tess_optimizer_options o = options();
    assert_int_equal(tess__check_step_options(&t, &o), TESS_OK);
    assert_string_equal(t.comms.common_text, "");
}

/* As much as there is room for. */
static void test_misuse__a_step_of_many_groups_ends_within_its_room(void **state) {
    (void)state;
    tess_optimizer_group groups[40];
    float rates[40];
    for (int i = 0; i < 40; i++)
        groups[i] = (tess_optimizer_group){ 0.125f, 0.0625f }, rates[i] = 0.03125f;
    for (int with = 0; with < 2; with++)
        for (size_t room = 1; room < 192; room++) {
            tess_optimizer_options o = options();
            char whole[4096], text[200];
            o.beta1 = o.beta2 = o.eps = 0.25f;
            o.n_groups = 40;
            o.groups = with ? NULL : groups;
            o.group_lr = rates;
            say_step(&o, 7, whole, sizeof whole);
            memset(text, '#', sizeof text);
            say_step(&o, 7, text, room);
            assert_int_equal(strlen(text), room - 1);
            assert_memory_equal(text, whole, room - 1);
            assert_int_equal(text[room], '#');
        }
}

static void test_misuse__a_rate_is_a_finite_number(void **state) {
    (void)state;
    const float bad[] = { NAN, INFINITY, -1 };
    const tess_optimizer_group groups[2] = { { 0 } };
    for (int i = 0; i < 3; i++) {
        char want[128];
        tess_optimizer_options o = options();
        o.lr = bad[i];
        snprintf(want, sizeof want, "tess_step: lr is %g, expected a finite number from 0 up", (double)bad[i]);
        refuses(tess__check_step_options(&t, &o), want);
        float rates[] = { 0, bad[i] };
        o.group_lr = rates;
        refuses(tess__check_step_options(&t, &o), "tess_step: group_lr is set, but groups is null");
        o.groups = groups;
        o.n_groups = 2;
        snprintf(want, sizeof want, "tess_step: group_lr[1] is %g, expected a finite number from 0 up", (double)bad[i]);
        refuses(tess__check_step_options(&t, &o), want);
        rates[1] = 0; /* lr is not read, and no rate is fine */
        assert_int_equal(tess__check_step_options(&t, &o), TESS_OK);
        o = options();
        o.clip_norm = bad[i];
        snprintf(want, sizeof want, "tess_step: clip_norm is %g, expected 0 (no clipping) or a finite number above",
                 (double)bad[i]);
        refuses(tess__check_step_options(&t, &o), want);
        o.clip_norm = 0;
        o.grad_scale = bad[i];
        snprintf(want, sizeof want, "tess_step: grad_scale is %g, expected a finite number", (double)bad[i]);
        if (i < 2)
            refuses(tess__check_step_options(&t, &o), want);
        else
            assert_int_equal(tess__check_step_options(&t, &o), TESS_OK);
    }
    assert_int_equal(logged.n, 0);
    for (int32_t rank = 1; rank >= 0; rank--) { /* once, by one rank */
        t.comms.world.rank = rank;
        t.step.warned_lr = 0;
        tess_optimizer_options o = options();
        o.lr = 0;
        for (int k = 0; k < 2; k++)
            assert_int_equal(tess__check_step_options(&t, &o), TESS_OK);
        assert_int_equal(logged.n, rank == 0);
    }
    expect_logged(1, TESS_LOG_WARNING,
                  "tess_step: lr is 0, so no parameter changes; is tess_optimizer_options.lr missing?");
    t.settings.strict = 1;
    tess_optimizer_options o = options();
    assert_int_equal(tess__check_step_options(&t, &o), TESS_OK);
    o.lr = 0;
    refuses(tess__check_step_options(&t, &o), "tess_step: lr is 0, so no parameter would change: "
                                              "tess_optimizer_options.lr is missing (TESSERA_STRICT=1)");
}

static void test_misuse__every_parameter_has_a_group(void **state) {
    (void)state;
    const tess_optimizer_group groups[3] = { { 0 } };
    tess_optimizer_options o = options();
    params[1].optimizer_group = 2;
    refuses(tess__check_step_options(&t, &o), "tess_step: parameter \"b\" is in optimizer group 2, but "
                                              "tess_optimizer_options.groups is null");
    o.groups = groups;
    o.n_groups = 2;
    refuses(tess__check_step_options(&t, &o), "tess_step: parameter \"b\" is in optimizer group 2, of 2 given");
    o.n_groups = 3;
    assert_int_equal(tess__check_step_options(&t, &o), TESS_OK);
    o.n_groups = 1;
    for (int i = 0; i < 2; i++) { /* what is not trained needs none */
        params[1].flags = i ? TESS_FROZEN : TESS_BUFFER;
        assert_int_equal(tess__check_step_options(&t, &o), TESS_OK);
    }
    t.plan.model.n_params = 3;
    params[2].optimizer_group = 5;
    assert_int_equal(tess__check_step_options(&t, &o), TESS_E_INVALID);
    params[2].optimizer_group = 1;
    o.groups = NULL;
    assert_int_equal(tess__check_step_options(&t, &o), TESS_E_INVALID);
}

/* ---- a pass ---- */

static void test_misuse__the_scope_that_is_missing_is_named(void **state) {
    (void)state;
    char text[128];
    tess__missing_scope(&t, text, sizeof text);
    assert_string_equal(text, "scope \"a\" was never entered: its tess_forward_begin is missing");
    begun[0] = 1;
    tess__missing_scope(&t, text, sizeof text);
    assert_string_equal(text, "backward of scope \"a\" was left out: its tess_backward_begin is missing");
    for (int i = 0; i < 2; i++) { /* a scope that does not train needs no backward */
        params[0].flags = i ? TESS_BUFFER : TESS_FROZEN;
        tess__missing_scope(&t, text, sizeof text);
        assert_string_equal(text, "scope \"b\" was never entered: its tess_forward_begin is missing");
    }
    begun[2] = 1;
    tess__missing_scope(&t, text, sizeof text);
    assert_string_equal(text, "backward of scope \"b\" was left out: its tess_backward_begin is missing");
    t.pass.kind = TESS_PASS_EVAL; /* neither does an evaluation */
    tess__missing_scope(&t, text, sizeof text);
    assert_string_equal(text, "");
    t.pass.kind = TESS_PASS_TRAIN | 16;
    begun[3] = 1;
    tess__missing_scope(&t, text, sizeof text);
    assert_string_equal(text, "");
}

static void test_misuse__a_training_pass_has_a_backward(void **state) {
    (void)state;
    refuses(tess__check_backward(&t), "a training pass ends in which no scope was entered: tess_forward_begin and "
                                      "tess_backward_begin are missing");
    begun[0] = 1;
    refuses(tess__check_backward(&t),
            "a training pass ends without any backward: tess_backward_begin of scope \"a\" is "
            "missing, or tess_pass was meant to be TESS_PASS_EVAL");
    begun[2] = 1;
    refuses(tess__check_backward(&t),
            "a training pass ends without any backward: tess_backward_begin of scope \"b\" is "
            "missing, or tess_pass was meant to be TESS_PASS_EVAL");
    t.plan.model.n_blocks = 1; /* of blocks the engine itself knows it */
    assert_int_equal(tess__check_backward(&t), TESS_OK);
    t.plan.model.n_blocks = 0;
    t.pass.kind = TESS_PASS_EVAL;
    assert_int_equal(tess__check_backward(&t), TESS_OK);
    t.pass.kind = TESS_PASS_TRAIN;
    begun[3] = 1;
    assert_int_equal(tess__check_backward(&t), TESS_OK);
}

/* ---- declarations ---- */

static void test_misuse__settings_without_effect_are_said(void **state) {
    (void)state;
    tess__say_unused(&t);
    assert_int_equal(logged.n, 0);
    t.settings.activations = recompute;
    tess__say_unused(&t);
    expect_logged(1, TESS_LOG_WARNING, "activations=recompute has no effect without blocks");
    assert_int_equal(tess__check_activations(&t), TESS_OK);
    t.settings.strict = 1;
    refuses(tess__check_activations(&t),
            "tess_shard: TESSERA_ACTIVATIONS=recompute has no effect, because this program "
            "declares no blocks (tess_block_add): its activations are its own "
            "(TESSERA_STRICT=1)");
    given = sgd;
    t.settings.optimizer = sgd;
    tess__say_unused(&t);
    expect_logged(1, TESS_LOG_WARNING,
                  "activations=recompute has no effect without blocks; TESSERA_OPTIMIZER=sgd takes the "
                  "place of the program's adamw");
    t.plan.model.n_blocks = 1;
    assert_int_equal(tess__check_activations(&t), TESS_OK);
    t.settings.options.optimizer = adamw;
    tess__say_unused(&t);
    expect_logged(1, TESS_LOG_WARNING, "TESSERA_OPTIMIZER=sgd takes the place of the program's adamw");
    for (int i = 0; i < 3; i++) { /* as the program has it, another than what took effect, none */
        t.settings.options.optimizer = i ? adamw : sgd;
        t.settings.optimizer = i == 1 ? adamw : sgd;
        given = i == 2 ? NULL : sgd;
        tess__say_unused(&t);
        assert_int_equal(logged.n, 0);
    }
    t.plan.model.n_blocks = 0;
    t.settings.activations = keep;
    assert_int_equal(tess__check_activations(&t), TESS_OK);
}

static void test_misuse__gradients_that_add_up_are_not_overwritten(void **state) {
    (void)state;
    params[1].flags = TESS_GRAD_OVERWRITE;
    assert_int_equal(tess__check_overwrite(&t.plan), TESS_OK);
    t.plan.setup.accum = 2;
    refuses(tess__check_overwrite(&t.plan),
            "tess_shard: parameter \"b\" is declared with TESS_GRAD_OVERWRITE, but with "
            "sync=end several microbatches add up in one gradient: its kernels must add");
    t.plan.setup.sync_each = 1;
    assert_int_equal(tess__check_overwrite(&t.plan), TESS_OK);
    t.plan.model.n_params = 3;
    params[2].tied_to = 1;
    refuses(tess__check_overwrite(&t.plan),
            "tess_shard: parameter \"b\" is declared with TESS_GRAD_OVERWRITE, but "
            "another name is tied to it, which has a gradient too: its kernels must add");
    t.plan.model.n_blocks = 1; /* their order says which is first */
    assert_int_equal(tess__check_overwrite(&t.plan), TESS_OK);
    t.plan.model.n_blocks = 0;
    params[2].tied_to = 0;
    assert_int_equal(tess__check_overwrite(&t.plan), TESS_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_misuse__each_option_of_a_step_counts_and_is_named, begin),
        cmocka_unit_test_setup(test_misuse__a_step_of_many_groups_ends_within_its_room, begin),
        cmocka_unit_test_setup(test_misuse__a_rate_is_a_finite_number, begin),
        cmocka_unit_test_setup(test_misuse__every_parameter_has_a_group, begin),
        cmocka_unit_test_setup(test_misuse__the_scope_that_is_missing_is_named, begin),
        cmocka_unit_test_setup(test_misuse__a_training_pass_has_a_backward, begin),
        cmocka_unit_test_setup(test_misuse__settings_without_effect_are_said, begin),
        cmocka_unit_test_setup(test_misuse__gradients_that_add_up_are_not_overwritten, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
