/* SPDX-License-Identifier: BSD-3-Clause */
/* The nearest NUMA node, on topologies made up by hwloc. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/base/numa.h"

static int have_hwloc(void) {
    setenv("HWLOC_SYNTHETIC", "numa:2 core:1 pu:1", 1);
    int known = tess__numa_nearest(NULL, "1") == 1;
    unsetenv("HWLOC_SYNTHETIC");
    return known;
}

static int32_t nearest(const char *topology, const char *cpus) {
    setenv("HWLOC_SYNTHETIC", topology, 1);
    int32_t node = tess__numa_nearest(NULL, cpus);
    unsetenv("HWLOC_SYNTHETIC");
    return node;
}

static void test_numa__cpus_of_one_node_lie_near_it(void **state) {
    (void)state;
    if (!have_hwloc()) {
        print_message("built without hwloc\n");
        skip();
    }
    assert_int_equal(nearest("numa:2 core:4 pu:2", "0-3"), 0);
    assert_int_equal(nearest("numa:2 core:4 pu:2", "8,12-15"), 1);
    assert_int_equal(nearest("package:2 numa:2 core:2 pu:1", "6"), 3);
}

static void test_numa__cpus_of_several_nodes_or_of_none_lie_near_none(void **state) {
    (void)state;
    assert_int_equal(nearest("numa:2 core:4 pu:2", "7-8"), -1);
    assert_int_equal(nearest("numa:2 core:4 pu:2", ""), -1); /* bound nowhere: both */
    assert_int_equal(nearest("numa:2 core:4 pu:2", "99"), -1);
    assert_int_equal(nearest("numa:1 core:4 pu:2", "1"), -1); /* nothing to choose */
}

static void test_numa__an_unknown_pci_address_leaves_the_cpus_to_say(void **state) {
    (void)state;
    if (!have_hwloc())
        skip();
    setenv("HWLOC_SYNTHETIC", "numa:2 core:4 pu:2", 1);
    assert_int_equal(tess__numa_nearest("0000:3b:00.0", "9"), 1);
    unsetenv("HWLOC_SYNTHETIC");
}

static void test_numa__binding_is_a_wish_that_leaves_memory_usable(void **state) {
    (void)state;
    char *p = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    assert_int_equal(tess__numa_bind(p, 1 << 16, -1), -1);
    assert_int_equal(tess__numa_bind(p, 1 << 16, 4095), -1);
    setenv("HWLOC_SYNTHETIC", "numa:2 core:4 pu:2", 1);
    assert_int_equal(tess__numa_bind(p, 1 << 16, 1), -1); /* made up */
    unsetenv("HWLOC_SYNTHETIC");
    int taken = tess__numa_bind(p, 1 << 16, 0);
    assert_true(taken == 0 || taken == -1); /* the container may forbid it */
    memset(p, 1, 1 << 16);
    munmap(p, 1 << 16);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numa__cpus_of_one_node_lie_near_it),
        cmocka_unit_test(test_numa__cpus_of_several_nodes_or_of_none_lie_near_none),
        cmocka_unit_test(test_numa__an_unknown_pci_address_leaves_the_cpus_to_say),
        cmocka_unit_test(test_numa__binding_is_a_wish_that_leaves_memory_usable),
    };
    return cmocka_run_group_tests_name("numa", tests, NULL, NULL);
}
