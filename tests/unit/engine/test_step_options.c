/* SPDX-License-Identifier: BSD-3-Clause */
/* What a program tells a step: grad_scale, clip_norm, groups and the number of the step, by value; gradients that are
 * stored in place of added; passes that do not communicate; the norm's ledger. One parameter whose gradient the test
 * writes. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/norm.h"
#include "tests/support/ledger_check.h"
#include "tests/support/toy.h"

enum { ELEMS = 3 };
typedef struct {
    tess *t;
    tess_scope scope;
} model;

static const tess_optimizer_options plain = { .struct_size = sizeof plain, .lr = 0.5f };

static tess_status add_param(tess *t, const char *name, uint32_t flags, int32_t group) {
    static const int64_t shape[] = { ELEMS };
    const tess_param_options o = { .struct_size = sizeof o,
                                   .dtype = TESS_F32,
                                   .flags = flags,
                                   .name = name,
                                   .shape = shape,
                                   .ndim = 1,
                                   .optimizer_group = group };
    return tess_param_add(t, &o, NULL);
}

static tess_status fill_one(void *user, const tess_range *r, void *data) {
    (void)user;
    for (uint64_t i = 0; i < r->elems; i++)
        ((float *)data)[i] = 1;
    return TESS_OK;
}

/* Declared: m.a in group 0 and m.b in group 1. */
static model declare(const char *optimizer, uint32_t flags, int accum, const char *sync) {
    model m = { NULL, 0 };
    const tess_options o = { .struct_size = sizeof o, .optimizer = optimizer, .accum = accum, .sync = sync };
    assert_int_equal(tess_open(&o, &m.t), TESS_OK);
    assert_int_equal(tess_scope_add(m.t, "m", 0, &m.scope), TESS_OK);
    assert_int_equal(add_param(m.t, "m.a", flags, 0), TESS_OK);
    assert_int_equal(add_param(m.t, "m.b", flags, 1), TESS_OK);
    return m;
}

static model opened(const char *optimizer) {
    model m = declare(optimizer, 0, 1, NULL);
    assert_int_equal(tess_shard(m.t, fill_one, NULL), TESS_OK);
    return m;
}

/* A pass in which element i of a parameter gets the gradient g[i], added or stored. */
static void pass(model *m, uint32_t kind, const float *g, int store) {
    const float *p[2];
    float *grad[2];
    assert_int_equal(tess_pass(m->t, kind), TESS_OK);
    assert_int_equal(tess_forward_begin(m->t, m->scope, p, 2), TESS_OK);
    assert_int_equal(tess_forward_end(m->t, m->scope), TESS_OK);
    assert_int_equal(tess_backward_begin(m->t, m->scope, p, grad, 2), TESS_OK);
    for (int i = 0; i < 2 * ELEMS; i++)
        grad[i / ELEMS][i % ELEMS] = (store ? 0 : grad[i / ELEMS][i % ELEMS]) + g[i];
    assert_int_equal(tess_backward_end(m->t, m->scope), TESS_OK);
}

static tess_status take(void *user, const tess_range *r, void *data) {
    memcpy((float *)user + r->param * ELEMS + r->first_elem, data, r->elems * sizeof(float));
    return TESS_OK;
}

static void values_of(model *m, float out[2 * ELEMS]) {
    assert_int_equal(tess_each_full(m->t, TESS_OF_PARAM, take, out), TESS_OK);
}

static const tess_optimizer_group no_groups[2];
static void step(model *m, tess_optimizer_options o) {
    if (!o.groups)
        o.groups = no_groups, o.n_groups = 2;
    assert_int_equal(tess_step(m->t, &o), TESS_OK);
}

static void equal(const float *found, const float *expected) {
    for (int i = 0; i < 2 * ELEMS; i++)
        if (found[i] != expected[i])
            fail_msg("element %d is %.9g, expected %.9g", i, (double)found[i], (double)expected[i]);
}

/* ---- grad_scale, clip_norm, groups ---- */

static void test_step_options__grad_scale_multiplies_the_gradient(void **state) {
    (void)state;
    static const float g[] = { 8, -4, 2, 0, 1, -16 };
    float found[6], expected[6];
    model m = opened("sgd");
    pass(&m, TESS_PASS_TRAIN, g, 0);
    tess_optimizer_options o = plain;
    o.grad_scale = 0.25f;
    step(&m, o);
    values_of(&m, found);
    for (int i = 0; i < 6; i++)
        expected[i] = 1 - 0.5f * (0.25f * g[i]);
    equal(found, expected);
    assert_int_equal(tess_close(m.t), TESS_OK);
}

