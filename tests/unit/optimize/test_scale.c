/* SPDX-License-Identifier: BSD-3-Clause */
/* The scale of losses against PyTorch's rules, reckoned from all that came before; and the usual norm of a run. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/status.h"
#include "core/optimize/scale.h"
#include "core/optimize/step.h"
#include "tests/unit/drawn.h"

static struct {
    tess_loss_scaling says;
    tess_status status;
    int asked;
    void *ctx;
} precision;

static tess_status say(void *ctx, tess_loss_scaling *out, tess_error *e) {
    assert_true(e->struct_size == sizeof *e && e->rank == -1);
    precision.asked++;
    precision.ctx = ctx;
    if (precision.status) {
        snprintf(e->message, sizeof e->message, "no scale today");
        return precision.status;
    }
    precision.says.struct_size = out->struct_size;
    *out = precision.says;
    return TESS_OK;
}

static const tess_precision_ops with = { .struct_size = sizeof with, .loss_scaling = say };
static const tess_precision_ops without = { .struct_size = offsetof(tess_precision_ops, loss_scaling) };

static tess_status ask(tess__scaler *s, float init, float growth, float backoff, float least, uint32_t every) {
    memset(&precision, 0, sizeof precision);
    precision.says =
        (tess_loss_scaling){ .every = every, .init = init, .growth = growth, .backoff = backoff, .least = least };
    memset(s, 0x5a, sizeof *s);
    return tess__scale_ask(s, &with, &precision, "some");
}

static void test_scale__begins_as_the_precision_says(void **state) {
    (void)state;
    tess__scaler s;
    assert_int_equal(ask(&s, 1024, 4, 0.25f, 2, 7), TESS_OK);
    assert_true(precision.asked == 1 && precision.ctx == &precision);
    assert_true(s.now.scale == 1024 && s.now.good == 0 && s.now.skipped == 0 && s.how.every == 7);
    assert_true(s.imaged_step[0] == -1 && s.imaged_step[1] == -1);
    assert_int_equal(ask(&s, 0, 0, 0, 0, 0), TESS_OK); /* no scale: nothing else is looked at */
    assert_true(s.now.scale == 0);
    memset(&s, 0x5a, sizeof s);
    assert_int_equal(tess__scale_ask(&s, &without, NULL, "plain"), TESS_OK);
    assert_true(s.now.scale == 0 && s.how.init == 0);
}

static void test_scale__a_plugin_that_fails_is_named(void **state) {
    (void)state;
    tess__scaler s;
    memset(&precision, 0, sizeof precision);
    precision.status = TESS_E_NOMEM;
    assert_int_equal(tess__scale_ask(&s, &with, NULL, "some"), TESS_E_NOMEM);
    assert_string_equal(tess_last_error(), "TESSERA_PRECISION=some: no scale today");
}

/* One field at a time leaves what is allowed; its nearest neighbours within are taken. */
static void test_scale__takes_powers_of_two_in_their_order_alone(void **state) {
    (void)state;
    static const float bad[][4] = { { 3, 2, 0.5f, 1 },    { -4, 2, 0.5f, 1 },   { INFINITY, 2, 0.5f, 1 },
                                    { NAN, 2, 0.5f, 1 },  { 0.5f, 2, 0.5f, 1 }, { 4, 1, 0.5f, 1 },
                                    { 4, 0.5f, 0.5f, 1 }, { 4, 6, 0.5f, 1 },    { 4, 0, 0.5f, 1 },
                                    { 4, 2, 1, 1 },       { 4, 2, 2, 1 },       { 4, 2, 0.75f, 1 },
                                    { 4, 2, 0, 1 },       { 4, 2, -0.5f, 1 },   { 4, 2, 0.5f, 0 },
                                    { 4, 2, 0.5f, 3 },    { 4, 2, 0.5f, -1 },   { 4, 2, 0.5f, 8 } };
    static const float good[][4] = { { 1, 2, 0.5f, 1 }, { 4, 0x1p100f, 0x1p-100f, 4 }, { 0x1p-9f, 2, 0.5f, 0x1p-10f } };
    tess__scaler s;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(ask(&s, bad[i][0], bad[i][1], bad[i][2], bad[i][3], 3), TESS_E_INVALID);
        assert_non_null(strstr(tess_last_error(), "TESSERA_PRECISION=some: a loss scale from "));
    }
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_int_equal(ask(&s, good[i][0], good[i][1], good[i][2], good[i][3], 3), TESS_OK);
    assert_int_equal(ask(&s, 4, 2, 0.5f, 8, 3), TESS_E_INVALID);
    assert_string_equal(tess_last_error(),
                        "TESSERA_PRECISION=some: a loss scale from 4, times 2 or 0.5, at least 8: expected powers of "
                        "two, and init >= least > 0, growth > 1 > backoff > 0");
}

enum { STEPS = 400 };

/* The scale behind a history, which is 1 for a finite step, by the rules as their words say: exponents of two alone. */
typedef struct {
    int exponent, good, left, skipped;
} reckoned;

