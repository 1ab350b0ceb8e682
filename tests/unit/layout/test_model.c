/* SPDX-License-Identifier: BSD-3-Clause */
/* Names, shapes and scopes as a program declares them. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#include "tests/unit/no_steps.h"
#include "tests/unit/plan_fixture.h"

static void test_model__a_parameter_belongs_to_its_longest_prefix(void **state) {
    (void)state;
    plan p;
    plan_init(&p, 1);
    int32_t root = plan_scope(&p, ""), h1 = plan_scope(&p, "h.1"), h = plan_scope(&p, "h"),
            h10 = plan_scope(&p, "h.10");
    assert_int_equal(plan_param(&p, "h.1.fc.weight", 3, 0), TESS_OK);
    assert_int_equal(plan_param(&p, "h.10.weight", 3, 0), TESS_OK);
    assert_int_equal(plan_param(&p, "h.2.weight", 3, 0), TESS_OK);
    assert_int_equal(plan_param(&p, "hh", 3, 0), TESS_OK);
    assert_int_equal(plan_param(&p, "h.1x", 3, 0), TESS_OK);
    assert_int_equal(plan_param(&p, "h", 3, 0), TESS_OK);
    assert_int_equal(tess__model_finish(&p.model), TESS_OK);
    const int32_t expected[] = { h1, h10, h, root, h, h };
    for (int i = 0; i < 6; i++)
        assert_int_equal(p.model.params[i].scope, expected[i]);
    assert_int_equal(p.model.scopes[h].n_params, 3);
    assert_int_equal(p.model.scopes[h].params[0], 2);
    assert_int_equal(p.model.scopes[h].params[1], 4);
    assert_int_equal(p.model.scopes[h].params[2], 5);
    plan_free(&p);
}

static void test_model__a_block_hands_out_all_below_it(void **state) {
    (void)state;
    plan p;
    int32_t at;
    plan_init(&p, 1);
    tess_block_options o = { .struct_size = sizeof o, .name = "a", .forward = no_block, .backward = no_block };
    assert_int_equal(tess__model_add_block(&p.model, &o, &at), TESS_OK);
    o.name = "a.b";
    assert_int_equal(tess__model_add_block(&p.model, &o, &at), TESS_OK);
    plan_param(&p, "a.b.c.weight", 3, 0);
    plan_param(&p, "a.weight", 3, 0);
    assert_int_equal(tess__model_finish(&p.model), TESS_OK);
    assert_int_equal(p.model.scopes[0].n_params, 2);
    assert_int_equal(p.model.scopes[1].n_params, 1);
    assert_int_equal(p.model.scopes[1].params[0], 0);
    o.flags = 32;
    assert_int_equal(tess__model_add_block(&p.model, &o, &at), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "block \"a.b\": unknown flags 0x20");
    o.flags = TESS_BLOCK_LATE_RESULT | TESS_BLOCK_DROP_OUTPUT;
    assert_int_equal(tess__model_add_block(&p.model, &o, &at), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "block \"a.b\" has TESS_BLOCK_LATE_RESULT and TESS_BLOCK_DROP_OUTPUT: its "
                                           "backward has no output to write");
    o.flags = 0;
    o.backward = NULL;
    assert_int_equal(tess__model_add_block(&p.model, &o, &at), TESS_E_INVALID);
    plan_free(&p);
}

static void test_model__stacked_names_count_from_zero(void **state) {
    (void)state;
    plan p;
    plan_init(&p, 1);
    assert_int_equal(plan_scope(&p, "h.*"), 0);
    assert_int_equal(plan_param(&p, "h.*.fc", 5, 0), TESS_OK);
    assert_int_equal(p.model.n_params, 3);
    assert_string_equal(p.model.params[2].name, "h.2.fc");
    assert_int_equal(p.model.params[2].slice, 2);
    assert_int_equal(tess__model_find_param(&p.model, "h.1.fc"), 1);
    assert_int_equal(tess__model_find_param(&p.model, "h.1"), -1);
    plan_free(&p);
}

/* The parameter list moves as it grows: the alias's shape must not be read from where it was. */
static void test_model__a_tie_copies_shape_and_flags_while_the_list_grows(void **state) {
    (void)state;
    plan p;
    char name[16], alias[16];
    plan_init(&p, 1);
    plan_scope(&p, "");
    for (int i = 0; i < 40; i++) {
        snprintf(name, sizeof name, "p%d", i);
        snprintf(alias, sizeof alias, "q%d", i);
        assert_int_equal(plan_param(&p, name, 100 + i, i % 2 ? TESS_FROZEN : 0), TESS_OK);
        assert_int_equal(tess__model_tie(&p.model, alias, i % 3 ? name : i ? "q0" : "p0"), TESS_OK);
        const tess__param *q = &p.model.params[2 * i + 1];
        int of = i % 3 ? 2 * i : 0; /* an alias of an alias has the same storage */
        assert_int_equal(q->tied_to, of);
        assert_int_equal(q->shape[0], p.model.params[of].shape[0]);
        assert_int_equal(q->elems, p.model.params[of].elems);
        assert_int_equal(q->flags, p.model.params[of].flags);
    }
    plan_free(&p);
}

