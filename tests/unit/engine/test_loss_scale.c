/* SPDX-License-Identifier: BSD-3-Clause */
/* The scale of losses with precision fp16: its rules are PyTorch's, gradients are seen without it, and a step that is
 * left out changes nothing but the scale. One scope whose gradients the test writes. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tessera/inspect.h>

static const struct {
    int finite;
    double scale;
} reference[] = {
#include "tests/reference/loss_scale.inc"
};

enum { ELEMS = 3, N_STEPS = sizeof reference / sizeof reference[0] };
typedef struct {
    tess *t;
    tess_scope scope;
    int is_half;
} model;

static const tess_optimizer_options plain = { .struct_size = sizeof plain, .lr = 0.0625f };

static tess_status fill_one(void *user, const tess_range *r, void *data) {
    (void)user;
    for (uint64_t i = 0; i < r->elems; i++)
        ((float *)data)[i] = 1;
    return TESS_OK;
}

static tess_status open_model(model *m, const char *precision, const char *optimizer, uint32_t flags) {
    static const int64_t shape[] = { ELEMS };
    const tess_param_options o = { .struct_size = sizeof o,
                                   .dtype = TESS_F32,
                                   .compute_dtypes = 1u << TESS_F32 | 1u << TESS_F16,
                                   .name = "m.w",
                                   .shape = shape,
                                   .ndim = 1 };
    const tess_options with = { .struct_size = sizeof with,
                                .precision = precision,
                                .optimizer = optimizer,
                                .own_states = strcmp(optimizer, "own") == 0,
                                .flags = flags };
    tess_status s = tess_open(&with, &m->t);
    m->is_half = strncmp(precision, "fp16", 4) == 0;
    if (s || (s = tess_scope_add(m->t, "m", 0, &m->scope)) || (s = tess_param_add(m->t, &o, NULL)))
        return s;
    return tess_shard(m->t, fill_one, NULL);
}

static model opened(const char *precision, const char *optimizer) {
    model m = { 0 };
    if (open_model(&m, precision, optimizer, TESS_OPTIONS_LOSS_SCALE))
        fail_msg("%s: %s", precision, tess_last_error());
    return m;
}

/* The gradient of step i, as backward makes it: times the scale. */
static float gradient(int i, int k) {
    return (float)((i * 7 + k * 3) % 11 - 5) / 16;
}

static void pass(model *m, int i, int finite) {
    const void *p[1];
    float *grad[1];
    assert_int_equal(tess_pass(m->t, TESS_PASS_TRAIN), TESS_OK);
    assert_int_equal(tess_forward_begin(m->t, m->scope, p, 1), TESS_OK);
    if (i == 0 && m->is_half)
        assert_int_equal(*(const uint16_t *)p[0], 0x3c00);
    assert_int_equal(tess_forward_end(m->t, m->scope), TESS_OK);
    assert_int_equal(tess_backward_begin(m->t, m->scope, p, grad, 1), TESS_OK);
    for (int k = 0; k < ELEMS; k++)
        grad[0][k] += gradient(i, k) * tess_loss_scale(m->t);
    if (!finite)
        grad[0][i % ELEMS] = i % 2 ? INFINITY : 1e5f; /* what fp16 does not hold */
    assert_int_equal(tess_backward_end(m->t, m->scope), TESS_OK);
}

static tess_status take(void *user, const tess_range *r, void *data) {
    memcpy((float *)user + r->first_elem, data, r->elems * sizeof(float));
    return TESS_OK;
}

static void values_of(const model *m, uint32_t of, float out[ELEMS]) {
    assert_int_equal(tess_each_full(m->t, of, take, out), TESS_OK);
}

static void assert_same(const model *a, const model *b, uint32_t of) {
    float x[ELEMS], y[ELEMS];
    values_of(a, of, x);
    values_of(b, of, y);
    for (int i = 0; i < ELEMS; i++)
        if (x[i] != y[i])
            fail_msg("value %d of %u is %.9g, expected %.9g", i, of, (double)x[i], (double)y[i]);
}

static tess_stats stats_of(const model *m) {
    tess_stats s = { .struct_size = sizeof s };
    assert_int_equal(tess_stats_get(m->t, &s), TESS_OK);
    return s;
}

#define BY_THREES "fp16:init=16,every=3,least=0.03125"

/* The same steps as an engine in fp32 that does without those that are left out: exactly so, as powers of two are exact
 * and bias corrections count steps that were done. */
