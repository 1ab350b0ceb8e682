/* SPDX-License-Identifier: BSD-3-Clause */
/* Trials without a process: the child's work is done here, up to its exit, and then goes on as the parent. Plugins
 * write down their calls, and so does the system. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/plugin/trial.h"
#include "core/plugin/plugin.h"
#include "tests/unit/said.h"

enum { CHILD = 4711, DIES = 1, EXITS, HANGS, CUTS };
static struct {
    int does[8]; /* of each plugin: what its code does to the process; 0: nothing */
    tess_status opened[8];
    int no_pipe, no_fork;
    int now, hangs, ended, pipes, closes, children, interrupts, wait_interrupts, polls, ready, limited,
        ends_with_parent, nobody_waits;
} world;
static jmp_buf forked;
static const tess_host services;

static void end_child(int how) {
    world.ended = how;
    longjmp(forked, 1);
}

/* ---- plugins ---- */

static tess_status fake_query(void *ctx, tess_comm *comm, tess_comm_caps *out) {
    assert_true(ctx == &world && !comm && out->struct_size == sizeof *out);
    say("query; ");
    return TESS_E_SYSTEM; /* is nobody's business here */
}
static tess_status fake_describe(void *ctx, int32_t device, tess_device_info *out, tess_error *e) {
    assert_true(ctx == &world && device == -1 && out->struct_size == sizeof *out && e->struct_size == sizeof *e);
    say("describe; ");
    return TESS_E_SYSTEM;
}
static const tess_comm_ops comm = { .query = fake_query };
static const tess_device_ops device = { .describe = fake_describe };

static tess_status file_open(uint32_t kind, const char *file, const char *args, const tess_host *h, tess__plugin **out,
                             char *reason) {
    static tess__plugin p;
    const int i = *file - '0';
    assert_true(h == &services && !*args && !*reason && !*out);
    say("open %d; ", i);
    world.now = i;
    if (world.does[i] == DIES)
        end_child(SIGSEGV);
    if (world.does[i] == EXITS)
        end_child(3 << 8);
    if (world.does[i] == HANGS) {
        world.hangs = 1;
        end_child(0);
    }
    p = (tess__plugin){ .kind = kind, .ctx = &world };
    p.ops = kind == TESS_KIND_COMM ? (const void *)&comm : (const void *)&device;
    if (world.opened[i])
        snprintf(reason, TESS_REASON_BYTES, "no\r\n%d", i);
    else
        *out = &p;
    return world.opened[i];
}
static void plugin_close(tess__plugin *p) {
    assert_ptr_equal(p->ctx, &world);
    say("close; ");
}
static int64_t ask(void *user, const tess__plugin *p) {
    assert_true(user == &world && p->ctx == &world);
    say("ask; ");
    return INT64_C(1) << 40;
}

/* ---- the system ---- */

static int fake_pipe(int fds[2], int flags) {
    assert_int_equal(flags, O_CLOEXEC);
    errno = EMFILE;
    if (world.no_pipe || pipe2(fds, flags))
        return -1;
    world.pipes++;
    return 0;
}
static int fake_close(int fd) {
    world.closes++;
    return close(fd);
}
static ssize_t fake_write(int fd, const void *bytes, size_t n) {
    return write(fd, bytes, world.does[world.now] == CUTS ? n / 2 : n);
}
static int fake_poll(struct pollfd *p, nfds_t n, int ms) {
    assert_true(n == 1 && p->events == POLLIN);
    assert_int_equal(ms, 20000);
    assert_in_range(++world.polls, 1, 1000);
    errno = EINTR; /* or from before, where it is no failure */
    if (world.interrupts-- > 0)
        return -1;
    world.ready = poll(p, n, 0);
    if (world.hangs && !(p->revents & POLLIN))
        world.ready = 0;
    return world.ready;
}
static ssize_t fake_read(int fd, void *to, size_t n) {
    assert_true(world.ready); /* or it may wait forever */
    return read(fd, to, n);
}
static int fake_kill(pid_t pid, int sig) {
    assert_int_equal(pid, CHILD);
    assert_int_equal(sig, SIGKILL);
    if (world.hangs)
        world.ended = SIGKILL;
    world.hangs = 0;
    say("kill; ");
    return 0;
}
static pid_t fake_wait(pid_t pid, int *status, int options) {
    assert_true(pid == CHILD && options == 0);
    if (world.wait_interrupts-- > 0) {
        errno = EINTR;
        return -1;
    }
    errno = ECHILD;
    *status = world.ended;
    return world.nobody_waits ? -1 : pid;
}
static int handled[65];
static void (*fake_signal(int sig, void (*how)(int)))(int) {
    assert_true(how == SIG_DFL && sig > 0 && sig < 65);
    handled[sig]++;
    return SIG_DFL;
}
static int fake_mask(int how, const sigset_t *set, sigset_t *old) {
    assert_true(how == SIG_SETMASK && !old && !sigismember(set, SIGSEGV) && !sigismember(set, SIGTERM));
    handled[0]++;
    return 0;
}
static int fake_limit(int what, const struct rlimit *r) {
    assert_true(what == (int)RLIMIT_CORE && r->rlim_cur == 0 && r->rlim_max == 0);
    world.limited++;
    return 0;
}
static int fake_prctl(int what, int sig) {
    assert_true(what == PR_SET_PDEATHSIG && sig == SIGKILL);
    world.ends_with_parent++;
    return 0;
}

