/* SPDX-License-Identifier: BSD-3-Clause */
/* Learning rates over a run, to the bit: the formulas of tessera.h, written out; where each kind begins and ends. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include <tessera/tessera.h>

static tess_schedule made(uint32_t kind, uint64_t steps, uint64_t warmup) {
    return (tess_schedule){
        .struct_size = sizeof(tess_schedule), .kind = kind, .rate = 2e-3, .least = 0.1, .steps = steps, .warmup = warmup
    };
}

static void assert_same(double got, double want) {
    assert_memory_equal(&got, &want, sizeof got);
}

static void test_schedule__cosine_is_that_of_gpt_from_its_first_release_on(void **state) {
    (void)state;
    const tess_schedule s = made(TESS_SCHEDULE_COSINE, 500, 50);
    for (uint64_t n = 0; n < 50; n++)
        assert_same(tess_schedule_rate(&s, n), 2e-3 * (double)(n + 1) / 51.0);
    for (uint64_t n = 50; n < 500; n++)
        assert_same(tess_schedule_rate(&s, n),
                    2e-3 * (0.1 + 0.9 * 0.5 * (1 + cos(3.14159265358979 * ((double)(n - 50) / 450.0)))));
    assert_same(tess_schedule_rate(&s, 500), tess_schedule_rate(&s, 501));
    assert_true(fabs(tess_schedule_rate(&s, 500) - 2e-4) < 1e-17);
}

static void test_schedule__linear_falls_by_equal_parts_to_the_least(void **state) {
    (void)state;
    tess_schedule s = made(TESS_SCHEDULE_LINEAR, 10, 2);
    for (uint64_t n = 2; n <= 10; n++)
        assert_same(tess_schedule_rate(&s, n), 2e-3 * (0.1 + (1 - 0.1) * (1 - (double)(n - 2) / 8)));
    s.least = 0;
    s.rate = 1;
    assert_same(tess_schedule_rate(&s, 2), 1);
    assert_same(tess_schedule_rate(&s, 6), 0.5);
    assert_same(tess_schedule_rate(&s, 10), 0);
}

static void test_schedule__wsd_is_stable_until_its_last_steps(void **state) {
    (void)state;
    tess_schedule s = made(TESS_SCHEDULE_WSD, 40, 4);
    s.rate = 1;
    s.least = 0;
    assert_same(tess_schedule_rate(&s, 3), 0.8);
    for (uint64_t n = 4; n <= 36; n++) /* a tenth of 40 falls */
        assert_same(tess_schedule_rate(&s, n), 1);
    assert_same(tess_schedule_rate(&s, 37), 0.75);
    assert_same(tess_schedule_rate(&s, 39), 0.25);
    s.decay = 8;
    assert_same(tess_schedule_rate(&s, 32), 1);
    assert_same(tess_schedule_rate(&s, 36), 0.5);
    s.decay = 1000; /* all after the warm-up */
    assert_same(tess_schedule_rate(&s, 22), 0.5);
}

/* Every run of up to 44 steps: so many stable ones between the warm-up and the last `decay`, which fall by equal parts.
 */
static void test_schedule__wsd_falls_in_its_last_steps_of_every_run(void **state) {
    (void)state;
    tess_schedule s = made(TESS_SCHEDULE_WSD, 0, 0);
    s.rate = 1;
    for (s.steps = 0; s.steps < 45; s.steps++)
        for (s.warmup = 0; s.warmup < 4; s.warmup++)
            for (s.decay = 0; s.decay <= s.steps + 1; s.decay++) {
                int64_t falling = s.decay        ? (int64_t)s.decay
                                  : s.steps < 20 ? 1
                                  : s.steps < 30 ? 2
                                  : s.steps < 40 ? 3
                                                 : 4;
                int64_t begin = (int64_t)s.steps - falling;
                begin = begin < (int64_t)s.warmup ? (int64_t)s.warmup : begin;
                for (int64_t n = (int64_t)s.warmup; n < (int64_t)s.steps + 2; n++) {
                    const double done = (double)(n - begin) / (double)((int64_t)s.steps - begin);
                    const double fallen = n < (int64_t)s.steps ? 0.1 + (1 - 0.1) * (1 - done) : 0.1;
                    assert_same(tess_schedule_rate(&s, (uint64_t)n), n < begin ? 1 : fallen);
                }
            }
}

static void test_schedule__step_is_a_power_and_constant_stays(void **state) {
    (void)state;
    tess_schedule s = made(TESS_SCHEDULE_STEP, 9, 0);
    s.every = 3;
    s.gamma = 0.7;
    for (uint64_t n = 0; n < 12; n++)
        assert_same(tess_schedule_rate(&s, n), 2e-3 * pow(0.7, (double)(n / 3)));
    s = made(TESS_SCHEDULE_CONSTANT, 0, 1);
    assert_same(tess_schedule_rate(&s, 0), 1e-3);
    assert_same(tess_schedule_rate(&s, 1), 2e-3);
    assert_same(tess_schedule_rate(&s, UINT64_MAX), 2e-3);
}

static void test_schedule__run_of_no_steps_or_all_warmup_has_rates(void **state) {
    (void)state;
    const tess_schedule none = made(TESS_SCHEDULE_LINEAR, 0, 0), rising = made(TESS_SCHEDULE_COSINE, 4, 9);
    assert_same(tess_schedule_rate(&none, 0), 2e-3 * (0.1 + (1 - 0.1) * 0));
    assert_same(tess_schedule_rate(&rising, 3), 2e-3 * 4 / 10);
}

static void assert_refused(const tess_schedule *s, const char *words) {
    assert_true(isnan(tess_schedule_rate(s, 0)));
    assert_non_null(strstr(tess_last_error(), words));
}

static void test_schedule__what_cannot_be_is_nan_with_a_line(void **state) {
    (void)state;
    tess_schedule s = made(99, 10, 0);
    assert_refused(&s, "kind is 99");
    s = made(TESS_SCHEDULE_STEP + 1, 10, 0);
    s.every = 1;
    assert_refused(&s, "kind is ");
    s = made(TESS_SCHEDULE_LINEAR, 10, 0);
    s.least = 1.5;
    assert_refused(&s, "least is 1.5");
    s.least = -0.5;
    assert_refused(&s, "least is -0.5");
    s.least = 1; /* both ends may be */
    assert_same(tess_schedule_rate(&s, 10), 2e-3);
    s.least = 0;
    assert_same(tess_schedule_rate(&s, 10), 0);
    s.least = NAN;
    assert_refused(&s, "least is ");
    s = made(TESS_SCHEDULE_STEP, 10, 0);
    assert_refused(&s, "every is 0");
    s.struct_size = 4;
    assert_refused(&s, "struct_size");
    assert_refused(NULL, "missing");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedule__cosine_is_that_of_gpt_from_its_first_release_on),
        cmocka_unit_test(test_schedule__linear_falls_by_equal_parts_to_the_least),
        cmocka_unit_test(test_schedule__wsd_is_stable_until_its_last_steps),
        cmocka_unit_test(test_schedule__wsd_falls_in_its_last_steps_of_every_run),
        cmocka_unit_test(test_schedule__step_is_a_power_and_constant_stays),
        cmocka_unit_test(test_schedule__run_of_no_steps_or_all_warmup_has_rates),
        cmocka_unit_test(test_schedule__what_cannot_be_is_nan_with_a_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
