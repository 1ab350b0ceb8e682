/* SPDX-License-Identifier: BSD-3-Clause */
/* wrap=auto over trees and a planner by chance: it takes what is best of all candidates, found here one by one. */
#include "drawn_view.h"

#include <inttypes.h>

#include "core/base/status.h"
#include "core/builtin/builtins.h"
#include "tests/unit/counted.h"
#include "core/builtin/wrap_auto.c"

enum { CANDIDATES = 20 };
enum {
    KNOWN,
    UNKNOWN,
    OF_ONE,
    OF_MANY,
    WAYS
}; /* which times the planner says: all, none, those of one unit or of more */
static struct {
    uint64_t salt;
    int how;
    int calls, fails_at;
} planner;

/* A peak and a time by the units alone, of few values, so that many are equal. */
static tess_plan_result made_plan(const drawn *d, const int32_t *unit) {
    uint64_t mixed = planner.salt;
    int one = 1;
    for (uint32_t i = 0; i < d->view.n_params; i++)
        one &= unit[i] == 0;
    const int known = planner.how == KNOWN || planner.how == (one ? OF_ONE : OF_MANY);
    for (uint32_t i = 0; i < d->view.n_params; i++)
        mixed = (mixed ^ (uint64_t)unit[i]) * 0x9e3779b97f4a7c15u, mixed ^= mixed >> 31;
    return (tess_plan_result){ sizeof(tess_plan_result), 100 + mixed % 7, 0, known ? (int64_t)(mixed >> 8) % 4 : -1 };
}

static tess_status plan_it(void *user, const int32_t *unit, int32_t n_units, tess_plan_result *out) {
    const drawn *d = user;
    int32_t seen[PARAMS], n = units_of(d, unit, 0, seen);
    assert_int_equal(n, n_units);
    assert_memory_equal(unit, seen, d->view.n_params * sizeof *unit);
    assert_true(out->struct_size == sizeof *out && out->step_ns == -1);
    *out = made_plan(d, unit);
    return ++planner.calls == planner.fails_at ? tess__fail(TESS_E_PLANNED, "the planner's word") : TESS_OK;
}

static tess_error error;
static tess_status run_auto(const drawn *d, uint64_t budget, int has_planner, int32_t *unit, int32_t *n) {
    char args[32];
    const void *table;
    void *ctx = NULL;
    snprintf(args, sizeof args, "%" PRIu64, budget);
    const tess_host host = { .struct_size = sizeof host, .args = args };
    error = (tess_error){ .struct_size = sizeof error };
    assert_int_equal(tess__wrap_auto_open(&host, &table, &ctx, &error), TESS_OK);
    const tess_wrap_ops *ops = table;
    planner.calls = 0;
    const tess_status s =
        ops->assign(ctx, &d->view, NULL, unit, n, has_planner ? plan_it : NULL, (void *)(uintptr_t)d, &error);
    (free)(ctx); /* the table's close is libc's own */
    counted.live--;
    assert_int_equal(counted.live, 0);
    return s;
}

typedef struct {
    int32_t unit[PARAMS], n;
    tess_plan_result plan;
} candidate;

/* All that it may take: one unit, units of half of all elements, of a quarter and so on, and scopes. */
static int candidates_of(const drawn *d, candidate *c) {
    uint64_t all = 0;
    int n = 0;
    for (uint32_t i = 0; i < d->view.n_params; i++)
        all += d->params[i].elems;
    c[n].n = one_unit(d, c[n].unit), n++;
    for (int shift = 1; all >> shift; shift++, n++)
        c[n].n = units_by_size(d, all >> shift, c[n].unit);
    c[n].n = units_by_scope(d, c[n].unit), n++;
    for (int i = 0; i < n; i++)
        c[i].plan = made_plan(d, c[i].unit);
    return n;
}

/* By time where both are known, then by units, then by peak. */
static int is_first(const candidate *a, const candidate *b) {
    if (a->plan.step_ns != -1 && b->plan.step_ns != -1 && a->plan.step_ns != b->plan.step_ns)
        return a->plan.step_ns < b->plan.step_ns;
    if (a->n != b->n)
        return a->n < b->n;
    return a->plan.peak_device_bytes < b->plan.peak_device_bytes;
}

