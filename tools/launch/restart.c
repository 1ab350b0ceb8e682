/* SPDX-License-Identifier: BSD-3-Clause */
#include "restart.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "tools/support/say.h"
#include "tools/support/options.h"
#include "tools/commands.h"

enum { MOST_PER_HOUR = 60, CALM_S = 30, LONGEST_PAUSE_S = 60, RANKS_MOST = 4096 };

typedef struct {
    const launch_options *launch;
    const restart_options *options;
    int fd;
    char file[64]; /* path that the ranks open; the file has no name, so none remains */
    uint64_t furthest;
    int32_t ranks, done;          /* restarts so far */
    double recent[MOST_PER_HOUR]; /* times of the last restarts */
    double pause;
} restarting;

static double now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static int start(const restarting *r, int32_t *lost) {
    launch_options o = *r->launch;
    o.restart_file = r->file;
    o.restarts = r->done;
    o.restart_ranks = r->launch->ranks;
    o.ranks = r->ranks;
    o.least = r->options->least;
    o.replacements = r->options->replacements;
    o.lost = lost;
    return r->options->self ? launch_self(&o) : launch_start_ranks(&o);
}

/* Whether this life came further than all before, by the number at the file's beginning. */
static int came_further(restarting *r) {
    uint64_t done = 0;
    if (pread(r->fd, &done, sizeof done, 0) != (ssize_t)sizeof done || done <= r->furthest)
        return 0;
    r->furthest = done;
    return 1;
}

/* A crash loop ends: a pause that doubles while lives are short and in vain, and so many in an hour. */
static int may_start_again(restarting *r, double lived) {
    double *slot = &r->recent[r->done % MOST_PER_HOUR];
    if (r->done == r->options->restarts) {
        if (r->options->restarts)
            tool_say(SAY_ERROR, "ranks were lost again, and %d restarts were all", (int)r->done);
        return 0;
    }
    if (r->done >= MOST_PER_HOUR && now() - *slot < 3600) {
        tool_say(SAY_ERROR, "%d restarts within an hour: given up", MOST_PER_HOUR);
        return 0;
    }
    *slot = now();
    int calm = came_further(r) || lived > CALM_S;
    r->pause = calm || r->pause == 0 ? 0.25 : 2 * r->pause;
    if (r->pause > LONGEST_PAUSE_S)
        r->pause = LONGEST_PAUSE_S;
    struct timespec ts = { (time_t)r->pause, (long)((r->pause - (double)(time_t)r->pause) * 1e9) };
    return nanosleep(&ts, NULL) == 0; /* a signal meanwhile: no more */
}

static int32_t next_ranks(const restarting *r, int32_t lost, int refused) {
    int32_t least = r->options->least ? r->options->least : r->launch->ranks;
    int32_t most = r->options->most ? r->options->most : r->launch->ranks;
    int32_t left = refused ? r->ranks - 1 : r->ranks - lost;
    return left >= least ? left : most;
}

static int run(restarting *r) {
    for (int refusals = 0;;) {
        int32_t lost = 0;
        double began = now();
        int code = start(r, &lost);
        int refused = code == TOOL_CONFIG && r->done && refusals++ < RANKS_MOST && r->ranks != r->launch->ranks;
        if (refused) {
            r->ranks = next_ranks(r, 0, 1);
            continue;
        }
        if (code != TOOL_PEER || !may_start_again(r, now() - began))
            return code;
        refusals = 0;
        r->ranks = next_ranks(r, lost > 0 ? lost : 1, 0);
        r->done++;
        tool_say(SAY_WARNING, "ranks were lost: restart %d of %d, with %d ranks", (int)r->done,
                 (int)r->options->restarts, (int)r->ranks);
    }
}

int restart_launch(const launch_options *launch, const restart_options *options) {
    restarting r = { .launch = launch, .options = options, .ranks = launch->ranks };
    int fd = memfd_create("tessera-restart", MFD_CLOEXEC);
    if (fd < 0) {
        tool_say(SAY_ERROR, "cannot hold what lasts over restarts: %s", strerror(errno));
        return TOOL_CONFIG;
    }
    r.fd = fd;
    snprintf(r.file, sizeof r.file, "/proc/%d/fd/%d", (int)getpid(), fd);
    int code = run(&r);
    close(fd);
    return code;
}

int restart_parse_ranks(const char *text, int32_t *least, int32_t *most) {
    char *end;
    long a = strtol(text, &end, 10), b = a;
    if (*text < '0' || *text > '9')
        return -1;
    if (*end == ':') {
        const char *second = end + 1;
        b = strtol(second, &end, 10);
        if (*second < '0' || *second > '9')
            return -1;
    }
    if (*end || a < 1 || b < a || b > RANKS_MOST)
        return -1;
    *least = (int32_t)a;
    *most = (int32_t)b;
    return 0;
}
