/* SPDX-License-Identifier: BSD-3-Clause */
/* Whether training works is known by training: one step of the smallest model, by this command as a child. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "doctor.h"
#include "tools/plugins/plugin_known.h"
#include "tools/support/progress.h"

enum { MOST_VARIABLES = 1024, SECONDS = 60 };
extern char **environ;

/* A doctor within a job asks about the machine, not about that job's ranks. */
static int is_of_a_job(const char *variable) {
    static const char *const begins[] = { "RANK=",   "WORLD_SIZE=", "LOCAL_RANK=",   "LOCAL_WORLD_SIZE=",
                                          "MASTER_", "TESSERA_KV=", "TESSERA_STEPS", "SLURM_",
                                          "OMPI_",   "PMI_" };
    for (size_t i = 0; i < sizeof begins / sizeof begins[0]; i++)
        if (strncmp(variable, begins[i], strlen(begins[i])) == 0)
            return 1;
    return 0;
}

static _Noreturn void become(char *const *argv, int said) {
    char *variables[MOST_VARIABLES + 1];
    size_t n = 0;
    for (char **v = environ; *v && n < MOST_VARIABLES; v++)
        if (!is_of_a_job(*v))
            variables[n++] = *v;
    variables[n] = NULL;
    setpgid(0, 0);
    dup2(said, STDOUT_FILENO);
    dup2(said, STDERR_FILENO);
    execve("/proc/self/exe", argv, variables);
    _exit(127);
}

/* Reads the first line of the child's output until it ends; returns 0 if it took too long. */
static int listen_to(int from, char *line, size_t size) {
    size_t at = 0;
    char byte[256];
    for (double end = tool_seconds() + SECONDS;;) {
        struct pollfd p = { .fd = from, .events = POLLIN };
        double left = end - tool_seconds();
        if (left <= 0)
            return 0;
        if (poll(&p, 1, (int)(left * 1000) + 1) <= 0)
            continue;
        ssize_t n = read(from, byte, sizeof byte);
        if (n <= 0)
            break;
        for (ssize_t i = 0; i < n && at + 1 < size; i++)
            line[at++] = byte[i];
    }
    line[at] = 0;
    line[strcspn(line, "\n")] = 0;
    return 1;
}

static void judge(doctor *d, int state, const char *what, int status, int ended, const char *line, double seconds) {
    static const char repair[] = "the message names what to change; docs/when-it-goes-wrong.md has the causes";
    if (!ended)
        doctor_row(d, state, what, repair, "a step did not end within %d s", SECONDS);
    else if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        doctor_row(d, DOCTOR_OK, what, NULL, "a training step in %.1f s", seconds);
    else if (WIFEXITED(status))
        doctor_row(d, state, what, repair, "exit code %d: %s", WEXITSTATUS(status), line);
    else
        doctor_row(d, state, what, repair, "killed by signal %d: %s", WTERMSIG(status), line);
}

/* `state`: of a trial that fails. */
static void try_out(doctor *d, int state, const char *what, const char *ranks, const char *comm) {
    char *const argv[] = {
        "tessera", "train", "linear", "-n", (char *)(uintptr_t)ranks, "--quiet", "--comm", (char *)(uintptr_t)comm,
        "--steps", "1",     NULL
    };
    char line[512] = "";
    int pipes[2], status = 0;
    double began = tool_seconds();
    if (pipe(pipes) != 0) {
        doctor_row(d, DOCTOR_BAD, what, "ulimit -n 4096", "no pipe: %s", strerror(errno));
        return;
    }
    pid_t child = fork();
    if (child == 0)
        become(argv, pipes[1]);
    close(pipes[1]);
    int ended = child > 0 && listen_to(pipes[0], line, sizeof line);
    if (child > 0 && !ended)
        kill(-child, SIGKILL);
    close(pipes[0]);
    if (child > 0)
        waitpid(child, &status, 0);
    judge(d, state, what, status, ended, line, tool_seconds() - began);
}

static void try_comm(void *user, uint32_t kind, const char *name, const char *path, const char *reason) {
    char what[64];
    if (kind != TESS_KIND_COMM || !*path || reason || strcmp(name, "nccl") == 0) /* whose ranks need a GPU each */
        return;
    snprintf(what, sizeof what, "2 ranks, %s", name);
    try_out(user, DOCTOR_NOTE, what, "2", name);
}

void doctor_trials(doctor *d) {
    try_out(d, DOCTOR_BAD, "1 rank", "1", "auto");
    try_out(d, DOCTOR_BAD, "2 ranks", "2", "auto");
    plugin_each_tried(try_comm, d);
}