/* The largest norm is that of the scaled gradient: 0.25 * 16. tess_grad_norm says what it is before. */
static void test_step_options__clip_norm_comes_after_grad_scale(void **state) {
    (void)state;
    static const float g[] = { 0, 0, 0, 0, 16, 0 };
    const float clip[] = { 2, 8 };
    for (int i = 0; i < 2; i++) {
        float found[6], expected[6], norm = 0;
        model m = opened("sgd");
        pass(&m, TESS_PASS_TRAIN, g, 0);
        assert_int_equal(tess_grad_norm(m.t, &norm), TESS_OK);
        assert_true(norm == 16);
        tess_optimizer_options o = plain;
        o.grad_scale = 0.25f;
        o.clip_norm = clip[i];
        step(&m, o);
        values_of(&m, found);
        float scale = 0.25f * tess__clip_coefficient((double)clip[i], 4);
        for (int k = 0; k < 6; k++)
            expected[k] = 1 - 0.5f * (scale * g[k]);
        equal(found, expected);
        assert_true(i == 0 ? found[4] > -0.01f && found[4] < 0.01f : found[4] == -1);
        assert_int_equal(tess_close(m.t), TESS_OK);
    }
}

/* The norm that a step with grad_scale knew is its own. */
static void test_step_options__a_norm_after_a_step_with_grad_scale_is_without_it(void **state) {
    (void)state;
    static const float g[] = { 0, 0, 0, 0, 16, 0 };
    float norm = 0;
    model m = opened("sgd");
    pass(&m, TESS_PASS_TRAIN, g, 0);
    tess_optimizer_options o = plain;
    o.grad_scale = 0.25f;
    step(&m, o);
    pass(&m, TESS_PASS_TRAIN, g, 0);
    assert_int_equal(tess_grad_norm(m.t, &norm), TESS_OK);
    assert_true(norm == 16);
    assert_int_equal(tess_close(m.t), TESS_OK);
}

/* ---- what is not finite ---- */

static tess_status step_of(model *m, float clip) {
    tess_optimizer_options o = plain;
    o.clip_norm = clip;
    o.groups = no_groups, o.n_groups = 2;
    return tess_step(m->t, &o);
}

static uint64_t skipped(const model *m) {
    tess_stats stats = { .struct_size = sizeof stats };
    assert_int_equal(tess_stats_get(m->t, &stats), TESS_OK);
    return stats.n_skipped;
}

static const float one[] = { 1, 1, 1, 1, 1, 1 };
static const float bad[][6] = { { 1, 1, 1, 1, NAN, 1 }, { 1, 1, 1, 1, -INFINITY, 1 }, { 1, 1, 1, 1, 1e30f, 1 } };

static void test_step_options__the_first_step_that_is_not_finite_is_named(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) {
        float found[6];
        int clips = i / 3;
        model m = opened("adamw");
        pass(&m, TESS_PASS_TRAIN, one, 0);
        assert_int_equal(step_of(&m, clips ? 100 : 0), TESS_OK);
        values_of(&m, found);
        pass(&m, TESS_PASS_TRAIN, bad[i % 3], 0);
        assert_int_equal(step_of(&m, clips ? 100 : 0), TESS_E_NOT_FINITE);
        assert_non_null(strstr(tess_last_error(), "step 2"));
        assert_non_null(strstr(tess_last_error(), "rank 0, unit m: element 1 of"));
        assert_non_null(strstr(tess_last_error(), "\"m.b\""));
        assert_int_equal(tess_exit_code(TESS_E_NOT_FINITE), 1);
        assert_int_equal(tess_pass(m.t, TESS_PASS_TRAIN), TESS_E_NOT_FINITE);
        tess_close(m.t);
    }
}

