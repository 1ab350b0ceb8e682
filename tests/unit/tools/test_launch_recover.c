/* SPDX-License-Identifier: BSD-3-Clause */
/* How often lost ranks are replaced within an hour, with a history and a clock of the test's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/base/log.h"
#include "core/control/control.h"
#include "core/control/wire.h"
#include "tools/launch/launch_internal.h"

enum { MOST = LAUNCH_RECOVERIES_PER_HOUR };
#define SECOND_NS INT64_C(1000000000)

static launch_options options = { .ranks = 2 }; /* nobody may be replaced, so that nothing is started */
static launch_rank ranks[2];
static launch l;
static char folder[40];

/* Rank 1 was killed after MOST recoveries, the first of which was `ago_s` seconds ago. */
static void begin(int64_t ago_s) {
    const tess__kv_terms terms = { .secret = "", .launcher = 1 };
    int32_t port = 0;
    memset(ranks, 0, sizeof ranks);
    ranks[0] = (launch_rank){ .pid = getpid(), .started = 1 };
    ranks[1] = (launch_rank){ .started = 1, .failed = 1, .signal = 9 };
    l = (launch){ .options = &options, .ranks = ranks, .recovery = { .generation = MOST, .n_members = 2 } };
    for (int i = 0; i < MOST; i++)
        l.recovery.recent_ns[i] = tess__now_ns() - (i ? 0 : ago_s * SECOND_NS);
    snprintf(folder, sizeof folder, "/tmp/tessera-launch-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(l.path, sizeof l.path, "%s/server", folder);
    assert_int_equal(tess__kv_server_start(l.path, &port, 2, &terms, &l.server), TESS_OK);
}

/* Whether the history lets the group go on; what is said meanwhile. */
static int survives(char *said, size_t room) {
    FILE *aside = tmpfile();
    int saved = dup(STDERR_FILENO);
    assert_non_null(aside);
    dup2(fileno(aside), STDERR_FILENO);
    assert_int_equal(launch_survives(&l, 1, "killed"), 0);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(aside);
    said[fread(said, 1, room - 1, aside)] = 0;
    fclose(aside);
    tess__kv_server_stop(l.server);
    unlink(l.path);
    assert_int_equal(rmdir(folder), 0);
    return l.recovery.attempts == 1;
}

static void test_launch_recover__more_than_60_within_an_hour_are_given_up(void **state) {
    char said[400], line[80];
    (void)state;
    begin(3500);
    assert_false(survives(said, sizeof said));
    snprintf(line, sizeof line, "%d ranks were lost within an hour: given up\n", MOST);
    assert_non_null(strstr(said, line));
    assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1);
    assert_int_equal(MOST, 60); /* docs/checkpoints.md */
}

static void test_launch_recover__those_of_an_hour_ago_do_not_count(void **state) {
    char said[400];
    (void)state;
    begin(3601);
    assert_true(survives(said, sizeof said));
    assert_string_equal(said, "");
    assert_true(l.recovery.recent_ns[0] > l.recovery.recent_ns[1]); /* this one takes the oldest one's place */
}

static void test_launch_recover__the_first_60_are_not_held_up(void **state) {
    char said[400];
    (void)state;
    begin(0);
    l.recovery.generation = MOST - 1;
    assert_true(survives(said, sizeof said));
    assert_string_equal(said, "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launch_recover__more_than_60_within_an_hour_are_given_up),
        cmocka_unit_test(test_launch_recover__those_of_an_hour_ago_do_not_count),
        cmocka_unit_test(test_launch_recover__the_first_60_are_not_held_up),
    };
    setenv("TESSERA_LOG", "error", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