#define tess__plugin_file_open file_open
#define tess__plugin_close plugin_close
#define pipe2 fake_pipe
#define close fake_close
#define write fake_write
#define read(fd, to, n) fake_read(fd, to, n)
#define poll(p, n, ms) fake_poll(p, n, ms)
#define kill fake_kill
#define waitpid fake_wait
#define signal fake_signal
#define sigprocmask fake_mask
#define setrlimit fake_limit
#define prctl fake_prctl
#define fork() (world.no_fork ? (errno = EAGAIN, -1) : setjmp(forked) ? CHILD : (world.children++, 0))
#define _exit(code) end_child((code) << 8)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wclobbered" /* the child changes nothing that the parent goes on with */
#endif
#include "core/plugin/trial.c"

/* ---- the tests --------------------------------------------------------------------------------- */

static char names[8][2];
static tess__trial list[8];

static int begin(void **state) {
    (void)state;
    memset(&world, 0, sizeof world);
    memset(handled, 0, sizeof handled);
    memset(list, 0, sizeof list);
    said_so_far[0] = 0;
    for (int i = 0; i < 8; i++) {
        names[i][0] = (char)('0' + i);
        list[i].path = names[i];
        list[i].kind = i % 3 == 0 ? TESS_KIND_COMM : i % 3 == 1 ? TESS_KIND_DEVICE : TESS_KIND_WRAP;
    }
    return 0;
}

static int end(void **state) {
    (void)state;
    assert_int_equal(world.closes, 2 * world.pipes);
    return 0;
}

static void verdict_is(int i, tess_status status, int64_t answer, const char *reason) {
    assert_int_equal(list[i].status, status);
    assert_true(list[i].answer == answer);
    assert_string_equal(list[i].reason, reason);
}
static const char ended[] = "opening it ended the process or took more than 20 s: is the file damaged?";

static void test_trial__one_child_tries_all(void **state) {
    (void)state;
    const tess__question question = { ask, &world };
    tess__plugin_trials(list, 0, &services, &question);
    assert_int_equal(world.children, 0);
    tess__plugin_trials(list, 3, &services, &question);
    expect_said("open 0; query; ask; close; open 1; describe; ask; close; open 2; ask; close; kill; ");
    for (int i = 0; i < 3; i++)
        verdict_is(i, TESS_OK, INT64_C(1) << 40, "");
    verdict_is(3, TESS_OK, 0, "");
    assert_int_equal(world.children, 1);
    assert_int_equal(world.ended, 0);
    tess__plugin_trials(list + 3, 2, &services, NULL);
    expect_said("open 3; query; close; open 4; describe; close; kill; ");
    verdict_is(3, TESS_OK, 0, "");
}

static void test_trial__what_the_open_says_stands_in_a_line(void **state) {
    (void)state;
    const tess__question question = { ask, &world };
    world.opened[1] = TESS_E_VERSION;
    tess__plugin_trials(list, 3, &services, &question);
    expect_said("open 0; query; ask; close; open 1; open 2; ask; close; kill; ");
    verdict_is(0, TESS_OK, INT64_C(1) << 40, "");
    verdict_is(1, TESS_E_VERSION, 0, "no  1");
    verdict_is(2, TESS_OK, INT64_C(1) << 40, "");
    char reason[TESS_REASON_BYTES];
    assert_int_equal(tess__plugin_trial(TESS_KIND_WRAP, "1", &services, reason), TESS_E_VERSION);
    assert_string_equal(reason, "no  1");
    assert_int_equal(tess__plugin_trial(TESS_KIND_WRAP, "2", &services, reason), TESS_OK);
}