/* Left out: the same as if the program had dropped the gradients, but that the step counts. */
static void test_step_options__a_skipped_step_changes_nothing(void **state) {
    (void)state;
    setenv("TESSERA_ON_NAN", "skip", 1);
    for (int i = 0; i < 6; i++) {
        float found[6], expected[6], clip = i / 3 ? 100 : 0;
        model m = opened("sgd"), other = opened("sgd");
        pass(&m, TESS_PASS_TRAIN, bad[i % 3], 0);
        assert_int_equal(step_of(&m, clip), TESS_OK);
        assert_true(skipped(&m) == 1 && tess_steps_done(m.t) == 1);
        values_of(&m, found);
        for (int k = 0; k < 6; k++)
            assert_true(found[k] == 1);
        pass(&m, TESS_PASS_TRAIN, one, 0);
        pass(&other, TESS_PASS_TRAIN, one, 0);
        assert_int_equal(step_of(&m, clip), TESS_OK);
        assert_int_equal(step_of(&other, clip), TESS_OK);
        assert_true(skipped(&m) == 1);
        values_of(&m, found);
        values_of(&other, expected);
        equal(found, expected);
        assert_int_equal(tess_close(m.t), TESS_OK);
        assert_int_equal(tess_close(other.t), TESS_OK);
    }
    unsetenv("TESSERA_ON_NAN");
}

static void test_step_options__a_warned_step_goes_on(void **state) {
    (void)state;
    setenv("TESSERA_ON_NAN", "warn", 1);
    for (int clips = 0; clips < 2; clips++) {
        float found[6];
        model m = opened("sgd");
        for (int i = 0; i < 2; i++) {
            pass(&m, TESS_PASS_TRAIN, i ? one : bad[0], 0);
            assert_int_equal(step_of(&m, clips ? 100 : 0), TESS_OK);
        }
        values_of(&m, found);
        assert_true(isnan(found[4]) && skipped(&m) == 0);
        assert_int_equal(tess_close(m.t), TESS_OK);
    }
    unsetenv("TESSERA_ON_NAN");
}

static void test_step_options__a_spike_is_as_bad(void **state) {
    (void)state;
    float g[6] = { 1, 1, 1, 1, 1, 1 };
    setenv("TESSERA_SPIKE", "10", 1);
    for (int skips = -1; skips < 2; skips++) { /* -1: warns */
        setenv("TESSERA_ON_NAN", skips < 0 ? "warn" : skips ? "skip" : "stop", 1);
        model m = opened("sgd");
        g[0] = 1e6f; /* the first ones have nothing to be compared with */
        for (int i = 0; i < 20; i++, g[0] = 1) {
            pass(&m, TESS_PASS_TRAIN, g, 0);
            assert_int_equal(step_of(&m, 0), TESS_OK);
        }
        g[0] = 20;
        pass(&m, TESS_PASS_TRAIN, g, 0);
        assert_int_equal(step_of(&m, 0), TESS_OK);
        g[0] = 30;
        pass(&m, TESS_PASS_TRAIN, g, 0);
        assert_int_equal(step_of(&m, 0), skips ? TESS_OK : TESS_E_NOT_FINITE);
        if (skips)
            assert_int_equal(skipped(&m), skips > 0);
        else
            assert_non_null(strstr(tess_last_error(), "step 22"));
        tess_close(m.t);
    }
    unsetenv("TESSERA_ON_NAN");
    unsetenv("TESSERA_SPIKE");
}

static void test_step_options__groups_have_their_own_rate_and_decay(void **state) {
    (void)state;
    static const float g[] = { 1, 2, 4, 1, 2, 4 };
    static const tess_optimizer_group groups[] = { { 0.5f, 0 }, { 0, 0.25f } };
    float found[6], expected[6];
    model m = opened("sgd");
    pass(&m, TESS_PASS_TRAIN, g, 0);
    tess_optimizer_options o = plain;
    o.groups = groups;
    o.n_groups = 2;
    step(&m, o);
    values_of(&m, found);
    for (int i = 0; i < 6; i++) /* PyTorch's SGD adds the decay to the gradient */
        expected[i] = i < 3 ? 1 - 0.5f * (g[i] + 0.5f) : 1 - 0.125f * g[i];
    equal(found, expected);
    assert_int_equal(tess_close(m.t), TESS_OK);
}

