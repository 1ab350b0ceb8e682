/* SPDX-License-Identifier: BSD-3-Clause */
/* A program with its own loop that opts in to recovery in memory. RECOVER_KILLS="RANK:STEP:PHASE …" are deaths, each
 * once (RECOVER_MARKS is a folder for marks of those that were): at the STEP-th step, in a phase named below, or with
 * STEP 0 in a process that takes a lost rank's place or that recovers from the loss of another. Prints
 * "digest=… recoveries=… planned=…" on rank 0. */
#include "core/control/wire.h"
#include "core/recovery/mirror.h"
#include "toy.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 12 };
static int64_t at_step;
static int own_rank, recovers;

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
        int here = step ? step == at_step : recovers || getenv("TESSERA_GENERATION");
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
    int64_t accum = tess_accum(t), first = ((at_step - 1) * tess_ranks(t) + tess_rank(t)) * accum;
    tess_status s = TESS_OK;
    maybe_die("before");
    m->skip = at_step == 3 ? 1 : 0; /* an order that deviates, so that one side has compiled anew */
    for (int64_t k = 0; !s && k < accum; k++)
        s = toy_pass(t, m, TESS_PASS_TRAIN, first + k, &loss);
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

/* Calls within tess_recover, from one file of the core to another (the linker's --wrap): a death before each, and after
 * it in "after…". */
#define DIES_AROUND(name, phase, given, used)                                                                          \
    tess_status __real_##name given;                                                                                   \
    tess_status __wrap_##name given;                                                                                   \
    tess_status __wrap_##name given {                                                                                  \
        if (recovers)                                                                                                  \
            maybe_die(phase);                                                                                          \
        tess_status s = __real_##name used;                                                                            \
        if (recovers && !s)                                                                                            \
            maybe_die("after" phase);                                                                                  \
        return s;                                                                                                      \
    }
DIES_AROUND(tess__control_join, "join",
            (const tess__world *world, tess__lost_fn lost, void *user, tess__control_seat *seat),
            (world, lost, user, seat))
DIES_AROUND(tess__smaller_join, "carry", (tess * t), (t))
DIES_AROUND(tess__plan_remake, "plan", (tess__plan * p), (p))
DIES_AROUND(tess__handshake_programs, "compare", (tess * t, const tess__program *list, int32_t n), (t, list, n))
DIES_AROUND(tess__smaller_restore, "restore", (tess * t, int64_t *step), (t, step))
DIES_AROUND(tess__image_send, "send", (tess * t, const tess__image_sending *x), (t, x))
DIES_AROUND(tess__mirror_take, "image", (tess * t), (t))
DIES_AROUND(tess__smaller_finish, "finish", (tess * t), (t))

/* Whoever has said hello and dies before the launcher's server has read it (tests/support/slow_server). */
int __real_tess__outbox_flush(tess__outbox *box, tess__link *link);
int __wrap_tess__outbox_flush(tess__outbox *box, tess__link *link);
int __wrap_tess__outbox_flush(tess__outbox *box, tess__link *link) {
    int sent = __real_tess__outbox_flush(box, link);
    if (gettid() == getpid()) /* not the thread that beats */
        maybe_die("hello");
    return sent;
}

/* In the middle of an image. RECOVER_SLOW=RANK: the first ones take that rank a while longer than the others. */
tess_status __real_tess__copy_now(tess *t, void *to, uint32_t to_mem, const void *from, uint32_t from_mem, uint64_t n);
tess_status __wrap_tess__copy_now(tess *t, void *to, uint32_t to_mem, const void *from, uint32_t from_mem, uint64_t n);
tess_status __wrap_tess__copy_now(tess *t, void *to, uint32_t to_mem, const void *from, uint32_t from_mem, uint64_t n) {
    const char *slow = getenv("RECOVER_SLOW");
    if (slow && atoi(slow) == own_rank && at_step == 1)
        usleep(100000);
    maybe_die("copying");
    return __real_tess__copy_now(t, to, to_mem, from, from_mem, n);
}

/* Rank 0 has told the launcher of the first images. */
tess_status __real_tess__fits_announce(tess *t);
tess_status __wrap_tess__fits_announce(tess *t);
tess_status __wrap_tess__fits_announce(tess *t) {
    tess_status s = __real_tess__fits_announce(t);
    maybe_die("announced");
    return s;
}

/* Who dies in "close" waits for all others to be in tess_close. */
tess_status __real_tess__comms_exchange(tess__comms *c, const char *what, const void *mine, uint64_t bytes, void *out);
tess_status __wrap_tess__comms_exchange(tess__comms *c, const char *what, const void *mine, uint64_t bytes, void *out);
tess_status __wrap_tess__comms_exchange(tess__comms *c, const char *what, const void *mine, uint64_t bytes, void *out) {
    const char *kills = getenv("RECOVER_KILLS");
    if (kills && strcmp(what, "tess_close") == 0 && strstr(kills, ":close"))
        first_time(100 + own_rank);
    return __real_tess__comms_exchange(c, what, mine, bytes, out);
}

static void await_closing(const tess *t) {
    const char *kills = getenv("RECOVER_KILLS"), *marks = getenv("RECOVER_MARKS");
    for (int r = 0; kills && marks && strstr(kills, ":close") && atoi(kills) == own_rank && r < tess_ranks(t); r++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%d", marks, 100 + r);
        while (r != own_rank && access(path, F_OK) != 0)
            usleep(1000);
    }
    maybe_die("close");
}

static tess_status go_on(tess *t, tess_recovery *got, int lost) {
    recovers = lost;
    maybe_die("recover");
    tess_status s = tess_recover(t, got);
    recovers = 0;
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
            s = go_on(t, &got, s != TESS_OK);
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
    await_closing(t);
    s = tess_close(t);
    return s ? report(s) : !equal;
}
