/* SPDX-License-Identifier: BSD-3-Clause */
/* Splitting cores, on machines that hwloc makes up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tools/launch/binding.h"

static int have_hwloc(void) {
    launch_binding one;
    int real;
    return launch_binding_split(1, &one, &real) > 0;
}

/* Splits the made-up machine, and expects this many cores per rank with these lists, separated by blanks. */
static void expect_split(const char *machine, int32_t ranks, int32_t each, const char *lists) {
    launch_binding got[16];
    char text[1024] = "";
    int real = 1;
    memset(got, 0, sizeof got);
    setenv("HWLOC_SYNTHETIC", machine, 1);
    assert_int_equal(launch_binding_split(ranks, got, &real), each);
    unsetenv("HWLOC_SYNTHETIC");
    if (each > 0)
        assert_int_equal(real, 0);
    for (int32_t r = 0; r < ranks && each > 0; r++) {
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", r ? " " : "", got[r].list);
        for (int32_t q = 0; q < r; q++) {
            cpu_set_t both;
            CPU_AND(&both, &got[r].set, &got[q].set);
            assert_int_equal(CPU_COUNT(&both), 0);
        }
        assert_int_equal(CPU_COUNT(&got[r].set), CPU_COUNT(&got[0].set));
    }
    assert_string_equal(text, lists);
}

static void test_binding__cores_are_split_evenly_and_keep_their_threads(void **state) {
    (void)state;
    if (!have_hwloc()) {
        printf("skipped: built without hwloc\n");
        skip();
    }
    expect_split("package:2 core:4 pu:1", 2, 4, "0-3 4-7");
    expect_split("package:2 core:4 pu:1", 8, 1, "0 1 2 3 4 5 6 7");
    expect_split("package:1 core:4 pu:2", 2, 2, "0-3 4-7");
    expect_split("package:1 core:4 pu:2(indexes=0,4,1,5,2,6,3,7)", 2, 2, "0-1,4-5 2-3,6-7");
    /* What does not divide is left over, so that all ranks have the same number of threads. */
    expect_split("core:8 pu:1", 3, 2, "0-1 2-3 4-5");
}

static void test_binding__more_ranks_than_cores_are_not_bound(void **state) {
    (void)state;
    expect_split("core:4 pu:2", 5, 0, "");
    expect_split("core:1 pu:1", 2, 0, "");
}

static void test_binding__this_machine_has_cores(void **state) {
    (void)state;
    launch_binding one;
    int real = 0;
    int32_t cores = launch_binding_cores();
    assert_in_range(cores, 1, CPU_SETSIZE);
    if (have_hwloc()) {
        assert_int_equal(launch_binding_split(1, &one, &real), cores);
        assert_int_equal(real, 1);
        assert_true(CPU_COUNT(&one.set) >= cores);
    }
    assert_int_equal(launch_binding_split(0, &one, &real), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_binding__cores_are_split_evenly_and_keep_their_threads),
        cmocka_unit_test(test_binding__more_ranks_than_cores_are_not_bound),
        cmocka_unit_test(test_binding__this_machine_has_cores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
