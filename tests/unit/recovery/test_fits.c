/* SPDX-License-Identifier: BSD-3-Clause */
/* What a group of fewer ranks does of a step: as many microbatches as before, or it is refused. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "core/base/options.h"
#include "core/base/status.h"
#include "core/engine/state.h"
#include "core/recovery/fits.h"
#include "tests/support/toy.h"
#include "tests/unit/logged.h"

/* What is said, to people and to the launcher. */
static tess__kv_fits said;
static tess_status take_fits(tess__control *c, const char *key, const void *value, uint64_t bytes) {
    (void)c;
    assert_string_equal(key, TESS__KV_READY);
    assert_int_equal(bytes, sizeof said);
    memcpy(&said, value, sizeof said);
    return TESS_OK;
}
#define tess__control_set take_fits
#include "core/recovery/fits.c"

static tess__setup group(int32_t nranks, int32_t accum, int deterministic, int sync_each) {
    tess__setup s = { .nranks = nranks, .accum = accum, .deterministic = deterministic, .sync_each = sync_each };
    s.mirror = 7;
    s.prefetch = 2;
    s.env.nranks = s.env.ranks_per_host = nranks;
    assert_int_equal(tess__setup_strategy(&s, "full"), TESS_OK);
    return s;
}

static void test_fits__a_step_keeps_its_microbatches(void **state) {
    (void)state;
    static const struct {
        int32_t ranks, accum, fewer, then; /* then: microbatches of each; 0: refused */
    } cases[] = { { 4, 1, 2, 2 }, { 4, 1, 1, 4 }, { 4, 1, 3, 0 }, { 6, 1, 3, 2 },
                  { 4, 3, 3, 4 }, { 4, 3, 2, 6 }, { 8, 2, 5, 0 }, { 2, 1, 1, 2 } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tess__setup s = group(cases[i].ranks, cases[i].accum, 0, 1);
        if (!cases[i].then) {
            assert_int_equal(tess__fits_set(&s, cases[i].fewer), TESS_E_INVALID);
            continue;
        }
        assert_int_equal(tess__fits_set(&s, cases[i].fewer), TESS_OK);
        assert_int_equal(s.accum, cases[i].then);
        assert_int_equal(s.nranks, cases[i].fewer);
        assert_int_equal(s.env.nranks, cases[i].fewer);
        assert_int_equal(s.env.ranks_per_host, cases[i].fewer);
        assert_int_equal(s.shard_ranks, cases[i].fewer);
        assert_int_equal(s.mirror, cases[i].fewer > 1 ? 7 : 0); /* one alone has nobody to keep its images */
        assert_int_equal(s.prefetch, 2);
    }
    tess__setup s = group(4, 1, 0, 1);
    assert_int_equal(tess__fits_set(&s, 3), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "3 ranks do not divide the 4 microbatches of a step into aligned subtrees");
}

/* The sum is a tree: either the ranks or a rank's microbatches are a power of two, and which is summed first follows.
 */
static void test_fits__deterministic_groups_sum_the_same_tree(void **state) {
    (void)state;
    static const struct {
        int32_t ranks, accum, fewer, then;
        int sync_each; /* afterwards */
    } cases[] = { { 4, 1, 2, 2, 1 }, { 6, 1, 3, 2, 0 }, { 6, 2, 3, 4, 0 }, { 6, 2, 4, 3, 1 }, { 6, 1, 5, 0, 0 } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tess__setup s = group(cases[i].ranks, cases[i].accum, 1, (cases[i].ranks & (cases[i].ranks - 1)) == 0);
        tess_status status = tess__fits_set(&s, cases[i].fewer);
        assert_int_equal(status, cases[i].then ? TESS_OK : TESS_E_INVALID);
        if (status)
            continue;
        assert_int_equal(s.accum, cases[i].then);
        assert_int_equal(s.sync_each, cases[i].sync_each);
    }
    tess__setup one = group(6, 1, 1, 1); /* with one microbatch each it is the same which is first */
    assert_int_equal(tess__fits_set(&one, 3), TESS_OK);
    assert_int_equal(one.accum, 2);
    assert_false(one.sync_each);
    tess__setup two = group(6, 2, 1, 1);
    assert_int_equal(tess__fits_set(&two, 3), TESS_E_INVALID);
    tess__setup odd = group(6, 3, 1, 0); /* neither is a power of two: these ranks have no tree to keep */
    assert_int_equal(tess__fits_set(&odd, 2), TESS_E_INVALID);
    assert_string_equal(tess_last_error(),
                        "the 6 ranks themselves do not divide the 18 microbatches of a step into aligned subtrees");
}

