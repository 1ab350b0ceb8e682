/* SPDX-License-Identifier: BSD-3-Clause */
/* The control plane seen from ranks: threads where nobody has to die, processes where somebody does. */
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <pthread.h>
#include <setjmp.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/control/control.h"
#include "core/control/control_state.h"
#include "core/control/wire.h"

#define SECOND_NS 1000000000ll
enum { RANKS_MAX = 8 };

/* ---- a world of threads ------------------------------------------------------------------------- */

typedef struct {
    tess__world world;
    tess__control *control;
    tess_status status;
    char message[512];
    void *user;
} seat;

static const tess__kv_terms terms = { .secret = "swordfish, twice: swordfish" };

static tess__world world_of(int32_t rank, int32_t nranks, int32_t port, int32_t launched) {
    tess__world w = { .rank = rank, .nranks = nranks, .port = port, .launched = launched };
    snprintf(w.address, sizeof w.address, "127.0.0.1");
    snprintf(w.secret, sizeof w.secret, "%s", terms.secret);
    return w;
}

static tess__kv_server *start_server(int32_t nranks, int32_t *port, int32_t launcher) {
    tess__kv_server *server = NULL;
    *port = 0;
    tess__kv_terms mine = terms;
    mine.launcher = launcher;
    assert_int_equal(tess__kv_server_start("127.0.0.1", port, nranks, &mine, &server), TESS_OK);
    assert_true(*port > 0);
    return server;
}

static void note(seat *s, tess_status status) {
    s->status = status;
    snprintf(s->message, sizeof s->message, "%s", status == TESS_OK ? "" : tess_last_error());
}

static void *open_seat(void *user) {
    seat *s = user;
    note(s, tess__control_open(&s->world, &s->control));
    return NULL;
}

/* Runs `body` for each seat at the same time. */
static void all_at_once(seat *seats, int32_t n, void *(*body)(void *)) {
    pthread_t threads[RANKS_MAX];
    for (int32_t r = 0; r < n; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, body, &seats[r]), 0);
    for (int32_t r = 0; r < n; r++)
        pthread_join(threads[r], NULL);
}

static void open_all(seat *seats, int32_t n, int32_t port) {
    for (int32_t r = 0; r < n; r++)
        seats[r] = (seat){ .world = world_of(r, n, port, 1) };
    all_at_once(seats, n, open_seat);
    for (int32_t r = 0; r < n; r++)
        assert_int_equal(seats[r].status, TESS_OK);
}

static void *close_orderly(void *user) {
    seat *s = user;
    tess__control_close(s->control, 1);
    return NULL;
}

static void close_all(seat *seats, int32_t n, tess__kv_server *server) {
    all_at_once(seats, n, close_orderly);
    tess__kv_server_stop(server);
}

static int await(int32_t (*ask)(tess__control *, int32_t), tess__control *control, int32_t rank, double seconds) {
    int64_t deadline_ns = tess__now_ns() + (int64_t)(seconds * 1e9);
    while (!ask(control, rank))
        if (tess__now_ns() > deadline_ns)
            return 0;
        else
            usleep(1000);
    return 1;
}

/* How long something takes, but for the time that threads of this process and two others waited for a processor. */
typedef struct {
    int64_t began_ns, waited_ns;
    pid_t others[2];
} stopwatch;

static int64_t read_wait_ns(const char *format, int id) {
    char path[64];
    long long ran, waited = 0;
    snprintf(path, sizeof path, format, id);
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "%lld %lld", &ran, &waited) != 2)
        waited = 0;
    if (f)
        fclose(f);
    return waited;
}

static int64_t waits_ns(const stopwatch *w) {
    int64_t sum = read_wait_ns("/proc/%d/schedstat", w->others[0]) + read_wait_ns("/proc/%d/schedstat", w->others[1]);
    DIR *threads = opendir("/proc/self/task");
    for (struct dirent *t = readdir(threads); t; t = readdir(threads))
        if (*t->d_name != '.')
            sum += read_wait_ns("/proc/self/task/%d/schedstat", atoi(t->d_name));
    closedir(threads);
    return sum;
}

static stopwatch start_watch(pid_t other, pid_t another) {
    stopwatch w = { tess__now_ns(), 0, { other, another } };
    w.waited_ns = waits_ns(&w);
    return w;
}

static void assert_took_less(const stopwatch *w, double seconds) {
    const double took = (double)(tess__now_ns() - w->began_ns) * 1e-9,
                 waited = (double)(waits_ns(w) - w->waited_ns) * 1e-9;
    const double slack = access("/proc/self/schedstat", R_OK) == 0 ? 0 : 3;
    if (took - waited > seconds + slack)
        fail_msg("it took %.2f s, %.2f s of them without a processor; expected at most %g s", took, waited, seconds);
}

static int32_t is_aborting(tess__control *control, int32_t rank) {
    (void)rank;
    return tess__control_aborting(control);
}

/* ---- rendezvous, set, get, exchange --------------------------------------------------------------- */

