/* SPDX-License-Identifier: BSD-3-Clause */
/* How a rank comes to its server, without a network: where it listens, whom it tries and how long, and what they say.
 * Each failure has its words. The clock and who answers are this test's. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/base/options.h"
#include "core/base/status.h"
#include "core/control/control_state.h"
#include "core/control/host_id.h"
#include "core/control/local.h"
#include "core/control/secret.h"

/* Who answers at an attempt. An errno: nobody. */
enum { WELCOMES = 1000, SILENT, ENDS, GARBAGE, REFUSES, OTHER_SECRET, CANNOT_SEND, SPEAKS_LATE, NO_LINK, NO_HELLO };
#define MS 1000000ll
static struct {
    int who[64], n_tried;
    int32_t ports[64];
    int64_t deadlines[64], now_ns, began_ns;
    int polls, reads, naps, looked, dropped, closed, cleared[2], keys, heard;
    int32_t arg; /* of the first message */
    uint32_t type;
    const char *text, *listen, *route;
    int no_server[8], n_started; /* the tries to listen that fail */
    int32_t started[8];
    char started_at[256], job[64], said[64], hello[64];
    int32_t hello_rank;
} net;
static tess__control c;

static int connect_to(const char *address, int32_t port, int64_t deadline_ns, int *fd) {
    assert_ptr_equal(address, c.world.address);
    assert_in_range(net.n_tried, 0, 62);
    net.ports[net.n_tried] = port;
    net.deadlines[net.n_tried] = deadline_ns;
    net.polls = 0;
    *fd = 9;
    const int who = net.who[net.n_tried++];
    return who < WELCOMES ? who : 0;
}
static int who(void) {
    return net.who[net.n_tried - 1];
}
static int open_link(tess__link *link, int fd) {
    assert_int_equal(fd, 9);
    link->fd = fd;
    return who() == NO_LINK ? -1 : 0;
}
static int copy_hello(const tess__message *m) {
    assert_int_equal(m->type, TESS__WIRE_HELLO);
    assert_int_equal(m->key_bytes, strlen(m->key) + 1);
    strcpy(net.said, m->key);
    net.hello_rank = m->arg;
    snprintf(net.job, sizeof net.job, "%.*s", (int)m->value_bytes, (const char *)m->value);
    return who() == NO_HELLO ? -1 : 0;
}
static int next_message(size_t limit, tess__message *in) {
    assert_int_equal(limit, TESS__WIRE_TEXT_MAX + 1);
    const int says = who() == WELCOMES || who() == REFUSES || (who() == SPEAKS_LATE && net.polls > 1);
    if (who() == GARBAGE)
        return -1;
    if (!says || !net.polls)
        return 0;
    *in = (tess__message){ .type = who() == REFUSES ? TESS__WIRE_REFUSED : net.type,
                           .arg = net.arg,
                           .value = (const unsigned char *)net.text,
                           .value_bytes = (uint32_t)(net.text ? strlen(net.text) - 1 : 0) };
    return 1;
}
static int await(const struct pollfd *fds, nfds_t n, int ms) {
    assert_true(n == 1 && fds->fd == 9 && fds->events == (who() == SPEAKS_LATE ? 8 : 7) && ms > 0);
    assert_int_equal(ms, (net.deadlines[net.n_tried - 1] - net.now_ns) / MS);
    net.polls++;
    net.now_ns += who() == SILENT ? ms * MS : 10 * MS;
    return 0;
}
static int read_some(tess__link *link) {
    net.reads++;
    link->refused = who() == OTHER_SECRET;
    return who() == ENDS || who() == OTHER_SECRET ? -1 : 0;
}
static int flush(const tess__link *link) {
    (void)link;
    return who() == CANNOT_SEND ? -1 : who() == SPEAKS_LATE ? 0 : 1;
}
static tess_status start_listening(const char *address, int32_t *port, int32_t nranks, const tess__kv_terms *terms) {
    assert_int_equal(nranks, c.world.nranks);
    assert_ptr_equal(terms->secret, c.world.secret);
    assert_ptr_equal(terms->job, c.world.job);
    assert_in_range(net.n_started, 0, 7);
    net.started[net.n_started] = *port;
    snprintf(net.started_at, sizeof net.started_at, "%s", address);
    return net.no_server[net.n_started++] ? tess__fail(TESS_E_INVALID, "port %d is in use", *port) : TESS_OK;
}
static int find_route(char *out, size_t size) {
    snprintf(out, size, "%s", net.route ? net.route : "?");
    return net.route ? 0 : -1;
}
static tess_status make_local(const char *name, char *out) {
    snprintf(out, TESS__LOCAL_PATH, "/run/%s", name);
    return TESS_OK;
}
static tess_status secret_key(const char *secret, int listens, tess__link_key **out) {
    assert_ptr_equal(secret, c.world.secret);
    assert_false(listens);
    net.keys++;
    *out = (tess__link_key *)&net;
    return TESS_OK;
}
static int rest(const struct timespec *pause) {
    assert_true(pause->tv_sec == 0 && pause->tv_nsec == 20 * MS);
    net.naps++;
    net.now_ns += 20 * MS;
    return 0;
}
#define tess__now_ns() (net.now_ns)
#define tess__option_text(key) (strcmp(key, "listen") ? NULL : net.listen)
static int is_loopback(const char *a) {
    net.looked++;
    return !strncmp(a, "127.", 4) || !strcmp(a, "localhost");
}
#define tess__wire_is_loopback(a) is_loopback(a)
#define tess__host_id() 0x123456789abcdef0ull
#define tess__local_path(name, out) make_local(name, out)
#define tess__wire_route(a, out, size) ((void)(a), find_route(out, size))
#define tess__kv_server_start(a, port, n, terms, out) (*(out) = NULL, start_listening(a, port, n, terms))
#define tess__link_key_create(secret, listens, out) secret_key(secret, listens, out)
#define tess__wire_connect(a, port, deadline, fd) connect_to(a, port, deadline, fd)
#define tess__link_open(link, fd, k) open_link(link, fd)
#define tess__link_close(link) ((void)(link), (void)net.closed++)
#define tess__outbox_reserve(out) ((void)0)
#define tess__outbox_copy(out, m) copy_hello(m)
#define tess__outbox_clear(out) ((void)net.cleared[0]++)
#define tess__inbox_clear(in) ((void)net.cleared[1]++)
#define tess__outbox_flush(out, link) flush(link)
#define tess__inbox_next(in, limit, m) next_message(limit, m)
#define tess__inbox_drop(in, m) ((void)net.dropped++)
#define tess__inbox_read(in, link) read_some(link)
#define tess__link_events(link, more) ((short)((more) ? 8 : 7))
#define poll(fds, n, ms) await(fds, n, ms)
#define nanosleep(pause, left) rest(pause)
#include "core/control/control_connect.c"