static void test_wrap_auto__the_best_of_all_candidates_is_taken(void **state) {
    (void)state;
    static candidate c[CANDIDATES];
    static drawn d;
    uint64_t seed = 31;
    int fit = 0, fail = 0;
    for (int round = 0; round < 3000; round++) {
        int32_t unit[PARAMS], n_units = -7;
        const candidate *best = NULL;
        uint64_t least = UINT64_MAX, budget = 99 + draw(&seed, 9);
        draw_view(&d, &seed);
        planner.salt = seed, planner.how = round % WAYS, planner.fails_at = 0;
        const int n = candidates_of(&d, c);
        for (int i = 0; i < n; i++) {
            if (c[i].plan.peak_device_bytes <= budget && (!best || is_first(&c[i], best)))
                best = &c[i];
            least = c[i].plan.peak_device_bytes < least ? c[i].plan.peak_device_bytes : least;
        }
        const tess_status s = run_auto(&d, budget, 1, unit, &n_units);
        assert_int_equal(planner.calls, n);
        assert_int_equal(s, best ? TESS_OK : TESS_E_BUDGET);
        if (best) {
            fit++;
            assert_int_equal(n_units, best->n);
            assert_memory_equal(unit, best->unit, d.view.n_params * sizeof *unit);
        } else {
            char want[160];
            fail++;
            snprintf(want, sizeof want,
                     "no choice of units fits %" PRIu64 " bytes of device memory; the least takes %" PRIu64, budget,
                     least);
            assert_string_equal(error.message, want);
            assert_int_equal(n_units, -7); /* what is not written on failure */
        }
    }
    assert_true(fit > 500 && fail > 300);
}

static void test_wrap_auto__a_failure_of_the_planner_is_handed_on(void **state) {
    (void)state;
    static candidate c[CANDIDATES];
    static drawn d;
    uint64_t seed = 8;
    int32_t unit[PARAMS], n_units;
    draw_view(&d, &seed);
    const int n = candidates_of(&d, c);
    for (int at = 1; at <= n; at++) {
        planner.fails_at = at;
        assert_int_equal(run_auto(&d, 1000, 1, unit, &n_units), TESS_E_PLANNED);
        assert_int_equal(planner.calls, at);
        assert_string_equal(error.message, "the planner's word");
    }
    planner.fails_at = 0;
    assert_int_equal(run_auto(&d, 1000, 0, unit, &n_units), TESS_E_UNSUPPORTED);
    assert_string_equal(error.message, "needs the planner, which is not at hand here");
    counted.refuse = 2; /* behind that of its own settings */
    assert_int_equal(run_auto(&d, 1000, 1, unit, &n_units), TESS_E_NOMEM);
    char want[96];
    snprintf(want, sizeof want, "no memory for the units of %u parameters", d.view.n_params);
    assert_string_equal(error.message, want);
}

static void test_wrap_auto__its_argument_is_bytes(void **state) {
    (void)state;
    static const char *const bad[] = { "", "0", "much", "-1", "12x" };
    static const char *const good[] = { "1", "512MiB", "1.5GiB" };
    static const uint64_t bytes[] = { 1, UINT64_C(512) << 20, UINT64_C(1536) << 20 };
    const void *table = &error;
    void *ctx = &error;
    char want[160];
    error = (tess_error){ .struct_size = sizeof error };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const tess_host host = { .struct_size = sizeof host, .args = bad[i] };
        assert_int_equal(tess__wrap_auto_open(&host, &table, &ctx, &error), TESS_E_INVALID);
        snprintf(want, sizeof want, "expects bytes of device memory after the colon, as in auto:512MiB, got \"%s\"",
                 bad[i]);
        assert_string_equal(error.message, want);
        assert_true(table == &error && ctx == &error && counted.live == 0);
    }
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        const tess_host host = { .struct_size = sizeof host, .args = good[i] };
        assert_int_equal(tess__wrap_auto_open(&host, &table, &ctx, &error), TESS_OK);
        assert_true(*(uint64_t *)ctx == bytes[i]);
        free(ctx);
    }
    const tess_host host = { .struct_size = sizeof host, .args = "1" };
    counted.refuse = 1;
    assert_int_equal(tess__wrap_auto_open(&host, &table, &ctx, &error), TESS_E_NOMEM);
    assert_string_equal(error.message, "no memory for the budget");
    assert_int_equal(counted.live, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrap_auto__the_best_of_all_candidates_is_taken),
        cmocka_unit_test(test_wrap_auto__a_failure_of_the_planner_is_handed_on),
        cmocka_unit_test(test_wrap_auto__its_argument_is_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