static void *exchange_some(void *user) {
    seat *s = user;
    int32_t n = s->world.nranks, mine[3] = { s->world.rank, s->world.rank * s->world.rank, -7 }, all[3 * RANKS_MAX];
    for (int round = 0; round < 20; round++) {
        char key[32];
        snprintf(key, sizeof key, "round %d", round);
        note(s, tess__control_exchange(s->control, key, mine, sizeof mine, all));
        for (int32_t r = 0; r < n && s->status == TESS_OK; r++)
            if (all[3 * r] != r || all[3 * r + 1] != r * r || all[3 * r + 2] != -7)
                s->status = TESS_E_DATA;
        if (s->status != TESS_OK)
            return NULL;
    }
    return NULL;
}

static void test_control__worlds_of_1_to_8_meet_and_exchange(void **state) {
    (void)state;
    for (int32_t n = 1; n <= RANKS_MAX; n++) {
        seat seats[RANKS_MAX];
        int32_t port;
        tess__kv_server *server = start_server(n, &port, 0);
        open_all(seats, n, port);
        all_at_once(seats, n, exchange_some);
        for (int32_t r = 0; r < n; r++)
            assert_int_equal(seats[r].status, TESS_OK);
        close_all(seats, n, server);
    }
}

static void test_control__rank_0_serves_when_nobody_else_does(void **state) {
    (void)state;
    int32_t port;
    tess__kv_server_stop(start_server(1, &port, 0)); /* a port that is free now */
    seat seats[3];
    for (int32_t r = 0; r < 3; r++)
        seats[r] = (seat){ .world = world_of(r, 3, port, 0) };
    all_at_once(seats, 3, open_seat);
    for (int32_t r = 0; r < 3; r++)
        assert_int_equal(seats[r].status, TESS_OK);
    all_at_once(seats, 3, exchange_some);
    for (int32_t r = 0; r < 3; r++)
        assert_int_equal(seats[r].status, TESS_OK);
    all_at_once(seats, 3, close_orderly);
}

static void expect_dropped(tess__control *setter, tess__control *other) {
    uint64_t bytes = 0;
    assert_int_equal(tess__control_set(setter, "note", "", 0), TESS_OK);
    assert_int_equal(tess__control_get(other, "note", NULL, &bytes, SECOND_NS), TESS_OK);
    assert_int_equal(tess__control_drop(other, "note"), TESS_OK);
    assert_int_equal(tess__control_get(setter, "note", NULL, &bytes, 100000000), TESS_E_TIMEOUT);
    assert_int_equal(tess__control_drop(setter, "note"), TESS_OK); /* there is none */
    assert_int_equal(tess__control_drop(setter, ""), TESS_E_INVALID);
}

static void test_control__one_rank_needs_no_network(void **state) {
    (void)state;
    tess__world w = world_of(0, 1, 1, 0);
    tess__control *control = NULL;
    char got[8];
    uint64_t bytes = sizeof got;
    int64_t out = 0, mine = 42;
    assert_int_equal(tess__control_open(&w, &control), TESS_OK);
    assert_int_equal(tess__control_set(control, "a", "xyz", 3), TESS_OK);
    assert_int_equal(tess__control_get(control, "a", got, &bytes, 0), TESS_OK);
    assert_int_equal(bytes, 3);
    assert_memory_equal(got, "xyz", 3);
    assert_int_equal(tess__control_get(control, "b", got, &bytes, 20000000), TESS_E_TIMEOUT);
    assert_int_equal(tess__control_exchange(control, "c", &mine, sizeof mine, &out), TESS_OK);
    assert_int_equal(out, 42);
    expect_dropped(control, control);
    tess__control_close(control, 1);
}

static void *get_late_key(void *user) {
    seat *s = user;
    char got[16] = "";
    uint64_t bytes = sizeof got;
    if (s->world.rank == 1) {
        usleep(50000);
        note(s, tess__control_set(s->control, "late", "here", 5));
        return NULL;
    }
    note(s, tess__control_get(s->control, "late", got, &bytes, 10 * SECOND_NS));
    if (s->status == TESS_OK && (bytes != 5 || strcmp(got, "here") != 0))
        s->status = TESS_E_DATA;
    return NULL;
}

static void test_control__get_waits_for_the_key(void **state) {
    (void)state;
    seat seats[3]; /* the first and the last wait */
    int32_t port;
    tess__kv_server *server = start_server(3, &port, 0);
    open_all(seats, 3, port);
    all_at_once(seats, 3, get_late_key);
    for (int r = 0; r < 3; r++)
        assert_int_equal(seats[r].status, TESS_OK);
    close_all(seats, 3, server);
}

static void test_control__get_of_a_key_nobody_sets_times_out(void **state) {
    (void)state;
    seat seats[1];
    int32_t port;
    tess__kv_server *server = start_server(1, &port, 0);
    open_all(seats, 1, port);
    uint64_t bytes = 0;
    int64_t began = tess__now_ns();
    assert_int_equal(tess__control_get(seats[0].control, "never", NULL, &bytes, 100000000), TESS_E_TIMEOUT);
    assert_string_equal(tess_last_error(), "key 'never' was not set within 0.1 s");
    assert_in_range(tess__now_ns() - began, 100000000, 5 * SECOND_NS);
    /* The late value of a get that was given up disturbs nobody. */
    assert_int_equal(tess__control_set(seats[0].control, "never", "x", 1), TESS_OK);
    close_all(seats, 1, server);
}

