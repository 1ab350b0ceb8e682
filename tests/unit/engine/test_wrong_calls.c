/* SPDX-License-Identifier: BSD-3-Clause */
/* Calls in a wrong order or with wrong values: each is refused, and the message names what was wrong. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/log.h"
#include "tests/support/toy.h"

static toy m;
static const void *p[8];
static void *g[8];

static tess *declared(int flags) {
    tess *t = NULL;
    tess_options o = { .struct_size = sizeof o, .optimizer = "adamw", .input_bytes = TOY_INPUT_BYTES };
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(toy_declare(t, &m, flags), TESS_OK);
    return t;
}

static tess *sharded(void) {
    tess *t = declared(0);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_OK);
    return t;
}

static tess *in_pass(uint32_t kind) {
    tess *t = sharded();
    assert_int_equal(tess_pass(t, kind), TESS_OK);
    return t;
}

static void expect(tess *t, tess_status s, const char *message) {
    assert_int_equal(s, TESS_E_INVALID);
    assert_string_equal(tess_last_error(), message);
    tess_close(t);
}

static void forward(tess *t, int k) {
    assert_int_equal(tess_forward_begin(t, m.scope[k], p, m.n_params[k]), TESS_OK);
    assert_int_equal(tess_forward_end(t, m.scope[k]), TESS_OK);
}

static void test_wrong_calls__before_there_is_anything_to_run(void **state) {
    (void)state;
    tess *t = declared(0);
    expect(t, tess_pass(t, TESS_PASS_TRAIN), "tess_pass before tess_shard");
    t = declared(0);
    expect(t, tess_summon_begin(t, m.scope[0], p, m.n_params[0]), "tess_summon_begin before tess_shard");
    t = declared(TOY_BLOCKS);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_OK);
    expect(t, tess_pass(t, TESS_PASS_TRAIN), "tess_pass: this model declares blocks, which run by tess_run");
}

static void test_wrong_calls__common_bytes_that_are_not_there(void **state) {
    (void)state;
    char room[8];
    tess *t = NULL;
    tess_options o = { .struct_size = sizeof o, .common = room, .common_bytes = TESS_CHECKPOINT_BYTES + 1 };
    assert_int_equal(tess_open(&o, &t), TESS_E_INVALID);
    assert_string_equal(tess_last_error(),
                        "tess_options.common_bytes is 4097: at most 4096 are kept, and common points to them");
    o.common = NULL;
    o.common_bytes = 8;
    assert_int_equal(tess_open(&o, &t), TESS_E_INVALID);
    assert_string_equal(
        tess_last_error(),
        "tess_options.common_bytes is 8 and common is null: at most 4096 are kept, and common points to them");
}

static void test_wrong_calls__kinds_of_passes(void **state) {
    (void)state;
    static const uint32_t kinds[] = { 0, 3, 7, TESS_PASS_EVAL | TESS_PASS_NO_SYNC, TESS_PASS_TRAIN | 64 };
    for (int i = 0; i < 5; i++) {
        tess *t = sharded();
        char text[64];
        snprintf(text, sizeof text, "tess_pass: %u is no kind of pass", kinds[i]);
        expect(t, tess_pass(t, kinds[i]), text);
    }
    tess *t = sharded();
    expect(t, tess_pass(t, TESS_PASS_TRAIN | TESS_PASS_NO_SYNC),
           "tess_pass: a pass without communication needs accum > 1 and sync=end, and cannot be the last of its step");
    double loss;
    t = sharded();
    assert_int_equal(toy_pass(t, &m, TESS_PASS_TRAIN, 0, &loss), TESS_OK);
    assert_int_equal(toy_pass(t, &m, TESS_PASS_EVAL, 0, &loss), TESS_OK); /* as many as one likes */
    expect(
        t, tess_pass(t, TESS_PASS_TRAIN),
        "tess_pass: 1 microbatches are declared per step (accum) and all have run; tess_step or tess_grad_drop comes "
        "next");
}

static tess *after_microbatches(int n) {
    tess *t = NULL;
    double loss;
    tess_options o = { .struct_size = sizeof o, .optimizer = "adamw", .accum = 3, .input_bytes = TOY_INPUT_BYTES };
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(toy_declare(t, &m, 0), TESS_OK);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_OK);
    for (int i = 0; i < n; i++)
        assert_int_equal(toy_pass(t, &m, TESS_PASS_TRAIN, i, &loss), TESS_OK);
    return t;
}

