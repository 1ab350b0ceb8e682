/* SPDX-License-Identifier: BSD-3-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/status.h"

static char page[32768];

static int load_page(void **state) {
    (void)state;
    char path[4096];
    snprintf(path, sizeof path, "%s/docs/errors.md", TESSERA_SOURCE_DIR);
    FILE *in = fopen(path, "r");
    if (!in)
        return -1;
    page[fread(page, 1, sizeof page - 1, in)] = 0;
    char *table = strstr(page, "\n| `"), *behind = table ? strstr(table, "\n\n") : NULL; /* others have messages */
    if (behind)
        *behind = 0;
    return fclose(in);
}

/* Each row "| `NAME` | value | exit code |" against the table in the code. Returns how many there are. */
static int check_rows(void) {
    int n = 0;
    for (const char *row = page; (row = strstr(row, "\n| `")); row++) {
        char name[64];
        int value, code;
        assert_int_equal(sscanf(row, "\n| `%63[A-Z_]` | %d | %d |", name, &value, &code), 3);
        assert_string_equal(tess__status_name(value), name);
        assert_int_equal(tess_exit_code(value), code);
        n++;
    }
    return n;
}

static void test_status__page_of_errors_equals_the_table(void **state) {
    (void)state;
    int known = 0;
    for (tess_status s = -1000; s <= 1000; s++)
        known += strcmp(tess__status_name(s), "unknown status") != 0;
    assert_int_equal(known, 18);
    assert_int_equal(check_rows(), known);
}

static void test_status__unknown_status_exits_with_one(void **state) {
    (void)state;
    assert_int_equal(tess_exit_code(-999), 1);
    assert_int_equal(tess_exit_code(2), 1);
}

static void test_status__fail_sets_the_message_and_passes_the_status_on(void **state) {
    (void)state;
    assert_int_equal(tess__fail(TESS_E_DATA, "file %s, offset %d", "a", 3), TESS_E_DATA);
    assert_string_equal(tess_last_error(), "file a, offset 3");
    /* The old message may be part of the new one. */
    tess__fail(TESS_E_DATA, "again: %s", tess_last_error());
    assert_string_equal(tess_last_error(), "again: file a, offset 3");
}

static void test_status__long_message_is_cut_not_overrun(void **state) {
    (void)state;
    static char text[5000];
    memset(text, 'x', sizeof text - 1);
    tess__fail(TESS_E_INVALID, "%s", text);
    assert_int_equal(strlen(tess_last_error()), 1023);
}

static void *other_thread(void *seen) {
    *(int *)seen = (int)strlen(tess_last_error());
    tess__fail(TESS_E_PEER, "theirs");
    return NULL;
}

static void test_status__message_belongs_to_its_thread(void **state) {
    (void)state;
    pthread_t thread;
    int seen = -1;
    tess__fail(TESS_E_PEER, "mine");
    assert_int_equal(pthread_create(&thread, NULL, other_thread, &seen), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(seen, 0);
    assert_string_equal(tess_last_error(), "mine");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status__page_of_errors_equals_the_table),
        cmocka_unit_test(test_status__unknown_status_exits_with_one),
        cmocka_unit_test(test_status__fail_sets_the_message_and_passes_the_status_on),
        cmocka_unit_test(test_status__long_message_is_cut_not_overrun),
        cmocka_unit_test(test_status__message_belongs_to_its_thread),
    };
    return cmocka_run_group_tests_name("status", tests, load_page, NULL);
}
