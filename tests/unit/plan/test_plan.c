/* SPDX-License-Identifier: BSD-3-Clause */
/* A plan is made, tried and dropped without an engine, a device or other ranks. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include "core/plan/plan.h"
#include "tests/unit/plan_fixture.h"

static tess__plan_wrap wrap_of(plan_wrap_open open, const char *text) {
    const void *ops;
    void *ctx;
    tess_error e = { .struct_size = sizeof e };
    tess_host host = plan_host("");
    assert_int_equal(open(&host, &ops, &ctx, &e), TESS_OK);
    return (tess__plan_wrap){ ops, ctx, text };
}

static void declare(tess__plan *p, plan *f, int32_t nranks) {
    plan_init(f, nranks);
    assert_int_equal(tess__setup_optimizer(&f->setup, "adamw", 0), TESS_OK);
    plan_scope(f, "a");
    plan_scope(f, "b");
    assert_int_equal(plan_param(f, "a.w", 1000, 0), TESS_OK);
    assert_int_equal(plan_param(f, "b.w", 7000, 0), TESS_OK);
    *p = (tess__plan){ .setup = f->setup, .model = f->model, .wrap = wrap_of(tess__wrap_scopes_open, "scopes") };
}

static void test_plan__an_alternative_leaves_the_plan_as_it_was(void **state) {
    (void)state;
    plan f;
    tess__plan p, other;
    declare(&p, &f, 4);
    assert_int_equal(tess__plan_make(&p), TESS_OK);
    uint64_t bytes = tess__planned_bytes(&p, TESS_DOMAIN_DEVICE), hash = p.programs[TESS__P_TRAIN].hash;
    uint64_t offset = p.model.params[1].offset;
    assert_int_equal(p.layout.n_units, 2);
    assert_true(bytes > 0 && hash);
    assert_ptr_equal(tess__plan_fullest(&p, TESS_DOMAIN_HOST), &p.programs[0]);

    assert_int_equal(tess__plan_try(&p, &other), TESS_OK);
    other.wrap = wrap_of(tess__wrap_none_open, "none");
    assert_int_equal(tess__setup_strategy(&other.setup, "none"), TESS_OK);
    assert_int_equal(tess__plan_remake(&other), TESS_OK);
    assert_int_equal(other.layout.n_units, 1);
    assert_true(tess__planned_bytes(&other, TESS_DOMAIN_DEVICE) > bytes); /* nothing is sharded */
    assert_true(other.programs[TESS__P_TRAIN].hash != hash);
    assert_int_equal(other.model.params[1].offset, 1024);
    tess__plan_drop(&other);

    assert_int_equal(tess__planned_bytes(&p, TESS_DOMAIN_DEVICE), bytes);
    assert_int_equal(p.programs[TESS__P_TRAIN].hash, hash);
    assert_int_equal(p.model.params[1].offset, offset);
    tess__plan_free(&p);
}

static void test_plan__a_plan_over_its_budget_can_be_read(void **state) {
    (void)state;
    plan f;
    tess__plan p;
    declare(&p, &f, 2);
    p.n_user = 1;
    p.user_bytes[0] = 640;
    p.setup.env.device_budget_bytes = 1000;
    assert_int_equal(tess__plan_make(&p), TESS_E_BUDGET);
    uint64_t bytes = tess__planned_bytes(&p, TESS_DOMAIN_DEVICE);
    assert_true(bytes > 1000);
    assert_non_null(strstr(tess_last_error(), "activation 640")); /* what the program took itself is in the list */
    p.setup.env.device_budget_bytes = bytes;
    assert_int_equal(tess__plan_check_budget(&p), TESS_OK);
    p.setup.env.device_budget_bytes = bytes - 1;
    assert_int_equal(tess__plan_check_budget(&p), TESS_E_BUDGET);
    tess__plan_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan__an_alternative_leaves_the_plan_as_it_was),
        cmocka_unit_test(test_plan__a_plan_over_its_budget_can_be_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