static void test_wrong_calls__a_step_has_all_its_microbatches(void **state) {
    (void)state;
    const tess_optimizer_options step = { .struct_size = sizeof step, .lr = 0.01f };
    float norm;
    for (int n = 0; n < 3; n++) {
        char text[120];
        const char *from = " (tess_options.accum=3)";
        tess *t = after_microbatches(n);
        snprintf(text, sizeof text, "tess_step: %d of 3 training passes have run since the last step%s", n, from);
        expect(t, tess_step(t, &step), text);
        t = after_microbatches(n);
        snprintf(text, sizeof text, "tess_grad_norm: %d of 3 training passes have run since the last step%s", n, from);
        expect(t, tess_grad_norm(t, &norm), text);
        t = after_microbatches(n);
        if (n == 0) {
            assert_int_equal(tess_steps_set(t, 12), TESS_OK);
            assert_int_equal(tess_steps_done(t), 12);
            tess_close(t);
            continue;
        }
        snprintf(text, sizeof text,
                 "tess_steps_set: %d of 3 passes of a step have run; tess_step or tess_grad_drop comes first", n);
        expect(t, tess_steps_set(t, 12), text);
    }
    tess *t = after_microbatches(3);
    assert_int_equal(tess_grad_norm(t, &norm), TESS_OK);
    assert_true(norm > 0);
    assert_int_equal(tess_step(t, &step), TESS_OK);
    tess_close(t);
    t = declared(0);
    expect(t, tess_steps_set(t, 1), "tess_steps_set before tess_shard");
    assert_int_equal(tess_steps_done(NULL), 0);
}

static void test_wrong_calls__scopes_that_are_none_and_rooms_that_do_not_fit(void **state) {
    (void)state;
    static const tess_scope none[] = { -1, TOY_SCOPES };
    for (int i = 0; i < 2; i++) {
        char text[64];
        const char *const calls[] = { "tess_forward_begin", "tess_forward_end", "tess_backward_begin",
                                      "tess_backward_end", "tess_summon_begin" };
        for (int c = 0; c < 5; c++) {
            tess *t = c < 4 ? in_pass(TESS_PASS_TRAIN) : sharded();
            tess_status s = c == 0   ? tess_forward_begin(t, none[i], p, 1)
                            : c == 1 ? tess_forward_end(t, none[i])
                            : c == 2 ? tess_backward_begin(t, none[i], p, g, 1)
                            : c == 3 ? tess_backward_end(t, none[i])
                                     : tess_summon_begin(t, none[i], p, 1);
            snprintf(text, sizeof text, "%s: %d is no scope; there are 5", calls[c], (int)none[i]);
            expect(t, s, text);
        }
        tess *t = sharded();
        snprintf(text, sizeof text, "tess_summon_end: scope %d is not summoned", (int)none[i]);
        assert_int_equal(tess_summon_begin(t, m.scope[0], p, m.n_params[0]), TESS_OK);
        expect(t, tess_summon_end(t, none[i]), text);
    }
    tess *t = in_pass(TESS_PASS_TRAIN);
    expect(t, tess_forward_begin(t, m.scope[1], p, 1),
           "tess_forward_begin: scope \"h.0\" has 2 parameters, room for 1 was given");
    t = in_pass(TESS_PASS_TRAIN);
    expect(t, tess_backward_begin(t, m.scope[1], NULL, g, 2),
           "tess_backward_begin: scope \"h.0\" has 2 parameters, room for 0 was given");
    t = sharded();
    expect(t, tess_summon_end(t, m.scope[0]), "tess_summon_end: scope 0 is not summoned");
}

static void test_wrong_calls__scopes_at_a_wrong_time(void **state) {
    (void)state;
    tess *t = sharded();
    expect(t, tess_forward_begin(t, m.scope[1], p, 2),
           "scope \"h.0\" is entered outside a pass; tess_pass comes first");
    t = in_pass(TESS_PASS_EVAL);
    forward(t, 0);
    expect(t, tess_backward_begin(t, m.scope[0], p, g, m.n_params[0]), "backward of scope \"embed\" in an evaluation");
    t = in_pass(TESS_PASS_EVAL); /* which a summon may end */
    forward(t, 0);
    assert_int_equal(tess_summon_begin(t, m.scope[0], p, m.n_params[0]), TESS_OK);
    assert_int_equal(tess_summon_end(t, m.scope[0]), TESS_OK);
    expect(t, tess_forward_begin(t, m.scope[1], p, 2),
           "scope \"h.0\" is entered outside a pass: tess_summon_begin has ended it; tess_pass comes first");
    t = sharded(); /* a pass that came to its end was not ended by it */
    double loss;
    assert_int_equal(toy_pass(t, &m, TESS_PASS_EVAL, 0, &loss), TESS_OK);
    assert_int_equal(tess_summon_begin(t, m.scope[0], p, m.n_params[0]), TESS_OK);
    assert_int_equal(tess_summon_end(t, m.scope[0]), TESS_OK);
    expect(t, tess_forward_begin(t, m.scope[1], p, 2),
           "scope \"h.0\" is entered outside a pass; tess_pass comes first");
}

