/* SPDX-License-Identifier: BSD-3-Clause */
/* Module tree and wrap policies: which parameters form a unit. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/unit/plan_fixture.h"

/* Runs a policy with standard error caught. */
static tess_status wrap_and_catch(plan *p, plan_wrap_open open, const char *args, char *out, size_t n) {
    int ends[2], old = dup(STDERR_FILENO);
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    tess_status s = plan_wrap(p, open, args);
    dup2(old, STDERR_FILENO);
    close(old);
    ssize_t got = read(ends[0], out, n - 1);
    close(ends[0]);
    out[got > 0 ? got : 0] = 0;
    return s;
}

static void declare(plan *p, const char *const *scopes, const char *const *names, const int64_t *elems) {
    plan_init(p, 2);
    for (; *scopes; scopes++)
        plan_scope(p, *scopes);
    for (; *names; names++, elems++)
        assert_int_equal(plan_param(p, *names, *elems, 0), TESS_OK);
}

static void assert_units(const plan *p, const int32_t *expected, int32_t n_units) {
    assert_int_equal(p->n_units, n_units);
    for (int32_t i = 0; i < p->model.n_params; i++)
        if (p->unit[i] != expected[i])
            fail_msg("parameter %s is in unit %d, expected %d", p->model.params[i].name, p->unit[i], expected[i]);
}

static void test_module_tree__lists_modules_depth_first_with_sums(void **state) {
    (void)state;
    static const char *const scopes[] = { "", "h.1", NULL };
    static const char *const names[] = { "h.1.b.w", "wte", "h.0.w", "h.1.a", "h.1.b.v", NULL };
    static const int64_t elems[] = { 10, 20, 30, 40, 50 };
    plan p;
    declare(&p, scopes, names, elems);
    assert_int_equal(tess__model_tie(&p.model, "h.0.tied", "wte"), TESS_OK);
    plan_param(&p, "h.0.buffer", 1000, TESS_BUFFER);
    assert_int_equal(tess__model_finish(&p.model), TESS_OK);
    tess__module_tree t;
    assert_int_equal(tess__module_tree_build(&p.model, &t), TESS_OK);
    static const struct {
        const char *name;
        int32_t parent, first, n, order;
        uint64_t own, subtree;
    } expected[] = {
        { "", -1, 0, 1, 0, 20, 150 },     { "h", 0, 1, 0, -1, 0, 130 },   { "h.1", 1, 1, 1, 1, 40, 100 },
        { "h.1.b", 2, 2, 2, -1, 60, 60 }, { "h.0", 1, 4, 2, -1, 30, 30 },
    };
    static const int32_t param[] = { 1, 3, 0, 4, 2, 5 };
    assert_int_equal(t.view.n_modules, 5);
    assert_int_equal(t.view.n_params, 6);
    for (uint32_t k = 0; k < 5; k++) {
        const tess_module_view *m = &t.view.modules[k];
        assert_string_equal(m->name, expected[k].name);
        assert_int_equal(m->parent, expected[k].parent);
        assert_int_equal(m->first_param, expected[k].first);
        assert_int_equal(m->n_params, expected[k].n);
        assert_int_equal(m->order, expected[k].order);
        assert_int_equal(m->own_elems, expected[k].own);
        assert_int_equal(m->subtree_elems, expected[k].subtree);
    }
    for (int32_t i = 0; i < 6; i++) {
        assert_int_equal(t.param[i], param[i]);
        assert_string_equal(t.view.params[i].name, p.model.params[param[i]].name);
        assert_int_equal((t.view.params[i].flags & 2) != 0, param[i] == 1 || param[i] == 5);
    }
    assert_int_equal(t.view.params[5].tied_to, 0);
    assert_int_equal(t.view.params[1].scope, 2);
    assert_int_equal(t.view.params[0].scope, 0);
    tess__module_tree_free(&t);
    plan_free(&p);
}

static const char *const gpt_scopes[] = { "emb", "h.*", "head", NULL };
static const char *const gpt_names[] = { "emb.wte", "h.*.ln.w", "h.*.fc.w", "head.w", "head.b", NULL };
static const int64_t gpt_elems[] = { 100, 4, 60, 30, 3 };

