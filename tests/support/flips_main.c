/* SPDX-License-Identifier: BSD-3-Clause */
/* A bit that flips in a running rank, from outside. Ranks are `flips`, which train the toy and print "step N DIGEST" on
 * rank 0. `flips drive SEED VICTIM COMMAND…` starts the ranks by COMMAND. FLIPS=RANK:PHASE tells one of them to write
 * down where its memory lies and to stop (SIGSTOP) once, in the third step or in FLIPS_STEP: in "micro" between two
 * microbatches, in "grads" before the optimizer's step, in "rest" and "image" behind it, in "late" when the program has
 * read its values. Of one block in its forward or backward: in "gathered" before it reads parameters, in "input" before
 * it reads its input, in "kept" before a backward, an activation that the next one reads, in "batch" what the pass was
 * given, and in "made" when it has written what it makes. The driver then flips one bit through /proc/PID/mem, or with
 * FLIPS_TWO two buffers in opposite ways, kills the rank VICTIM unless it is -1, and lets the rank go on. It says what
 * it has changed, and ends with COMMAND's exit code. FLIPS_BLOCKS: the toy as blocks. FLIPS_SAVE: each step is saved.
 * FLIPS_MIRROR: images every so many. */
#include "core/recovery/mirror.h"
#include "toy.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 512 };

/* The step in which it stops, FLIPS_STEP; two more come. */
static int64_t here(void) {
    const char *text = getenv("FLIPS_STEP");
    return text ? atoi(text) : 3;
}

/* ---- a rank ---------------------------------------------------------------------------------------- */

static uint64_t bytes_at(const tess *t, const tess__buffer *b) {
    const tess__group *g = &t->plan.layout.groups[b->index];
    switch (b->role) {
    case TESS__MASTER: return g->shard_elems * tess_dtype_bytes(g->master);
    case TESS__LOW_COPY: return g->shard_elems * tess_dtype_bytes(g->compute);
    case TESS__SHARD_GRAD: return tess__shard_grad_bytes(g);
    case TESS__BUFFERS: return t->plan.layout.buffer_bytes;
    default: return b->role <= TESS__STATE3 ? tess__state_bytes(g, b->role - TESS__STATE0) : b->bytes;
    }
}

static const char *name_of(const tess__buffer *b, int grads) {
    if (b->role == TESS__SHARD_GRAD || (b->role >= TESS__SUM0 && b->role <= TESS__SUM_LAST))
        return grads ? "gradients" : NULL;
    if (b->role >= TESS__STATE0 && b->role <= TESS__STATE3)
        return "states";
    return b->role == TESS__MASTER     ? "parameters"
           : b->role == TESS__LOW_COPY ? "copies"
           : b->role == TESS__BUFFERS  ? "statistics"
                                       : NULL;
}

static void write_images(const tess *t, FILE *f) {
    uint64_t bytes = tess__image_bytes(&t->plan.setup, &t->plan.layout);
    for (int i = 0; i < (tess__copy_groups(&t->plan.setup) ? 4 : 2); i++) {
        const int64_t *steps = i / 2 ? t->mirror.copy : t->mirror.own;
        if (steps[i % 2] >= 0)
            fprintf(f, "%s %p %llu\n", i / 2 ? "copy" : "image", (void *)tess__image_at(t, i / 2, i % 2),
                    (unsigned long long)bytes);
    }
}

/* In the phase "grads" these alone, so that each kind of memory has its turn. */
static void write_places(const tess *t, FILE *f, const char *phase) {
    int grads = strcmp(phase, "micro") == 0 || strcmp(phase, "grads") == 0;
    if (strcmp(phase, "image") == 0)
        write_images(t, f);
    for (int32_t i = 0; strcmp(phase, "image") != 0 && i < t->plan.resident.n_buffers; i++) {
        const tess__buffer *b = &t->plan.resident.buffers[i];
        const char *name = name_of(b, grads);
        int is_gradient = name && strcmp(name, "gradients") == 0;
        if (b->role >= TESS__SUM0 && b->role <= TESS__SUM_LAST && strcmp(phase, "grads") == 0)
            continue; /* all microbatches are in the gradient: nobody reads these again */
        if (name && is_gradient == grads && t->memory.booked[b->role][b->index])
            fprintf(f, "%s %p %llu\n", name, tess__address(&t->memory, b->role, b->index),
                    (unsigned long long)bytes_at(t, b));
    }
}

