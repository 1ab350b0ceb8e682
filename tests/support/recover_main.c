/* SPDX-License-Identifier: BSD-3-Clause */
/* A program with its own loop that opts in to recovery in memory. RECOVER_KILLS="RANK:STEP:PHASE …" are deaths, each
 * once (RECOVER_MARKS is a folder for marks of those that were): at the STEP-th step, in a phase named below, or with
 * STEP 0 in a process that takes a lost rank's place. Prints "digest=… recoveries=… planned=…" on rank 0. */
#include "toy.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 12 };
static int64_t at_step;
static int own_rank;

static int first_time(int i) {
    char path[4096];
    const char *marks = getenv("RECOVER_MARKS");
    snprintf(path, sizeof path, "%s/%d", marks ? marks : ".", i);
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0600);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static void maybe_die(const char *phase) {
    const char *text = getenv("RECOVER_KILLS");
    for (int i = 0; text && *text; i++) {
        int rank = -1, step = -1, length = 0;
        char name[32] = "";
        if (sscanf(text, " %d:%d:%31[a-z]%n", &rank, &step, name, &length) != 3)
            return;
        int here = step == at_step && (step > 0 || getenv("TESSERA_GENERATION"));
        if (rank == own_rank && here && strcmp(name, phase) == 0 && first_time(i))
            raise(SIGKILL);
        text += length;
    }
}

static void on_point(void *user, const tess_ledger_point *p) {
    (void)user;
    if (p->point == TESS_LEDGER_PRE_BACKWARD)
        maybe_die("backward");
}

static tess_status train_step(tess *t, toy *m) {
    tess_optimizer_options step = { .struct_size = sizeof step, .lr = 0.01f };
    double loss;
    maybe_die("before");
    m->skip = at_step == 3 ? 1 : 0; /* an order that deviates, so that one side has compiled anew */
    tess_status s = toy_pass(t, m, TESS_PASS_TRAIN, (at_step - 1) * tess_ranks(t) + tess_rank(t), &loss);
    maybe_die("gradients");
    if (!s)
        s = tess_step(t, &step);
    maybe_die("after");
    return s;
}

/* To the end, from wherever the ranks are; what it returns may be TESS_E_LOST. */
static tess_status train(tess *t, toy *m, uint64_t *digest) {
    tess_status s = TESS_OK;
    while (!s && at_step <= STEPS) {
        s = train_step(t, m);
        at_step += s == TESS_OK;
    }
    if (s)
        return s;
    maybe_die("end");
    return toy_digest(t, digest);
}

static tess_status go_on(tess *t, tess_recovery *got) {
    maybe_die("recover");
    tess_status s = tess_recover(t, got);
    at_step = (int64_t)got->step + 1;
    return s ? s : tess_ledger_hook(t, on_point, NULL);
}

static int report(tess_status s) {
    fprintf(stderr, "recover: %s\n", tess_last_error());
    return tess_exit_code(s);
}

int main(void) {
    tess_options o = { .struct_size = sizeof o, .optimizer = "adamw", .recover = 1, .mirror = 2 };
    tess *t = NULL;
    toy m = { .skip = 0 };
    uint64_t digest = 0;
    const char *rank = getenv("RANK");
    own_rank = rank ? atoi(rank) : 0;
    maybe_die("open");
    tess_status s = tess_open(&o, &t);
    if (!s)
        s = toy_declare(t, &m, 0);
    if (!s)
        s = tess_shard(t, toy_fill, NULL);
    tess_recovery got = { .struct_size = sizeof got };
    do {
        if (!s || s == TESS_E_LOST)
            s = go_on(t, &got);
        if (!s)
            s = train(t, &m, &digest);
    } while (s == TESS_E_LOST);
    tess_stats stats = { .struct_size = sizeof stats };
    if (s || (s = tess_stats_get(t, &stats)))
        return report(s);
    int equal =
        stats.peak_bytes[1] == stats.planned_peak_bytes[1] && stats.peak_bytes[2] == stats.planned_peak_bytes[2];
    if (tess_rank(t) == 0)
        printf("digest=%016llx recoveries=%u planned=%s\n", (unsigned long long)digest, got.recoveries,
               equal ? "equal" : "differ");
    s = tess_close(t);
    return s ? report(s) : !equal;
}
