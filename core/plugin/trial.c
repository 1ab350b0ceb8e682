/* SPDX-License-Identifier: BSD-3-Clause */
#include "trial.h"

#include <tessera/plugin_helpers.h>
#include "plugin.h"

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

enum { PATIENCE_MS = 20000 };

typedef struct { /* the child's word on a plugin */
    tess_status status;
    int64_t answer;
    char reason[TESS_REASON_BYTES];
} verdict;

/* The slots that are called before a plugin serves anybody. */
static void call_first_slots(const tess__plugin *p) {
    tess_error e = { .struct_size = sizeof e };
    if (p->kind == TESS_KIND_COMM) {
        tess_comm_caps caps = { .struct_size = sizeof caps };
        ((const tess_comm_ops *)p->ops)->query(p->ctx, NULL, &caps);
    } else if (p->kind == TESS_KIND_DEVICE) {
        tess_device_info info = { .struct_size = sizeof info };
        ((const tess_device_ops *)p->ops)->describe(p->ctx, -1, &info, &e);
    }
}

static void die_alone(void) {
    static const int ends[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGSYS };
    struct rlimit no_core = { 0, 0 };
    sigset_t none;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        signal(ends[i], SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setrlimit(RLIMIT_CORE, &no_core);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

/* Whether the parent has heard. */
static int try_it(const tess__trial *t, const tess_host *services, const tess__question *question, int fd) {
    verdict v = { .status = TESS_OK };
    tess__plugin *p = NULL;
    v.status = tess__plugin_file_open(t->kind, t->path, "", services, &p, v.reason);
    if (v.status == TESS_OK) {
        call_first_slots(p);
        v.answer = question ? question->ask(question->user, p) : 0;
        tess__plugin_close(p);
    }
    return write(fd, &v, sizeof v) == (ssize_t)sizeof v;
}

static void try_all(const tess__trial *list, size_t n, const tess_host *services, const tess__question *question,
                    int fd) {
    size_t i = 0;
    die_alone();
    while (i < n && try_it(&list[i], services, question, fd))
        i++;
    _exit(i < n);
}

/* Reads a verdict and tells whether it came whole. It fits a pipe, so it comes at once or not at all. */
static int read_verdict(int fd, verdict *v) {
    struct pollfd p = { .fd = fd, .events = POLLIN };
    int ready;
    do
        ready = poll(&p, 1, PATIENCE_MS);
    while (ready < 0 && errno == EINTR);
    return ready > 0 && read(fd, v, sizeof *v) == (ssize_t)sizeof *v;
}

static int reap_child(pid_t pid) {
    int status = 0;
    pid_t got;
    kill(pid, SIGKILL); /* a plugin's exit handlers do not run, and what hangs ends */
    do
        got = waitpid(pid, &status, 0);
    while (got < 0 && errno == EINTR);
    return got == pid ? status : 0; /* a program that ignores SIGCHLD has no status */
}

static void take_verdict(tess__trial *t, verdict *v) {
    for (char *c = v->reason; *c; c++)
        if (*c == '\n' || *c == '\r')
            *c = ' ';
    t->status = v->status;
    t->answer = v->answer;
    memcpy(t->reason, v->reason, sizeof t->reason);
}

static void blame(tess__trial *t, int status) {
    t->status = TESS_E_INVALID;
    if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
        snprintf(t->reason, TESS_REASON_BYTES, "opening it ended with signal %d (%s): is the file damaged?",
                 WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(t->reason, TESS_REASON_BYTES,
                 "opening it ended the process or took more than %d s: is the file damaged?", PATIENCE_MS / 1000);
}

/* Tries from the first on until one ends the child; returns how many have a verdict, at least one. */
static size_t try_some(tess__trial *list, size_t n, const tess_host *services, const tess__question *question) {
    int fds[2];
    size_t heard = 0;
    pid_t pid = pipe2(fds, O_CLOEXEC) == 0 ? fork() : -2;
    if (pid == 0)
        try_all(list, n, services, question, fds[1]);
    const int error = errno;
    if (pid != -2)
        close(fds[1]);
    for (verdict v; pid > 0 && heard < n && read_verdict(fds[0], &v); heard++)
        take_verdict(&list[heard], &v);
    const int status = pid > 0 ? reap_child(pid) : 0;
    if (pid != -2)
        close(fds[0]);
    if (pid > 0 && heard == 0)
        blame(&list[heard++], status);
    for (; pid < 0 && heard < n; heard++) {
        list[heard].status = TESS_E_SYSTEM;
        snprintf(list[heard].reason, TESS_REASON_BYTES, "cannot be tried out: %s", strerror(error));
    }
    return heard;
}

void tess__plugin_trials(tess__trial *list, size_t n, const tess_host *services, const tess__question *question) {
    while (n > 0) {
        const size_t done = try_some(list, n, services, question);
        list += done;
        n -= done;
    }
}

tess_status tess__plugin_trial(uint32_t kind, const char *path, const tess_host *services,
                               char reason[TESS_REASON_BYTES]) {
    tess__trial t = { .kind = kind, .path = path };
    tess__plugin_trials(&t, 1, services, NULL);
    memcpy(reason, t.reason, sizeof t.reason);
    return t.status;
}
