/* SPDX-License-Identifier: BSD-3-Clause */
/* A rank that does nothing but be on the control plane, for tests of the launcher and of lost ranks.
 *
 *     rank_probe [VICTIM ACTION]
 *
 * Joins; writes its number of a process to pid.RANK and, when it ends, its exit code to code.RANK, in the working
 * directory, and RANK_PROBE_SAYS to standard output. Rank VICTIM then does ACTION: kill, stop, return:CODE, goodbye,
 * report. All others wait until a rank is lost and print the first cause, or until every rank has said goodbye. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/control/control.h"
#include "core/base/log.h"
#include "core/base/status.h"

static int32_t rank;

static void write_number(const char *name, long value) {
    char path[64], temporary[80];
    snprintf(path, sizeof path, "%s.%d", name, (int)rank);
    snprintf(temporary, sizeof temporary, "%s.new", path);
    FILE *file = fopen(temporary, "w");
    if (!file)
        return;
    fprintf(file, "%ld\n", value);
    fclose(file);
    rename(temporary, path);
}

static int end(int code) {
    write_number("code", code);
    return code;
}

static int failed(tess_status status) {
    tess__log(TESS_LOG_ERROR, "%s", tess_last_error());
    return end(tess_exit_code(status));
}

static int act(tess__control *control, const char *action) {
    usleep(300000); /* so that what it does is known to the others */
    if (strcmp(action, "kill") == 0)
        raise(SIGKILL);
    if (strcmp(action, "stop") == 0)
        raise(SIGSTOP);
    if (strncmp(action, "return:", 7) == 0)
        return end(atoi(action + 7));
    if (strcmp(action, "report") == 0) {
        tess__control_report(control, TESS_E_DATA, -1, "bad bytes");
        tess__control_close(control, 0);
        return end(6);
    }
    tess__control_close(control, 1);
    return end(0);
}

static int others_departed(tess__control *control, int32_t nranks) {
    for (int32_t r = 0; r < nranks; r++)
        if (r != rank && !tess__control_departed(control, r))
            return 0;
    return 1;
}

static int wait_for_news(tess__control *control, const tess__world *world) {
    for (int i = 0; i < 6000 && !tess__control_aborting(control); i++) {
        if (others_departed(control, world->nranks)) {
            tess__control_close(control, 1);
            return end(0);
        }
        usleep(10000);
    }
    tess_error cause = { .struct_size = sizeof cause };
    tess_status status = tess__control_cause(control, &cause);
    tess__control_close(control, 0);
    if (status == TESS_OK)
        return end(9); /* nothing happened for a minute */
    return failed(tess__fail(status, "%s", cause.message));
}

int main(int argc, char **argv) {
    tess__world world;
    tess__control *control;
    tess_status status = tess__world_from_env(&world);
    if (status == TESS_OK) {
        rank = world.rank;
        tess__log_set_rank(rank);
        write_number("pid", getpid());
        status = tess__control_open(&world, &control);
    }
    if (status != TESS_OK)
        return failed(status);
    write_number("joined", 1);
    if (getenv("RANK_PROBE_SAYS"))
        printf("%s\n", getenv("RANK_PROBE_SAYS"));
    tess__control_doing(control, "forward of unit h.3");
    if (argc == 3 && atoi(argv[1]) == rank)
        return act(control, argv[2]);
    return wait_for_news(control, &world);
}