static void test_wrong_calls__summons_within_a_pass(void **state) {
    (void)state;
    tess *t = in_pass(TESS_PASS_TRAIN);
    forward(t, 0);
    expect(t, tess_summon_begin(t, m.scope[1], p, 2),
           "tess_summon_begin of scope \"h.0\" within a pass, which has not come to its end");
    t = in_pass(TESS_PASS_EVAL);
    assert_int_equal(tess_forward_begin(t, m.scope[2], p, m.n_params[2]), TESS_OK);
    expect(t, tess_summon_begin(t, m.scope[1], p, 2),
           "tess_summon_begin of scope \"h.0\" within a pass: forward of scope \"h.1\" has begun and not ended");
    t = in_pass(TESS_PASS_TRAIN);
    for (int k = 0; k < TOY_SCOPES; k++)
        forward(t, k);
    assert_int_equal(tess_backward_begin(t, m.scope[4], p, g, m.n_params[4]), TESS_OK);
    expect(t, tess_summon_begin(t, m.scope[1], p, 2),
           "tess_summon_begin of scope \"h.0\" within a pass: backward of scope \"head\" has begun and not ended");
    t = sharded();
    assert_int_equal(tess_summon_begin(t, m.scope[1], p, 2), TESS_OK);
    expect(t, tess_pass(t, TESS_PASS_EVAL), "tess_pass while parameters are summoned");
    t = sharded(); /* as often as it was summoned */
    for (int i = 0; i < 2; i++)
        assert_int_equal(tess_summon_begin(t, m.scope[1], p, 2), TESS_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(tess_summon_end(t, m.scope[1]), TESS_OK);
    expect(t, tess_summon_end(t, m.scope[1]), "tess_summon_end: scope 1 is not summoned");
}

static void test_wrong_calls__a_training_pass_has_a_backward(void **state) {
    (void)state;
    const tess_optimizer_options step = { .struct_size = sizeof step, .lr = 0.01f };
    tess *t = in_pass(TESS_PASS_TRAIN);
    expect(
        t, tess_step(t, &step),
        "a training pass ends in which no scope was entered: tess_forward_begin and tess_backward_begin are missing");
    t = in_pass(TESS_PASS_TRAIN);
    forward(t, 0);
    forward(t, 1);
    expect(
        t, tess_step(t, &step),
        "a training pass ends without any backward: tess_backward_begin of scope \"h.0\" is missing, or tess_pass was "
        "meant to be TESS_PASS_EVAL");
}

static void refuse_step(const tess_optimizer_options *o, const char *message) {
    double loss;
    tess *t = sharded();
    assert_int_equal(toy_pass(t, &m, TESS_PASS_TRAIN, 0, &loss), TESS_OK);
    expect(t, tess_step(t, o), message);
}

static void test_wrong_calls__a_steps_numbers_are_finite(void **state) {
    (void)state;
    tess_optimizer_options o = { .struct_size = sizeof o, .lr = -0.5f };
    refuse_step(&o, "tess_step: lr is -0.5, expected a finite number from 0 up");
    o.lr = INFINITY;
    refuse_step(&o, "tess_step: lr is inf, expected a finite number from 0 up");
    o.lr = 0.01f;
    o.clip_norm = -1;
    refuse_step(&o, "tess_step: clip_norm is -1, expected 0 (no clipping) or a finite number above");
    o.clip_norm = INFINITY;
    refuse_step(&o, "tess_step: clip_norm is inf, expected 0 (no clipping) or a finite number above");
    o.clip_norm = 0;
    o.grad_scale = INFINITY;
    refuse_step(&o, "tess_step: grad_scale is inf, expected a finite number");
    o.grad_scale = 0;
    o.lr = 0;
    setenv("TESSERA_STRICT", "1", 1);
    refuse_step(&o, "tess_step: lr is 0, so no parameter would change: tess_optimizer_options.lr is missing "
                    "(TESSERA_STRICT=1)");
    unsetenv("TESSERA_STRICT");
    double loss;
    tess *t = sharded(); /* else it may be meant so */
    assert_int_equal(toy_pass(t, &m, TESS_PASS_TRAIN, 0, &loss), TESS_OK);
    assert_int_equal(tess_step(t, &o), TESS_OK);
    assert_int_equal(tess_close(t), TESS_OK);
}

/* ---- a table of pointers by tag ---- */
static tess *tagged(uint64_t second_tag, tess_scope *scope) {
    static const int64_t four = 4;
    tess *t;
    tess_param_options a = { .struct_size = sizeof a, .dtype = TESS_F32, .name = "a.w", .shape = &four, .ndim = 1 },
                       b = a;
    a.tag = 2, b.tag = second_tag, b.name = "b.v";
    assert_int_equal(tess_open(NULL, &t), TESS_OK);
    assert_int_equal(tess_scope_add(t, "a", 0, &scope[0]), TESS_OK);
    assert_int_equal(tess_scope_add(t, "b", 0, &scope[1]), TESS_OK);
    assert_int_equal(tess_param_add(t, &a, NULL), TESS_OK);
    assert_int_equal(tess_param_add(t, &b, NULL), TESS_OK);
    assert_int_equal(tess_param_tie(t, "b.w", "a.w"), TESS_OK);
    assert_int_equal(tess_shard(t, NULL, NULL), TESS_OK);
    assert_int_equal(tess_pass(t, TESS_PASS_TRAIN), TESS_OK);
    return t;
}

static void test_wrong_calls__tables_of_pointers(void **state) {
    (void)state;
    tess_scope scope[2];
    char untouched;
    float *w[3] = { (float *)(void *)&untouched, NULL, NULL }, *d[3] = { NULL };
    tess *t = tagged(1, scope);
    assert_int_equal(tess_forward_begin(t, scope[0], w, -3), TESS_OK);
    assert_true(w[0] == (void *)&untouched && !w[1] && w[2]);
    assert_int_equal(tess_forward_end(t, scope[0]), TESS_OK);
    struct {
        float *v, *w;
    } by_place;
    assert_int_equal(TESS_FORWARD_BEGIN(t, scope[1], &by_place), TESS_OK);
    assert_int_equal(tess_forward_end(t, scope[1]), TESS_OK);
    w[2] = NULL;
    assert_int_equal(tess_backward_begin(t, scope[1], w, d, -3), TESS_OK);
    assert_true(w[0] == (void *)&untouched && w[1] && w[2] && w[1] != w[2] && !d[0] && d[1] && d[2] && d[1] != d[2]);
    assert_int_equal(tess_backward_end(t, scope[1]), TESS_OK);
    expect(t, tess_backward_begin(t, scope[0], w, d, -2),
           "tess_backward_begin: parameter \"a.w\" has tag 2, and the table has 2 slots");
    t = tagged(2, scope);
    expect(t, tess_forward_begin(t, scope[1], w, -3),
           "tess_forward_begin: parameters \"b.v\" and \"a.w\" of scope \"b\" have one tag");
}

static void test_wrong_calls__names_and_sizes(void **state) {
    (void)state;
    tess *t = declared(0);
    assert_int_equal(tess_scope_add(t, "a\x01z", 0, NULL), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "its name holds a control character"));
    tess_close(t);
    static const uint32_t sizes[] = { 8, 1 << 16, 7, (1 << 16) + 1 };
    static _Alignas(8) char room[(1 << 16) + 8];
    for (int i = 0; i < 4; i++) {
        t = sharded();
        tess_recovery *r = (tess_recovery *)(void *)room;
        r->struct_size = sizes[i];
        assert_int_equal(tess_recover(t, r), i < 2 ? TESS_OK : TESS_E_INVALID);
        tess_close(t);
    }
    assert_string_equal(tess_last_error(), "tess_recover: struct_size is 65537; set it to sizeof(tess_recovery)");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_calls__before_there_is_anything_to_run),
        cmocka_unit_test(test_wrong_calls__common_bytes_that_are_not_there),
        cmocka_unit_test(test_wrong_calls__kinds_of_passes),
        cmocka_unit_test(test_wrong_calls__a_step_has_all_its_microbatches),
        cmocka_unit_test(test_wrong_calls__scopes_that_are_none_and_rooms_that_do_not_fit),
        cmocka_unit_test(test_wrong_calls__scopes_at_a_wrong_time),
        cmocka_unit_test(test_wrong_calls__tables_of_pointers),
        cmocka_unit_test(test_wrong_calls__summons_within_a_pass),
        cmocka_unit_test(test_wrong_calls__a_training_pass_has_a_backward),
        cmocka_unit_test(test_wrong_calls__names_and_sizes),
        cmocka_unit_test(test_wrong_calls__a_steps_numbers_are_finite),
    };
    tess__log_set_least(TESS_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
