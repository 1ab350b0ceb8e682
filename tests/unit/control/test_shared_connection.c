/* SPDX-License-Identifier: BSD-3-Clause */
/* Engines of one process on one connection: who opens it, who comes back on it, and when it is another. */
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "core/control/control_share.h"
#include "kv_fixture.h"

static tess__world world_at(const char *address) {
    tess__world w = { .rank = 0, .nranks = 1, .first_nranks = 1, .launched = 1 };
    snprintf(w.address, sizeof w.address, "%s", address);
    return w;
}

typedef struct {
    int calls; /* atomic, written last: it tells that the rest is there */
    int32_t rank;
    char why[128];
} told;

static void on_lost(void *user, int32_t rank, const char *why) {
    told *x = user;
    x->rank = rank;
    snprintf(x->why, sizeof x->why, "%s", why);
    __atomic_add_fetch(&x->calls, 1, __ATOMIC_ACQ_REL);
}

static int calls_of(const told *x) {
    return __atomic_load_n(&x->calls, __ATOMIC_ACQUIRE);
}

static void count_seat(void *ctx, uint32_t engine, void *user) {
    uint64_t *seen = ctx;
    *seen = *seen * 10 + engine;
    assert_non_null(user);
}

static uint64_t seats(void) { /* the numbers of the engines, the last one first */
    uint64_t seen = 0;
    tess__control_each_seat(count_seat, &seen);
    return seen;
}

static int32_t connected_within(tess__kv_server *server, int32_t n) {
    for (int i = 0; i < 2000 && tess__kv_server_connected(server) != n; i++)
        usleep(1000);
    return tess__kv_server_connected(server);
}

static void test_shared_connection__engines_share_a_connection_and_come_back_on_it(void **state) {
    (void)state;
    tess__kv_server *server = start_here(1);
    tess__world w = world_at(place());
    tess__control_seat one = { .engine = 0 }, two = { .engine = 0 }, three = { .engine = 0 };
    told news = { 0, 0, "" };
    assert_int_equal(tess__control_join(&w, on_lost, &news, &one), TESS_OK);
    assert_int_equal(tess__control_join(&w, on_lost, &news, &two), TESS_OK);
    assert_int_equal(one.engine, 1);
    assert_int_equal(two.engine, 2);
    assert_ptr_equal(one.control, two.control);
    assert_int_equal(seats(), 21);
    assert_int_equal(tess__control_set(one.control, "k", "v", 1), TESS_OK);
    tess__control_leave(&one, 1);
    assert_int_equal(seats(), 2);
    assert_null(one.control);
    tess__control_leave(&one, 1); /* not joined is fine */
    assert_int_equal(connected_within(server, 1), 1);
    tess__control *before = two.control;
    tess__control_leave(&two, 1); /* the last one parks it */
    assert_int_equal(seats(), 0);
    assert_int_equal(connected_within(server, 0), 0);
    assert_int_equal(tess__kv_server_culprit(server), -1);
    assert_int_equal(tess__control_join(&w, on_lost, &news, &three), TESS_OK);
    assert_ptr_equal(three.control, before);
    assert_int_equal(three.engine, 3);
    assert_int_equal(connected_within(server, 1), 1);
    char got[4];
    uint64_t bytes = sizeof got;
    assert_int_equal(tess__control_get(three.control, "k", got, &bytes, 5 * SECOND_NS), TESS_OK);
    assert_int_equal(calls_of(&news), 0);
    tess__control_leave(&three, 0); /* without order the server hears of it */
    for (int i = 0; i < 2000 && tess__kv_server_culprit(server) < 0; i++)
        usleep(1000);
    assert_int_equal(tess__kv_server_culprit(server), 0);
    tess__kv_server_stop(server);
}

