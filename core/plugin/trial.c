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

typedef struct { /* the child's last word */
    tess_status status;
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

static void try_it(uint32_t kind, const char *path, const tess_host *services, int fd) {
    verdict v = { .status = TESS_OK };
    tess__plugin *p = NULL;
    die_alone();
    v.status = tess__plugin_file_open(kind, path, "", services, &p, v.reason);
    if (v.status == TESS_OK) {
        call_first_slots(p);
        tess__plugin_close(p);
    }
    ssize_t written = write(fd, &v, sizeof v);
    _exit(written != (ssize_t)sizeof v);
}

/* Reads the verdict and tells whether it came whole. It fits a pipe, so it comes at once or not at all. */
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

tess_status tess__plugin_trial(uint32_t kind, const char *path, const tess_host *services,
                               char reason[TESS_REASON_BYTES]) {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) {
        snprintf(reason, TESS_REASON_BYTES, "cannot be tried out: %s", strerror(errno));
        return TESS_E_SYSTEM;
    }
    pid_t pid = fork();
    if (pid == 0)
        try_it(kind, path, services, fds[1]);
    close(fds[1]);
    verdict v = { .status = TESS_E_INVALID };
    int error = errno, heard = pid > 0 && read_verdict(fds[0], &v), status = pid > 0 ? reap_child(pid) : 0;
    close(fds[0]);
    if (pid < 0) {
        snprintf(reason, TESS_REASON_BYTES, "cannot be tried out: %s", strerror(error));
        return TESS_E_SYSTEM;
    }
    for (char *c = v.reason; heard && *c; c++)
        if (*c == '\n' || *c == '\r')
            *c = ' ';
    if (heard)
        snprintf(reason, TESS_REASON_BYTES, "%s", v.reason);
    else if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
        snprintf(reason, TESS_REASON_BYTES, "opening it ended with signal %d (%s): is the file damaged?",
                 WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(reason, TESS_REASON_BYTES, "opening it ended the process or took more than %d s: is the file damaged?",
                 PATIENCE_MS / 1000);
    return heard ? v.status : TESS_E_INVALID;
}