static void stop_at(const tess *t, int64_t step, const char *phase) {
    const char *text = getenv("FLIPS");
    int rank = -1;
    char wanted[16] = "";
    if (!text || sscanf(text, "%d:%15s", &rank, wanted) != 2 || rank != tess_rank(t) || step != here() ||
        strcmp(phase, wanted) != 0 || access("places", F_OK) == 0)
        return;
    FILE *f = fopen("places.part", "w");
    if (!f)
        exit(99);
    fprintf(f, "%d\n", (int)getpid());
    write_places(t, f, phase);
    fclose(f);
    rename("places.part", "places");
    raise(SIGSTOP);
}

/* ---- within a block ---- */

static const tess *watched; /* null: not this rank */
static int chosen;          /* which call of that step's first pass */

static void put_place(FILE *f, const char *name, const void *at, uint64_t bytes) {
    if (at)
        fprintf(f, "%s %p %llu\n", name, at, (unsigned long long)bytes);
}

static void write_params(FILE *f, const tess_block_call *c, int scope, int grads) {
    const tess__model *m = &watched->plan.model;
    const tess__scope *s = &m->scopes[m->blocks[scope].scope];
    for (int32_t k = 0; k < s->n_params; k++) {
        const tess__param *p = &m->params[s->params[k]];
        if (p->group < 0)
            continue;
        const tess__group *g = &watched->plan.layout.groups[p->group];
        if (!grads)
            put_place(f, "gathered", c->params[k], p->elems * tess_dtype_bytes(g->compute));
        else
            put_place(f, "gradient", c->grads[k], p->elems * tess_dtype_bytes(g->grad_local));
    }
}

static void write_call(FILE *f, const tess_block_call *c, int scope, int backward, const char *phase) {
    const tess__block *b = watched->plan.model.blocks;
    uint64_t input = scope ? b[scope - 1].options.output_bytes : 0;
    if (strcmp(phase, "gathered") == 0)
        write_params(f, c, scope, 0);
    else if (strcmp(phase, "kept") == 0)
        put_place(f, "activation", tess__address(&watched->memory, TESS__OUTPUT, scope - 2),
                  b[scope - 2].options.output_bytes);
    else if (strcmp(phase, "batch") == 0)
        put_place(f, "batch", c->batch, watched->plan.setup.input_bytes);
    else if (strcmp(phase, "input") == 0) {
        put_place(f, "input", scope ? c->input : c->batch, scope ? input : watched->plan.setup.input_bytes);
        put_place(f, "saved", backward ? c->saved : NULL, b[scope].options.saved_bytes);
    } else if (!backward)
        put_place(f, "output", c->output, b[scope].options.output_bytes);
    else {
        put_place(f, "input-gradient", c->grad_input, input);
        write_params(f, c, scope, 1);
    }
}

static int is_of_block(const char *phase) {
    static const char *const all[] = { "gathered", "input", "kept", "batch", "made" };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (strcmp(phase, all[i]) == 0)
            return 1;
    return 0;
}

/* FLIPS_CALL: the number of the call, forward of each block and then backward from the last to the first. */
static void watch(const tess_block_call *c, int scope, int backward, int is_over) {
    const char *text = getenv("FLIPS");
    char phase[16] = "";
    int rank = -1;
    if (!watched || !text || sscanf(text, "%d:%15s", &rank, phase) != 2 || rank != tess_rank(watched) ||
        !is_of_block(phase) || (int64_t)c->step + 1 != here() || c->pass != TESS_PASS_TRAIN || c->recompute)
        return;
    int call = backward ? 2 * TOY_SCOPES - 1 - scope : scope;
    if (call != chosen || is_over != (strcmp(phase, "made") == 0) || access("places", F_OK) == 0)
        return;
    FILE *f = fopen("places.part", "w");
    if (!f)
        exit(99);
    fprintf(f, "%d\n", (int)getpid());
    write_call(f, c, scope, backward, phase);
    fclose(f);
    rename("places.part", "places");
    raise(SIGSTOP);
}

static void watch_blocks(const tess *t) {
    const char *call = getenv("FLIPS_CALL");
    watched = call ? t : NULL;
    chosen = call ? atoi(call) : 0;
    toy_watch = call ? watch : NULL;
}

static tess_status pass(tess *t, toy *m, int64_t g) {
    double loss;
    return getenv("FLIPS_BLOCKS") ? toy_run(t, TESS_PASS_TRAIN, g, NULL, &loss)
                                  : toy_pass(t, m, TESS_PASS_TRAIN, g, &loss);
}

