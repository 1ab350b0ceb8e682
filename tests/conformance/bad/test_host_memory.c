/* SPDX-License-Identifier: BSD-3-Clause */
/* What plugins take through host->mem_alloc stands in the engine's statistics, beside what they state; what they leave
 * behind is said. comm_none takes 5000 bytes for a communicator and states so; the others have one fault. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/toy.h"
#include <tessera/plugin.h>

enum { OWN_BYTES = 5000, HOST = TESS_DOMAIN_HOST };

/* One of the plugins forgets memory on purpose, which the test has to find, not LeakSanitizer. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
    return "leak:faulty_comm";
}

static tess *opened(const char *comm, int32_t plan_ranks) {
    char path[600];
    tess *t = NULL;
    toy m;
    snprintf(path, sizeof path, "%s/%s.so", FAULTY_DIR, comm);
    if (strcmp(comm, "shm") == 0)
        snprintf(path, sizeof path, "shm");
    tess_options o = { .struct_size = sizeof o,
                       .comm = path,
                       .optimizer = "adamw",
                       .input_bytes = TOY_INPUT_BYTES,
                       .ranks = plan_ranks,
                       .plan_only = plan_ranks > 0 };
    const tess_status expected = plan_ranks ? TESS_E_PLANNED : TESS_OK;
    if (tess_open(&o, &t) != TESS_OK || toy_declare(t, &m, TOY_BLOCKS) != TESS_OK ||
        tess_shard(t, toy_fill, NULL) != expected)
        fail_msg("%s", tess_last_error());
    return t;
}

static tess_stats stats_of(const tess *t) {
    tess_stats s = { .struct_size = sizeof s };
    assert_int_equal(tess_stats_get(t, &s), TESS_OK);
    return s;
}

static void test_host_memory__what_a_plugin_takes_is_booked_apart_from_the_plan(void **state) {
    (void)state;
    tess *plain = opened("comm_books_nowhere", 0), *t = opened("comm_none", 0);
    const tess_stats s = stats_of(t), p = stats_of(plain);
    assert_int_equal(s.plugin_bytes[HOST], OWN_BYTES);
    assert_int_equal(s.plugin_peak_bytes[HOST], OWN_BYTES);
    assert_int_equal(s.plugin_category_bytes[HOST][TESS_CAT_COMM], OWN_BYTES);
    assert_int_equal(s.plugin_bytes[TESS_DOMAIN_DEVICE], 0);
    for (int d = 1; d < 3; d++) {
        assert_int_equal(s.peak_bytes[d], p.peak_bytes[d]);
        assert_int_equal(s.planned_peak_bytes[d], s.peak_bytes[d]);
    }
    assert_int_equal(tess_close(t), TESS_OK);
    assert_int_equal(tess_close(plain), TESS_OK);
}

static void test_host_memory__the_plan_shows_what_is_stated(void **state) {
    (void)state;
    tess *t = opened("shm", 4);
    assert_in_range(stats_of(t).plugin_stated_bytes, 1 << 20, 1 << 30); /* its table, and a thread's stack of 1 MiB */
    assert_int_equal(stats_of(t).plugin_peak_bytes[HOST], 0);
    tess_close(t);
}

/* What tess_close writes to standard error. */
static void closed(tess *t, char *text, size_t room) {
    FILE *aside = tmpfile();
    int saved = dup(STDERR_FILENO);
    assert_non_null(aside);
    dup2(fileno(aside), STDERR_FILENO);
    tess_status s = tess_close(t);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(aside);
    text[fread(text, 1, room - 1, aside)] = 0;
    fclose(aside);
    assert_int_equal(s, TESS_OK);
}

static void test_host_memory__what_is_not_given_back_is_said(void **state) {
    (void)state;
    char text[600];
    closed(opened("comm_none", 0), text, sizeof text);
    assert_string_equal(text, "");
    closed(opened("comm_forgets_host_memory", 0), text, sizeof text);
    assert_string_equal(text, "tessera: warning: the plugins have not given back 5000 bytes of host memory\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_memory__what_a_plugin_takes_is_booked_apart_from_the_plan),
        cmocka_unit_test(test_host_memory__the_plan_shows_what_is_stated),
        cmocka_unit_test(test_host_memory__what_is_not_given_back_is_said),
    };
    unsetenv("TESSERA_LOG");
    return cmocka_run_group_tests_name("host memory", tests, NULL, NULL);
}