/* Each bad declaration is refused with a message that has this in it. */
typedef struct {
    tess_param_options o;
    const char *says;
} bad_param;

static void test_model__bad_parameters_are_refused_by_name(void **state) {
    (void)state;
    static const int64_t three = 3, zero = 0, huge[2] = { INT64_C(1) << 30, INT64_C(1) << 30 };
    static char longest[300];
    memset(longest, 'x', sizeof longest - 1);
#define PARAM(...)                                                                                                     \
    { .struct_size = sizeof(tess_param_options), .shape = &three, .ndim = 1, __VA_ARGS__ }
    const bad_param bad[] = {
        { PARAM(.name = "w", .dtype = 77), "\"w\": unknown dtype 77" },
        { PARAM(.name = "w", .dtype = TESS_I64), "\"w\" is i64" },
        { PARAM(.name = NULL, .dtype = TESS_F32), "needs a name" },
        { PARAM(.name = "", .dtype = TESS_F32), "not empty" },
        { PARAM(.name = longest, .dtype = TESS_F32), "at most 255" },
        { PARAM(.name = ".a.b", .dtype = TESS_F32), "\".a.b\": a part between its dots is empty" },
        { PARAM(.name = "a..b", .dtype = TESS_F32), "\"a..b\": a part between its dots is empty" },
        { PARAM(.name = "a.", .dtype = TESS_F32), "\"a.\": a part between its dots is empty" },
        { PARAM(.name = "w", .dtype = TESS_F32, .flags = 64), "\"w\": unknown flags 0x40" },
        { PARAM(.name = "w", .dtype = TESS_F32, .optimizer_group = -1), "optimizer group -1" },
        { PARAM(.name = "w.*", .dtype = TESS_F32), "\"w.*\": a * in the name goes with stack" },
        { PARAM(.name = "w", .dtype = TESS_F32, .stack = 2), "stack" },
        { PARAM(.name = "w.*", .dtype = TESS_F32, .stack = -2), "stack of -2" },
        { PARAM(.name = "old", .dtype = TESS_F32), "parameter \"old\" is declared twice" },
        { { .name = "w", .dtype = TESS_F32, .shape = &zero, .ndim = 1 }, "\"w\": dimension 0 is 0" },
        { { .name = "w", .dtype = TESS_F32, .shape = huge, .ndim = 2 }, "\"w\": dimension 1" },
        { { .name = "w", .dtype = TESS_F32, .shape = NULL, .ndim = 1 }, "no shape" },
        { { .name = "w", .dtype = TESS_F32, .shape = huge, .ndim = 9 }, "9 dimensions" },
        { { .name = "w", .dtype = TESS_F32, .shape = huge, .ndim = 0 }, "\"w\": a shape is given and ndim is 0" },
        { { .name = "w.*", .dtype = TESS_F32, .shape = huge, .ndim = 1, .stack = 1 << 20 }, "more than 2^44" },
    };
    plan p;
    plan_init(&p, 1);
    plan_scope(&p, "");
    plan_param(&p, "old", 3, 0);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_true(tess__model_add_param(&p.model, &bad[i].o, NULL) < 0);
        if (!strstr(tess_last_error(), bad[i].says))
            fail_msg("case %zu: \"%s\" lacks \"%s\"", i, tess_last_error(), bad[i].says);
        assert_int_equal(p.model.n_params, 1);
    }
    plan_free(&p);
}

static void test_model__ties_and_scopes_that_cannot_be_are_refused_by_name(void **state) {
    (void)state;
    plan p;
    int32_t at;
    plan_init(&p, 1);
    plan_scope(&p, "a");
    plan_param(&p, "a.w", 3, 0);
    assert_int_equal(tess__model_tie(&p.model, "a.v", "b.w"), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "\"a.v\": no parameter \"b.w\""));
    assert_int_equal(tess__model_tie(&p.model, NULL, "a.w"), TESS_E_INVALID);
    assert_int_equal(tess__model_tie(&p.model, "a.w", "a.w"), TESS_E_INVALID);
    assert_int_equal(tess__model_add_scope(&p.model, "a", 0, &at), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "scope \"a\" is declared twice"));
    assert_int_equal(tess__model_add_scope(&p.model, NULL, 0, &at), TESS_E_INVALID);
    plan_param(&p, "b.w", 3, 0);
    assert_int_equal(tess__model_finish(&p.model), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "\"b.w\" lies in no declared scope"));
    plan_free(&p);
}