static void test_loss_scale__follows_pytorch_and_leaves_values_as_in_fp32(void **state) {
    (void)state;
    uint64_t skipped = 0;
    model m = opened(BY_THREES, "adamw"), other = opened("fp32", "adamw");
    assert_true(tess_loss_scale(m.t) == 16 && tess_loss_scale(other.t) == 1);
    for (int i = 0; i < N_STEPS; i++) {
        pass(&m, i, reference[i].finite);
        assert_int_equal(tess_step(m.t, &plain), TESS_OK);
        assert_true((double)tess_loss_scale(m.t) == reference[i].scale);
        skipped += !reference[i].finite;
        if (!reference[i].finite)
            continue;
        pass(&other, i, 1);
        assert_int_equal(tess_step(other.t, &plain), TESS_OK);
        assert_same(&m, &other, TESS_OF_PARAM);
        assert_same(&m, &other, TESS_OF_MOMENT2);
    }
    tess_stats s = stats_of(&m);
    assert_true(s.loss_scale == reference[N_STEPS - 1].scale && s.n_overflows == skipped && s.n_skipped == skipped);
    assert_true(stats_of(&other).loss_scale == 0 && tess_steps_done(m.t) == N_STEPS);
    assert_int_equal(s.peak_bytes[TESS_DOMAIN_DEVICE], s.planned_peak_bytes[TESS_DOMAIN_DEVICE]);
    assert_int_equal(tess_close(m.t), TESS_OK);
    assert_int_equal(tess_close(other.t), TESS_OK);
}

static void test_loss_scale__a_gradient_is_seen_without_it(void **state) {
    (void)state;
    float norm, expected, clipped = 0.01f;
    model m = opened(BY_THREES, "sgd"), other = opened("fp32", "sgd");
    pass(&m, 1, 1);
    pass(&other, 1, 1);
    assert_same(&m, &other, TESS_OF_GRAD);
    assert_int_equal(tess_grad_norm(m.t, &norm), TESS_OK);
    assert_int_equal(tess_grad_norm(other.t, &expected), TESS_OK);
    assert_true(norm == expected && norm > 0);
    tess_optimizer_options o = plain;
    o.clip_norm = clipped;
    assert_int_equal(tess_step(m.t, &o), TESS_OK);
    assert_int_equal(tess_step(other.t, &o), TESS_OK);
    assert_true(stats_of(&m).grad_norm == stats_of(&other).grad_norm);
    assert_same(&m, &other, TESS_OF_PARAM);
    assert_int_equal(tess_close(m.t), TESS_OK);
    assert_int_equal(tess_close(other.t), TESS_OK);
}

static tess_status halve(void *user, const tess_range *r, void *data) {
    (void)user;
    for (uint64_t i = 0; i < r->elems; i++)
        ((float *)data)[i] *= 0.5f;
    return TESS_OK;
}

static void test_loss_scale__a_gradient_is_written_back_with_it(void **state) {
    (void)state;
    model m = opened(BY_THREES, "sgd"), other = opened("fp32", "sgd");
    pass(&m, 1, 1);
    pass(&other, 1, 1);
    assert_int_equal(tess_each_owned(m.t, TESS_OF_GRAD | TESS_OF_WRITE, halve, NULL), TESS_OK);
    assert_int_equal(tess_each_owned(other.t, TESS_OF_GRAD | TESS_OF_WRITE, halve, NULL), TESS_OK);
    assert_int_equal(tess_step(m.t, &plain), TESS_OK);
    assert_int_equal(tess_step(other.t, &plain), TESS_OK);
    assert_same(&m, &other, TESS_OF_PARAM);
    assert_int_equal(tess_close(m.t), TESS_OK);
    assert_int_equal(tess_close(other.t), TESS_OK);
}

static tess_status descend(void *user, const tess_range *r, void *param, const float *grad, float *const *states) {
    ++*(int *)user;
    for (uint64_t i = 0; i < r->elems; i++) {
        states[0][i] += grad[i];
        ((float *)param)[i] -= states[0][i];
    }
    return TESS_OK;
}

static void test_loss_scale__an_optimizer_of_ones_own_is_spared_too(void **state) {
    (void)state;
    int calls = 0, others = 0;
    model m = opened(BY_THREES, "own"), other = opened("fp32", "own");
    for (int i = 0; i < N_STEPS; i++) {
        pass(&m, i, reference[i].finite);
        assert_int_equal(tess_update(m.t, descend, &calls), TESS_OK);
        assert_true((double)tess_loss_scale(m.t) == reference[i].scale);
        if (!reference[i].finite)
            continue;
        pass(&other, i, 1);
        assert_int_equal(tess_update(other.t, descend, &others), TESS_OK);
        assert_int_equal(calls, others);
    }
    assert_same(&m, &other, TESS_OF_PARAM);
    assert_int_equal(tess_close(m.t), TESS_OK);
    assert_int_equal(tess_close(other.t), TESS_OK);
}