/* lr and lr_scale are not read, and a rate of 0 is none. */
static void test_step_options__group_lr_is_each_groups_rate(void **state) {
    (void)state;
    static const float g[] = { 1, 2, 4, 1, 2, 4 };
    static const tess_optimizer_group groups[] = { { 0.5f, 8 }, { 0, 8 } };
    static const float rates[][2] = { { 0.25f, 0 }, { 0, 0.125f } };
    for (int n = 0; n < 2; n++) {
        float found[6], expected[6];
        model m = opened("sgd");
        pass(&m, TESS_PASS_TRAIN, g, 0);
        tess_optimizer_options o = plain;
        o.groups = groups, o.n_groups = 2, o.group_lr = rates[n];
        o.lr = n ? 0 : NAN;
        step(&m, o);
        values_of(&m, found);
        for (int i = 0; i < 6; i++)
            expected[i] = i < 3 ? 1 - rates[n][0] * (g[i] + 0.5f) : 1 - rates[n][1] * g[i];
        equal(found, expected);
        assert_int_equal(tess_close(m.t), TESS_OK);
    }
}

static void test_step_options__group_lr_must_be_rates_of_groups(void **state) {
    (void)state;
    static const float rates[][2] = { { 0.1f, -1 }, { INFINITY, 0.1f }, { 0.1f, NAN }, { 0.1f, 0.1f } };
    static const char *const said[] = { "group_lr[1] is -1", "group_lr[0] is inf", "group_lr[1] is ",
                                        "groups is null" };
    for (int n = 0; n < 4; n++) {
        model m = opened("sgd");
        pass(&m, TESS_PASS_TRAIN, (const float[6]){ 0 }, 0);
        tess_optimizer_options o = plain;
        o.group_lr = rates[n];
        if (n < 3)
            o.groups = no_groups, o.n_groups = 2;
        assert_int_equal(tess_step(m.t, &o), TESS_E_INVALID);
        assert_non_null(strstr(tess_last_error(), said[n]));
        tess_close(m.t);
    }
}

/* ---- the number of the step ---- */

static void adam(float found[6], uint64_t done, uint64_t step_number) {
    static const float g[] = { 1, -2, 4, 1, 2, 3 };
    model m = opened("adam");
    assert_int_equal(tess_steps_set(m.t, done), TESS_OK);
    pass(&m, TESS_PASS_TRAIN, g, 0);
    tess_optimizer_options o = plain;
    o.step = step_number;
    step(&m, o);
    assert_int_equal(tess_steps_done(m.t), done + 1);
    values_of(&m, found);
    assert_int_equal(tess_close(m.t), TESS_OK);
}

static void test_step_options__an_explicit_step_is_the_one_of_bias_correction(void **state) {
    (void)state;
    float counted[6], explicit[6], first[6];
    adam(counted, 4, 0);
    adam(explicit, 0, 5);
    adam(first, 0, 0);
    equal(explicit, counted);
    assert_true(first[0] != counted[0]);
}

/* ---- gradients that are stored ---- */

static void test_step_options__a_gradient_may_be_stored(void **state) {
    (void)state;
    static const float g[] = { 1, 2, 4, 8, 16, 32 };
    const char *const strategy[] = { "full", "none" };
    for (int i = 0; i < 4; i++) {
        float found[6], expected[6];
        setenv("TESSERA_STRATEGY", strategy[i % 2], 1);
        setenv("TESSERA_STRICT", i / 2 ? "1" : "0", 1);
        model m = declare("sgd", TESS_GRAD_OVERWRITE, 2, "each");
        assert_int_equal(tess_shard(m.t, fill_one, NULL), TESS_OK);
        for (int k = 0; k < 4; k++) {
            pass(&m, TESS_PASS_TRAIN, g, 1);
            if (k % 2)
                step(&m, plain);
        }
        values_of(&m, found);
        for (int k = 0; k < 6; k++) /* two steps, each with the average of two microbatches */
            expected[k] = 1 - 2 * 0.5f * g[k];
        equal(found, expected);
        assert_int_equal(tess_close(m.t), TESS_OK);
    }
    unsetenv("TESSERA_STRATEGY");
    unsetenv("TESSERA_STRICT");
}

static void test_step_options__a_store_that_would_lose_a_sum_is_refused(void **state) {
    (void)state;
    model m = declare("sgd", TESS_GRAD_OVERWRITE, 2, "end");
    assert_int_equal(tess_shard(m.t, fill_one, NULL), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "\"m.a\""));
    assert_non_null(strstr(tess_last_error(), "sync=end"));
    tess_close(m.t);
    m = declare("sgd", TESS_GRAD_OVERWRITE, 1, NULL);
    assert_int_equal(tess_param_tie(m.t, "m.c", "m.b"), TESS_OK);
    assert_int_equal(tess_shard(m.t, fill_one, NULL), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "\"m.b\""));
    assert_non_null(strstr(tess_last_error(), "tied"));
    tess_close(m.t);
}