static tess_status nothing(void *user, const tess_range *r, void *data) {
    (void)user, (void)r, (void)data;
    return TESS_OK;
}

/* A pass by hooks ends with the call behind it. tess_each_owned is one that writes nothing; but it reads, and what is
 * read is checked. */
static tess_status end_pass(tess *t) {
    return getenv("FLIPS_BLOCKS") ? TESS_OK : tess_each_owned(t, TESS_OF_PARAM, nothing, NULL);
}

static tess_status train_step(tess *t, toy *m, int64_t step) {
    tess_optimizer_options o = { .struct_size = sizeof o, .lr = 0.01f };
    int64_t accum = tess_accum(t);
    tess_status s = TESS_OK;
    for (int64_t k = 0; !s && k < accum; k++) {
        if (k && !(s = end_pass(t)))
            stop_at(t, step, "micro");
        s = s ? s : pass(t, m, (int64_t)tess_microbatch(t, (uint64_t)((step - 1) * accum + k)));
    }
    if (!s && !(s = end_pass(t)))
        stop_at(t, step, "grads");
    s = s ? s : tess_step(t, &o);
    return s;
}

static tess_status save(tess *t) {
    tess_checkpoint_options o = { .struct_size = sizeof o, .dir = "saved" };
    tess_status s = getenv("FLIPS_SAVE") ? tess_checkpoint_save(t, &o) : TESS_OK;
    return s ? s : tess_checkpoint_wait(t, NULL);
}

static tess_status train(tess *t, toy *m, int64_t step) {
    uint64_t digest = 0;
    tess_status s = TESS_OK;
    for (; !s && step <= here() + 2; step++) {
        s = train_step(t, m, step);
        if (!s) {
            stop_at(t, step, "rest");
            stop_at(t, step, "image");
            s = save(t);
        }
        s = s ? s : toy_digest(t, &digest);
        if (!s)
            stop_at(t, step, "late");
        if (!s && tess_rank(t) == 0) {
            printf("step %lld %016llx\n", (long long)step, (unsigned long long)digest);
            fflush(stdout);
        }
    }
    return s;
}

static void write_pid(const tess *t) {
    char name[32];
    snprintf(name, sizeof name, "pid.%d", tess_rank(t));
    FILE *f = fopen(name, "w");
    if (f) {
        fprintf(f, "%d\n", (int)getpid());
        fclose(f);
    }
}

static void say_failure(void *user, const tess_audit_failure *f) {
    fprintf(stderr,
            "%s: step %llu, unit %s, %s of %s, %s: rank %d has %016llx, auditor %d %016llx; referee %d, wrong %d\n",
            (const char *)user, (unsigned long long)f->step, f->unit, f->backward ? "backward" : "forward", f->block,
            f->kind, f->rank, (unsigned long long)f->digest, f->auditor, (unsigned long long)f->digest_again,
            f->referee, f->wrong);
}

static tess_status begin(tess **t, toy *m, int64_t *step) {
    const char *mirror = getenv("FLIPS_MIRROR");
    tess_options o = { .struct_size = sizeof o, .optimizer = "adamw" };
    tess_checkpoint_load_options from = { .struct_size = sizeof from, .path = "saved" };
    o.audit_failed = say_failure;
    o.audit_user = "called back";
    o.recover = mirror != NULL;
    o.mirror = mirror ? (uint32_t)atoi(mirror) : 0;
    o.input_bytes = getenv("FLIPS_BLOCKS") ? TOY_INPUT_BYTES : 0;
    tess_status s = tess_open(&o, t);
    s = s ? s : toy_declare(*t, m, getenv("FLIPS_BLOCKS") ? TOY_BLOCKS : 0);
    s = s ? s : tess_shard(*t, toy_fill, NULL);
    if (!s && getenv("FLIPS_SAVE") && getenv("TESSERA_RESTART"))
        s = tess_checkpoint_load(*t, &from, NULL);
    if (!s)
        *step = (int64_t)tess_steps_done(*t) + 1;
    watch_blocks(*t);
    return s;
}

static void say_audits(const tess *t) {
    tess_stats s = { .struct_size = sizeof s };
    if (t && tess_stats_get(t, &s) == TESS_OK && s.n_audits && tess_rank(t) == 0)
        fprintf(stderr, "audits: %llu, of which failed: %llu\n", (unsigned long long)s.n_audits,
                (unsigned long long)s.n_audit_failures);
}