static const char *const secret = "0123456789abcdef";

/* Rank 2 of 4, whose server is on another host. */
static int begin(void **state) {
    (void)state;
    memset(&net, 0, sizeof net);
    memset(&c, 0, sizeof c);
    c.link.fd = -1;
    c.rendezvous_ns = 60000 * MS;
    c.world.rank = 2;
    c.world.nranks = 4;
    c.world.port = 29500;
    strcpy(c.world.address, "10.0.0.1");
    strcpy(c.world.secret, secret);
    strcpy(c.world.job, "job7");
    net.now_ns = net.began_ns = 5 * MS;
    net.type = TESS__WIRE_WELCOME;
    net.arg = 1;
    net.text = "3 "; /* one byte more than the message has */
    net.who[0] = WELCOMES;
    return 0;
}

static void fails(tess_status want, const char *text) {
    assert_int_equal(tess__control_connect(&c), want);
    assert_string_equal(tess_last_error(), text);
}

/* ---- the first messages ---- */

static void test_connect__a_rank_says_who_it_is_and_hears_who_it_is_now(void **state) {
    (void)state;
    assert_int_equal(tess__control_connect(&c), TESS_OK);
    assert_true(net.n_tried == 1 && net.ports[0] == 29500 && net.deadlines[0] == net.began_ns + 5000 * MS);
    assert_string_equal(net.said, "4");
    assert_string_equal(net.job, "job7");
    assert_true(net.hello_rank == 2 && net.keys == 1 && c.key == (tess__link_key *)&net);
    assert_true(c.world.rank == 1 && c.world.nranks == 3 && net.dropped == 1);
    assert_true(!net.closed && !net.cleared[0] && !net.cleared[1] && !net.naps && !net.n_started);
    static const struct {
        int32_t rank;
        const char *n;
        int good;
    } cases[] = { { 0, "1 ", 1 },  { 0, "0 ", 0 }, { 3, "4 ", 1 }, { 4, "4 ", 0 },
                  { -1, "4 ", 0 }, { 0, "5 ", 0 }, { 2, "2 ", 0 }, { 0, "1234567890123456789 ", 0 } };
    char want[128];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin(NULL);
        net.arg = cases[i].rank;
        net.text = cases[i].n;
        if (cases[i].good) {
            assert_int_equal(tess__control_connect(&c), TESS_OK);
            assert_int_equal(c.world.rank, cases[i].rank);
            continue;
        }
        if (i == 7)
            assert_int_equal(tess__control_connect(&c), TESS_E_INTERNAL); /* is cut, and still no number of ranks */
        else {
            snprintf(want, sizeof want, "the key-value server at 10.0.0.1 says that this is rank %d of %d",
                     cases[i].rank, atoi(cases[i].n));
            fails(TESS_E_INTERNAL, want);
        }
        assert_true(c.world.rank == 2 && c.world.nranks == 4); /* nothing is taken over */
        assert_true(net.closed == 1 && net.cleared[0] == 1 && net.cleared[1] == 1);
    }
}

