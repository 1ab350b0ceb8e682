/* SPDX-License-Identifier: BSD-3-Clause */
/* Who is named when a signal ends the process within a plugin's code, and that nothing else changes. Children die of
 * it. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/crash.h"
#include "core/base/log.h"

enum { WATCHED = 1, PLACED = 2, UNWATCHED = 4, TWICE = 8, TAKEN_BEFORE = 16, TAKEN_SINCE = 32, LONG = 64 };

static void own_handler(int number) {
    (void)number;
    if (write(STDERR_FILENO, "own", 3) == 3)
        _exit(3);
}

static void die(int number, int32_t rank, int how) {
    static char name[1000];
    memset(name, 'x', sizeof name - 1);
    const tess__crash_place place = { "optimizer", "mine", "step", how & LONG ? name : "h.0.w" };
    const struct rlimit none = { 0, 0 };
    setrlimit(RLIMIT_CORE, &none);
    for (int s = 1; s < 16; s++)
        signal(s, SIG_DFL);
    tess__log_set_rank(rank);
    if (how & TAKEN_BEFORE)
        signal(number, own_handler);
    if (how & WATCHED)
        tess__crash_watch();
    if (how & TWICE)
        tess__crash_watch();
    if (how & TAKEN_SINCE)
        signal(number, own_handler);
    if (how & UNWATCHED)
        tess__crash_unwatch();
    tess__crash_now = how & PLACED ? &place : NULL;
    raise(number);
    _exit(77);
}

/* What it said, and how it ended: the signal, or 256 and its exit code. */
static int end_of(int number, int32_t rank, int how, char *said, size_t room) {
    int way[2], status;
    assert_int_equal(pipe(way), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(way[1], STDERR_FILENO);
        die(number, rank, how);
    }
    close(way[1]);
    ssize_t n = 0, got;
    while ((got = read(way[0], said + n, room - 1 - (size_t)n)) > 0)
        n += got;
    said[n] = 0;
    close(way[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 256 + WEXITSTATUS(status);
}

static void expect(int number, int32_t rank, int how, int end, const char *line) {
    char said[2048];
    assert_int_equal(end_of(number, rank, how, said, sizeof said), end);
    assert_string_equal(said, line);
}

static void test_crash__the_plugin_its_work_and_the_signal_are_named(void **state) {
    (void)state;
    static const struct {
        int number;
        const char *name;
    } signals[] = { { SIGSEGV, "11 (Segmentation fault)" },
                    { SIGBUS, "7 (Bus error)" },
                    { SIGFPE, "8 (Floating point exception)" },
                    { SIGILL, "4 (Illegal instruction)" },
                    { SIGABRT, "6 (Aborted)" } };
    static const int32_t ranks[] = { -1, 0, 7, 10, 4095 };
    static const char *const prefixes[] = { "tessera", "tessera[0]", "tessera[7]", "tessera[10]", "tessera[4095]" };
    char line[256];
    for (int i = 0; i < 5; i++) {
        snprintf(line, sizeof line, "%s: error: optimizer mine: its step of parameter \"h.0.w\" ended with signal %s\n",
                 prefixes[i], signals[i].name);
        expect(signals[i].number, ranks[i], WATCHED | PLACED, signals[i].number, line);
        expect(signals[i].number, ranks[i], WATCHED | TWICE | UNWATCHED | PLACED, signals[i].number, line);
    }
}

static void test_crash__a_long_name_ends_where_the_line_does(void **state) {
    char said[2048];
    (void)state;
    assert_int_equal(end_of(SIGBUS, -1, WATCHED | PLACED | LONG, said, sizeof said), SIGBUS);
    assert_int_equal(strlen(said), 639);
    assert_true(said[637] == 'x' && said[638] == '\n');
}

static void test_crash__elsewhere_nothing_is_said(void **state) {
    (void)state;
    expect(SIGSEGV, -1, PLACED, SIGSEGV, "");
    expect(SIGSEGV, -1, WATCHED, SIGSEGV, "");
    expect(SIGSEGV, -1, WATCHED | UNWATCHED | PLACED, SIGSEGV, "");
    expect(SIGABRT, -1, WATCHED | UNWATCHED | PLACED, SIGABRT, "");
    expect(SIGTERM, -1, WATCHED | PLACED, SIGTERM, "");
}

static void test_crash__a_programs_own_handler_stays(void **state) {
    (void)state;
    for (int unwatched = 0; unwatched <= UNWATCHED; unwatched += UNWATCHED) {
        expect(SIGILL, -1, WATCHED | PLACED | TAKEN_BEFORE | unwatched, 256 + 3, "own");
        expect(SIGFPE, -1, WATCHED | PLACED | TAKEN_SINCE | unwatched, 256 + 3, "own");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crash__the_plugin_its_work_and_the_signal_are_named),
        cmocka_unit_test(test_crash__a_long_name_ends_where_the_line_does),
        cmocka_unit_test(test_crash__elsewhere_nothing_is_said),
        cmocka_unit_test(test_crash__a_programs_own_handler_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
