/* SPDX-License-Identifier: BSD-3-Clause */
#include "ranks.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 16 };

/* A port that nobody else gets before *fd is closed: it is bound, and rank 0 may listen there all the same, since both
 * sockets say SO_REUSEADDR and this one never listens. */
static int hold_port(int *fd) {
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof at;
    int yes = 1;
    *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd >= 0 && setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
        bind(*fd, (struct sockaddr *)&at, size) == 0 && getsockname(*fd, (struct sockaddr *)&at, &size) == 0)
        return ntohs(at.sin_port);
    return 0;
}

static void become(int rank, int n, int port, char **argv, int out, int err) {
    char text[16];
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    snprintf(text, sizeof text, "%d", port);
    setenv("MASTER_PORT", text, 1);
    snprintf(text, sizeof text, "%d", n);
    setenv("WORLD_SIZE", text, 1);
    setenv("LOCAL_WORLD_SIZE", text, 1);
    snprintf(text, sizeof text, "%d", rank);
    setenv("RANK", text, 1);
    setenv("LOCAL_RANK", text, 1);
    dup2(rank == 0 ? out : err, 1);
    dup2(err, 2);
    execv(argv[0], argv);
    _exit(127);
}

/* "mpirun -n %d" → it, with the number of ranks, in front of argv; one process for all ranks. */
static void become_launcher(const char *launcher, int n, char **argv, int out, int err) {
    char text[1024], number[16], *words[64];
    int at = 0;
    snprintf(text, sizeof text, "%s", launcher);
    snprintf(number, sizeof number, "%d", n);
    for (char *word = strtok(text, " "); word && at < 32; word = strtok(NULL, " "))
        words[at++] = strcmp(word, "%d") == 0 ? number : word;
    for (int i = 0; argv[i] && at < 63; i++)
        words[at++] = argv[i];
    words[at] = NULL;
    dup2(out, 1);
    dup2(err, 2);
    execvp(words[0], words);
    _exit(127);
}

static size_t take(int fd, char *output, size_t capacity) {
    ssize_t got = pread(fd, output, capacity - 1, 0);
    output[got > 0 ? got : 0] = 0;
    return got > 0 ? (size_t)got : 0;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Waits for all; past the limit they are killed. The first failure's code. */
static int collect(pid_t *pids, int n, double limit) {
    int left = n, code = 0;
    while (left > 0) {
        for (int i = 0; i < n; i++) {
            int status;
            if (pids[i] <= 0 || waitpid(pids[i], &status, WNOHANG) != pids[i])
                continue;
            pids[i] = 0;
            left--;
            int own = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
            code = code ? code : own;
        }
        if (left > 0 && now() > limit) {
            for (int i = 0; i < n; i++)
                if (pids[i] > 0)
                    kill(pids[i], SIGKILL);
            code = code ? code : 124;
        }
        struct timespec pause = { .tv_nsec = 1000000 };
        if (left > 0)
            nanosleep(&pause, NULL);
    }
    return code;
}

int ranks_run(int n, char **argv, int timeout_s, char *output, size_t capacity) {
    char out_name[] = "/tmp/tessera-ranks-XXXXXX", err_name[] = "/tmp/tessera-ranks-XXXXXX";
    int out = mkostemp(out_name, O_CLOEXEC | O_APPEND), err = mkostemp(err_name, O_CLOEXEC | O_APPEND);
    int held, port = hold_port(&held);
    pid_t pids[MOST] = { 0 };
    unlink(out_name);
    unlink(err_name);
    if (n > MOST || out < 0 || err < 0 || !port)
        return 126;
    fflush(NULL);
    const char *launcher = getenv("TESSERA_TEST_LAUNCHER");
    int processes = launcher && *launcher ? 1 : n;
    for (int rank = 0; rank < processes; rank++)
        if ((pids[rank] = fork()) == 0) {
            if (processes < n || (launcher && *launcher))
                become_launcher(launcher, n, argv, out, err);
            become(rank, n, port, argv, out, err);
        }
    int code = collect(pids, processes, now() + timeout_s);
    take(code ? err : out, output, capacity);
    close(held);
    close(out);
    close(err);
    return code;
}