static void test_fits__a_prefetch_that_was_chosen_stays(void **state) {
    (void)state;
    tess__setup s = group(4, 1, 0, 1);
    s.prefetch = 0; /* a budget lowered it: it begins anew */
    assert_int_equal(tess__fits_set(&s, 2), TESS_OK);
    assert_int_equal(s.prefetch, 1);
    s = group(4, 1, 0, 1);
    s.prefetch = 0;
    s.prefetch_fixed = 1;
    assert_int_equal(tess__fits_set(&s, 2), TESS_OK);
    assert_int_equal(s.prefetch, 0);
}

/* The images of the lost group stay in host memory beside what the smaller group plans. */
static void test_fits__a_budget_holds_what_is_carried_too(void **state) {
    (void)state;
    const tess_options o = { .struct_size = sizeof o, .optimizer = "adamw" };
    tess *t = NULL;
    toy m;
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(toy_declare(t, &m, 0), TESS_OK);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_OK);
    tess__plan p = t->plan;
    const uint64_t carried = tess__fits_carried(&p), host = tess__planned_bytes(&p, TESS_DOMAIN_HOST);
    assert_int_equal(carried % p.setup.granularity, 0);
    assert_true(carried >= tess__image_bytes(&p.setup, &p.layout));
    assert_int_equal(check_budget(&p, carried), TESS_OK); /* 0 is no budget */
    p.setup.env.host_budget_bytes = host + carried;
    assert_int_equal(check_budget(&p, carried), TESS_OK);
    assert_int_equal(check_budget(&p, carried + 1), TESS_E_BUDGET);
    p.setup.env.host_budget_bytes = 0;
    p.setup.env.device_budget_bytes = tess__planned_bytes(&p, TESS_DOMAIN_DEVICE) - 1;
    assert_int_equal(check_budget(&p, 0), TESS_E_BUDGET);
    assert_int_equal(tess_close(t), TESS_OK);
}

/* ---- what is announced ---- */

/* A plan of four ranks that keep each other's images, or replicas of all. */
static tess *planned(const char *strategy, int accum) {
    tess_options o = { .struct_size = sizeof o, .optimizer = "adamw", .plan_only = 1, .ranks = 4, .mirror = 1 };
    tess *t = NULL;
    toy m;
    o.comm = "shm";
    o.strategy = strategy;
    o.recover = 1;
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(toy_declare(t, &m, TOY_LARGE), TESS_OK);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_E_PLANNED);
    t->plan.setup.accum = accum;
    t->plan.setup.prefetch_fixed = 1; /* nothing is lowered to fit a budget */
    memset(&said, 0xee, sizeof said);
    memset(&logged, 0, sizeof logged);
    return t;
}

static uint64_t bytes_of(tess *t, int32_t n, uint32_t domain) {
    tess__plan p;
    assert_int_equal(tess__plan_try(&t->plan, &p), TESS_OK);
    assert_int_equal(tess__fits_set(&p.setup, n), TESS_OK);
    assert_int_equal(tess__plan_remake(&p), TESS_OK);
    const uint64_t bytes = tess__planned_bytes(&p, domain);
    tess__plan_drop(&p);
    return bytes + (domain == TESS_DOMAIN_HOST ? tess__fits_carried(&t->plan) : 0);
}

static void announces(tess *t, int32_t stride, int32_t replicas, int32_t n, const int32_t *fits) {
    memset(&said, 0xee, sizeof said);
    memset(&logged, 0, sizeof logged);
    const int32_t least = tess__log_set_least(TESS_LOG_INFO);
    assert_int_equal(tess__fits_announce(t), TESS_OK);
    assert_int_equal(tess__log_set_least(least), TESS_LOG_INFO); /* as it was */
    assert_int_equal(said.stride, stride);
    assert_int_equal(said.replicas, replicas);
    assert_int_equal(said.n, n);
    for (int32_t i = 0; i < n; i++)
        assert_int_equal(said.fits[i], fits[i]);
}