static void test_connect__what_is_no_welcome_is_named(void **state) {
    (void)state;
    net.who[0] = REFUSES;
    net.arg = TESS_E_VERSION;
    net.text = "another job.";
    fails(TESS_E_VERSION, "the key-value server at 10.0.0.1 port 29500 refused rank 2: another job");
    for (int32_t arg = 0; arg < 2; arg++) { /* which says no failure */
        begin(NULL);
        net.who[0] = REFUSES;
        net.arg = arg;
        fails(TESS_E_INTERNAL, "the key-value server at 10.0.0.1 port 29500 answered hello with message 12");
    }
    begin(NULL);
    net.type = TESS__WIRE_READY;
    net.arg = TESS_E_VERSION;
    fails(TESS_E_INTERNAL, "the key-value server at 10.0.0.1 port 29500 answered hello with message 11");
    begin(NULL);
    net.who[0] = GARBAGE;
    fails(TESS_E_INVALID, "what answers at 10.0.0.1 port 29500 is no key-value server of this version of Tessera; set "
                          "MASTER_PORT to a free port");
    assert_int_equal(net.n_tried, 1);
    c.world.n_ports = 1; /* no other port is tried */
    net.n_tried = 0;
    assert_int_equal(tess__control_connect(&c), TESS_E_INVALID);
    assert_int_equal(net.n_tried, 1);
    begin(NULL);
    net.who[0] = GARBAGE;
    c.world.launched = 1;
    fails(TESS_E_INVALID, "what answers at 10.0.0.1 port 29500 is no key-value server of this version of Tessera; set "
                          "--rendezvous to a free port");
    begin(NULL);
    net.who[0] = OTHER_SECRET;
    fails(TESS_E_INVALID,
          "what answers at 10.0.0.1 port 29500 has another secret than this rank (TESSERA_SECRET), or is "
          "no key-value server of Tessera");
    assert_true(net.n_tried == 1 && net.closed == 1);
    begin(NULL);
    net.who[0] = NO_LINK;
    fails(TESS_E_NOMEM, "no memory for a connection");
    assert_int_equal(net.closed, 0); /* it was closed there */
    begin(NULL);
    net.who[0] = NO_HELLO;
    fails(TESS_E_NOMEM, "no memory to say hello");
    assert_int_equal(net.closed, 1);
}