static void test_wrap__scopes_are_units_in_order_of_use(void **state) {
    (void)state;
    static const int32_t expected[] = { 0, 1, 2, 3, 1, 2, 3, 4, 4 };
    plan p;
    declare(&p, gpt_scopes, gpt_names, gpt_elems);
    assert_int_equal(plan_wrap(&p, tess__wrap_scopes_open, ""), TESS_OK);
    assert_units(&p, expected, 5);
    plan_free(&p);
}

static void test_wrap__tied_parameters_are_a_unit_of_their_own(void **state) {
    (void)state;
    static const int32_t expected[] = { 0, 1, 2, 3, 1, 2, 3, 4, 4, 0, -1 };
    static const int32_t by_size[] = { 0, 1, 1, 1, 2, 3, 4, 1, 1, 0, -1 }, all[] = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -1 };
    plan p;
    declare(&p, gpt_scopes, gpt_names, gpt_elems);
    assert_int_equal(tess__model_tie(&p.model, "head.wte", "emb.wte"), TESS_OK);
    plan_param(&p, "head.mean", 7, TESS_BUFFER);
    assert_int_equal(plan_wrap(&p, tess__wrap_scopes_open, ""), TESS_OK);
    assert_units(&p, expected, 5);
    assert_int_equal(plan_wrap(&p, tess__wrap_size_open, "60"), TESS_OK);
    assert_units(&p, by_size, 5);
    assert_int_equal(plan_wrap(&p, tess__wrap_none_open, ""), TESS_OK);
    assert_units(&p, all, 1);
    plan_free(&p);
}

/* The rule of PyTorch's size_based_auto_wrap_policy: a module is wrapped when what is not yet in a unit below it
 * reaches the size. The CNN of its tutorial at 20,000: fc1 alone. */
static void test_wrap__size_follows_the_rule_of_the_tutorial(void **state) {
    (void)state;
    static const char *const scopes[] = { "conv1", "conv2", "fc1", "fc2", NULL };
    static const char *const names[] = { "conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias", "fc1.weight",
                                         "fc1.bias",     "fc2.weight", "fc2.bias",     NULL };
    static const int64_t elems[] = { 288, 32, 18432, 64, 1179648, 128, 1280, 10 };
    static const int32_t at_20000[] = { 0, 0, 0, 0, 1, 1, 0, 0 }, at_18496[] = { 0, 0, 1, 1, 2, 2, 0, 0 };
    static const int32_t at_1[] = { 0, 0, 1, 1, 2, 2, 3, 3 };
    plan p;
    declare(&p, scopes, names, elems);
    assert_int_equal(plan_wrap(&p, tess__wrap_size_open, "20000"), TESS_OK);
    assert_units(&p, at_20000, 2);
    assert_int_equal(plan_wrap(&p, tess__wrap_size_open, "18497"), TESS_OK);
    assert_units(&p, at_20000, 2);
    assert_int_equal(plan_wrap(&p, tess__wrap_size_open, "18496"), TESS_OK);
    assert_units(&p, at_18496, 3);
    assert_int_equal(plan_wrap(&p, tess__wrap_size_open, "1"), TESS_OK);
    assert_units(&p, at_1, 4);
    plan_free(&p);
}

/* Children too small on their own are wrapped with their parent; what a child's unit took no longer counts. */
static void test_wrap__size_adds_up_what_is_left_below(void **state) {
    (void)state;
    static const char *const scopes[] = { "", NULL };
    static const char *const names[] = { "a.x.w", "a.y.w", "b.w", "b.big.w", "c.w", NULL };
    static const int64_t elems[] = { 60, 60, 50, 120, 90 };
    static const int32_t expected[] = { 0, 0, 1, 2, 1 };
    plan p;
    declare(&p, scopes, names, elems);
    assert_int_equal(plan_wrap(&p, tess__wrap_size_open, "100"), TESS_OK);
    assert_units(&p, expected, 3);
    plan_free(&p);
}