static void test_control__dropped_key_is_gone_for_all(void **state) {
    (void)state;
    seat seats[2];
    int32_t port;
    tess__kv_server *server = start_server(2, &port, 0);
    open_all(seats, 2, port);
    expect_dropped(seats[0].control, seats[1].control);
    close_all(seats, 2, server);
}

static void test_control__large_values_pass_and_larger_ones_are_refused(void **state) {
    (void)state;
    seat seats[2];
    int32_t port;
    tess__kv_server *server = start_server(2, &port, 0);
    open_all(seats, 2, port);
    uint64_t most = TESS__KV_VALUE_MAX, bytes = most;
    unsigned char *big = malloc(most + 1), *back = malloc(most);
    for (uint64_t i = 0; i <= most; i++)
        big[i] = (unsigned char)(i * 31 >> 3);
    assert_int_equal(tess__control_set(seats[0].control, "big", big, most), TESS_OK);
    assert_int_equal(tess__control_get(seats[1].control, "big", back, &bytes, SECOND_NS), TESS_OK);
    assert_int_equal(bytes, most);
    assert_memory_equal(big, back, most);
    assert_int_equal(tess__control_set(seats[0].control, "big", big, most + 1), TESS_E_INVALID);
    bytes = most - 1;
    assert_int_equal(tess__control_get(seats[1].control, "big", back, &bytes, SECOND_NS), TESS_E_INVALID);
    assert_int_equal(bytes, most - 1);
    free(big);
    free(back);
    close_all(seats, 2, server);
}

static void test_control__bad_keys_are_refused(void **state) {
    (void)state;
    seat seats[1];
    int32_t port;
    char long_key[TESS__KV_KEY_MAX + 2];
    memset(long_key, 'k', sizeof long_key);
    long_key[sizeof long_key - 1] = 0;
    tess__kv_server *server = start_server(1, &port, 0);
    open_all(seats, 1, port);
    assert_int_equal(tess__control_set(seats[0].control, "", "x", 1), TESS_E_INVALID);
    assert_int_equal(tess__control_set(seats[0].control, long_key, "x", 1), TESS_E_INVALID);
    long_key[TESS__KV_KEY_MAX] = 0;
    assert_int_equal(tess__control_set(seats[0].control, long_key, "x", 1), TESS_OK);
    close_all(seats, 1, server);
}

static void *exchange_unequal(void *user) {
    seat *s = user;
    char mine[16] = "", all[32];
    note(s, tess__control_exchange(s->control, "sizes", mine, s->world.rank ? 8 : 4, all));
    return NULL;
}

static void test_control__exchange_of_unequal_sizes_names_both_sides(void **state) {
    (void)state;
    seat seats[2];
    int32_t port;
    tess__kv_server *server = start_server(2, &port, 0);
    open_all(seats, 2, port);
    all_at_once(seats, 2, exchange_unequal);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(seats[r].status, TESS_E_MISMATCH);
        assert_non_null(strstr(seats[r].message, "rank 0"));
        assert_non_null(strstr(seats[r].message, "rank 1"));
    }
    close_all(seats, 2, server);
}

static void *exchange_elsewhere(void *user) {
    seat *s = user;
    char all[3];
    note(s, tess__control_exchange(s->control, s->world.rank == 1 ? "step 8" : "barrier", "x", 1, all));
    return NULL;
}

static void test_control__ranks_at_different_exchanges_learn_of_it(void **state) {
    (void)state;
    seat seats[3];
    int32_t port;
    tess__kv_server *server = start_server(3, &port, 0);
    open_all(seats, 3, port);
    all_at_once(seats, 3, exchange_elsewhere);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(seats[r].status, TESS_E_MISMATCH);
        assert_string_equal(seats[r].message, "the ranks disagree about what comes next: rank 0 is at 'barrier', "
                                              "rank 1 at 'step 8'");
    }
    close_all(seats, 3, server);
}

/* ---- refusals ----------------------------------------------------------------------------------- */

static void expect_refusal(tess__world w, tess_status status, const char *part) {
    tess__control *control = NULL;
    assert_int_equal(tess__control_open(&w, &control), status);
    assert_null(control);
    assert_non_null(strstr(tess_last_error(), part));
    assert_null(strchr(tess_last_error(), '\n'));
}

static void test_control__wrong_hellos_are_refused_and_harm_nobody(void **state) {
    (void)state;
    seat seats[2];
    int32_t port;
    tess__kv_server *server = start_server(2, &port, 0);
    tess__world w = world_of(0, 2, port, 1);
    w.secret[0] = 'S';
    expect_refusal(w, TESS_E_INVALID, "TESSERA_SECRET");
    w.secret[0] = 0;
    expect_refusal(w, TESS_E_INVALID, "TESSERA_SECRET");
    expect_refusal(world_of(0, 3, port, 1), TESS_E_INVALID, "a world of 3 ranks, here are 2");
    open_all(seats, 2, port);
    expect_refusal(world_of(1, 2, port, 1), TESS_E_INVALID, "rank 1 has joined already");
    all_at_once(seats, 2, exchange_some);
    assert_int_equal(seats[0].status, TESS_OK);
    close_all(seats, 2, server);
}