static void test_trial__who_ends_the_child_is_tried_alone_and_blamed(void **state) {
    (void)state;
    static const char *const why[] = { "", "opening it ended with signal 11 (Segmentation fault): is the file damaged?",
                                       ended, ended, ended };
    for (int how = DIES; how <= CUTS; how++) {
        begin(NULL);
        world.does[1] = world.does[3] = how;
        tess__plugin_trials(list, 5, &services, NULL);
        verdict_is(0, TESS_OK, 0, "");
        verdict_is(1, TESS_E_INVALID, 0, why[how]);
        verdict_is(2, TESS_OK, 0, "");
        verdict_is(3, TESS_E_INVALID, 0, why[how]);
        verdict_is(4, TESS_OK, 0, "");
        assert_int_equal(world.children, 5); /* 0 and 1; 1; 2 and 3; 3; 4 */
        end(NULL);
    }
    begin(NULL);
    world.does[0] = DIES;
    world.nobody_waits = 1; /* SIGCHLD is ignored */
    tess__plugin_trials(list, 1, &services, NULL);
    verdict_is(0, TESS_E_INVALID, 0, ended);
}

static void test_trial__a_child_cuts_off_its_work_where_nobody_hears(void **state) {
    (void)state;
    world.does[0] = CUTS;
    tess__plugin_trials(list, 2, &services, NULL);
    expect_said("open 0; query; close; kill; open 1; describe; close; kill; ");
    assert_int_equal(world.ended, 0);
    end(NULL);
    begin(NULL);
    world.does[0] = CUTS;
    tess__plugin_trials(list, 1, &services, NULL);
    assert_int_equal(world.ended, 1 << 8);
}

static void test_trial__an_interrupt_is_no_end(void **state) {
    (void)state;
    world.interrupts = 3;
    tess__plugin_trials(list, 1, &services, NULL);
    verdict_is(0, TESS_OK, 0, "");
    world.does[0] = DIES;
    for (int n = 1; n < 6; n++) { /* in the poll, and in the wait for the child */
        world.interrupts = n, world.wait_interrupts = n - 1;
        tess__plugin_trials(list, 1, &services, NULL);
        verdict_is(0, TESS_E_INVALID, 0, "opening it ended with signal 11 (Segmentation fault): is the file damaged?");
    }
}

static void test_trial__without_a_child_nothing_is_known(void **state) {
    (void)state;
    world.no_fork = 1;
    tess__plugin_trials(list, 2, &services, NULL);
    for (int i = 0; i < 2; i++)
        verdict_is(i, TESS_E_SYSTEM, 0, "cannot be tried out: Resource temporarily unavailable");
    world.no_pipe = 1;
    tess__plugin_trials(list, 2, &services, NULL);
    for (int i = 0; i < 2; i++)
        verdict_is(i, TESS_E_SYSTEM, 0, "cannot be tried out: Too many open files");
    verdict_is(2, TESS_OK, 0, "");
    expect_said("");
}

/* No handler of the program runs there, no core is written, and nothing stays when the parent goes. */
static void test_trial__a_child_dies_alone(void **state) {
    (void)state;
    static const int ends[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGSYS };
    int all = 0;
    tess__plugin_trials(list, 1, &services, NULL);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        assert_int_equal(handled[ends[i]], 1);
    for (int i = 1; i < 65; i++)
        all += handled[i];
    assert_int_equal(all, 7);
    assert_true(handled[0] == 1 && world.limited == 1 && world.ends_with_parent == 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_trial__one_child_tries_all, begin, end),
        cmocka_unit_test_setup_teardown(test_trial__what_the_open_says_stands_in_a_line, begin, end),
        cmocka_unit_test_setup_teardown(test_trial__who_ends_the_child_is_tried_alone_and_blamed, begin, end),
        cmocka_unit_test_setup_teardown(test_trial__a_child_cuts_off_its_work_where_nobody_hears, begin, end),
        cmocka_unit_test_setup_teardown(test_trial__an_interrupt_is_no_end, begin, end),
        cmocka_unit_test_setup_teardown(test_trial__without_a_child_nothing_is_known, begin, end),
        cmocka_unit_test_setup_teardown(test_trial__a_child_dies_alone, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