static void test_wrap__module_patterns_stay_within_one_level(void **state) {
    (void)state;
    static const int32_t blocks[] = { 0, 1, 2, 3, 1, 2, 3, 0, 0 }, fc[] = { 0, 0, 0, 0, 1, 2, 3, 0, 0 };
    static const int32_t first[] = { 0, 1, 0, 0, 1, 0, 0, 2, 2 };
    char text[512];
    plan p;
    declare(&p, gpt_scopes, gpt_names, gpt_elems);
    assert_int_equal(wrap_and_catch(&p, tess__wrap_module_open, "h.*", text, sizeof text), TESS_OK);
    assert_units(&p, blocks, 4);
    assert_string_equal(text, "");
    assert_int_equal(plan_wrap(&p, tess__wrap_module_open, "h.*.fc"), TESS_OK);
    assert_units(&p, fc, 4);
    assert_int_equal(plan_wrap(&p, tess__wrap_module_open, "h.[0],head"), TESS_OK);
    assert_units(&p, first, 3);
    plan_free(&p);
}

static void test_wrap__a_policy_that_selects_nothing_warns_and_names_itself(void **state) {
    (void)state;
    static const int32_t all[] = { 0, 0, 0, 0, 0, 0, 0, 0, 0 };
    char text[512];
    plan p;
    declare(&p, gpt_scopes, gpt_names, gpt_elems);
    assert_int_equal(wrap_and_catch(&p, tess__wrap_module_open, "layer.*", text, sizeof text), TESS_OK);
    assert_units(&p, all, 1);
    assert_non_null(strstr(text, "warning: wrap policy size or module selects no module"));
    assert_int_equal(wrap_and_catch(&p, tess__wrap_size_open, "1000000", text, sizeof text), TESS_OK);
    assert_units(&p, all, 1);
    assert_non_null(strstr(text, "selects no module"));
    assert_int_equal(wrap_and_catch(&p, tess__wrap_none_open, "", text, sizeof text), TESS_OK);
    assert_string_equal(text, "");
    plan_free(&p);
}

static void test_wrap__bad_arguments_are_refused(void **state) {
    (void)state;
    static const struct {
        plan_wrap_open open;
        const char *args;
    } bad[] = {
        { tess__wrap_size_open, "" },     { tess__wrap_size_open, "-5" },
        { tess__wrap_size_open, "0" },    { tess__wrap_size_open, "12x" },
        { tess__wrap_size_open, " 12" },  { tess__wrap_size_open, "99999999999999999999999" },
        { tess__wrap_module_open, "" },   { tess__wrap_module_open, "a,,b" },
        { tess__wrap_module_open, ",a" }, { tess__wrap_scopes_open, "x" },
        { tess__wrap_none_open, "x" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const void *ops = NULL;
        void *ctx = NULL;
        tess_error e = { .struct_size = sizeof e };
        tess_host host = plan_host(bad[i].args);
        assert_int_equal(bad[i].open(&host, &ops, &ctx, &e), TESS_E_INVALID);
        assert_null(ops);
        assert_true(e.message[0]);
        assert_non_null(strstr(e.message, bad[i].args));
    }
}

static tess_status assign_badly(void *ctx, const tess_model_view *v, const tess_plan_env *env, int32_t *unit,
                                int32_t *n_units,
                                tess_status (*plan_fn)(void *, const int32_t *, int32_t, tess_plan_result *),
                                void *host, tess_error *e) {
    (void)env, (void)plan_fn, (void)host, (void)e;
    for (uint32_t i = 0; i < v->n_params; i++)
        unit[i] = *(int32_t *)ctx == 1 ? (int32_t)i : *(int32_t *)ctx;
    *n_units = (int32_t)v->n_params;
    return TESS_OK;
}

static void test_wrap__a_policy_that_breaks_the_rules_is_refused_by_parameter(void **state) {
    (void)state;
    const tess_wrap_ops ops = { .struct_size = sizeof ops, .assign = assign_badly };
    plan p;
    int32_t mode;
    declare(&p, gpt_scopes, gpt_names, gpt_elems);
    tess__model_tie(&p.model, "head.wte", "emb.wte");
    tess__model_finish(&p.model);
    mode = 99;
    assert_int_equal(
        tess__wrap_apply_planned(&p.model, &ops, &mode, "bad", &p.setup.env, NULL, NULL, p.unit, &p.n_units),
        TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "wrap policy bad puts parameter \"emb.wte\" in unit 99"));
    mode = -1;
    assert_int_equal(
        tess__wrap_apply_planned(&p.model, &ops, &mode, "bad", &p.setup.env, NULL, NULL, p.unit, &p.n_units),
        TESS_E_INVALID);
    mode = 1;
    assert_int_equal(
        tess__wrap_apply_planned(&p.model, &ops, &mode, "bad", &p.setup.env, NULL, NULL, p.unit, &p.n_units),
        TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "parts the tied parameters \"head.wte\" and \"emb.wte\""));
    plan_free(&p);
}