/* ---- passes without communication ---- */

/* Said by the program or left to the engine: the same sum, and no collective before the last pass. */
static void test_step_options__a_pass_may_say_that_it_does_not_communicate(void **state) {
    (void)state;
    static const float g[4][6] = {
        { 1, 2, 3, 4, 5, 6 }, { 10, 20, 30, 40, 50, 60 }, { 7, 7, 7, 7, 7, 7 }, { 5, 0, 5, 0, 5, 0 }
    };
    for (int said = 0; said < 2; said++) {
        float found[6], expected[6];
        model m = declare("sgd", 0, 4, "end");
        assert_int_equal(tess_shard(m.t, fill_one, NULL), TESS_OK);
        for (int k = 0; k < 4; k++)
            pass(&m, TESS_PASS_TRAIN | (said && k < 3 ? TESS_PASS_NO_SYNC : 0), g[k], 0);
        step(&m, plain);
        values_of(&m, found);
        for (int i = 0; i < 6; i++)
            expected[i] = 1 - 0.5f * ((g[0][i] + g[1][i] + g[2][i] + g[3][i]) / 4);
        equal(found, expected);
        assert_int_equal(tess_close(m.t), TESS_OK);
    }
}

static void test_step_options__the_last_pass_communicates_and_so_does_each_with_sync_each(void **state) {
    (void)state;
    static const float g[6] = { 1, 1, 1, 1, 1, 1 };
    const char *const sync[] = { "end", "each" };
    for (int i = 0; i < 2; i++) {
        model m = declare("sgd", 0, 2, sync[i]);
        assert_int_equal(tess_shard(m.t, fill_one, NULL), TESS_OK);
        if (i == 0)
            pass(&m, TESS_PASS_TRAIN | TESS_PASS_NO_SYNC, g, 0);
        assert_int_equal(tess_pass(m.t, TESS_PASS_TRAIN | TESS_PASS_NO_SYNC), TESS_E_INVALID);
        assert_non_null(strstr(tess_last_error(), "sync=end"));
        tess_close(m.t);
    }
}

/* ---- the ledger of a norm ---- */

static void test_step_options__the_norm_is_in_the_ledger_as_planned(void **state) {
    (void)state;
    toy m;
    double loss;
    float norm;
    ledger_check c;
    tess *t = NULL;
    const tess_options o = { .struct_size = sizeof o, .input_bytes = TOY_INPUT_BYTES };
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(toy_declare(t, &m, TOY_BLOCKS), TESS_OK);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_OK);
    assert_int_equal(ledger_check_open(&c, t, TESS_LEDGER_NORM, NULL), TESS_OK);
    ledger_check_start(&c);
    assert_int_equal(toy_run(t, TESS_PASS_TRAIN, 0, NULL, &loss), TESS_OK);
    assert_int_equal(tess_grad_norm(t, &norm), TESS_OK);
    ledger_check_stop(&c);
    if (c.differ)
        fail_msg("%s", c.first);
    assert_true(c.points > 4 * TOY_SCOPES);
    ledger_check_close(&c);
    assert_int_equal(tess_grad_drop(t), TESS_OK);
    assert_int_equal(tess_close(t), TESS_OK);
}

int main(void) {
#define TEST(name) cmocka_unit_test(test_step_options__##name)
    const struct CMUnitTest tests[] = {
        TEST(grad_scale_multiplies_the_gradient),
        TEST(clip_norm_comes_after_grad_scale),
        TEST(a_norm_after_a_step_with_grad_scale_is_without_it),
        TEST(the_first_step_that_is_not_finite_is_named),
        TEST(a_skipped_step_changes_nothing),
        TEST(a_warned_step_goes_on),
        TEST(a_spike_is_as_bad),
        TEST(groups_have_their_own_rate_and_decay),
        TEST(group_lr_is_each_groups_rate),
        TEST(group_lr_must_be_rates_of_groups),
        TEST(an_explicit_step_is_the_one_of_bias_correction),
        TEST(a_gradient_may_be_stored),
        TEST(a_store_that_would_lose_a_sum_is_refused),
        TEST(a_pass_may_say_that_it_does_not_communicate),
        TEST(the_last_pass_communicates_and_so_does_each_with_sync_each),
        TEST(the_norm_is_in_the_ledger_as_planned),
    };
    setenv("TESSERA_LOG", "error", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