static void test_fits__the_launcher_hears_with_how_many_it_could_go_on(void **state) {
    (void)state;
    static const int32_t two_one[] = { 2, 1 }, all[] = { 3, 2, 1 };
    tess *t = planned("full", 1);
    announces(t, 2, 0, 0, NULL); /* nobody asks for fewer */
    setenv("TESSERA_RANKS_LEAST", "1", 1);
    announces(t, 2, 0, 2, two_one); /* three do not divide four microbatches */
    expect_logged(0, 0, "");
    setenv("TESSERA_RANKS_LEAST", "2", 1);
    announces(t, 2, 0, 1, two_one);
    setenv("TESSERA_RANKS_LEAST", "3", 1);
    announces(t, 2, 0, 0, NULL);
    expect_logged(1, TESS_LOG_WARNING,
                  "no smaller group could go on without a lost rank: 3 ranks do not divide the 4 microbatches "
                  "of a step into aligned subtrees");
    setenv("TESSERA_RANKS_LEAST", "1", 1);
    assert_int_equal(tess_close(t), TESS_OK);
    t = planned("none", 3);
    announces(t, 1, 1, 3, all);
    assert_int_equal(tess_close(t), TESS_OK);
    t = planned("hybrid:2", 1);
    announces(t, 2, 1, 1, two_one); /* one rank alone is no two shards */
    assert_int_equal(tess_close(t), TESS_OK);
    unsetenv("TESSERA_RANKS_LEAST");
}

static void test_fits__a_budget_leaves_out_what_it_does_not_hold(void **state) {
    (void)state;
    static const int32_t two_one[] = { 2, 1 }, one[] = { 1 };
    tess *t = planned("full", 1);
    setenv("TESSERA_RANKS_LEAST", "1", 1);
    const uint64_t device_two = bytes_of(t, 2, TESS_DOMAIN_DEVICE), device_one = bytes_of(t, 1, TESS_DOMAIN_DEVICE);
    const uint64_t host_two = bytes_of(t, 2, TESS_DOMAIN_HOST), host_one = bytes_of(t, 1, TESS_DOMAIN_HOST);
    assert_true(device_one > device_two && host_two > host_one);
    t->plan.setup.env.device_budget_bytes = device_one;
    announces(t, 2, 0, 2, two_one);
    t->plan.setup.env.device_budget_bytes = device_one - 1;
    announces(t, 2, 0, 1, two_one);
    expect_logged(0, 0, "");
    t->plan.setup.env.device_budget_bytes = device_two - 1;
    announces(t, 2, 0, 0, NULL);
    assert_non_null(strstr(logged.text, "no smaller group could go on without a lost rank: "));
    assert_non_null(strstr(logged.text, "TESSERA_DEVICE_MEMORY"));
    t->comms.world.generation = 1; /* it was said when the run began */
    announces(t, 2, 0, 0, NULL);
    expect_logged(0, 0, "");
    t->comms.world.generation = 0;
    t->plan.setup.env.device_budget_bytes = 0;
    t->plan.setup.env.host_budget_bytes = host_two;
    announces(t, 2, 0, 2, two_one);
    t->plan.setup.env.host_budget_bytes = host_two - 1;
    announces(t, 2, 0, 1, one);
    t->plan.setup.env.host_budget_bytes = host_one - 1;
    announces(t, 2, 0, 0, NULL); /* of budgets the last reason is said, which asks for the least */
    char want[256];
    snprintf(want, sizeof want,
             "no smaller group could go on without a lost rank: 1 ranks need %llu bytes of host memory and "
             "TESSERA_HOST_MEMORY allows %llu",
             (unsigned long long)host_one, (unsigned long long)host_one - 1);
    expect_logged(1, TESS_LOG_WARNING, want);
    t->plan.setup.env.host_budget_bytes = 0;
    assert_int_equal(tess_close(t), TESS_OK);
    unsetenv("TESSERA_RANKS_LEAST");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fits__a_budget_holds_what_is_carried_too),
        cmocka_unit_test(test_fits__a_step_keeps_its_microbatches),
        cmocka_unit_test(test_fits__deterministic_groups_sum_the_same_tree),
        cmocka_unit_test(test_fits__a_prefetch_that_was_chosen_stays),
        cmocka_unit_test(test_fits__the_launcher_hears_with_how_many_it_could_go_on),
        cmocka_unit_test(test_fits__a_budget_leaves_out_what_it_does_not_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
