/* SPDX-License-Identifier: BSD-3-Clause */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <gnu/libc-version.h> /* a function no sanitizer takes over */
#include <cmocka.h>

#include "core/control/control.h"
#include "tools/support/alloc_count.h"

static int find(const char *name, tool_alloc_library *out) {
    for (size_t i = 0; tool_alloc_library_at(i, out); i++)
        if (strncmp(out->name, name, strlen(name)) == 0 && (*name || !out->name[0]))
            return 1;
    return 0;
}

/* One test, as the counts live as long as the process. The hooks are not in this program: it calls for them. */
static void test_alloc_count__calls_in_the_window_are_counted_by_caller(void **state) {
    (void)state;
    const void *here = (const void *)(uintptr_t)&find, *libc = (const void *)(uintptr_t)&gnu_get_libc_version;
    tool_alloc_library found;
    assert_int_equal(tool_alloc_available(), 0);
    tool_alloc_window_begin();
    tool__alloc_note(here, 1);
    tool_alloc_window_end();
    assert_int_equal(tool_alloc_own(), 0);
    tool__alloc_hooked();
    assert_int_equal(tool_alloc_available(), 1);
    tool__alloc_note(here, 1);
    for (int window = 0; window < 2; window++) {
        tool_alloc_window_begin();
        tool__alloc_note(here, 10);
        tool__alloc_note((const void *)16, 3);
        tool_alloc_window_end();
        tool__alloc_note(here, 100);
    }
    assert_int_equal(tool_alloc_own(), 2);
    assert_int_equal(find("", &found), 1);
    assert_int_equal(found.own, 1);
    assert_int_equal(found.count, 2);
    assert_int_equal(found.bytes, 20);
    assert_int_equal(find("unknown", &found), 1);
    assert_int_equal(found.own, 0);
    assert_int_equal(found.count, 2);
    assert_int_equal(found.bytes, 6);
    assert_int_equal(find("libc.", &found), 0);
    tool_alloc_window_begin();
    tool__alloc_note(libc, 7);
    tool_alloc_window_end();
    (void)libc; /* a static libc counts as the program */
    if (find("libc.", &found)) {
        assert_int_equal(found.own, 0);
        assert_int_equal(found.count, 1);
        assert_int_equal(found.bytes, 7);
    } else
        assert_int_equal(tool_alloc_own(), 3);
}

static void *allocate(void *name) {
    if (name)
        pthread_setname_np(pthread_self(), name);
    tool__alloc_note((const void *)(uintptr_t)&find, 1);
    return NULL;
}

/* By how much a thread of that name is counted. */
static uint64_t counted_of(char *name) {
    pthread_t thread;
    uint64_t before = tool_alloc_own();
    tool_alloc_window_begin();
    assert_int_equal(pthread_create(&thread, NULL, allocate, name), 0);
    pthread_join(thread, NULL);
    tool_alloc_window_end();
    return tool_alloc_own() - before;
}

static void test_alloc_count__every_thread_counts_but_the_key_value_servers(void **state) {
    (void)state;
    tool__alloc_hooked();
    assert_int_equal(counted_of(NULL), 1);
    assert_int_equal(counted_of("tess-kv-serve"), 1);
    assert_int_equal(counted_of(TESS__KV_SERVER_THREAD), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alloc_count__calls_in_the_window_are_counted_by_caller),
        cmocka_unit_test(test_alloc_count__every_thread_counts_but_the_key_value_servers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