/* A planner in which every unit saves 100 bytes, and says how long a step takes when asked to. */
typedef struct {
    int64_t step_ns_per_unit; /* 0: unknown */
    int32_t calls;
} saving;

static tess_status plan_saving(void *user, const int32_t *unit, int32_t n_units, tess_plan_result *out) {
    saving *s = user;
    (void)unit;
    s->calls++;
    out->peak_device_bytes = 1000 - 100 * (uint64_t)n_units;
    out->step_ns = s->step_ns_per_unit ? 1000 + s->step_ns_per_unit * n_units : -1;
    return TESS_OK;
}

static tess_status wrap_auto(const char *args, saving *s, int32_t *n_units) {
    static const char *const scopes[] = { "a", "b", "c", "d", NULL };
    static const char *const names[] = { "a.w", "b.w", "c.w", "d.w", NULL };
    static const int64_t elems[] = { 800, 400, 200, 100 };
    const void *table;
    void *ctx;
    tess_error e = { .struct_size = sizeof e };
    tess_host host = plan_host(args);
    plan p;
    declare(&p, scopes, names, elems);
    assert_int_equal(tess__model_finish(&p.model), TESS_OK);
    assert_int_equal(tess__wrap_auto_open(&host, &table, &ctx, &e), TESS_OK);
    const tess_wrap_ops *ops = table;
    tess_status status = tess__wrap_apply_planned(&p.model, ops, ctx, "auto", &p.setup.env, s ? plan_saving : NULL, s,
                                                  p.unit, &p.n_units);
    ops->close(ctx);
    *n_units = p.n_units;
    plan_free(&p);
    return status;
}

static void test_wrap__auto_takes_the_fewest_units_that_fit(void **state) {
    (void)state;
    saving s = { 0, 0 };
    int32_t n = 0;
    assert_int_equal(wrap_auto("900", &s, &n), TESS_OK);
    assert_int_equal(n, 1);
    assert_int_equal(wrap_auto("750", &s, &n), TESS_OK); /* 2 units: 800 bytes, 3: 700 */
    assert_int_equal(n, 3);
    assert_int_equal(wrap_auto("600", &s, &n), TESS_OK);
    assert_int_equal(n, 4);
    assert_int_equal(wrap_auto("599", &s, &n), TESS_E_BUDGET);
    assert_non_null(strstr(tess_last_error(), "599 bytes of device memory; the least takes 600"));
    s.step_ns_per_unit = -1; /* more units are faster: time decides among what fits */
    assert_int_equal(wrap_auto("900", &s, &n), TESS_OK);
    assert_int_equal(n, 4);
    assert_true(s.calls > 5);
    assert_int_equal(wrap_auto("900", NULL, &n), TESS_E_UNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_module_tree__lists_modules_depth_first_with_sums),
        cmocka_unit_test(test_wrap__scopes_are_units_in_order_of_use),
        cmocka_unit_test(test_wrap__tied_parameters_are_a_unit_of_their_own),
        cmocka_unit_test(test_wrap__size_follows_the_rule_of_the_tutorial),
        cmocka_unit_test(test_wrap__size_adds_up_what_is_left_below),
        cmocka_unit_test(test_wrap__module_patterns_stay_within_one_level),
        cmocka_unit_test(test_wrap__a_policy_that_selects_nothing_warns_and_names_itself),
        cmocka_unit_test(test_wrap__bad_arguments_are_refused),
        cmocka_unit_test(test_wrap__auto_takes_the_fewest_units_that_fit),
        cmocka_unit_test(test_wrap__a_policy_that_breaks_the_rules_is_refused_by_parameter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