/* ---- attempts ---- */

static void test_connect__nobody_is_tried_again_after_a_rest(void **state) {
    (void)state;
    net.who[0] = ECONNREFUSED;
    net.who[1] = ENDS;
    net.who[2] = CANNOT_SEND;
    net.who[3] = SILENT; /* for 5 s */
    net.who[4] = SPEAKS_LATE;
    assert_int_equal(tess__control_connect(&c), TESS_OK);
    assert_true(net.n_tried == 5 && net.naps == 4 && net.closed == 3);
    for (int i = 0; i < 5; i++)
        assert_int_equal(net.ports[i], 29500);
    assert_true(net.deadlines[1] == net.began_ns + 20 * MS + 5000 * MS);
    assert_true(net.deadlines[4] > net.deadlines[3] + 5000 * MS);
}

static void test_connect__attempts_end_with_the_time_for_all(void **state) {
    char want[320];
    static const struct {
        int who;
        const char *why;
    } cases[] = { { ECONNREFUSED, NULL },
                  { ENDS, "the connection ended at once" },
                  { SILENT, "it takes connections and says nothing" } };
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        begin(NULL);
        c.rendezvous_ns = 7500 * MS / (cases[i].who == SILENT ? 1 : 50);
        for (int k = 0; k < 63; k++)
            net.who[k] = cases[i].who;
        snprintf(want, sizeof want,
                 "rank 0 did not come within %g s (TESSERA_RENDEZVOUS_TIMEOUT): nothing answers at 10.0.0.1 port 29500 "
                 "(MASTER_ADDR, MASTER_PORT): %s",
                 (double)c.rendezvous_ns / 1e9, cases[i].why ? cases[i].why : strerror(cases[i].who));
        fails(TESS_E_TIMEOUT, want);
        const int64_t last = net.deadlines[net.n_tried - 1];
        assert_true(last == net.began_ns + c.rendezvous_ns); /* the last one is the shorter for it */
        assert_true(net.now_ns >= last && net.now_ns < last + 40 * MS);
        assert_int_equal(net.n_tried, cases[i].who == SILENT ? 2 : cases[i].who == ENDS ? 6 : 9);
        assert_int_equal(net.naps, net.n_tried - 1);
    }
    begin(NULL); /* the reason is that of an attempt which was not just cut short */
    c.rendezvous_ns = 5100 * MS;
    net.who[0] = ENDS;
    net.who[1] = net.who[2] = SILENT;
    assert_int_equal(tess__control_connect(&c), TESS_E_TIMEOUT);
    assert_non_null(strstr(tess_last_error(), ": the connection ended at once"));
}

/* A launcher on this host listens before it starts anyone; on another it may come later. */
static void test_connect__a_launcher_of_this_host_must_be_there(void **state) {
    static const char *const gone = "the launcher (tessera run) has ended: nothing answers at 10.0.0.1 port 29500: ";
    char want[200];
    (void)state;
    snprintf(want, sizeof want, "%s%s", gone, strerror(ECONNREFUSED));
    for (int local = 0; local < 5; local += 4) { /* of 4, or not known */
        begin(NULL);
        c.world.launched = 1;
        c.world.local_nranks = local;
        net.who[0] = ECONNREFUSED;
        fails(TESS_E_PEER, want);
        assert_true(net.n_tried == 1 && net.naps == 0);
        begin(NULL);
        c.world.launched = 1;
        c.world.local_nranks = local;
        net.who[0] = ENDS; /* which it may do when it has much to do */
        net.who[1] = WELCOMES;
        assert_int_equal(tess__control_connect(&c), TESS_OK);
        begin(NULL);
        c.world.launched = 1;
        c.world.local_nranks = local;
        c.rendezvous_ns = 5 * MS;
        net.who[0] = ENDS;
        snprintf(want, sizeof want, "%sthe connection ended at once", gone);
        fails(TESS_E_PEER, want);
        snprintf(want, sizeof want, "%s%s", gone, strerror(ECONNREFUSED));
    }
    begin(NULL);
    c.world.launched = 1;
    c.world.local_nranks = 2;
    net.who[0] = ECONNREFUSED;
    net.who[1] = WELCOMES;
    assert_int_equal(tess__control_connect(&c), TESS_OK);
    begin(NULL);
    c.world.launched = 1;
    c.world.local_nranks = 2;
    c.rendezvous_ns = 1;
    net.who[0] = SILENT;
    fails(TESS_E_TIMEOUT,
          "node 0's tessera run did not come within 1e-09 s (TESSERA_RENDEZVOUS_TIMEOUT): nothing answers "
          "at 10.0.0.1 port 29500 (--rendezvous): it takes connections and says nothing");
}