static void test_control__rendezvous_names_the_missing_ranks(void **state) {
    (void)state;
    setenv("TESSERA_RENDEZVOUS_TIMEOUT", "0.3", 1);
    int32_t port;
    tess__kv_server *server = start_server(5, &port, 0);
    seat seats[2] = { { .world = world_of(0, 5, port, 1) }, { .world = world_of(3, 5, port, 1) } };
    all_at_once(seats, 2, open_seat);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(seats[i].status, TESS_E_TIMEOUT);
        assert_string_equal(seats[i].message, "3 of 5 ranks did not come within 0.3 s (TESSERA_RENDEZVOUS_TIMEOUT): "
                                              "missing 1, 2, 4");
    }
    tess__kv_server_stop(server);
    expect_refusal(world_of(1, 2, port, 0), TESS_E_TIMEOUT, "rank 0 did not come within 0.3 s");
    unsetenv("TESSERA_RENDEZVOUS_TIMEOUT");
    expect_refusal(world_of(1, 2, port, 1), TESS_E_PEER, "the launcher (tessera run) has ended");
}

static void test_control__port_in_use_is_one_line_and_configuration(void **state) {
    (void)state;
    int32_t port;
    tess__kv_server *server = start_server(2, &port, 0);
    tess__world w = world_of(0, 2, port, 0);
    tess__control *control = NULL;
    char expected[128];
    snprintf(expected, sizeof expected,
             "port %d on 127.0.0.1 is in use by another program; set MASTER_PORT to a free "
             "one",
             port);
    setenv("TESSERA_LISTEN", "127.0.0.1", 1);
    tess_status status = tess__control_open(&w, &control);
    assert_int_equal(tess_exit_code(status), 3);
    assert_string_equal(tess_last_error(), expected);
    unsetenv("TESSERA_LISTEN");
    tess__kv_server_stop(server);
}

static void test_control__nothing_listens_beyond_the_host_without_a_secret(void **state) {
    (void)state;
    tess__world w = world_of(0, 2, 29500, 0);
    snprintf(w.address, sizeof w.address, "192.0.2.1");
    w.secret[0] = 0;
    expect_refusal(w, TESS_E_INVALID, "beyond this host: set TESSERA_SECRET");
    setenv("TESSERA_LISTEN", "0.0.0.0", 1);
    expect_refusal(w, TESS_E_INVALID, "beyond this host: set TESSERA_SECRET");
    snprintf(w.secret, sizeof w.secret, "fifteen letters");
    expect_refusal(w, TESS_E_INVALID, "the secret has 15 characters, expected at least 16");
    unsetenv("TESSERA_LISTEN");
    expect_refusal(w, TESS_E_INVALID, "the secret has 15 characters, expected at least 16");
}

static void test_control__bad_seconds_are_an_error(void **state) {
    (void)state;
    setenv("TESSERA_HEARTBEAT", "-1", 1);
    expect_refusal(world_of(0, 2, 1, 1), TESS_E_INVALID, "TESSERA_HEARTBEAT is -1");
    setenv("TESSERA_HEARTBEAT", "often", 1);
    expect_refusal(world_of(0, 2, 1, 1), TESS_E_INVALID, "TESSERA_HEARTBEAT is 'often'");
    unsetenv("TESSERA_HEARTBEAT");
}

/* ---- goodbyes and reports ------------------------------------------------------------------------- */

static void test_control__goodbye_is_news_but_no_failure(void **state) {
    (void)state;
    seat seats[3];
    int32_t port;
    tess__kv_server *server = start_server(3, &port, 1);
    open_all(seats, 3, port);
    assert_int_equal(tess__control_departed(seats[0].control, 2), 0);
    tess__control_close(seats[2].control, 1);
    tess__kv_server_rank_ended(server, 2, 1, "exited with code 0");
    assert_true(await(tess__control_departed, seats[0].control, 2, 5));
    assert_true(await(tess__control_departed, seats[1].control, 2, 5));
    assert_int_equal(tess__control_departed(seats[0].control, 1), 0);
    char all[3];
    assert_int_equal(tess__control_exchange(seats[0].control, "after", "x", 1, all), TESS_E_PEER);
    assert_string_equal(tess_last_error(), "rank 2 has ended, while others wait for it at 'after'");
    assert_int_equal(tess__control_cause(seats[0].control, NULL), TESS_OK);
    assert_int_equal(tess__control_aborting(seats[1].control), 0);

    close_all(seats, 2, server);
}

/* A barrier before the goodbyes: whoever is through it never sees another's goodbye as a failure of it. */
static void *exchange_and_leave(void *user) {
    seat *s = user;
    char all[RANKS_MAX];
    note(s, tess__control_exchange(s->control, "last", "x", 1, all));
    tess__control_close(s->control, 1);
    return NULL;
}

static void test_control__exchange_before_goodbye_completes_everywhere(void **state) {
    (void)state;
    for (int round = 0; round < 20; round++) {
        seat seats[4];
        int32_t port;
        tess__kv_server *server = start_server(4, &port, 0);
        open_all(seats, 4, port);
        all_at_once(seats, 4, exchange_and_leave);
        for (int r = 0; r < 4; r++)
            assert_int_equal(seats[r].status, TESS_OK);
        tess__kv_server_stop(server);
    }
}

