/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks are killed, and others take their places or go on without them: the bits are those of a run that nothing
 * happened to. This program is the launcher, and runs itself as the ranks. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/control/control.h"
#include "tests/support/toy.h"

enum { STEPS = 7, MIRROR = 2, DIES_AT = 4, MOST = 4, RESULTS_FD = 100 };

static struct { /* the program's own: where it is in the data. Nothing else tells it */
    uint64_t drawn;
    unsigned char odd[5];
} common;
enum { COMMON_BYTES = sizeof(uint64_t) + sizeof common.odd };

typedef struct {                          /* what rank 0 says at the end */
    uint64_t digest, trained, step, lost; /* trained: without the buffer, which has seen one rank's data */
    uint32_t recoveries, ranks;
    tess__kv_fits fits; /* what the launcher was told */
} results;

/* ---- as a rank ---- */

static int own_rank, may_die, large, dies_at = DIES_AT;

#define CHECK(x)                                                                                                       \
    do                                                                                                                 \
        if (!(x)) {                                                                                                    \
            fprintf(stderr, "rank %d, line %d: %s: %s\n", own_rank, __LINE__, #x, tess_last_error());                  \
            return 1;                                                                                                  \
        }                                                                                                              \
    while (0)

static tess_status train(tess *t, toy *m, uint64_t from) {
    const tess_optimizer_options step = { .struct_size = sizeof step, .lr = 0.01f };
    double loss;
    for (int64_t i = (int64_t)from; i < STEPS; i++) {
        int64_t w = tess_ranks(t), accum = tess_accum(t);
        tess_status s = TESS_OK;
        m->skip = i == 2 && !large ? 1 : 0; /* an order that deviates, so that one side has compiled anew */
        for (int64_t k = 0; !s && k < accum; k++)
            s = toy_pass(t, m, TESS_PASS_TRAIN, (int64_t)common.drawn + k * w + tess_rank(t), &loss);
        common.drawn += (uint64_t)(accum * w);
        common.odd[4] = (unsigned char)(7 * common.drawn);
        if (may_die && i == dies_at)
            raise(SIGKILL);
        if (!s)
            s = tess_step(t, &step);
        if (s)
            return s;
    }
    return TESS_OK;
}

static tess_status add_trained(void *user, const tess_range *r, void *data) {
    uint64_t *h = user;
    const unsigned char *bytes = data;
    for (uint64_t i = 0; i < 4 * r->elems && strcmp(r->name, "h.2.mean") != 0; i++)
        *h = (*h ^ bytes[i]) * 0x100000001b3u;
    return TESS_OK;
}

static int be_rank(const char *victims) {
    const tess_options o = { .struct_size = sizeof o,
                             .optimizer = "adamw",
                             .recover = 1,
                             .mirror = MIRROR,
                             .common = &common,
                             .common_bytes = COMMON_BYTES };
    tess_recovery got = { .struct_size = sizeof got };
    tess_stats stats = { .struct_size = sizeof stats };
    results r = { .trained = 1 };
    tess *t = NULL;
    toy m;
    own_rank = atoi(getenv("RANK"));
    large = *victims == 'L';
    dies_at = *victims == 'E' ? 0 : DIES_AT;
    may_die = strchr(victims, '0' + own_rank) && !getenv("TESSERA_GENERATION");
    CHECK(!tess_open(&o, &t) && !toy_declare(t, &m, large ? TOY_LARGE : 0) && !tess_shard(t, toy_fill, NULL));
    tess_status s = tess_recover(t, &got);
    CHECK(!s && !got.recovered == !getenv("TESSERA_GENERATION"));
    const uint64_t in_step = (uint64_t)(tess_accum(t) * tess_ranks(t));
    if (*victims == 'D') {
        common.odd[4] = (unsigned char)own_rank;
        CHECK(train(t, &m, 0) == TESS_E_MISMATCH &&
              strstr(tess_last_error(), "the 13 bytes of tess_options.common differ between rank 0 and rank 1"));
        CHECK(own_rank != 0 || write(RESULTS_FD, &r, sizeof r) == sizeof r);
        CHECK(tess_close(t) == TESS_E_MISMATCH);
        return 0;
    }
    while (!(s = train(t, &m, got.step)) ? 0 : s == TESS_E_LOST)
        CHECK(!tess_recover(t, &got) && got.recovered);
    CHECK(!s && !toy_digest(t, &r.digest) && !tess_stats_get(t, &stats));
    CHECK(!tess_each_full(t, TESS_OF_PARAM, add_trained, &r.trained));
    CHECK(common.drawn == STEPS * in_step && common.odd[4] == (unsigned char)(7 * common.drawn));
    r.recoveries = got.recoveries;
    r.step = got.step;
    r.lost = got.steps_lost;
    r.ranks = (uint32_t)tess_ranks(t);
    for (int d = 1; d < 3; d++)
        CHECK(stats.peak_bytes[d] == stats.planned_peak_bytes[d]);
    CHECK(tess_rank(t) != 0 || write(RESULTS_FD, &r, sizeof r) == sizeof r);
    CHECK(!tess_close(t));
    return 0;
}

/* ---- as the launcher ---- */

typedef struct {
    char path[64], victims[8];
    int32_t ranks;
    tess__kv_server *old, *server;
    pid_t pid[MOST];
    int32_t generation;
} run;

static void put_int(const char *name, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static void start_rank(run *x, int32_t rank, int results_fd) {
    fflush(NULL);
    if ((x->pid[rank] = fork()))
        return;
    dup2(results_fd, RESULTS_FD);
    setenv("TESSERA_KV", x->path, 1);
    setenv("TESSERA_DETERMINISTIC", "1", 1);
    setenv("TESSERA_LOG", "error", 1);
    put_int("WORLD_SIZE", x->ranks);
    put_int("LOCAL_WORLD_SIZE", x->ranks);
    put_int("RANK", rank);
    put_int("LOCAL_RANK", rank);
    put_int("TESSERA_RANKS_LEAST", 1);
    if (x->generation)
        put_int("TESSERA_GENERATION", x->generation);
    execl("/proc/self/exe", "test_recover", x->victims, (char *)NULL);
    _exit(127);
}

static void start_server(run *x, const int32_t *members, int32_t n) {
    char path[80];
    int32_t port = 0;
    const tess__kv_terms terms = { .launcher = 1, .members = members, .world = x->ranks };
    snprintf(path, sizeof path, x->generation ? "%s-g%d" : "%s", x->path, (int)x->generation);
    x->old = x->server;
    assert_int_equal(tess__kv_server_start(path, &port, n, &terms, &x->server), TESS_OK);
}

static int32_t rank_of(const run *x, pid_t pid) {
    for (int32_t r = 0; r < x->ranks; r++)
        if (x->pid[r] == pid)
            return r;
    return -1;
}

/* Ranks that are killed are replaced, or left out when `fewer`. VICTIMS: their digits; behind an L of the large toy,
 * behind an E in the first step. D: none, and their common bytes differ. */
static results run_ranks(int32_t ranks, const char *victims, int fewer, const char *strategy) {
    run x = { .ranks = ranks };
    results got = { .digest = 0 };
    int fd[2], status, dead = 0, left = ranks, going = (int)strlen(victims) - (*victims > '9');
    int32_t members[MOST], n = 0;
    snprintf(x.path, sizeof x.path, "/tmp/test_recover-%d.sock", (int)getpid());
    snprintf(x.victims, sizeof x.victims, "%s", *victims ? victims : "-");
    setenv("TESSERA_STRATEGY", strategy, 1);
    assert_int_equal(pipe2(fd, O_CLOEXEC), 0);
    start_server(&x, NULL, ranks);
    for (int32_t r = 0; r < ranks; r++)
        start_rank(&x, r, fd[1]);
    while (left > 0) {
        pid_t pid = wait(&status);
        int32_t r = rank_of(&x, pid);
        assert_in_range(r, 0, ranks - 1);
        x.pid[r] = 0;
        left--;
        if (!WIFSIGNALED(status)) {
            assert_int_equal(WEXITSTATUS(status), 0);
            tess__kv_server_rank_ended(x.server, r, 1, "ended");
            continue;
        }
        assert_true(tess__kv_server_ready(x.server) || x.generation);
        tess__kv_server_rank_ended(x.server, r, 0, "killed");
        if (++dead < going)
            continue;
        x.generation = 1;
        for (int32_t i = 0; i < ranks; i++)
            if (!fewer || x.pid[i])
                members[n++] = i;
        start_server(&x, fewer ? members : NULL, n);
        for (int32_t i = 0; !fewer && i < ranks; i++)
            if (!x.pid[i]) {
                start_rank(&x, i, fd[1]);
                left++;
            }
    }
    assert_int_equal(read(fd[0], &got, sizeof got), sizeof got);
    close(fd[0]);
    close(fd[1]);
    (void)tess__kv_server_fits(x.server, &got.fits); /* one rank alone has no images and says nothing */
    tess__kv_server_stop(x.server);
    tess__kv_server_stop(x.old);
    unsetenv("TESSERA_STRATEGY");
    return got;
}

static void expect_recovery(int32_t ranks, const char *victims, int32_t fewer, const char *strategy,
                            const results *whole) {
    results r = run_ranks(ranks, victims, fewer > 0, strategy);
    assert_int_equal(r.trained, whole->trained);
    if (!fewer)
        assert_int_equal(r.digest, whole->digest);
    assert_int_equal(r.recoveries, 1);
    assert_int_equal(r.ranks, fewer ? fewer : ranks);
    assert_int_equal(r.step, *victims == 'E' ? 0 : DIES_AT);
    assert_in_range(r.lost, 0, 1); /* who is left may have stepped before it hears of the death */
}

static void expect_fits(const results *r, int32_t stride, int32_t replicas, int32_t n, int32_t most) {
    assert_int_equal(r->fits.stride, stride);
    assert_int_equal(r->fits.replicas, replicas);
    assert_int_equal(r->fits.n, n);
    for (int32_t i = 0; i < n; i++)
        assert_int_equal(r->fits.fits[i], most >> i);
}

static void test_recover__another_process_takes_the_place_of_a_lost_rank(void **state) {
    (void)state;
    results two = run_ranks(2, "", 0, "full"), three = run_ranks(3, "", 0, "full");
    assert_int_equal(two.recoveries + three.recoveries, 0);
    expect_fits(&two, 1, 0, 1, 1);
    expect_fits(&three, 1, 0, 1, 1); /* 2 do not divide 3 microbatches */
    expect_recovery(2, "0", 0, "full", &two);
    expect_recovery(2, "E0", 0, "full", &two); /* from the images of step 0 */
    expect_recovery(3, "1", 0, "full", &three);
    expect_recovery(3, "2", 0, "none", &three);
    expect_recovery(3, "12", 0, "none", &three); /* one that is left gives to both */
}

static void test_recover__the_others_go_on_with_the_same_microbatches(void **state) {
    (void)state;
    results two = run_ranks(2, "", 0, "full"), four = run_ranks(4, "", 0, "full");
    expect_fits(&four, 2, 0, 2, 2); /* 2 and 1 */
    expect_recovery(2, "0", 1, "full", &two);
    expect_recovery(2, "E1", 1, "full", &two); /* from the images of step 0 */
    expect_recovery(4, "23", 2, "full", &four);
    expect_recovery(4, "03", 2, "none", &four);
}

/* An image of several pieces, the last of them short. */
static void test_recover__a_large_image_comes_back_whole(void **state) {
    (void)state;
    results whole = run_ranks(2, "L", 0, "full");
    expect_recovery(2, "L1", 0, "full", &whole);
}

static void test_recover__bytes_that_are_not_common_are_told_with_the_first_images(void **state) {
    (void)state;
    (void)run_ranks(2, "D", 0, "full");
    (void)run_ranks(2, "D", 0, "none");
}

int main(int argc, char **argv) {
    if (argc > 1)
        return be_rank(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recover__another_process_takes_the_place_of_a_lost_rank),
        cmocka_unit_test(test_recover__a_large_image_comes_back_whole),
        cmocka_unit_test(test_recover__the_others_go_on_with_the_same_microbatches),
        cmocka_unit_test(test_recover__bytes_that_are_not_common_are_told_with_the_first_images),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