/* Of several ports one has the server, and strangers may answer at the others. */
static void test_connect__several_ports_are_tried_in_turn(void **state) {
    (void)state;
    c.world.n_ports = 3;
    net.who[0] = GARBAGE;
    net.who[1] = ECONNREFUSED;
    net.who[2] = REFUSES;
    net.who[3] = OTHER_SECRET;
    net.who[4] = WELCOMES;
    assert_int_equal(tess__control_connect(&c), TESS_OK);
    for (int i = 0; i < 5; i++)
        assert_int_equal(net.ports[i], 29500 + i % 3);
    assert_int_equal(net.n_tried, 5);
    assert_int_equal(c.world.port, 29501);
    begin(NULL);
    c.world.n_ports = 2; /* when the time is over, a stranger's answer is the reason */
    c.rendezvous_ns = 25 * MS;
    for (int i = 0; i < 63; i++)
        net.who[i] = GARBAGE;
    net.who[0] = ECONNREFUSED;
    assert_int_equal(tess__control_connect(&c), TESS_E_INVALID);
    assert_int_equal(net.n_tried, 3);
}

/* ---- where the server listens ---- */

static void serves(const char *address, const char *listen, const char *route, const char *at, const char *reached) {
    begin(NULL);
    c.world.rank = 0;
    net.arg = 0;
    snprintf(c.world.address, sizeof c.world.address, "%s", address);
    net.listen = listen;
    net.route = route;
    assert_int_equal(tess__control_connect(&c), TESS_OK);
    assert_int_equal(net.n_started, 1);
    assert_int_equal(net.started[0], 29500);
    assert_string_equal(net.started_at, at);
    assert_string_equal(c.world.address, reached);
    assert_int_equal(net.keys, *reached != '/'); /* a socket of this user needs no secret */
}

static void test_connect__rank_0_listens_where_others_find_it(void **state) {
    (void)state;
    serves("10.0.0.1", NULL, "10.0.0.1", "10.0.0.1", "10.0.0.1");
    serves("host", NULL, "127.0.1.1", "0.0.0.0", "127.0.0.1"); /* a host that names itself in its loopback */
    serves("10.0.0.1", "0.0.0.0", NULL, "0.0.0.0", "127.0.0.1");
    serves("10.0.0.1", "::", NULL, "::", "::1");
    serves("10.0.0.1", "192.0.2.1", NULL, "192.0.2.1", "192.0.2.1");
    serves("127.0.0.1", NULL, NULL, "/run/port-29500-9abcdef0", "/run/port-29500-9abcdef0");
    serves("localhost", NULL, NULL, "/run/port-29500-9abcdef0", "/run/port-29500-9abcdef0");
    serves("/run/mine", NULL, NULL, "/run/mine", "/run/mine");
    serves("localhost", "127.0.0.1", NULL, "127.0.0.1", "127.0.0.1"); /* who says where gets that */
    begin(NULL);
    c.world.rank = 0;
    fails(TESS_E_INVALID, "'10.0.0.1' (MASTER_ADDR) is no host that can be found from here");
    assert_true(!net.n_started && !net.n_tried);
    begin(NULL); /* the others come to the same place */
    strcpy(c.world.address, "127.0.0.1");
    assert_int_equal(tess__control_connect(&c), TESS_OK);
    assert_string_equal(c.world.address, "/run/port-29500-9abcdef0");
    assert_true(!net.n_started && !net.keys);
    begin(NULL); /* but a launcher has told its own */
    strcpy(c.world.address, "127.0.0.1");
    c.world.launched = 1;
    c.world.rank = net.arg = 0;
    assert_int_equal(tess__control_connect(&c), TESS_OK);
    assert_string_equal(c.world.address, "127.0.0.1");
    assert_int_equal(net.n_started, 0);
}