/* Blocks "l.a", which also reads l.n, and "l.b" beside them. */
static tess_status add_block_with(plan *p, const char *name, const char *also) {
    tess_block_options o = { .struct_size = sizeof o, .name = name, .also = also, .output_bytes = 64 };
    o.forward = o.backward = no_block;
    return tess__model_add_block(&p->model, &o, NULL);
}

static void test_model__a_block_reads_its_second_module_too(void **state) {
    (void)state;
    plan p;
    char also[] = "l.n";
    plan_init(&p, 1);
    assert_int_equal(add_block_with(&p, "l.a", also), TESS_OK);
    also[0] = 'x'; /* it was copied */
    assert_int_equal(add_block_with(&p, "l.b", NULL), TESS_OK);
    static const char *const names[] = { "l.n.w", "l.a.w", "l.b.w", "l.a.v" };
    for (int i = 0; i < 4; i++)
        assert_int_equal(plan_param(&p, names[i], 3, 0), TESS_OK);
    plan_layout(&p);
    const tess__scope *a = &p.model.scopes[0], *b = &p.model.scopes[1];
    assert_int_equal(a->n_params, 3);
    assert_int_equal(a->params[0], 0);
    assert_int_equal(a->params[1], 1);
    assert_int_equal(a->params[2], 3);
    assert_int_equal(b->n_params, 1);
    assert_int_equal(p.n_units, 2);
    assert_int_equal(p.model.params[0].unit, p.model.params[1].unit);
    assert_string_equal(p.layout.units[p.model.params[0].unit].name, "l.a");
    plan_free(&p);
}

static void test_model__a_second_module_is_beside_the_block(void **state) {
    (void)state;
    static const char *const bad[] = { "l.a", "l.a.n", "l", "", "l.b", "l..n", "l.*" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        plan p;
        plan_init(&p, 1);
        plan_scope(&p, "l.b");
        assert_int_equal(add_block_with(&p, "l.a", bad[i]), TESS_E_INVALID);
        plan_free(&p);
    }
    plan p, q;
    plan_init(&p, 1);
    plan_init(&q, 1);
    assert_int_equal(add_block_with(&p, "l.a", "l.n"), TESS_OK);
    assert_int_equal(add_block_with(&q, "l.a", "l.m"), TESS_OK);
    assert_true(tess__model_item_hash(&p.model, 0) != tess__model_item_hash(&q.model, 0));
    plan_free(&p);
    plan_free(&q);
}

static void test_model__nothing_is_added_after_the_end(void **state) {
    (void)state;
    plan p;
    plan_init(&p, 1);
    plan_scope(&p, "a");
    assert_int_equal(tess__model_finish(&p.model), TESS_OK);
    assert_int_equal(plan_param(&p, "a.w", 3, 0), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "\"a.w\" is declared after tess_shard"));
    plan_free(&p);
}

static uint64_t hash_with(const char *name, const int64_t *shape, int32_t ndim, uint32_t flags, const char *scope) {
    plan p;
    plan_init(&p, 1);
    plan_scope(&p, "");
    plan_scope(&p, scope);
    tess_param_options o = {
        .struct_size = sizeof o, .dtype = TESS_F32, .flags = flags, .name = name, .shape = shape, .ndim = ndim
    };
    assert_int_equal(tess__model_add_param(&p.model, &o, NULL), TESS_OK);
    uint64_t h = tess__model_hash(&p.model);
    plan_free(&p);
    return h;
}

static void test_model__the_hash_changes_with_any_declaration(void **state) {
    (void)state;
    static const int64_t shape[] = { 6, 1, 2, 3 };
    const uint64_t h[] = {
        hash_with("w", shape, 1, 0, "a"),     hash_with("v", shape, 1, 0, "a"),
        hash_with("w", shape + 1, 1, 0, "a"), hash_with("w", shape, 2, 0, "a"),
        hash_with("w", shape + 2, 2, 0, "a"), hash_with("w", shape, 1, TESS_FROZEN, "a"),
        hash_with("w", shape, 1, 0, "b"),
    };
    for (int i = 0; i < 7; i++)
        for (int k = 0; k < i; k++)
            assert_true(h[i] != h[k]);
    assert_true(h[0] == hash_with("w", shape, 1, 0, "a"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model__a_parameter_belongs_to_its_longest_prefix),
        cmocka_unit_test(test_model__a_block_hands_out_all_below_it),
        cmocka_unit_test(test_model__stacked_names_count_from_zero),
        cmocka_unit_test(test_model__a_tie_copies_shape_and_flags_while_the_list_grows),
        cmocka_unit_test(test_model__bad_parameters_are_refused_by_name),
        cmocka_unit_test(test_model__ties_and_scopes_that_cannot_be_are_refused_by_name),
        cmocka_unit_test(test_model__a_block_reads_its_second_module_too),
        cmocka_unit_test(test_model__a_second_module_is_beside_the_block),
        cmocka_unit_test(test_model__nothing_is_added_after_the_end),
        cmocka_unit_test(test_model__the_hash_changes_with_any_declaration),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