typedef struct {
    int32_t calls, rank;
    char why[512];
} lost_note;

static void note_lost(void *user, int32_t rank, const char *why) {
    lost_note *n = user;
    n->rank = rank;
    snprintf(n->why, sizeof n->why, "%s", why);
    __atomic_add_fetch(&n->calls, 1, __ATOMIC_RELEASE);
}

static void expect_cause(tess__control *control, int32_t rank, const char *message) {
    tess_error error = { .struct_size = sizeof error };
    assert_true(await(is_aborting, control, 0, 5));
    assert_int_equal(tess__control_cause(control, &error), TESS_E_PEER);
    assert_string_equal(error.message, message);
    assert_int_equal(error.rank, rank);
    assert_int_equal(error.code, TESS_E_PEER);
}

static void test_control__report_reaches_everyone_once(void **state) {
    (void)state;
    seat seats[3];
    lost_note lost = { 0 };
    int32_t port;
    tess__kv_server *server = start_server(3, &port, 0);
    open_all(seats, 3, port);
    tess__control_on_lost(seats[2].control, note_lost, &lost);
    char text[32] = "gather of unit h.3"; /* the text is copied, and noticed when it changes in place */
    tess__control_doing(seats[1].control, text);
    usleep(300000);
    snprintf(text, sizeof text, "forward of unit h.3");
    tess__control_doing(seats[1].control, text);
    memset(text, 0, sizeof text);
    usleep(300000);
    tess__control_report(seats[1].control, TESS_E_NOMEM, -1, "needs 2 bytes, has 1");
    for (int r = 0; r < 3; r++)
        expect_cause(seats[r].control, 1, "rank 1 failed in forward of unit h.3: needs 2 bytes, has 1");
    tess__control_report(seats[0].control, TESS_E_NOMEM, -1, "too late to be first");
    expect_cause(seats[0].control, 1, "rank 1 failed in forward of unit h.3: needs 2 bytes, has 1");
    uint64_t bytes = 0;
    assert_int_equal(tess__control_get(seats[0].control, "k", NULL, &bytes, -1), TESS_E_ABORTED);
    assert_non_null(strstr(tess_last_error(), "rank 1 failed"));
    usleep(50000);
    tess__control_on_lost(seats[2].control, NULL, NULL);
    assert_int_equal(lost.calls, 1);
    assert_int_equal(lost.rank, 1);
    assert_int_equal(tess__kv_server_culprit(server), 1);
    close_all(seats, 3, server);
}

/* tess_error has no room for it. */
static void test_control__a_long_reason_ends_at_a_mark(void **state) {
    (void)state;
    static const size_t lengths[] = { 320, 321 };
    for (int i = 0; i < 2; i++) {
        seat seats[2];
        int32_t port;
        char why[400] = "", text[512], expected[512];
        tess__kv_server *server = start_server(2, &port, 0);
        open_all(seats, 2, port);
        memset(why, 'y', lengths[i]);
        tess__control_cause_text(seats[0].control, text, sizeof text);
        assert_string_equal(text, "");
        tess__control_report(seats[1].control, TESS_E_NOMEM, -1, why);
        assert_true(await(is_aborting, seats[0].control, 0, 5));
        tess__control_cause_text(seats[0].control, text, sizeof text);
        snprintf(expected, sizeof expected, "rank 1 failed: %.320s%s", why, i ? "…" : "");
        assert_string_equal(text, expected);
        close_all(seats, 2, server);
    }
}

static int32_t is_waiting(tess__control *control, int32_t rank) {
    (void)rank;
    pthread_mutex_lock(&control->lock);
    int waits = control->requests != NULL && !control->requests->done && !control->out.first; /* and it is sent */
    pthread_mutex_unlock(&control->lock);
    return waits;
}

/* Rank 1 is lost while rank 0, whose control is its `user`, waits. */
static void *get_forever(void *user) {
    seat *s = user;
    uint64_t bytes = 0;
    if (s->world.rank == 0)
        note(s, tess__control_get(s->control, "never", NULL, &bytes, -1));
    else {
        note(s, await(is_waiting, s->user, 0, 5) ? TESS_OK : TESS_E_TIMEOUT);
        tess__control_close(s->control, 0);
    }
    return NULL;
}

static void test_control__waiting_get_ends_when_a_rank_is_lost(void **state) {
    (void)state;
    seat seats[2];
    int32_t port;
    tess__kv_server *server = start_server(2, &port, 0);
    open_all(seats, 2, port);
    seats[1].user = seats[0].control;
    all_at_once(seats, 2, get_forever);
    assert_int_equal(seats[1].status, TESS_OK);
    assert_int_equal(seats[0].status, TESS_E_ABORTED);
    assert_string_equal(seats[0].message, "rank 1 was lost: its connection closed without goodbye (killed?)");
    close_all(seats, 1, server);
}