/* Between two engines the ranks may have been told to meet elsewhere. */
static void test_shared_connection__another_world_is_another_connection(void **state) {
    (void)state;
    char other[80];
    int32_t port = 0;
    tess__kv_server *here = start_here(1), *there = NULL;
    snprintf(other, sizeof other, "%s-there", place());
    assert_int_equal(tess__kv_server_start(other, &port, 1, &no_terms, &there), TESS_OK);
    tess__world w = world_at(place()), x = world_at(other);
    tess__control_seat seat = { .engine = 0 };
    told news = { 0, 0, "" };
    assert_int_equal(tess__control_join(&w, on_lost, &news, &seat), TESS_OK);
    assert_int_equal(connected_within(here, 1), 1);
    tess__control_leave(&seat, 1);
    tess__world same = w; /* but for one word: the same server has seen this rank already */
    same.port++;
    assert_int_equal(tess__control_join(&same, on_lost, &news, &seat), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "rank 0 has joined already"));
    assert_int_equal(tess__control_join(&x, on_lost, &news, &seat), TESS_OK);
    assert_int_equal(connected_within(there, 1), 1);
    assert_int_equal(connected_within(here, 0), 0);
    assert_int_equal(tess__kv_server_culprit(here), -1);
    tess__control_leave(&seat, 1);
    tess__kv_server_stop(there); /* and when the server has gone, the same place may have another */
    usleep(200000);
    assert_int_equal(tess__kv_server_start(other, &port, 1, &no_terms, &there), TESS_OK);
    tess_status s = tess__control_join(&x, on_lost, &news, &seat);
    for (int i = 0; s && i < 50; i++) { /* until the end of the old one has been seen */
        usleep(10000);
        s = tess__control_join(&x, on_lost, &news, &seat);
    }
    assert_int_equal(s, TESS_OK);
    assert_int_equal(connected_within(there, 1), 1);
    tess__control_leave(&seat, 0);
    tess__kv_server_stop(there);
    tess__kv_server_stop(here);
}

static void test_shared_connection__every_engine_hears_of_a_loss(void **state) {
    (void)state;
    tess__kv_server *server = start_here(1);
    tess__world w = world_at(place());
    tess__control_seat one = { .engine = 0 }, two = { .engine = 0 };
    told first = { 0, 0, "" }, second = { 0, 0, "" };
    assert_int_equal(tess__control_join(&w, on_lost, &first, &one), TESS_OK);
    assert_int_equal(tess__control_join(&w, on_lost, &second, &two), TESS_OK);
    tess__world next = w;
    next.generation = 1; /* while an engine holds the old ranks there is no other world */
    tess__control_seat three = { .engine = 0 };
    assert_int_equal(tess__control_join(&next, on_lost, &first, &three), TESS_E_UNSUPPORTED);
    assert_string_equal(tess_last_error(), "another engine of this process still holds the ranks of before");
    tess__kv_server_stop(server);
    for (int i = 0; i < 5000 && !tess__control_aborting(one.control); i++)
        usleep(1000);
    for (int i = 0; i < 5000 && (!calls_of(&first) || !calls_of(&second)); i++)
        usleep(1000);
    assert_int_equal(calls_of(&first), 1);
    assert_int_equal(calls_of(&second), 1);
    assert_int_equal(first.rank, -1);
    assert_string_equal(second.why,
                        "the launcher (tessera run) was lost: its connection closed without goodbye (killed?)");
    tess__control_leave(&two, 0);
    tess__control_leave(&one, 0);
    assert_int_equal(seats(), 0);
    server = start_here(1); /* in another world it is the first engine again */
    snprintf(next.address, sizeof next.address, "%s", place());
    assert_int_equal(tess__control_join(&next, on_lost, &first, &three), TESS_OK);
    assert_int_equal(three.engine, 1);
    tess__control_leave(&three, 0);
    tess__kv_server_stop(server);
}

