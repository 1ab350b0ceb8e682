/* SPDX-License-Identifier: BSD-3-Clause */
/* A run may have several lives. Rank 0 keeps figures for the summary in TESSERA_RESTART_FILE from one life to the
 * next. */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tools/support/say.h"
#include "tools/support/options.h"
#include "train.h"

struct train_lives {     /* layout of the shared file, which begins as zeros */
    uint64_t steps_done; /* first, because the launcher reads it as progress */
    uint64_t steps_repeated, recoveries;
    double stopped, seconds_lost; /* stopped: end of the last step, by a clock that all processes share */
    int32_t begun;                /* each rank sets it in its host's file */
};

static double now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* `ranks` are those of the first life. */
static tess_status read_restarts(int64_t *n, int64_t *ranks) {
    *n = 0;
    TRY(tool_option_int("restart", n));
    return *n ? tool_option_int("restart-ranks", ranks) : TESS_OK;
}

int64_t train_restarts(void) {
    int64_t n, ranks;
    (void)read_restarts(&n, &ranks); /* train_restart_begun has refused invalid numbers */
    return n;
}

int32_t train_first_ranks(int32_t ranks) {
    int64_t n, first = ranks;
    (void)read_restarts(&n, &first);
    return (int32_t)first;
}

static int open_lives(void) {
    const char *path = tool_option_text("restart-file");
    return path ? open(path, O_RDWR | O_CLOEXEC) : -1;
}

void train_lives_begin(void) {
    const int32_t begun = 1;
    int fd = open_lives();
    if (fd < 0)
        return;
    if (pwrite(fd, &begun, sizeof begun, offsetof(train_lives, begun)) != (ssize_t)sizeof begun)
        tool_say(SAY_WARNING, "TESSERA_RESTART_FILE: %s: a restart begins as this run did", strerror(errno));
    close(fd);
}

/* Returns 1 if an earlier life reached train_lives_begin. Until then the files in the directory are not this run's. */
static int has_begun(void) {
    int32_t begun = 0;
    int fd = open_lives();
    if (fd < 0)
        return 1;
    int read = pread(fd, &begun, sizeof begun, offsetof(train_lives, begun)) == (ssize_t)sizeof begun;
    close(fd);
    return read && begun;
}

tess_status train_restart_begun(int *out) {
    int64_t restarts, ranks;
    TRY(read_restarts(&restarts, &ranks));
    *out = restarts && has_begun();
    return TESS_OK;
}

/* Counts the time from the last complete step to now as lost. */
static void count_loss(train_run *r) {
    if (!r->lives || !r->lives->stopped)
        return;
    r->lost.seconds = now() - r->lives->stopped;
    r->lost.steps = r->lives->steps_done > r->steps_done ? r->lives->steps_done - r->steps_done : 0;
    r->lives->seconds_lost += r->lost.seconds;
    r->lives->steps_repeated += r->lost.steps;
}

void train_lives_open(train_run *r) {
    const char *path = tool_option_text("restart-file");
    int fd = r->rank == 0 ? open_lives() : -1;
    if (fd < 0) {
        if (path && r->rank == 0)
            tool_say(SAY_WARNING, "TESSERA_RESTART_FILE: %s: %s: repeated steps and lost seconds are not counted", path,
                     strerror(errno));
        return;
    }
    if (ftruncate(fd, sizeof *r->lives) == 0) {
        void *at = mmap(NULL, sizeof *r->lives, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        r->lives = at == MAP_FAILED ? NULL : at;
    }
    close(fd);
    if (!r->joins)
        count_loss(r);
}

void train_lives_recovered(train_run *r) {
    count_loss(r);
    if (r->lives)
        r->lives->recoveries++;
}

void train_lives_step(train_run *r, uint64_t step) {
    if (!r->lives)
        return;
    r->lives->steps_done = step;
    r->lives->stopped = now();
}

void train_lives_summary(train_run *r) {
    json_uint(&r->json, "restarts", (uint64_t)train_restarts());
    json_uint(&r->json, "recoveries", r->lives ? r->lives->recoveries : 0);
    json_uint(&r->json, "steps_repeated", r->lives ? r->lives->steps_repeated : 0);
    json_double(&r->json, "seconds_lost", r->lives ? r->lives->seconds_lost : 0);
}

void train_lives_close(train_run *r) {
    if (r->lives)
        munmap(r->lives, sizeof *r->lives);
    r->lives = NULL;
}