static void test_control__registration_after_the_loss_is_told_too(void **state) {
    (void)state;
    seat seats[2];
    lost_note lost = { 0 };
    int32_t port;
    tess__kv_server *server = start_server(2, &port, 0);
    open_all(seats, 2, port);
    tess__control_close(seats[1].control, 0);
    assert_true(await(is_aborting, seats[0].control, 0, 5));
    tess__control_on_lost(seats[0].control, note_lost, &lost);
    for (int i = 0; i < 5000 && !__atomic_load_n(&lost.calls, __ATOMIC_ACQUIRE); i++)
        usleep(1000);
    usleep(20000); /* a second call would come at once */
    tess__control_on_lost(seats[0].control, NULL, NULL);
    assert_int_equal(lost.calls, 1);
    assert_int_equal(lost.rank, 1);
    close_all(seats, 1, server);
}

static atomic_int reporting;

/* Rank 2 is lost after rank 0's report, and before the server has believed it. */
static void *leave_after_report(void *user) {
    seat *s = user;
    while (!atomic_load(&reporting))
        usleep(1000);
    usleep(50000);
    s->status = tess__control_aborting(s->user) ? TESS_E_PEER : TESS_OK;
    tess__control_close(s->control, 0);
    return NULL;
}

static void test_control__echo_of_a_death_does_not_rename_the_culprit(void **state) {
    (void)state;
    seat seats[3];
    int32_t port;
    tess__kv_server *server = start_server(3, &port, 1);
    open_all(seats, 3, port);
    pthread_t closer;
    seat *victim = &seats[2];
    victim->user = seats[0].control;
    assert_int_equal(pthread_create(&closer, NULL, leave_after_report, victim), 0);
    atomic_store(&reporting, 1);
    tess__control_report(seats[0].control, TESS_E_PEER, 2, "connection reset by rank 2");
    pthread_join(closer, NULL);
    assert_int_equal(victim->status, TESS_OK);
    tess__kv_server_rank_ended(server, 2, 0, "killed by signal 9 (Killed)");
    assert_int_equal(tess__kv_server_culprit(server), 2);
    for (int r = 0; r < 2; r++)
        expect_cause(seats[r].control, 2, "rank 2 was lost: its connection closed without goodbye (killed?)");
    close_all(seats, 2, server);
}

static void test_control__report_without_a_death_stands_after_a_while(void **state) {
    (void)state;
    seat seats[2];
    int32_t port;
    tess__kv_server *server = start_server(2, &port, 1);
    open_all(seats, 2, port);
    const stopwatch watch = start_watch(0, 0);
    tess__control_report(seats[0].control, TESS_E_TIMEOUT, -1, "waited in vain");
    assert_true(tess__now_ns() - watch.began_ns >= 250000000);
    assert_took_less(&watch, 1);
    expect_cause(seats[1].control, 0, "rank 0 failed: waited in vain");
    close_all(seats, 2, server);
}

/* ---- processes that die --------------------------------------------------------------------------- */

/* A rank in a process of its own, this program again: joins, tells, and sleeps. */
static pid_t spawn_rank(int32_t rank, int32_t n, int32_t port, int32_t launched, int ready_fd) {
    char texts[5][16];
    int32_t values[5] = { rank, n, port, launched, ready_fd };
    for (int i = 0; i < 5; i++)
        snprintf(texts[i], sizeof texts[i], "%d", (int)values[i]);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        execl("/proc/self/exe", "test_control", texts[0], texts[1], texts[2], texts[3], texts[4], (char *)NULL);
        _exit(10);
    }
    return pid;
}

/* What the rank does is on its way to the server. */
static int32_t is_published(tess__control *control, int32_t rank) {
    (void)rank;
    pthread_mutex_lock(&control->lock);
    int published = control->doing_sent[0] != 0;
    pthread_mutex_unlock(&control->lock);
    return published;
}

static int be_a_rank(char **argv) {
    tess__world w = world_of(atoi(argv[1]), atoi(argv[2]), atoi(argv[3]), atoi(argv[4]));
    tess__control *control;
    if (tess__control_open(&w, &control) != TESS_OK)
        return 9;
    tess__control_doing(control, "reduce_scatter of unit h.3");
    /* The answer to what follows it says that the server has it. */
    if (!await(is_published, control, 0, 5) || tess__control_set(control, "seen", "x", 1) != TESS_OK)
        return 6;
    if (write(atoi(argv[5]), "r", 1) != 1)
        return 8;
    for (int i = 0; i < 600; i++)
        usleep(100000);
    return 7;
}

static void await_bytes(int fd, int n) {
    char byte;
    while (n > 0 && read(fd, &byte, 1) == 1)
        n--;
    assert_int_equal(n, 0);
}

static void reap(pid_t pid, int signal) {
    int status;
    kill(pid, signal);
    assert_int_equal(waitpid(pid, &status, 0), pid);
}

/* Two ranks in this process, two outside; `act` hurts the outer ones. The survivors must agree; `expect` is a pattern.
 */