static void test_connect__the_first_free_port_is_taken(void **state) {
    (void)state;
    for (int taken = 0; taken < 4; taken++) {
        begin(NULL);
        c.world.rank = net.arg = 0;
        c.world.n_ports = 3;
        net.route = "10.0.0.1";
        for (int i = 0; i < taken; i++)
            net.no_server[i] = 1;
        if (taken == 3) {
            fails(TESS_E_INVALID, "port 29502 is in use");
            assert_int_equal(net.n_started, 3);
            continue;
        }
        assert_int_equal(tess__control_connect(&c), TESS_OK);
        assert_int_equal(net.n_started, taken + 1);
        for (int i = 0; i <= taken; i++)
            assert_int_equal(net.started[i], 29500 + i);
        assert_true(net.n_tried == 1 && net.ports[0] == 29500 + taken && c.world.n_ports == 1);
    }
    for (int n = 0; n < 2; n++) { /* 0 and 1: on that one */
        begin(NULL);
        c.world.rank = net.arg = 0;
        c.world.n_ports = n;
        net.route = "10.0.0.1";
        net.no_server[0] = 1;
        fails(TESS_E_INVALID, "port 29500 is in use");
        assert_int_equal(net.n_started, 1);
    }
}

static void test_connect__beyond_the_host_there_is_a_secret(void **state) {
    static const char *const none = "the ranks meet at 10.0.0.1, beyond this host: set TESSERA_SECRET or "
                                    "TESSERA_SECRET_FILE to the same text on all "
                                    "hosts; without it nothing listens there";
    static const char *const weak = "the secret has 15 characters, expected at least 16: openssl rand -hex 32";
    (void)state;
    for (int rank = 0; rank < 3; rank += 2)
        for (int listen = 0; listen < 2; listen++) {
            begin(NULL);
            c.world.rank = rank;
            net.route = "10.0.0.1";
            net.listen = listen ? "10.0.0.1" : NULL;
            c.world.secret[15] = 0;
            fails(TESS_E_INVALID, weak);
            assert_int_equal(net.looked, !listen); /* MASTER_ADDR's name, and no other */
            c.world.secret[0] = 0;
            fails(TESS_E_INVALID, none);
            assert_true(!net.n_started && !net.n_tried && !net.keys);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_connect__a_rank_says_who_it_is_and_hears_who_it_is_now, begin),
        cmocka_unit_test_setup(test_connect__what_is_no_welcome_is_named, begin),
        cmocka_unit_test_setup(test_connect__nobody_is_tried_again_after_a_rest, begin),
        cmocka_unit_test_setup(test_connect__attempts_end_with_the_time_for_all, begin),
        cmocka_unit_test_setup(test_connect__a_launcher_of_this_host_must_be_there, begin),
        cmocka_unit_test_setup(test_connect__several_ports_are_tried_in_turn, begin),
        cmocka_unit_test_setup(test_connect__rank_0_listens_where_others_find_it, begin),
        cmocka_unit_test_setup(test_connect__the_first_free_port_is_taken, begin),
        cmocka_unit_test_setup(test_connect__beyond_the_host_there_is_a_secret, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
