/* SPDX-License-Identifier: BSD-3-Clause */
/* One rank of a training run in which chosen ranks are killed at a chosen moment. Survivors write what they saw to
 * DIR/rank.R: "code=5 late_ms=12 scarce_ms=3 late_us=12345 after_us=12345 message=…". "late" counts from the death or
 * from this rank's engine call that failed, whichever is later, "scarce" how much of that someone on the machine waited
 * for a processor; "after" from the death, however long this rank had other things to do. Usage: kill_main DIR PHASE
 * VICTIMS DELAY_US [SIGNAL]; VICTIMS: "1", "1,3" or -1, nobody here. KILL_ELEMS: of the large parameter. Phase close:
 * the run ends after a step. */
#include <tessera/tessera.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BIG = 16 << 20 /* elements: 64 MiB */, SMALL = 1 << 16, SCOPES = 3 };

static const char *dir, *phase;
static int64_t big = BIG;
static long delay_us;
static int is_victim, signal_number = SIGKILL, on_host = 1;

typedef struct { /* scarce: how long so far someone has waited for a processor, as the kernel counts it */
    double ms, scarce_ms;
} instant;
static instant call_started;

static instant now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    double us = 0;
    FILE *f = fopen("/proc/pressure/cpu", "r");
    if (f) {
        if (fscanf(f, "some avg10=%*f avg60=%*f avg300=%*f total=%lf", &us) != 1)
            us = 0;
        fclose(f);
    }
    return (instant){ (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6, us / 1e3 };
}

/* Of several victims the first one's time stays. The file appears whole, for survivors may read it at once. */
static void die(void) {
    char path[512], mine[532];
    snprintf(path, sizeof path, "%s/death", dir);
    snprintf(mine, sizeof mine, "%s.%d", path, (int)getpid());
    FILE *f = fopen(mine, "w");
    if (f) {
        instant at = now();
        fprintf(f, "%.3f %.3f\n", at.ms, at.scarce_ms);
        fclose(f);
        if (link(mine, path) != 0)
            unlink(mine); /* another one was first */
    }
    kill(getpid(), signal_number);
    pause();
}

static void *later(void *unused) {
    usleep((useconds_t)delay_us);
    die();
    return unused;
}

/* An engine call begins, unless the one before has failed: then that one's time is what counts. */
static void begins(tess_status before) {
    if (!before)
        call_started = now();
}

/* The victim dies here at once, or DELAY_US from now in the midst of the call that follows. */
static void moment(tess_status before, const char *name, int inside) {
    pthread_t thread;
    begins(before);
    if (before || !is_victim || strcmp(name, phase) != 0)
        return;
    if (!inside)
        die();
    pthread_create(&thread, NULL, later, NULL);
}

static instant death_of_victim(void) {
    char path[512];
    instant at = { 0, 0 };
    snprintf(path, sizeof path, "%s/death", dir);
    FILE *f = fopen(path, "r");
    if (f) {
        if (fscanf(f, "%lf %lf", &at.ms, &at.scarce_ms) != 2)
            at.ms = 0;
        fclose(f);
    }
    return at;
}

static int report(tess *t, tess_status s, const char *rank) {
    char path[512];
    instant end = now(), death = death_of_victim(), from = death.ms > call_started.ms ? death : call_started;
    snprintf(path, sizeof path, "%s/rank.%s", dir, rank);
    FILE *f = fopen(path, "w");
    if (f) {
        fprintf(f, "code=%d late_ms=%.0f scarce_ms=%.0f late_us=%.0f after_us=%.0f message=%s\n", tess_exit_code(s),
                end.ms - from.ms, end.scarce_ms - from.scarce_ms, (end.ms - from.ms) * 1e3, (end.ms - death.ms) * 1e3,
                tess_last_error());
        fclose(f);
    }
    tess_close(t);
    return tess_exit_code(s);
}

static tess_status declare(tess *t, tess_scope *scopes) {
    static const char *const names[SCOPES] = { "a", "b", "c" };
    tess_status s = TESS_OK;
    for (int i = 0; !s && i < SCOPES; i++) {
        char name[16];
        int64_t shape = i == 1 ? big : SMALL;
        snprintf(name, sizeof name, "%s.weight", names[i]);
        tess_param_options o = { .struct_size = sizeof o, .dtype = TESS_F32, .name = name, .shape = &shape, .ndim = 1 };
        s = tess_scope_add(t, names[i], 0, &scopes[i]);
        if (!s)
            s = tess_param_add(t, &o, NULL);
    }
    return s;
}