static void with_victims(int32_t launcher, void (*act)(tess__kv_server *, const pid_t *), const char *expect) {
    const double limit_s = getenv("TESSERA_HEARTBEAT") ? 2 : 1;
    int fds[2];
    int32_t port;
    assert_int_equal(pipe(fds), 0);
    int32_t free_port;
    tess__kv_server *server = start_server(4, &free_port, launcher);
    port = free_port;
    pid_t pids[2] = { spawn_rank(2, 4, port, 1, fds[1]), spawn_rank(3, 4, port, 1, fds[1]) };
    seat seats[2] = { { .world = world_of(0, 4, port, 1) }, { .world = world_of(1, 4, port, 1) } };
    all_at_once(seats, 2, open_seat);
    assert_int_equal(seats[0].status, TESS_OK);
    await_bytes(fds[0], 2);
    const stopwatch watch = start_watch(pids[0], pids[1]);
    act(server, pids);
    assert_true(await(is_aborting, seats[0].control, 0, 5));
    assert_true(await(is_aborting, seats[1].control, 0, 5));
    assert_took_less(&watch, limit_s);
    tess_error a = { 0 }, b = { 0 };
    tess__control_cause(seats[0].control, &a);
    tess__control_cause(seats[1].control, &b);
    assert_string_equal(a.message, b.message);
    if (fnmatch(expect, a.message, 0) != 0)
        fail_msg("it says '%s', expected '%s'", a.message, expect);
    reap(pids[0], SIGKILL);
    reap(pids[1], SIGKILL);
    close(fds[0]);
    close(fds[1]);
    close_all(seats, 2, server);
}

static void kill_first(tess__kv_server *server, const pid_t *pids) {
    (void)server;
    kill(pids[0], SIGKILL);
}

static void kill_first_and_say_how(tess__kv_server *server, const pid_t *pids) {
    kill(pids[0], SIGKILL);
    tess__kv_server_rank_ended(server, 2, 0, "killed by signal 9 (Killed)");
}

static void kill_both(tess__kv_server *server, const pid_t *pids) {
    (void)server;
    kill(pids[0], SIGKILL);
    kill(pids[1], SIGKILL);
}

static void stop_first(tess__kv_server *server, const pid_t *pids) {
    (void)server;
    kill(pids[0], SIGSTOP);
}

#define LOST(rank) "rank " rank " was lost (last seen in reduce_scatter of unit h.3): "
#define CLOSED "its connection closed without goodbye (killed?)"

static void test_control__killed_rank_is_named_within_a_second(void **state) {
    (void)state;
    for (int i = 0; i < 5; i++)
        with_victims(0, kill_first, LOST("2") CLOSED);
}

static void test_control__launcher_says_how_a_rank_ended(void **state) {
    (void)state;
    with_victims(1, kill_first_and_say_how, LOST("2") "killed by signal 9 (Killed)");
    with_victims(1, kill_first, LOST("2") CLOSED); /* it says nothing: then without */
}

static void test_control__two_deaths_at_once_have_one_name(void **state) {
    (void)state;
    for (int i = 0; i < 5; i++)
        with_victims(0, kill_both, LOST("[23]") CLOSED);
}

static void test_control__stopped_rank_is_found_by_heartbeat(void **state) {
    (void)state;
    setenv("TESSERA_HEARTBEAT", "0.5", 1);
    with_victims(0, stop_first, LOST("2") "no sign of life for [0-3].[0-9] s (stopped, or it cannot be reached[?])");
    unsetenv("TESSERA_HEARTBEAT");
}

static void test_control__report_about_a_rank_that_is_quiet_waits_for_its_end(void **state) {
    (void)state;
    int fds[2];
    int32_t port;
    setenv("TESSERA_HEARTBEAT", "1", 1);
    assert_int_equal(pipe(fds), 0);
    tess__kv_server *server = start_server(2, &port, 0);
    pid_t pid = spawn_rank(1, 2, port, 1, fds[1]);
    seat mine = { .world = world_of(0, 2, port, 1) };
    open_seat(&mine);
    assert_int_equal(mine.status, TESS_OK);
    await_bytes(fds[0], 1);
    kill(pid, SIGSTOP);
    usleep(650000);
    tess__control_report(mine.control, TESS_E_PEER, 1, "connection to rank 1 lost");
    assert_true(await(is_aborting, mine.control, 0, 5));
    tess_error error = { 0 };
    tess__control_cause(mine.control, &error);
    assert_int_equal(error.rank, 1);
    assert_non_null(strstr(error.message, "no sign of life for 1."));
    reap(pid, SIGKILL);
    close(fds[0]);
    close(fds[1]);
    tess__control_close(mine.control, 1);
    tess__kv_server_stop(server);
    unsetenv("TESSERA_HEARTBEAT");
}

/* A port that nobody else gets before the socket is closed; rank 0 can listen there. */
static int hold_port(int32_t *port) {
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof at;
    int yes = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes), 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, size), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &size), 0);
    *port = ntohs(at.sin_port);
    return fd;
}

