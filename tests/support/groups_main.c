/* SPDX-License-Identifier: BSD-3-Clause */
/* Groups of ranks, in one mode each:
 *   values        every collective of groups that overlap, on all dtypes that count; ranks that are in none
 *   kill RANK     engines over dp and groups over tp (TESSERA_MESH) train the toy; the rank kills itself in step 3, or,
 *                 with -1, none does, and its digest is printed
 *   recover       the same, and the program would recover
 *   crossed       ranks 0 and 1 come to two groups in different orders
 *   circle        ranks 0, 1 and 2 come to three groups of two in a circle
 *   half          rank 0 closes a group while rank 1 waits in another
 *   opened        rank 1 opens two groups in another order
 *   engines       an engine over dp and a group over tp, called in different orders
 *   sizes         a group that must have three ranks and has two
 * Each rank prints "ok", or its error to standard error. */
#include "toy.h"
#include "toy_device.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;
static tess_group *opened_groups[8]; /* that exit leaves open, for who looks for leaks */

static void ok(tess_status s) {
    if (s >= 0)
        return;
    fprintf(stderr, "groups: %s\n", tess_last_error());
    exit(tess_exit_code(s));
}

static void equal(double got, double expected, const char *what) {
    if (got == expected)
        return;
    fprintf(stderr, "groups: rank %d: %s is %g, expected %g\n", rank, what, got, expected);
    exit(1);
}

static tess_group *group_of(const char *name, int32_t color, int32_t key, int32_t size) {
    tess_group *g;
    tess_group_options o = { .struct_size = sizeof o, .color = color, .key = key, .ranks = size, .name = name };
    static int n;
    ok(tess_group_open(&(tess_options){ .struct_size = sizeof(tess_options), .group = &o }, &g));
    return opened_groups[n++ % 8] = g;
}

static void sum(tess_group *g) {
    double one = 1;
    ok(tess_group_all_reduce(g, &one, 1, TESS_F64, TESS_SUM));
    equal(one, tess_group_ranks(g), "the sum of ones");
}

/* ---- values ---- */

enum { MOST = 8, N = 3 };

/* `of`: the ranks of the group, in its order. */
static void check_values(tess_group *g, const int *of, int n) {
    int self = tess_group_rank(g);
    float mine[N], all[MOST * N], sent[MOST * N];
    int32_t most = rank, least = rank;
    equal(tess_group_ranks(g), n, "the size of a group");
    equal(of[self], rank, "the rank by its number in the group");
    for (int i = 0; i < N; i++)
        mine[i] = (float)(10 * rank + i);
    ok(tess_group_all_gather(g, mine, all, N, TESS_F32));
    for (int k = 0; k < n * N; k++)
        equal((double)all[k], 10 * of[k / N] + k % N, "what was gathered");
    for (int k = 0; k < n * N; k++)
        sent[k] = (float)(100 * rank + k);
    ok(tess_group_exchange(g, sent, all, N, TESS_F32));
    for (int k = 0; k < n * N; k++)
        equal((double)all[k], 100 * of[k / N] + self * N + k % N, "what was exchanged");
    ok(tess_group_broadcast(g, mine, N, TESS_F32, n - 1));
    equal((double)mine[1], 10 * of[n - 1] + 1, "what the last one sent");
    float average = (float)rank;
    double total = 0;
    for (int k = 0; k < n; k++)
        total += of[k];
    ok(tess_group_all_reduce(g, &average, 1, TESS_F32, TESS_AVG));
    equal((double)average, (double)((float)total * (float)(1.0 / n)), "the average");
    ok(tess_group_all_reduce(g, &most, 1, TESS_I32, TESS_MAX));
    ok(tess_group_all_reduce(g, &least, 1, TESS_I32, TESS_MIN));
    for (int k = 0; k < n; k++) {
        equal(most >= of[k], 1, "the largest is the largest");
        equal(least <= of[k], 1, "the least is the least");
    }
}

/* Colors are rank % 2, and keys turn the order round; then all but rank 0; then pairs of neighbours; then all. */
static void values(void) {
    int odd[MOST], rest[MOST], pair[MOST], all[MOST], n_odd = 0;
    for (int r = ranks - 1; r >= 0; r--)
        if (r % 2 == rank % 2)
            odd[n_odd++] = r;
    for (int r = 0; r < ranks; r++) {
        rest[r] = r + 1;
        all[r] = r;
    }
    for (int r = 0; r < 2; r++)
        pair[r] = rank / 2 * 2 + r;
    int n_pair = pair[1] < ranks ? 2 : 1;
    tess_group *a = group_of("odd", rank % 2, -rank, 0), *b = group_of("rest", rank ? 7 : -1, 0, 0);
    tess_group *c = group_of(NULL, rank / 2, 0, n_pair), *d;
    ok(tess_group_open(NULL, &d));
    equal(b == NULL, rank == 0, "rank 0 has no engine");
    for (int turn = 0; turn < 3; turn++) {
        check_values(a, odd, n_odd);
        if (b)
            check_values(b, rest, ranks - 1);
        check_values(c, pair, n_pair);
        check_values(d, all, ranks);
    }
    ok(tess_group_close(a));
    tess_group *again = group_of("again", rank / 2, 0, 0);
    check_values(again, pair, n_pair);
    ok(tess_group_close(b));
    ok(tess_group_close(c));
    ok(tess_group_close(d));
    ok(tess_group_close(again));
}