static tess_status train(tess *t, const tess_scope *scopes) {
    tess_status s = tess_pass(t, TESS_PASS_TRAIN);
    for (int i = 0; !s && i < SCOPES; i++) {
        const float *p;
        if (i == 1)
            moment(s, "transfer", 1);
        begins(s);
        s = tess_forward_begin(t, scopes[i], &p, 1);
        if (i == 1)
            moment(s, "forward", 0);
        begins(s);
        if (!s)
            s = tess_forward_end(t, scopes[i]);
    }
    for (int i = SCOPES; !s && i-- > 0;) {
        const float *p;
        float *g;
        begins(s);
        s = tess_backward_begin(t, scopes[i], &p, &g, 1);
        if (!s && on_host)
            g[0] += p[0];
        if (i == 1)
            moment(s, "backward", 0);
        begins(s);
        if (!s)
            s = tess_backward_end(t, scopes[i]);
    }
    tess_optimizer_options o = { .struct_size = sizeof o, .lr = 0.01f };
    moment(s, "step", 1);
    return s ? s : tess_step(t, &o);
}

static tess_status evaluate(tess *t, const tess_scope *scopes) {
    tess_status s = tess_pass(t, TESS_PASS_EVAL);
    for (int i = 0; !s && i < SCOPES; i++) {
        const float *p;
        if (i == 1)
            moment(s, "evaluation", 1);
        begins(s);
        s = tess_forward_begin(t, scopes[i], &p, 1);
        if (!s)
            s = tess_forward_end(t, scopes[i]);
    }
    return s;
}

static tess_status save(tess *t) {
    char path[512];
    snprintf(path, sizeof path, "%s/saved", dir);
    tess_checkpoint_options o = { .struct_size = sizeof o, .dir = path, .keep = 1 };
    moment(TESS_OK, "save", 1);
    return tess_checkpoint_save(t, &o);
}

static tess_status turn(tess *t, const tess_scope *scopes) {
    tess_status s = train(t, scopes);
    if (!s && strcmp(phase, "evaluation") == 0)
        s = evaluate(t, scopes);
    if (!s && strcmp(phase, "save") == 0)
        s = save(t);
    return s;
}

/* Whoever is through before the death has nothing to report. */
static int end(tess *t, const char *rank) {
    moment(TESS_OK, "close", 1);
    tess_status s = tess_close(t);
    return report(NULL, s, rank);
}

static int is_among(const char *rank, const char *victims) {
    size_t n = strlen(rank);
    for (const char *at = victims; at; at = strchr(at, ','), at = at ? at + 1 : NULL)
        if (strncmp(at, rank, n) == 0 && (at[n] == ',' || !at[n]))
            return 1;
    return 0;
}

int main(int argc, char **argv) {
    const char *rank = getenv("RANK");
    if (argc < 5 || !rank)
        return 2;
    dir = argv[1];
    phase = argv[2];
    is_victim = is_among(rank, argv[3]);
    if (getenv("KILL_ELEMS"))
        big = atol(getenv("KILL_ELEMS"));
    delay_us = atol(argv[4]);
    if (argc > 5)
        signal_number = atoi(argv[5]);
    tess *t = NULL;
    tess_scope scopes[SCOPES];
    moment(TESS_OK, "rendezvous", 1);
    const char *device = getenv("TESSERA_DEVICE");
    on_host = !device || strcmp(device, "cpu") == 0;
    tess_options o = { .struct_size = sizeof o,
                       .pointer_mem = 1u << TESS_MEM_HOST | 1u << TESS_MEM_CUDA,
                       .checkpoint = strcmp(phase, "save") == 0 };
    tess_status s = tess_open(&o, &t);
    if (s)
        return report(NULL, s, rank);
    if ((s = declare(t, scopes)) || (s = tess_shard(t, NULL, NULL)))
        return report(t, s, rank);
    int closes = strcmp(phase, "close") == 0;
    for (int i = 0; !s && i < (closes ? 1 : 1000); i++)
        s = turn(t, scopes);
    return !s && closes ? end(t, rank) : report(t, s, rank);
}