/* Rank 0 outside, holding the server; two ranks here. */
static void with_rank_0_outside(int signal, const char *expected) {
    int fds[2];
    int32_t port;
    int held = hold_port(&port);
    assert_int_equal(pipe(fds), 0);
    pid_t pid = spawn_rank(0, 3, port, 0, fds[1]);
    seat seats[2] = { { .world = world_of(1, 3, port, 0) }, { .world = world_of(2, 3, port, 0) } };
    all_at_once(seats, 2, open_seat);
    assert_int_equal(seats[0].status, TESS_OK);
    assert_int_equal(seats[1].status, TESS_OK);
    await_bytes(fds[0], 1);
    const stopwatch watch = start_watch(pid, 0);
    kill(pid, signal);
    for (int r = 0; r < 2; r++) {
        tess_error error = { 0 };
        assert_true(await(is_aborting, seats[r].control, 0, 5));
        assert_int_equal(tess__control_cause(seats[r].control, &error), TESS_E_PEER);
        assert_int_equal(error.rank, 0);
        assert_int_equal(strncmp(error.message, expected, strlen(expected)), 0);
    }
    assert_took_less(&watch, signal == SIGSTOP ? 2 : 1);
    reap(pid, SIGKILL);
    close(fds[0]);
    close(fds[1]);
    close(held);
    close_all(seats, 2, NULL);
}

static void test_control__death_of_rank_0_with_the_server_names_rank_0(void **state) {
    (void)state;
    with_rank_0_outside(SIGKILL, "rank 0 was lost: its connection closed");
    setenv("TESSERA_HEARTBEAT", "0.5", 1);
    with_rank_0_outside(SIGSTOP, "rank 0 was lost: no sign of life for ");
    unsetenv("TESSERA_HEARTBEAT");
}

static void test_control__death_of_the_launcher_is_named(void **state) {
    (void)state;
    seat seats[2];
    int32_t port;
    tess__kv_server *server = start_server(2, &port, 1);
    open_all(seats, 2, port);
    tess__kv_server_stop(server);
    for (int r = 0; r < 2; r++)
        expect_cause(seats[r].control, -1,
                     "the launcher (tessera run) was lost: its connection closed without goodbye (killed?)");
    close_all(seats, 2, NULL);
}

static void test_control__rank_that_never_joined_ends_the_rendezvous(void **state) {
    (void)state;
    int32_t port;
    tess__kv_server *server = start_server(3, &port, 1);
    tess__kv_server_rank_ended(server, 1, 0, "exited with code 3");
    seat seats[2] = { { .world = world_of(0, 3, port, 1) }, { .world = world_of(2, 3, port, 1) } };
    all_at_once(seats, 2, open_seat);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(seats[i].status, TESS_E_PEER);
        assert_string_equal(seats[i].message, "rank 1 was lost: exited with code 3 before it joined the others");
    }
    assert_int_equal(tess__kv_server_joined(server, 0), 1);
    assert_int_equal(tess__kv_server_joined(server, 1), 0);
    tess__kv_server_stop(server);
}

int main(int argc, char **argv) {
    if (argc == 6)
        return be_a_rank(argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_control__worlds_of_1_to_8_meet_and_exchange),
        cmocka_unit_test(test_control__rank_0_serves_when_nobody_else_does),
        cmocka_unit_test(test_control__one_rank_needs_no_network),
        cmocka_unit_test(test_control__get_waits_for_the_key),
        cmocka_unit_test(test_control__get_of_a_key_nobody_sets_times_out),
        cmocka_unit_test(test_control__dropped_key_is_gone_for_all),
        cmocka_unit_test(test_control__large_values_pass_and_larger_ones_are_refused),
        cmocka_unit_test(test_control__bad_keys_are_refused),
        cmocka_unit_test(test_control__exchange_of_unequal_sizes_names_both_sides),
        cmocka_unit_test(test_control__ranks_at_different_exchanges_learn_of_it),
        cmocka_unit_test(test_control__wrong_hellos_are_refused_and_harm_nobody),
        cmocka_unit_test(test_control__rendezvous_names_the_missing_ranks),
        cmocka_unit_test(test_control__port_in_use_is_one_line_and_configuration),
        cmocka_unit_test(test_control__nothing_listens_beyond_the_host_without_a_secret),
        cmocka_unit_test(test_control__bad_seconds_are_an_error),
        cmocka_unit_test(test_control__goodbye_is_news_but_no_failure),
        cmocka_unit_test(test_control__exchange_before_goodbye_completes_everywhere),
        cmocka_unit_test(test_control__report_reaches_everyone_once),
        cmocka_unit_test(test_control__a_long_reason_ends_at_a_mark),
        cmocka_unit_test(test_control__waiting_get_ends_when_a_rank_is_lost),
        cmocka_unit_test(test_control__registration_after_the_loss_is_told_too),
        cmocka_unit_test(test_control__echo_of_a_death_does_not_rename_the_culprit),
        cmocka_unit_test(test_control__report_without_a_death_stands_after_a_while),
        cmocka_unit_test(test_control__killed_rank_is_named_within_a_second),
        cmocka_unit_test(test_control__launcher_says_how_a_rank_ended),
        cmocka_unit_test(test_control__two_deaths_at_once_have_one_name),
        cmocka_unit_test(test_control__stopped_rank_is_found_by_heartbeat),
        cmocka_unit_test(test_control__report_about_a_rank_that_is_quiet_waits_for_its_end),
        cmocka_unit_test(test_control__death_of_rank_0_with_the_server_names_rank_0),
        cmocka_unit_test(test_control__death_of_the_launcher_is_named),
        cmocka_unit_test(test_control__rank_that_never_joined_ends_the_rendezvous),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