/* From there on it is the gradients that are wrong, not the scale. */
static void test_loss_scale__at_the_least_scale_such_a_step_is_an_error(void **state) {
    (void)state;
    model m = opened("fp16:init=8,least=2,backoff=0.125", "sgd");
    pass(&m, 1, 0);
    assert_int_equal(tess_step(m.t, &plain), TESS_OK);
    assert_true(tess_loss_scale(m.t) == 2);
    pass(&m, 1, 0);
    assert_int_equal(tess_step(m.t, &plain), TESS_E_NOT_FINITE);
    assert_non_null(strstr(tess_last_error(), "step 2: the gradient norm is inf with losses times 2, the least scale"));
    assert_non_null(strstr(tess_last_error(), "\"m.w\""));
    tess_close(m.t);
    setenv("TESSERA_ON_NAN", "skip", 1);
    m = opened("fp16:init=2,least=2", "sgd");
    pass(&m, 1, 0);
    assert_int_equal(tess_step(m.t, &plain), TESS_OK);
    tess_stats s = stats_of(&m);
    assert_true(tess_loss_scale(m.t) == 2 && s.n_skipped == 1 && s.n_overflows == 0);
    assert_int_equal(tess_close(m.t), TESS_OK);
    unsetenv("TESSERA_ON_NAN");
}

/* Saved after 20 steps, and the rest done twice. */
static void test_loss_scale__a_checkpoint_has_it(void **state) {
    (void)state;
    char dir[] = "/tmp/tessera-loss-scale-XXXXXX", remove[80];
    assert_non_null(mkdtemp(dir));
    model m = opened(BY_THREES, "adamw"), again = opened(BY_THREES, "adamw"), wide = opened("fp32", "adamw");
    const tess_checkpoint_options save = { .struct_size = sizeof save, .dir = dir };
    const tess_checkpoint_load_options load = { .struct_size = sizeof load, .path = dir };
    for (int i = 0; i < N_STEPS; i++) {
        pass(&m, i, reference[i].finite);
        assert_int_equal(tess_step(m.t, &plain), TESS_OK);
        if (i == 19)
            assert_int_equal(tess_checkpoint_save(m.t, &save), TESS_OK);
    }
    assert_int_equal(tess_checkpoint_wait(m.t, NULL), TESS_OK);
    assert_int_equal(tess_checkpoint_load(again.t, &load, NULL), TESS_OK);
    assert_int_equal(tess_checkpoint_load(wide.t, &load, NULL), TESS_OK);
    assert_true((double)tess_loss_scale(again.t) == reference[19].scale && tess_loss_scale(wide.t) == 1);
    for (int i = 20; i < N_STEPS; i++) {
        pass(&again, i, reference[i].finite);
        assert_int_equal(tess_step(again.t, &plain), TESS_OK);
        assert_true((double)tess_loss_scale(again.t) == reference[i].scale);
        if (i == 20) { /* bias corrections count as before, in fp32 too */
            pass(&wide, i, 1);
            assert_int_equal(tess_step(wide.t, &plain), TESS_OK);
            assert_same(&wide, &again, TESS_OF_PARAM);
        }
    }
    assert_same(&again, &m, TESS_OF_PARAM);
    assert_int_equal(stats_of(&again).n_overflows, stats_of(&m).n_overflows);
    assert_int_equal(tess_close(wide.t), TESS_OK);
    assert_int_equal(tess_close(again.t), TESS_OK);
    assert_int_equal(tess_close(m.t), TESS_OK);
    snprintf(remove, sizeof remove, "rm -r %s", dir);
    assert_int_equal(system(remove), 0);
}

static void test_loss_scale__a_program_says_that_it_scales(void **state) {
    (void)state;
    model m = { 0 };
    assert_int_equal(open_model(&m, "fp16", "sgd", 0), TESS_E_UNSUPPORTED);
    assert_non_null(strstr(tess_last_error(), "TESSERA_PRECISION=fp16 scales losses"));
    assert_non_null(strstr(tess_last_error(), "TESS_OPTIONS_LOSS_SCALE"));
    assert_int_equal(open_model(&m, "fp16:scale=off", "sgd", 0), TESS_OK);
    assert_true(tess_loss_scale(m.t) == 1 && stats_of(&m).loss_scale == 0);
    assert_int_equal(tess_close(m.t), TESS_OK);
    assert_int_equal(open_model(&m, "fp16", "none", 0), TESS_OK); /* nothing is trained */
    assert_int_equal(tess_close(m.t), TESS_OK);
    static const char *const bad[] = { "fp16:init=3", "fp16:growth=3", "fp16:backoff=0.3", "fp16:least=0.3",
                                       "fp16:init=2,least=4" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(open_model(&m, bad[i], "sgd", TESS_OPTIONS_LOSS_SCALE), TESS_E_INVALID);
        assert_non_null(strstr(tess_last_error(), "expected powers of two"));
    }
}

int main(void) {
#define TEST(name) cmocka_unit_test(test_loss_scale__##name)
    const struct CMUnitTest tests[] = {
        TEST(follows_pytorch_and_leaves_values_as_in_fp32),
        TEST(a_gradient_is_seen_without_it),
        TEST(a_gradient_is_written_back_with_it),
        TEST(an_optimizer_of_ones_own_is_spared_too),
        TEST(at_the_least_scale_such_a_step_is_an_error),
        TEST(a_checkpoint_has_it),
        TEST(a_program_says_that_it_scales),
    };
    setenv("TESSERA_LOG", "error", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
