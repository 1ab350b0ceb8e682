/* SPDX-License-Identifier: BSD-3-Clause */
/* A connection that outlives its engine: ranks park it with a goodbye, and take part again. Ranks are threads. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/control/control.h"
#include "core/control/wire.h"

enum { RANKS = 3, ROUNDS = 4 };
static const char secret[] = "swordfish, twice: swordfish";

typedef struct {
    tess__world world;
    tess__control *control;
    int32_t failed; /* the line of the first check that failed in the thread; 0: none */
    char message[512];
} seat;

static void check(seat *s, int good, int32_t line) {
    if (good || s->failed)
        return;
    s->failed = line;
    snprintf(s->message, sizeof s->message, "%s", tess_last_error());
}
#define CHECK(s, condition) check(s, condition, __LINE__)

static tess__kv_server *server_start(int32_t *port) {
    const tess__kv_terms terms = { .secret = secret, .launcher = 1 };
    tess__kv_server *server = NULL;
    *port = 0;
    assert_int_equal(tess__kv_server_start("127.0.0.1", port, RANKS, &terms, &server), TESS_OK);
    return server;
}

static void on_each(seat *seats, int32_t n, void *(*body)(void *)) {
    pthread_t threads[RANKS];
    for (int32_t r = 0; r < n; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, body, &seats[r]), 0);
    for (int32_t r = 0; r < n; r++)
        pthread_join(threads[r], NULL);
    for (int32_t r = 0; r < n; r++)
        if (seats[r].failed)
            fail_msg("rank %d: line %d: %s", r, seats[r].failed, seats[r].message);
}

static void *open_one(void *user) {
    seat *s = user;
    CHECK(s, tess__control_open(&s->world, &s->control) == TESS_OK);
    return NULL;
}

static void open_all(seat *seats, int32_t port) {
    for (int32_t r = 0; r < RANKS; r++) {
        seats[r] = (seat){ .world = { .rank = r, .nranks = RANKS, .port = port, .launched = 1 } };
        snprintf(seats[r].world.address, sizeof seats[r].world.address, "127.0.0.1");
        snprintf(seats[r].world.secret, sizeof seats[r].world.secret, "%s", secret);
    }
    on_each(seats, RANKS, open_one);
}

static void *close_one(void *user) {
    tess__control_close(((seat *)user)->control, 1);
    return NULL;
}

static void exchange(seat *s, const char *place, int round) {
    char key[32];
    int32_t mine = 10 * round + s->world.rank, all[RANKS] = { 0 };
    snprintf(key, sizeof key, "%s/%d", place, round);
    CHECK(s, tess__control_exchange(s->control, key, &mine, sizeof mine, all) == TESS_OK);
    for (int32_t r = 0; r < RANKS; r++)
        CHECK(s, all[r] == 10 * round + r);
}

/* The higher a rank, the later it comes back: the others wait for it in the exchange. */
static void *park_and_return(void *user) {
    seat *s = user;
    for (int round = 0; round < ROUNDS && !s->failed; round++) {
        exchange(s, "open", round);
        exchange(s, "work", round);
        CHECK(s, tess__control_park(s->control) == TESS_OK);
        usleep(20000 * (unsigned)s->world.rank);
        CHECK(s, tess__control_return(s->control) == TESS_OK);
    }
    exchange(s, "open", ROUNDS);
    CHECK(s, !tess__control_aborting(s->control));
    CHECK(s, tess__control_cause(s->control, NULL) == TESS_OK);
    return NULL;
}

static void test_control_park__ranks_come_back_again_and_again(void **state) {
    (void)state;
    seat seats[RANKS];
    int32_t port;
    tess__kv_server *server = server_start(&port);
    open_all(seats, port);
    on_each(seats, RANKS, park_and_return);
    on_each(seats, RANKS, close_one);
    tess__kv_server_stop(server);
}

static void *park(void *user) {
    seat *s = user;
    exchange(s, "open", 0);
    CHECK(s, tess__control_park(s->control) == TESS_OK);
    return NULL;
}

/* A goodbye is no failure, so that a process may end with a parked connection. */
static void test_control_park__end_of_a_parked_rank_is_no_failure(void **state) {
    (void)state;
    seat seats[RANKS];
    int32_t port;
    tess__kv_server *server = server_start(&port);
    open_all(seats, port);
    on_each(seats, RANKS, park);
    tess__control_close(seats[2].control, 0);
    usleep(300000);
    for (int32_t r = 0; r < 2; r++) {
        assert_int_equal(tess__control_cause(seats[r].control, NULL), TESS_OK);
        assert_false(tess__control_aborting(seats[r].control));
    }
    on_each(seats, 2, close_one);
    tess__kv_server_stop(server);
}

static void test_control_park__return_fails_when_the_server_has_gone(void **state) {
    (void)state;
    seat seats[RANKS];
    int32_t port;
    tess__kv_server *server = server_start(&port);
    open_all(seats, port);
    on_each(seats, RANKS, park);
    tess__kv_server_stop(server);
    usleep(300000);
    assert_int_equal(tess__control_return(seats[1].control), TESS_E_PEER);
    on_each(seats, RANKS, close_one);
}

static void test_control_park__one_rank_has_nothing_to_park(void **state) {
    (void)state;
    tess__world alone = { .nranks = 1 };
    tess__control *control = NULL;
    assert_int_equal(tess__control_open(&alone, &control), TESS_OK);
    assert_int_equal(tess__control_park(control), TESS_E_UNSUPPORTED);
    tess__control_close(control, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_control_park__ranks_come_back_again_and_again),
        cmocka_unit_test(test_control_park__end_of_a_parked_rank_is_no_failure),
        cmocka_unit_test(test_control_park__return_fails_when_the_server_has_gone),
        cmocka_unit_test(test_control_park__one_rank_has_nothing_to_park),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