/* `length`: of the text about what the rank does. */
static void report_says(size_t length) {
    tess__kv_server *server = start_here(1);
    tess__world w = world_at(place());
    tess__control *control = NULL;
    char text[512], doing[300];
    assert_int_equal(tess__control_open(&w, &control), TESS_OK);
    assert_int_equal(tess__control_was_lost(control), 0);
    tess__control_cause_text(control, text, sizeof text);
    assert_string_equal(text, "");
    memset(doing, 'd', length);
    doing[length] = 0;
    tess__control_doing(control, "forward of unit h.3");
    tess__control_doing(control, NULL);
    tess__control_doing(control, doing); /* too soon for the thread to have seen it */
    tess__control_report(control, TESS_E_NOMEM, -1, "needs 2 bytes, has 1");
    tess__control_cause_text(control, text, sizeof text);
    doing[159] = 0;
    char expected[512];
    snprintf(expected, sizeof expected, "rank 0 failed in %s: needs 2 bytes, has 1", doing);
    assert_string_equal(text, expected);
    assert_int_equal(tess__control_was_lost(control), 0);
    assert_int_equal(tess__control_cause(control, NULL), TESS_E_PEER);
    assert_int_equal(tess__control_set(control, "k", "v", 1), TESS_E_ABORTED);
    assert_string_equal(tess_last_error(), expected);
    tess__control_close(control, 0);
    tess__kv_server_stop(server);
}

static void test_shared_connection__a_report_says_what_the_rank_did_at_that_moment(void **state) {
    (void)state;
    static const size_t lengths[] = { 299, 16, 8, 21, 1 };
    for (int i = 0; i < 5; i++)
        report_says(lengths[i]);
}

static void test_shared_connection__an_exchange_is_among_so_many_ranks_at_most(void **state) {
    (void)state;
    static const int32_t members[TESS__KV_MEMBERS_MAX + 1], counts[] = { 0, -1, TESS__KV_MEMBERS_MAX + 1 };
    tess__kv_server *server = start_here(1);
    tess__world w = world_at(place());
    tess__control *control = NULL;
    char says[80], out = 0;
    assert_int_equal(tess__control_open(&w, &control), TESS_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tess__control_exchange_among(control, members, counts[i], "k", "x", 1, &out), TESS_E_INVALID);
        snprintf(says, sizeof says, "exchange 'k': %d ranks, expected 1 to 4096", (int)counts[i]);
        assert_string_equal(tess_last_error(), says);
    }
    assert_int_equal(tess__control_exchange_among(control, members, 1, "k", "x", 1, &out), TESS_OK);
    assert_int_equal(out, 'x');
    tess__control_close(control, 1);
    tess__kv_server_stop(server);
}

/* The launcher has its ranks end with it; one that uses this library hears of the end, and says so itself. */
static void test_shared_connection__a_launched_rank_outlives_its_launcher(void **state) {
    (void)state;
    static const int before[] = { SIGTERM, SIGUSR1, 0 }, after[] = { 0, SIGUSR1, 0 };
    tess__kv_server *server = start_here(1);
    tess__world w = world_at(place()), alone = { .nranks = 1, .first_nranks = 1 };
    for (int i = 0; i < 3; i++) {
        tess__control *control = NULL;
        int signal = -1;
        assert_int_equal(prctl(PR_SET_PDEATHSIG, before[i]), 0);
        assert_int_equal(tess__control_open(&alone, &control), TESS_OK);
        tess__control_close(control, 1);
        assert_int_equal(prctl(PR_GET_PDEATHSIG, &signal), 0);
        assert_int_equal(signal, before[i]);
        tess_status s = tess__control_open(&w, &control);
        assert_int_equal(s, TESS_OK);
        tess__control_close(control, 1);
        assert_int_equal(prctl(PR_GET_PDEATHSIG, &signal), 0);
        assert_int_equal(signal, after[i]);
        tess__kv_server_stop(server);
        server = start_here(1);
    }
    prctl(PR_SET_PDEATHSIG, 0);
    tess__kv_server_stop(server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_connection__engines_share_a_connection_and_come_back_on_it),
        cmocka_unit_test(test_shared_connection__another_world_is_another_connection),
        cmocka_unit_test(test_shared_connection__an_exchange_is_among_so_many_ranks_at_most),
        cmocka_unit_test(test_shared_connection__a_launched_rank_outlives_its_launcher),
        cmocka_unit_test(test_shared_connection__a_report_says_what_the_rank_did_at_that_moment),
        cmocka_unit_test(test_shared_connection__every_engine_hears_of_a_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
