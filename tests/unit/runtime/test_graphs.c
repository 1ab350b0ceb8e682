/* SPDX-License-Identifier: BSD-3-Clause */
/* Which recorded pass a key finds, and which one makes room. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include "core/runtime/graphs.h"

static int destroyed;
static void graph_destroy(tess_graph *g) {
    (void)g;
    destroyed++;
}
static const tess_device_ops ops = { .struct_size = sizeof ops, .graph_destroy = graph_destroy };
static const tess__device device = { .ops = &ops };

static tess__recorded *find(tess__graphs *g, int32_t pass) {
    tess__graph_key key = { .repeat = 3, .pass = pass };
    return tess__graphs_find(g, &device, &key);
}

static void test_graphs__the_one_used_longest_ago_makes_room(void **state) {
    (void)state;
    static tess__graphs g;
    tess__recorded *of[TESS__GRAPHS];
    for (int32_t i = 0; i < TESS__GRAPHS; i++) {
        of[i] = find(&g, i);
        assert_false(of[i]->known);
        assert_int_equal(of[i]->key.pass, i);
        of[i]->known = 1;
        of[i]->graph = (tess_graph *)&g;
    }
    assert_int_equal(destroyed, 0);
    for (int32_t i = 0; i < TESS__GRAPHS; i++)
        assert_ptr_equal(find(&g, i), of[i]);
    assert_ptr_equal(find(&g, 0), of[0]); /* now pass 1 was used longest ago */
    assert_ptr_equal(find(&g, TESS__GRAPHS), of[1]);
    assert_int_equal(destroyed, 1);
    assert_false(of[1]->known);
    assert_null(of[1]->graph);
    assert_ptr_equal(find(&g, 0), of[0]);
    tess__graphs_drop(&g, &device);
    assert_int_equal(destroyed, TESS__GRAPHS);
    assert_int_equal(g.used, 0);
    assert_false(find(&g, 0)->known);
}

/* A pass that was looked for and never ran is no pass of that key. */
static void test_graphs__only_a_pass_that_has_run_is_found(void **state) {
    (void)state;
    static tess__graphs g;
    tess__recorded *first = find(&g, 1);
    first->why_not = "none";
    assert_true(find(&g, 1)->why_not == NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graphs__the_one_used_longest_ago_makes_room),
        cmocka_unit_test(test_graphs__only_a_pass_that_has_run_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