static void reckon(reckoned *r, int finite, int growth, int backoff, int least, int every) {
    if (!finite) {
        r->good = 0;
        r->left = r->exponent > least;
        r->skipped += r->left;
        r->exponent = r->exponent - backoff > least ? r->exponent - backoff : r->left ? least : r->exponent;
    } else if (++r->good == every) {
        r->good = 0;
        r->exponent += r->exponent + growth <= 126 ? growth : 0;
    }
}

static void test_scale__follows_its_history(void **state) {
    (void)state;
    unsigned chance = 1;
    for (int run = 0; run < 40; run++) {
        tess__scaler s;
        const int growth = 1 + run % 4, backoff = 1 + run / 4 % 4, least = run % 3 ? -3 : 20, every = run % 6;
        reckoned r = { .exponent = run % 5 ? 24 : 124 };
        const float begin = ldexpf(1, r.exponent);
        assert_int_equal(ask(&s, begin, ldexpf(1, growth), ldexpf(1, -backoff), ldexpf(1, least), (uint32_t)every),
                         TESS_OK);
        for (int i = 0; i < STEPS; i++) {
            const int finite = drawn32(&chance, 256) > (i / 100 % 2 ? 200u : 20u);
            reckon(&r, finite, growth, backoff, least, every);
            if (finite)
                tess__scale_grow(&s);
            else
                assert_int_equal(tess__scale_back_off(&s), r.left);
            assert_true(s.now.scale == ldexp(1, r.exponent));
            assert_true(s.now.skipped == (uint64_t)r.skipped);
            assert_true(s.now.good == (uint64_t)r.good);
        }
    }
}

static void test_scale__goes_on_from_a_checkpoint(void **state) {
    (void)state;
    tess__scaler s;
    const tess__loss_scale saved = { 64, 5, 3 }, low = { 0.25, 5, 3 }, none = { 0, 5, 3 }, bad = { NAN, 5, 3 };
    const tess__loss_scale least = { 2, 5, 3 };
    assert_int_equal(ask(&s, 1024, 2, 0.5f, 2, 7), TESS_OK);
    tess__scale_load(&s, &saved);
    assert_true(s.now.scale == 64 && s.now.good == 5 && s.now.skipped == 3);
    tess__scale_load(&s, &low);
    assert_true(s.now.scale == 2 && s.now.good == 5 && s.now.skipped == 3);
    tess__scale_load(&s, &least);
    assert_true(s.now.scale == 2);
    tess__scale_load(&s, &none); /* a run without a scale saved it */
    assert_true(s.now.scale == 1024 && s.now.good == 0 && s.now.skipped == 3);
    tess__scale_load(&s, &bad);
    assert_true(s.now.scale == 1024 && s.now.good == 0);
    assert_int_equal(ask(&s, 0, 0, 0, 0, 0), TESS_OK);
    tess__scale_load(&s, &saved); /* this run has none; steps that were left out stay so */
    assert_true(s.now.scale == 0 && s.now.good == 0 && s.now.skipped == 3);
}

/* Of the last two images, and of none before. */
static void test_scale__two_images_are_remembered(void **state) {
    (void)state;
    tess__scaler s;
    assert_int_equal(ask(&s, 1, 2, 0.5f, 1, 1), TESS_OK);
    assert_null(tess__scale_of_image(&s, 0));
    for (int64_t step = 0; step < 6; step++) {
        tess__scale_imaged(&s, 10 * step);
        for (int64_t k = 0; k < 6; k++) {
            const tess__loss_scale *at = tess__scale_of_image(&s, 10 * k);
            assert_int_equal(at != NULL, k == step || k == step - 1);
            assert_true(!at || at->scale == ldexp(1, (int)k));
        }
        tess__scale_grow(&s);
    }
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The upper median of the last 32 norms before this one, and 0 before there are 16. */
static void test_scale__the_usual_norm_is_a_median(void **state) {
    (void)state;
    tess__step s = { 0 };
    double all[200];
    unsigned chance = 7;
    for (int i = 0; i < TESS__NORMS; i++) /* those that are not known yet are not read */
        s.norms[i] = 1e300;
    for (int i = 0; i < 200; i++) {
        double last[32], want = 0;
        const int n = i < 32 ? i : 32;
        all[i] = (double)drawn32(&chance, 4096) / 16;
        memcpy(last, all + i - n, (size_t)n * sizeof *last);
        qsort(last, (size_t)n, sizeof *last, ascending);
        if (n >= 16)
            want = last[n / 2];
        assert_true(tess__usual_norm(&s, all[i]) == want);
    }
}

#define TEST(name) cmocka_unit_test(test_scale__##name)
int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(begins_as_the_precision_says),
        TEST(a_plugin_that_fails_is_named),
        TEST(takes_powers_of_two_in_their_order_alone),
        TEST(follows_its_history),
        TEST(goes_on_from_a_checkpoint),
        TEST(two_images_are_remembered),
        TEST(the_usual_norm_is_a_median),
    };
    return cmocka_run_group_tests_name("scale", tests, NULL, NULL);
}
