/* The comm suite on one plugin file: argv[1], or TESSERA_TEST_PLUGIN. */
#include "comm_suite.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

static const char *plugin;

static void run_case(void **state) {
    const struct comm_case *c = *state;
    assert_int_equal(comm_world(plugin, c->nranks, c->scenario, NULL, c->killed_mask), 0);
}

int main(int argc, char **argv) {
    plugin = argc > 1 ? argv[1] : getenv("TESSERA_TEST_PLUGIN");
    if (!plugin) {
        printf("no plugin file given: test_comm FILE, or TESSERA_TEST_PLUGIN=FILE\n");
        return 77;
    }
    const struct comm_case *lists[] = { comm_cases_values, comm_cases_calls, comm_cases_faults };
    struct CMUnitTest tests[64];
    size_t n = 0;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        for (const struct comm_case *c = lists[i]; c->name && n < sizeof tests / sizeof *tests; c++)
            tests[n++] = (struct CMUnitTest){ c->name, run_case, NULL, NULL, (void *)c };
    char name[64];
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    snprintf(name, sizeof name, "comm");
    return _cmocka_run_group_tests(name, tests, n, NULL, NULL);
}