/* ---- a lost rank ---- */

/* In memory of the device's kind. */
static void sum_at(tess_group *g, void *at) {
    double one = 1;
    toy_write(at, &one, sizeof one);
    ok(tess_group_all_reduce(g, at, 1, TESS_F64, TESS_SUM));
    toy_read(&one, at, sizeof one);
    equal(one, tess_group_ranks(g), "the sum of ones");
}

static void equal_to_plan(const tess *t) {
    tess_stats stats = { .struct_size = sizeof stats };
    ok(tess_stats_get(t, &stats));
    for (int d = 1; d < 3; d++)
        equal((double)stats.peak_bytes[d], (double)stats.planned_peak_bytes[d], "the peak beside the plan");
}

static void train(int victim, uint32_t recover) {
    toy m;
    static tess *t;
    void *at;
    double loss;
    uint64_t digest;
    tess_group_options dp = { .struct_size = sizeof dp };
    tess_optimizer_options step = { .struct_size = sizeof step, .lr = 0.01f };
    tess_options o = { .struct_size = sizeof o, .group = &dp, .input_bytes = TOY_INPUT_BYTES, .recover = recover };
    if (toy_device_open(&o))
        exit(3);
    ok(tess_mesh_group("dp", &dp));
    ok(tess_open(&o, &t));
    static tess_group *tp;
    tess_group_options of_tp = { .struct_size = sizeof of_tp };
    ok(tess_mesh_group("tp", &of_tp));
    tess_options p = { .struct_size = sizeof p, .group = &of_tp, .pointer_mem = o.pointer_mem, .stream = o.stream };
    ok(tess_group_open(&p, &tp));
    ok(toy_declare(t, &m, 0));
    ok(tess_alloc(t, "one", sizeof(double), &at));
    ok(tess_shard(t, toy_fill, NULL));
    m.skip = 0;
    for (int64_t i = 0; i < (victim < 0 ? 5 : 1000); i++) {
        if (rank == victim && i == 3)
            raise(SIGKILL);
        ok(toy_pass(t, &m, TESS_PASS_TRAIN, i * tess_ranks(t) + tess_rank(t), &loss));
        ok(tess_step(t, &step));
        sum_at(tp, at);
    }
    ok(toy_digest(t, &digest));
    equal_to_plan(t);
    printf("%016llx\n", (unsigned long long)digest);
    ok(tess_group_close(tp));
    ok(tess_close(t));
    toy_device_close();
}

/* ---- orders ---- */

static void crossed(void) {
    tess_group *a = group_of("left", 0, 0, 0), *b = group_of("right", rank < 2 ? 0 : 1, 0, 0);
    sum(a);
    sum(b);
    sum(rank == 0 ? a : b);
    sum(rank == 0 ? b : a);
}

static void circle(void) {
    tess_group *g[3];
    static const char *const names[] = { "zero-one", "one-two", "two-zero" };
    for (int i = 0; i < 3; i++)
        g[i] = group_of(names[i], rank == i || rank == (i + 1) % 3 ? 0 : -1, 0, 0);
    sum(g[rank]);
    sum(g[(rank + 2) % 3]);
}

static void half(void) {
    tess_group *a = group_of("left", 0, 0, 0), *b = group_of("right", 0, 0, 0);
    if (rank == 0)
        ok(tess_group_close(a));
    sum(b);
    if (rank)
        ok(tess_group_close(a));
}

static void opened(void) {
    group_of(rank ? "right" : "left", 0, 0, 0);
    group_of(rank ? "left" : "right", 0, 0, 0);
}

static void engines(void) {
    toy m;
    static tess *t;
    tess_group_options dp = { .struct_size = sizeof dp };
    ok(tess_mesh_group("dp", &dp));
    tess_options o = { .struct_size = sizeof o, .group = &dp, .input_bytes = TOY_INPUT_BYTES };
    ok(tess_open(&o, &t));
    tess_group *all = group_of("all", 0, 0, 0);
    ok(toy_declare(t, &m, 0));
    ok(tess_shard(t, toy_fill, NULL));
    if (rank == 3)
        sum(all);
    ok(tess_barrier(t));
    sum(all);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "", *of = getenv("RANK"), *n = getenv("WORLD_SIZE");
    rank = of ? atoi(of) : 0;
    ranks = n ? atoi(n) : 1;
    if (strcmp(mode, "values") == 0)
        values();
    else if (strcmp(mode, "kill") == 0)
        train(argc > 2 ? atoi(argv[2]) : -1, 0);
    else if (strcmp(mode, "recover") == 0)
        train(-1, 1);
    else if (strcmp(mode, "crossed") == 0)
        crossed();
    else if (strcmp(mode, "circle") == 0)
        circle();
    else if (strcmp(mode, "half") == 0)
        half();
    else if (strcmp(mode, "opened") == 0)
        opened();
    else if (strcmp(mode, "engines") == 0)
        engines();
    else if (strcmp(mode, "sizes") == 0)
        group_of("three", 0, 0, 3);
    else
        return 2;
    puts("ok");
    return 0;
}
