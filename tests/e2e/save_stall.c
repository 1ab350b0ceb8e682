/* SPDX-License-Identifier: BSD-3-Clause */
/* save_stall DIR MIB ROUNDS: how long an asynchronous save holds training up, against one copy of the same parameters
 * and optimizer states into memory that was touched before, in turns. Prints a line per round and the medians: of time,
 * and of this thread's processor time, which others on the machine hardly change. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#include <tessera/tessera.h>

enum { PARAMS = 24, MOST_ROUNDS = 101 };

typedef struct {
    char *at;
    uint64_t used;
} copying;

static void ok(tess_status status) {
    if (status == TESS_OK)
        return;
    fprintf(stderr, "save_stall: %s\n", tess_last_error());
    exit(tess_exit_code(status));
}

static double clock_of(clockid_t id) {
    struct timespec ts;
    clock_gettime(id, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

typedef struct {
    double wall, cpu;
} moment;

static moment now(void) {
    return (moment){ clock_of(CLOCK_MONOTONIC), clock_of(CLOCK_THREAD_CPUTIME_ID) };
}

static moment since(moment began) {
    moment n = now();
    return (moment){ n.wall - began.wall, n.cpu - began.cpu };
}

static long faults(void) {
    struct rusage u;
    getrusage(RUSAGE_THREAD, &u);
    return u.ru_minflt;
}

static tess *open_engine(uint64_t bytes) {
    const int64_t shape[] = { (int64_t)(bytes / 12 / PARAMS) }; /* a parameter and its two states */
    tess_options o = { .struct_size = sizeof o, .optimizer = "adamw", .checkpoint = 1 };
    tess_param_options p = { .struct_size = sizeof p, .dtype = TESS_F32, .ndim = 1, .shape = shape };
    tess *t = NULL;
    ok(tess_open(&o, &t));
    for (int i = 0; i < PARAMS; i++) {
        char scope[16], name[32];
        tess_scope s;
        snprintf(scope, sizeof scope, "h.%d", i);
        snprintf(name, sizeof name, "h.%d.weight", i);
        p.name = name;
        ok(tess_scope_add(t, scope, 0, &s));
        ok(tess_param_add(t, &p, NULL));
    }
    ok(tess_shard(t, NULL, NULL));
    return t;
}

static tess_status write_range(void *user, const tess_range *r, void *data) {
    (void)user;
    memset(data, 1, r->elems * 4);
    return TESS_OK;
}

static tess_status copy_range(void *user, const tess_range *r, void *data) {
    copying *c = user;
    memcpy(c->at + c->used, data, r->elems * 4);
    c->used += r->elems * 4;
    return TESS_OK;
}

static uint64_t each(tess *t, uint32_t flags, tess_range_fn fn, char *room) {
    static const uint32_t of[] = { TESS_OF_PARAM, TESS_OF_MOMENT1, TESS_OF_MOMENT2 };
    copying c = { .at = room };
    for (int i = 0; i < 3; i++)
        ok(tess_each_owned(t, of[i] | flags, fn, &c));
    return c.used;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, ascending);
    return x[n / 2];
}

/* Large pages, as the engine's arenas have them. */
static char *touched(uint64_t bytes) {
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        exit(4);
    madvise(at, bytes, MADV_HUGEPAGE);
    memset(at, 1, bytes);
    return at;
}

typedef struct {
    double stall[MOST_ROUNDS], copy[MOST_ROUNDS], ratio[MOST_ROUNDS], cpu_ratio[MOST_ROUNDS];
} results;

/* A step writes all before a save does: the caches are then as they are in a run. */
static uint64_t measure(tess *t, const tess_checkpoint_options *to, char *room, results *r, int i) {
    tess_checkpoint_info info = { .struct_size = sizeof info };
    each(t, TESS_OF_WRITE, write_range, NULL);
    moment began = now();
    uint64_t bytes = each(t, 0, copy_range, room);
    moment copy = since(began);
    each(t, TESS_OF_WRITE, write_range, NULL);
    long before = faults();
    began = now();
    ok(tess_checkpoint_save(t, to));
    moment stall = since(began);
    long new_pages = faults() - before;
    ok(tess_checkpoint_wait(t, &info));
    r->copy[i] = copy.wall, r->stall[i] = stall.wall;
    r->ratio[i] = stall.wall / copy.wall, r->cpu_ratio[i] = stall.cpu / copy.cpu;
    printf("copy %.4f s (%.4f of the processor), stall %.4f s (%.4f), %ld page faults, written in %.3f s\n", copy.wall,
           copy.cpu, stall.wall, stall.cpu, new_pages, info.write_seconds);
    return bytes;
}

int main(int argc, char **argv) {
    static results r;
    if (argc != 4)
        return 2;
    uint64_t bytes = strtoull(argv[2], NULL, 10) << 20;
    int rounds = atoi(argv[3]) < MOST_ROUNDS ? atoi(argv[3]) : MOST_ROUNDS;
    tess_checkpoint_options to = { .struct_size = sizeof to, .dir = argv[1], .keep = 1 };
    tess *t = open_engine(bytes);
    char *room = touched(bytes);
    for (int i = 0; i < rounds; i++)
        bytes = measure(t, &to, room, &r, i);
    printf("%llu bytes, %d rounds: copy %.4f s, stall %.4f s, ratio %.2f, of processor time %.2f\n",
           (unsigned long long)bytes, rounds, median(r.copy, rounds), median(r.stall, rounds), median(r.ratio, rounds),
           median(r.cpu_ratio, rounds));
    ok(tess_close(t));
    return 0;
}
