/* SPDX-License-Identifier: BSD-3-Clause */
/* When waiting threads must not spin: on a machine of four cores with load, variables and execve of the test's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

static struct {
    const char *load; /* null: the kernel has no such file */
    unsigned long secure;
    int starts;
    char entry[64]; /* the last of the new environment */
} world;

static FILE *open_load(void) {
    return world.load ? fmemopen((void *)(uintptr_t)world.load, strlen(world.load), "r") : NULL;
}

static int begin_anew(char **entries) {
    size_t n = 0;
    while (entries[n + 1])
        assert_string_equal(entries[n], environ[n]), n++;
    assert_null(environ[n]);
    snprintf(world.entry, sizeof world.entry, "%s", entries[n]);
    world.starts++;
    return -1;
}

#define fopen(path, mode) (assert_string_equal(path, "/proc/loadavg"), open_load())
#define sysconf(what) 4
#define getauxval(what) world.secure
#define execve(path, argv, entries) ((void)(argv), begin_anew(entries))
#include "tools/support/spinning.c"

static int begin(void **state) {
    (void)state;
    memset(&world, 0, sizeof world);
    unsetenv("GOMP_SPINCOUNT");
    unsetenv("OMP_WAIT_POLICY");
    return 0;
}

static int hurts(const char *load, int64_t threads) {
    world.load = load;
    return tool_spinning_hurts(threads);
}

/* Half a core in the last minute, and someone who runs now beside this process. */
static void test_spinning__a_busy_machine_is_seen_by_both_signs(void **state) {
    (void)state;
    assert_true(hurts("0.50 0.10 0.00 2/300 1234\n", 0));
    assert_true(hurts("41.08 37.80 25.73 32/354 9338\n", 4));
    assert_false(hurts("0.49 3.00 3.00 2/300 1234\n", 0));
    assert_false(hurts("3.00 3.00 3.00 1/300 1234\n", 0));
    assert_false(hurts("3.00\n", 0));
    assert_false(hurts("", 0));
    assert_false(hurts(NULL, 0));
}

static void test_spinning__more_threads_than_cores_hurt_on_an_idle_machine(void **state) {
    (void)state;
    assert_false(hurts("0.00 0.00 0.00 1/300 1234\n", 4));
    assert_true(hurts("0.00 0.00 0.00 1/300 1234\n", 5));
    assert_true(hurts(NULL, 5));
}

static void test_spinning__who_has_said_how_to_wait_is_obeyed(void **state) {
    static const char *const variables[] = { "GOMP_SPINCOUNT", "OMP_WAIT_POLICY" };
    for (int i = 0; i < 2; i++) {
        begin(state);
        setenv(variables[i], "active", 1);
        assert_false(hurts("9.00 9.00 9.00 9/300 1234\n", 5));
        tool_spinning_bound(NULL);
        assert_int_equal(world.starts, 0);
    }
    begin(state);
}

/* A command with another user's rights keeps the environment that it was given. */
static void test_spinning__one_rank_begins_anew_with_a_bound(void **state) {
    (void)state;
    char want[64];
    snprintf(want, sizeof want, "GOMP_SPINCOUNT=%d", TOOL_SPIN_COUNT);
    world.load = "0.00 0.00 0.00 1/300 1234\n";
    tool_spinning_bound(NULL);
    assert_int_equal(world.starts, 0);
    world.load = "1.00 1.00 1.00 3/300 1234\n";
    world.secure = 1;
    tool_spinning_bound(NULL);
    assert_int_equal(world.starts, 0);
    world.secure = 0;
    tool_spinning_bound(NULL);
    assert_int_equal(world.starts, 1);
    assert_string_equal(world.entry, want);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_spinning__a_busy_machine_is_seen_by_both_signs, begin),
        cmocka_unit_test_setup(test_spinning__more_threads_than_cores_hurt_on_an_idle_machine, begin),
        cmocka_unit_test_setup(test_spinning__who_has_said_how_to_wait_is_obeyed, begin),
        cmocka_unit_test_setup(test_spinning__one_rank_begins_anew_with_a_bound, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
