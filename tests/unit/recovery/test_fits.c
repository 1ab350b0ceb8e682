/* SPDX-License-Identifier: BSD-3-Clause */
/* What a group of fewer ranks does of a step: as many microbatches as before, or it is refused. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include "core/recovery/fits.c"
#include "tests/support/toy.h"

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fits__a_budget_holds_what_is_carried_too),
        cmocka_unit_test(test_fits__a_step_keeps_its_microbatches),
        cmocka_unit_test(test_fits__deterministic_groups_sum_the_same_tree),
        cmocka_unit_test(test_fits__a_prefetch_that_was_chosen_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