static int be_rank(void) {
    tess *t = NULL;
    toy m = { .skip = 0 };
    int64_t step = 1;
    tess_status s = begin(&t, &m, &step);
    do {
        tess_recovery got = { .struct_size = sizeof got };
        if (!s || s == TESS_E_LOST) {
            s = tess_recover(t, &got);
            step = (int64_t)got.step + 1;
        }
        if (!s) {
            write_pid(t);
            s = train(t, &m, step);
        }
    } while (s == TESS_E_LOST);
    if (s)
        fprintf(stderr, "flips: %s\n", tess_last_error());
    else
        say_audits(t);
    tess_status closed = tess_close(t);
    return tess_exit_code(s ? s : closed);
}

/* ---- the driver ------------------------------------------------------------------------------------ */

typedef struct {
    char name[16];
    unsigned long long at, bytes;
} place;

static int read_places(place *places, int most, int *pid) {
    int n = 0;
    FILE *f = fopen("places", "r");
    if (!f)
        return 0;
    if (fscanf(f, "%d", pid) != 1)
        *pid = 0;
    while (n < most && fscanf(f, "%15s %llx %llu", places[n].name, &places[n].at, &places[n].bytes) == 3)
        n += places[n].bytes > 0;
    fclose(f);
    return n;
}

static int is_stopped(int pid) {
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    int got = f && fscanf(f, "%*d %*s %c", &state) == 1;
    if (f)
        fclose(f);
    return got && state == 'T';
}

static uint64_t draw(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

static int flip_bit(int fd, const place *p, uint64_t *seed) {
    unsigned char byte;
    off_t at = (off_t)(p->at + draw(seed) % p->bytes);
    int ok = pread(fd, &byte, 1, at) == 1;
    byte ^= (unsigned char)(1u << draw(seed) % 8);
    return ok && pwrite(fd, &byte, 1, at) == 1;
}

/* What one loses the other gets, at the same place: a sum over both stays what it is. */
static int shift(int fd, const place *p, const place *q) {
    uint32_t a, b;
    int ok = pread(fd, &a, 4, (off_t)p->at) == 4 && pread(fd, &b, 4, (off_t)q->at) == 4;
    a += 0x1000;
    b -= 0x1000;
    return ok && pwrite(fd, &a, 4, (off_t)p->at) == 4 && pwrite(fd, &b, 4, (off_t)q->at) == 4;
}

/* Buffers have equal chances, whatever their size. */
static int change(uint64_t seed) {
    static place places[MOST];
    char path[64];
    int pid = 0, n = read_places(places, MOST, &pid), two = getenv("FLIPS_TWO") != NULL;
    for (int i = 0; i < 8; i++)
        (void)draw(&seed);
    const place *p = n ? &places[draw(&seed) % (uint64_t)n] : NULL;
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    int fd = p ? open(path, O_RDWR) : -1;
    int ok = fd >= 0 && (!two ? flip_bit(fd, p, &seed) : n > 1 && shift(fd, &places[n - 2], &places[n - 1]));
    if (fd >= 0)
        close(fd);
    if (ok)
        fprintf(stderr, "flipped: %s\n", two ? places[n - 1].name : p->name);
    return ok ? pid : 0;
}

static void kill_rank(int rank) {
    char name[32];
    int pid = 0;
    snprintf(name, sizeof name, "pid.%d", rank);
    FILE *f = fopen(name, "r");
    if (f && fscanf(f, "%d", &pid) == 1 && pid > 0)
        kill(pid, SIGKILL);
    if (f)
        fclose(f);
}

static int drive(uint64_t seed, int victim, char **command) {
    int status = 0, pid = 0, flipped = 0;
    pid_t child = fork();
    if (child == 0) {
        execvp(command[0], command);
        _exit(127);
    }
    while (waitpid(child, &status, WNOHANG) == 0) {
        usleep(2000);
        (void)read_places(NULL, 0, &pid);
        if (flipped || !pid || !is_stopped(pid))
            continue;
        flipped = change(seed) ? 1 : -1;
        if (victim >= 0)
            kill_rank(victim);
        kill(pid, SIGCONT);
    }
    if (flipped < 0)
        return 77;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int argc, char **argv) {
    if (argc > 4 && strcmp(argv[1], "drive") == 0)
        return drive(strtoull(argv[2], NULL, 10), atoi(argv[3]), argv + 4);
    return be_rank();
}
