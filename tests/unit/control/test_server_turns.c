/* SPDX-License-Identifier: BSD-3-Clause */
/* The key-value server alone, without sockets and without its thread: whom it takes in and drops, the order of a turn,
 * its waits, start and end, and its words to the launcher. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "core/base/thread.h"
#include "core/control/kv_state.h"
#include "control_calls.h"

enum { RANKS = 4, WORLD = 6, MS = 1000000 };
static const int32_t members[RANKS] = { 0, 2, 3, 5 };
static struct {
    int64_t now_ns;
    int waiting[8], n_waiting, strangers; /* connections that wait; which of them are another user's */
    int memory_left;                      /* -1: none is missing */
    int reads[16], next, poll_fails, given, endless, turns;
    int sent[16]; /* what a flush says, by descriptor */
    int64_t asked_ms;
    short events[80];
    nfds_t n_fds;
    short ready[80];
    int naps, connected_for, caught_after;
    uint64_t files, limit;
    const char *own_address;
    int32_t arg;
    char text[200];
} world;
static tess__kv_server *s;
static tess__kv_client *clients[RANKS + 2]; /* of ranks 0 to 3, and two strangers */

static void *get_memory(size_t n, size_t size) {
    if (world.memory_left == 0)
        return NULL;
    world.memory_left -= world.memory_left > 0;
    world.given++;
    return calloc(n, size);
}
static void give_back(void *p) {
    world.given -= p != NULL;
    free(p);
}
static void hang_up(tess__kv_client *c) {
    say("hang-up %d; ", c->link.fd);
    c->link.fd = -1;
}
static void send_text(const tess__kv_client *c, uint32_t type, int32_t arg, const char *text) {
    say("%s %d %d '%s'; ",
        type == TESS__WIRE_REFUSED   ? "refused"
        : type == TESS__WIRE_WELCOME ? "welcome"
        : type == TESS__WIRE_LOST    ? "lost"
                                     : "?",
        c->link.fd, arg, text);
}
static void broadcast(uint32_t type, int32_t arg, const char *text) {
    say("%s %d '%s'; ", type == TESS__WIRE_READY ? "ready" : "?", arg, text);
}
static void send_it(const tess__kv_client *c, uint32_t type, uint32_t id) {
    say("%s %d %d; ", type == TESS__WIRE_BEAT ? "beat" : "?", c->link.fd, (int)id);
}
static int read_inbox(const tess__link *link) {
    say("read %d; ", link->fd);
    return world.reads[link->fd];
}
static int next_message(size_t limit, tess__message *in) {
    say("next %d; ", (int)limit);
    if (!world.next)
        return 0;
    if (world.next < 0)
        return -1;
    world.next--;
    *in = (tess__message){ .type = TESS__WIRE_SET };
    return 1;
}
static int flush(const tess__link *link) {
    say("flush %d; ", link->fd);
    return world.sent[link->fd];
}
static void close_link(tess__link *link) {
    say("close %d; ", link->fd);
    link->fd = -1;
}
static int open_link(tess__link *link, int fd) {
    if (fails("link"))
        return -1;
    link->fd = fd;
    return 0;
}
static int take_connection(int flags) {
    assert_int_equal(flags, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (world.endless)
        return 14;
    return world.n_waiting ? world.waiting[--world.n_waiting] : -1;
}
static int await(struct pollfd *fds, nfds_t n, int ms) {
    world.asked_ms = ms;
    world.n_fds = n;
    for (nfds_t i = 0; i < n; i++) {
        world.events[i] = fds[i].events;
        fds[i].revents = world.ready[i];
    }
    say("poll; ");
    if (world.turns && !--world.turns)
        atomic_store(&s->stop, 1);
    return world.poll_fails ? -1 : 1;
}
static int find_limit(struct rlimit *limit) {
    limit->rlim_cur = world.limit;
    return fails("limit") ? -1 : 0;
}
static struct dirent *next_file(void) {
    static struct dirent entry;
    return world.files && world.files-- ? &entry : NULL;
}
static tess_status listen_at(const char *address, int32_t *port, const char *setting, int *fd) {
    say("listen %s %d %s; ", address, *port, setting);
    *port = 4321;
    *fd = 60;
    return fails("listen") ? tess__fail(TESS_E_INVALID, "in use") : TESS_OK;
}
static int nap(const struct timespec *pause) {
    assert_true(pause->tv_sec == 0 && (pause->tv_nsec == MS || pause->tv_nsec == MS / 10));
    world.naps++;
    world.now_ns += MS;
    if (s && world.naps == world.connected_for)
        atomic_store(&s->n_connected, 0);
    if (s && world.naps == world.caught_after)
        atomic_store(&s->caught_up, atomic_load(&s->asked));
    return 0;
}
static void news(const tess__kv_ended *list, int64_t now_ns) {
    assert_true(now_ns == world.now_ns);
    say("news");
    for (const tess__kv_ended *e = list; e; e = e->next)
        say(" %d:%d:%s", e->rank, e->orderly, e->why);
    say("; ");
}
static void own_address(int fd, char *out, size_t n) {
    assert_in_range(fd, 10, 13);
    snprintf(out, n, "%s", world.own_address ? world.own_address : "");
}
#define tess__now_ns() (world.now_ns)
#define tess__kv_hang_up(server, c) hang_up(c)
#define tess__kv_send_text(server, c, type, id, arg, text) ((void)(server), send_text(c, type, arg, text))
#define tess__kv_send(server, c, type, id, arg, value) send_it(c, type, id)
#define tess__kv_broadcast(server, type, arg, text) broadcast(type, arg, text)
#define tess__inbox_read(box, link) read_inbox(link)
#define tess__inbox_next(box, limit, in) next_message(limit, in)
#define tess__inbox_drop(box, in) ((void)note("drop", 0))
#define tess__outbox_reserve(box) ((void)note("reserve", 0))
#define tess__outbox_flush(box, link) flush(link)
#define tess__link_close(link) close_link(link)
#define tess__link_open(link, fd, key) open_link(link, fd)
#define tess__link_events(link, more) ((short)(POLLIN | ((more) ? POLLOUT : 0)))
#define tess__link_key_create(secret, listens, out)                                                                    \
    ((void)(out), note(!strcmp(secret, "secret") && (listens) ? "key" : "key?", 0) ? TESS_E_NOMEM : TESS_OK)
#define tess__link_key_destroy(k) ((void)note("no-key", 0))
#define tess__kv_set(server, c, in) ((void)note("set", 0))
#define tess__kv_drop(server, c, in) ((void)note("forget", 0))
#define tess__kv_get(server, c, in) ((void)note("get", 0))
#define tess__kv_cancel(c, number) say("cancel %d; ", (int)(number)), (c)->waits = NULL
#define tess__kv_exchange_add(server, c, in) ((void)note("exchange", 0))
#define tess__kv_exchange_free(server) ((void)note("exchanges", 0))
#define tess__kv_doing(server, rank, in) say("doing %d; ", rank)
#define tess__kv_report(server, rank, in) say("report %d; ", rank)
#define tess__kv_goodbye(server, c, stay) say("goodbye %d; ", stay)
#define tess__kv_back(server, c) ((void)note("back", 0))
#define tess__kv_news_turn(server, list, now_ns) news(list, now_ns)
#define tess__kv_store_destroy(x) ((void)note((x) ? "store" : "no-store", 0))
#define tess__wire_own_address(fd, out, n) own_address(fd, out, n)
#define tess__wire_is_loopback(a) (!strncmp(a, "127.", 4))
#define tess__wire_is_local(a) (*(a) == '/')
#define tess__wire_listen(a, port, setting, fd) listen_at(a, port, setting, fd)
#define tess__local_is_ours(fd) (!(world.strangers >> ((fd)-20) & 1))
#define tess__thread_start(thread, work, server) note("thread", 0)
#define eventfd(n, flags) ((flags) == (EFD_CLOEXEC | EFD_NONBLOCK) ? note("eventfd", 61) : -1)
#define close(fd) say("close-fd %d; ", fd)
#define unlink(path) say("unlink %s; ", path)
#define poll(fds, n, ms) await(fds, n, ms)
#define accept4(fd, a, n, flags) take_connection(flags)
#define setsockopt(fd, level, what, one, n) say("%s %d; ", (what) == TCP_NODELAY && *(one) ? "no-delay" : "?", fd)
#define read(fd, to, n) (*(to) = 1, (fd) == 61 ? note("wake-read", 8) : -1)
#define write(fd, from, n) ((fd) == 61 && *(from) == 1 ? note("wake", 8) : -1)
#define nanosleep(pause, left) nap(pause)
#define pthread_setname_np(thread, name) say("%s; ", name)
#define opendir(path) ((DIR *)(strcmp(path, "/proc/self/fd") ? NULL : &world))
#define readdir(dir) next_file()
#define closedir(dir) ((void)(dir))
#define getrlimit(what, limit) find_limit(limit)
#define calloc(n, size) get_memory(n, size)
#define free(p) give_back(p)
#include "core/control/kv_server.c"
#undef calloc
#undef free
#undef close

static const tess__kv_terms terms = {
    .secret = "secret", .job = "job7", .launcher = 1, .world = WORLD, .members = members
};

static tess__kv_client *add_client(int fd, int32_t rank) {
    accept_one(s, fd);
    tess__kv_client *c = s->clients[s->n_clients - 1];
    c->rank = rank;
    if (rank >= 0) {
        s->ranks[rank].client = c;
        atomic_store(&s->joined[rank], 1);
    }
    return c;
}

static int end(void **state) {
    (void)state;
    if (s)
        destroy_server(s);
    s = NULL;
    assert_int_equal(world.given, 0);
    return 0;
}

/* A server of four ranks that are left of six; ranks 0 and 1 here have joined, and two strangers are connected. */
static int begin(void **state) {
    (void)state;
    if (s)
        (void)end(NULL);
    memset(&world, 0, sizeof world);
    begin_calls(50, 600);
    world.memory_left = -1;
    world.now_ns = 100ll * 1000 * MS;
    world.limit = 1000;
    s = create_server(RANKS, &terms);
    assert_non_null(s);
    clients[0] = add_client(10, 0);
    clients[1] = add_client(11, 1);
    clients[4] = add_client(12, -1);
    clients[5] = add_client(13, -1);
    said_so_far[0] = 0;
    return 0;
}

/* ---- hello ---- */

static tess__message hello_of(int32_t rank, const char *n, const char *job) {
    return (tess__message){ .type = TESS__WIRE_HELLO,
                            .arg = rank,
                            .key = n,
                            .value = (const unsigned char *)job,
                            .value_bytes = (uint32_t)strlen(job) };
}

static void test_server_turns__who_is_wrong_here_is_told_why(void **state) {
    static const struct {
        int32_t rank;
        const char *n, *job, *why;
    } cases[] = { { 5, "6", "job7", NULL },
                  { 3, "6", "job7", NULL },
                  { 3, "6", "job", "it belongs to another job" },
                  { 3, "6", "job7.", "it belongs to another job" },
                  { 3, "6", "job8", "it belongs to another job" },
                  { 3, "6", "", "it belongs to another job" },
                  { 3, "4", "job7", "it belongs to a world of 4 ranks, here are 6 (WORLD_SIZE)" },
                  { 3, "1234567890123456", "job7",
                    "it belongs to a world of 123456789012 ranks, here are 6 (WORLD_SIZE)" },
                  { -1, "6", "job7", "its rank -1 is not in 0 to 5 (RANK)" },
                  { 6, "6", "job7", "its rank 6 is not in 0 to 5 (RANK)" },
                  { 1, "6", "job7", "the others have gone on without it" },
                  { 4, "6", "job7", "the others have gone on without it" },
                  { 0, "6", "job7", "rank 0 has joined already (two processes with the same RANK?)" },
                  { 2, "6", "job7", "rank 2 has joined already (two processes with the same RANK?)" } };
    char want[160];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin(NULL);
        const tess__message in = hello_of(cases[i].rank, cases[i].n, cases[i].job);
        assert_int_equal(handle_message(s, clients[4], &in), 0);
        assert_int_equal(clients[4]->closing, cases[i].why != NULL);
        if (cases[i].why)
            snprintf(want, sizeof want, "refused 12 %d '%s'; ", TESS_E_INVALID, cases[i].why);
        else
            snprintf(want, sizeof want, "reserve; welcome 12 %d '4'; ", cases[i].rank == 3 ? 2 : 3);
        expect_said(want);
    }
    begin(NULL);
    const tess__message in = hello_of(3, "6", "job7"), other = { .type = TESS__WIRE_SET };
    s->timed_out = 1;
    strcpy(s->timeout_text, "too late");
    assert_int_equal(handle_message(s, clients[4], &in), 0);
    snprintf(want, sizeof want, "refused 12 %d 'too late'; ", TESS_E_TIMEOUT);
    expect_said(want);
    assert_int_equal(handle_message(s, clients[5], &other), -1); /* before hello there is no other word */
    expect_said("");
}

static void test_server_turns__the_last_that_comes_makes_all_ready(void **state) {
    const tess__message third = hello_of(3, "6", "job7"), last = hello_of(5, "6", "job7");
    (void)state;
    world.own_address = "192.0.2.1";
    handle_hello(s, clients[4], &third);
    assert_true(clients[4]->rank == 2 && s->ranks[2].client == clients[4] && s->joined[2] && s->n_connected == 1);
    assert_true(s->first_hello_ns == world.now_ns && !s->ready);
    world.now_ns += 5;
    world.own_address = "198.51.100.1";
    said_so_far[0] = 0;
    handle_hello(s, clients[5], &last);
    assert_true(s->ready && s->n_connected == 2 && s->first_hello_ns == world.now_ns - 5);
    expect_said("reserve; welcome 13 3 '4'; ready 0 '192.0.2.1'; "); /* the first of another host counts */
    begin(NULL);
    s->cause.settled = 1;
    s->cause.rank = 1;
    strcpy(s->cause.text, "rank 1 was lost");
    world.own_address = "127.0.0.1";
    handle_hello(s, clients[4], &third);
    expect_said("reserve; welcome 12 2 '4'; lost 12 1 'rank 1 was lost'; ");
    handle_hello(s, clients[5], &last);
    expect_said("reserve; welcome 13 3 '4'; lost 13 1 'rank 1 was lost'; ");
    assert_true(!s->ready && !*s->address);
    begin(NULL);
    handle_hello(s, clients[4], &third);
    handle_hello(s, clients[5], &last);
    assert_non_null(strstr(said_so_far, "ready 0 ''; ")); /* all on one host */
}

/* ---- messages ---- */

static void test_server_turns__each_message_has_its_answer(void **state) {
    static const struct {
        uint32_t type, id;
        int result;
        const char *want;
    } cases[] = { { TESS__WIRE_SET, 1, 0, "set; " },
                  { TESS__WIRE_DROP, 1, 0, "forget; " },
                  { TESS__WIRE_GET, 1, 0, "get; " },
                  { TESS__WIRE_CANCEL, 7, 0, "cancel 7; " },
                  { TESS__WIRE_EXCHANGE, 1, 0, "exchange; " },
                  { TESS__WIRE_EXCHANGE, 0, -1, "" }, /* 0 is no number of a request */
                  { TESS__WIRE_DOING, 0, 0, "doing 1; " },
                  { TESS__WIRE_REPORT, 0, 0, "report 1; " },
                  { TESS__WIRE_GOODBYE, 0, 0, "goodbye 9; " },
                  { TESS__WIRE_BACK, 0, 0, "back; " },
                  { TESS__WIRE_BEAT, 0, 0, "beat 11 0; " },
                  { TESS__WIRE_BEAT, 1, 0, "" },
                  { TESS__WIRE_HELLO, 0, -1, "" },
                  { TESS__WIRE_READY, 0, -1, "" },
                  { 0, 0, -1, "" },
                  { TESS__WIRE_LAST, 0, -1, "" } };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tess__message in = { .type = cases[i].type, .id = cases[i].id, .arg = 9 };
        s->ranks[1].answered = 0;
        assert_int_equal(handle_message(s, clients[1], &in), cases[i].result);
        expect_said(cases[i].want);
        assert_int_equal(s->ranks[1].answered, cases[i].type == TESS__WIRE_BEAT && cases[i].id);
    }
}

static void test_server_turns__all_that_has_come_is_handled(void **state) {
    char want[256];
    const int rank = TESS__KV_VALUE_MAX + 4 * TESS__KV_MEMBERS_MAX + 1024;
    (void)state;
    world.reads[11] = 1;
    world.next = 2;
    world.now_ns += 5;
    read_client(s, clients[1]);
    snprintf(want, sizeof want, "read 11; next %d; set; drop; next %d; set; drop; next %d; ", rank, rank, rank);
    expect_said(want);
    assert_true(clients[1]->heard_ns == world.now_ns);
    world.now_ns += 5;
    world.reads[11] = 0; /* nothing came after all */
    read_client(s, clients[1]);
    expect_said("read 11; ");
    assert_true(clients[1]->heard_ns == world.now_ns - 5);
    world.reads[11] = -1;
    read_client(s, clients[1]);
    expect_said("read 11; hang-up 11; ");
    world.reads[12] = world.reads[13] = 1;
    world.next = 1;
    read_client(s, clients[4]); /* a stranger may say little, and nothing but hello */
    expect_said("read 12; next 1024; hang-up 12; ");
    world.next = -1;
    read_client(s, clients[5]);
    expect_said("read 13; next 1024; hang-up 13; ");
    begin(NULL);
    world.reads[11] = 1;
    world.next = 2;
    clients[1]->closing = 1; /* nobody listens to it any more */
    read_client(s, clients[1]);
    expect_said("read 11; clear-in; ");
    clients[1]->closing = 0;
    clients[1]->link.fd = -1;
    assert_int_equal(handle_all(s, clients[1]), 0);
    expect_said("");
}

/* ---- who comes and who is dropped ---- */

static void test_server_turns__strangers_have_their_time(void **state) {
    (void)state;
    const int64_t late = TESS__KV_STRANGER_MS * (int64_t)MS;
    drop_late_strangers(s, world.now_ns + late);
    expect_said("");
    clients[5]->since_ns++;
    clients[4]->heard_ns += late; /* who only talks does not stay */
    drop_late_strangers(s, world.now_ns + late + 1);
    expect_said("hang-up 12; ");
    drop_late_strangers(s, world.now_ns + late + 2);
    expect_said("hang-up 13; ");
    drop_late_strangers(s, world.now_ns + 9 * late); /* a rank may be quiet: that is silence's business */
    expect_said("");
    clients[1]->closing = 1; /* but who was told to go has as long */
    clients[1]->heard_ns += late;
    drop_late_strangers(s, world.now_ns + 2 * late);
    expect_said("");
    drop_late_strangers(s, world.now_ns + 2 * late + 1);
    expect_said("hang-up 11; ");
}

static void test_server_turns__crowds_of_strangers_push_each_other_out(void **state) {
    (void)state;
    const uint32_t most = TESS__KV_STRANGERS_MAX + 2; /* two ranks are still to come */
    clients[5]->since_ns--;
    while (s->n_clients < 2 + most - 1)
        (void)add_client(14, -1);
    said_so_far[0] = 0;
    drop_oldest_stranger(s);
    expect_said("");
    (void)add_client(14, -1);
    said_so_far[0] = 0;
    drop_oldest_stranger(s);
    expect_said("hang-up 13; ");
    drop_oldest_stranger(s);
    expect_said("");
    (void)add_client(15, -1);
    said_so_far[0] = 0;
    drop_oldest_stranger(s); /* of the same age the first */
    expect_said("hang-up 12; ");
}

static void test_server_turns__connections_are_taken_as_there_is_room(void **state) {
    (void)state;
    world.n_waiting = 2;
    world.waiting[0] = 21;
    world.waiting[1] = 20;
    assert_int_equal(accept_some(s), 0);
    expect_said("no-delay 20; no-delay 21; ");
    assert_true(s->n_clients == 6 && s->clients[5]->link.fd == 21 && s->clients[5]->rank == -1);
    assert_true(s->clients[5]->since_ns == world.now_ns && s->clients[5]->heard_ns == world.now_ns);
    strcpy(s->path, "/run/x"); /* of a Unix socket the other side's user is known */
    world.n_waiting = 2;
    world.strangers = 1;
    assert_int_equal(accept_some(s), 0);
    expect_said("close-fd 20; no-delay 21; ");
    assert_int_equal(s->n_clients, 7);
    s->path[0] = 0;
    world.n_waiting = 2;
    assert_int_equal(accept_some(s), 0); /* over a network it is the secret that counts */
    assert_int_equal(s->n_clients, 9);
    calls.fails = "link";
    world.n_waiting = 1;
    said_so_far[0] = 0;
    assert_int_equal(accept_some(s), 0);
    expect_said("no-delay 21; ");
    assert_int_equal(s->n_clients, 9);
    calls.fails = NULL;
    world.memory_left = 0;
    world.n_waiting = 1;
    assert_int_equal(accept_some(s), 0);
    expect_said("close-fd 21; ");
    world.memory_left = -1;
    while (s->n_clients < s->capacity)
        (void)add_client(14, -1);
    said_so_far[0] = 0;
    accept_one(s, 30);
    expect_said("close-fd 30; ");
    clients[4]->link.fd = -1; /* who was hung up on in this turn makes room */
    accept_one(s, 30);
    expect_said("close -1; clear-in; clear-out; no-delay 30; ");
    assert_true(s->n_clients == s->capacity && s->clients[s->capacity - 1]->link.fd == 30);
    begin(NULL);
    world.endless = 1; /* only so many at once: others' words come in between */
    assert_int_equal(accept_some(s), 1);
    assert_int_equal(s->n_clients, 4 + TESS__KV_STRANGERS_MAX);
}

static void test_server_turns__all_that_waits_is_read_when_the_launcher_asks(void **state) {
    (void)state;
    catch_up(s);
    expect_said("");
    atomic_store(&s->asked, 3);
    world.n_waiting = 1;
    world.waiting[0] = 14;
    clients[1]->closing = 1;
    clients[4]->link.fd = -1;
    catch_up(s);
    expect_said("no-delay 14; read 10; read 13; read 14; ");
    assert_int_equal(s->caught_up, 3);
}

/* ---- a turn ---- */

static void test_server_turns__what_waits_is_sent_and_who_was_told_to_go_goes(void **state) {
    tess__chunk *const some = (tess__chunk *)&world;
    (void)state;
    flush_all(s);
    expect_said("");
    clients[0]->out.first = some;
    clients[4]->out.first = some;
    clients[4]->link.fd = -1;
    clients[1]->closing = 1;
    clients[5]->closing = 1;
    clients[5]->out.first = some;
    world.sent[10] = world.sent[11] = 1;
    flush_all(s);
    expect_said("flush 10; flush 11; hang-up 11; flush 13; "); /* 13 has not got all of it */
    world.sent[10] = -1;
    flush_all(s);
    expect_said("flush 10; hang-up 10; flush 13; ");
    clients[0]->out.first = clients[4]->out.first = clients[5]->out.first = NULL;
}

static int waits(void) {
    static struct pollfd fds[80];
    wait_for_events(s, fds);
    said_so_far[0] = 0;
    assert_true(fds[0].fd == 61 && fds[1].fd == s->listen_fd && world.events[0] == POLLIN && world.events[1] == POLLIN);
    return (int)world.asked_ms;
}

static void test_server_turns__a_wait_ends_when_a_cause_is_due(void **state) {
    (void)state;
    assert_int_equal(waits(), TESS__KV_TICK_MS);
    assert_int_equal(world.n_fds, 2 + 4);
    s->cause.deadline_ns = world.now_ns + 30 * MS;
    assert_int_equal(waits(), TESS__KV_TICK_MS); /* there is none */
    s->cause.strength = TESS__KV_ECHO;
    assert_int_equal(waits(), 31);
    s->cause.deadline_ns = world.now_ns + 99 * MS;
    assert_int_equal(waits(), 100);
    s->cause.deadline_ns = world.now_ns + 98 * MS;
    assert_int_equal(waits(), 99);
    s->cause.deadline_ns = world.now_ns + 400 * MS;
    assert_int_equal(waits(), TESS__KV_TICK_MS);
    s->cause.deadline_ns = world.now_ns - 3 * MS;
    assert_int_equal(waits(), 0);
    s->cause.settled = 1;
    assert_int_equal(waits(), TESS__KV_TICK_MS);
    s->n_hung_up = 1;
    assert_int_equal(waits(), 0);
    clients[0]->out.n = TESS__KV_QUEUE_MAX; /* who does not read is read no further */
    clients[0]->out.first = (tess__chunk *)&world;
    clients[1]->out.n = TESS__KV_QUEUE_MAX - 1;
    clients[4]->closing = 1;
    (void)waits();
    assert_int_equal(world.events[2], POLLOUT);
    assert_int_equal(world.events[3], POLLIN);
    assert_int_equal(world.events[4], 0);
    assert_int_equal(world.events[5], POLLIN);
    clients[0]->out.first = NULL;
}

static void test_server_turns__a_turn_has_its_order(void **state) {
    static struct pollfd fds[80];
    (void)state;
    world.ready[0] = POLLIN;
    world.ready[1] = POLLIN;
    world.ready[2] = POLLIN;
    world.ready[3] = POLLHUP;
    world.ready[4] = POLLERR;
    world.ready[5] = POLLOUT;
    world.n_waiting = 1;
    world.waiting[0] = 14;
    clients[1]->out.first = (tess__chunk *)&world;
    world.sent[11] = -1;
    world.reads[12] = -1;
    tess__kv_server_rank_ended(s, 2, 1, "exit code 0"); /* whose number here is 1 */
    tess__kv_server_rank_ended(s, 1, 0, "of nobody here");
    tess__kv_server_rank_ended(s, -1, 0, "of nobody");
    tess__kv_server_rank_ended(s, 6, 0, "of nobody");
    tess__kv_server_rank_ended(s, 5, 0, "killed by signal 9");
    expect_said("wake; wake; ");
    const tess__kv_ended *first = s->ended;
    server_turn(s, fds);
    expect_said(
        "poll; wake-read; read 10; read 11; read 12; hang-up 12; no-delay 14; read 11; news 1:1:exit code 0 "
        "3:0:killed by signal 9; flush 11; hang-up 11; close -1; clear-in; clear-out; close -1; clear-in; clear-out; ");
    assert_true(!s->ended && s->ended_end == &s->ended && s->n_clients == 3);
    world.given -= 2; /* of the news, which that frees */
    free((void *)(uintptr_t)first->next);
    free((void *)(uintptr_t)first);
    s->ranks[1].client = NULL;
    memset(world.ready, 0, sizeof world.ready);
    world.poll_fails = 1; /* interrupted: nothing has come */
    world.ready[0] = world.ready[1] = POLLIN;
    world.n_waiting = 1;
    server_turn(s, fds);
    expect_said("poll; news; ");
    world.poll_fails = 0;
    memset(world.ready, 0, sizeof world.ready);
    s->clients[0]->closing = 1;
    world.ready[2] = POLLIN;
    world.sent[10] = 0;
    server_turn(s, fds);
    expect_said("poll; news; flush 10; ");
}

static void test_server_turns__the_thread_works_until_it_is_stopped(void **state) {
    (void)state;
    world.turns = 2;
    assert_null(server_work(s));
    expect_said(TESS__KV_SERVER_THREAD "; poll; news; poll; news; ");
    assert_true(s->turn_ns == world.now_ns);
    assert_null(server_work(s)); /* it was stopped before it began */
    expect_said(TESS__KV_SERVER_THREAD "; ");
    atomic_store(&s->stop, 0);
    world.memory_left = 0;
    assert_null(server_work(s));
    expect_said(TESS__KV_SERVER_THREAD "; ");
}

/* ---- start and end ---- */

static void starts(const char *address, int32_t nranks, const tess__kv_terms *of, tess_status want, const char *said,
                   const char *text) {
    tess__kv_server *out = NULL;
    int32_t port = 4000;
    said_so_far[0] = 0;
    assert_int_equal(tess__kv_server_start(address, &port, nranks, of, &out), want);
    if (text)
        assert_string_equal(tess_last_error(), text);
    expect_said(said);
    assert_int_equal(port, want ? 4000 : 4321); /* outputs are written on success only */
    assert_int_equal(out != NULL, !want);
    if (want)
        return;
    assert_true(out->heartbeat_ns == 50 && out->rendezvous_ns == 600 && out->nranks == nranks && out->culprit == -1);
    tess__kv_server_stop(out);
    assert_int_equal(world.given, 0);
}

static void test_server_turns__starting_and_stopping_are_whole(void **state) {
    (void)state;
    (void)end(NULL);
    said_so_far[0] = 0;
    starts("10.0.0.1", RANKS, &terms, TESS_OK,
           "eventfd; heartbeat; rendezvous-timeout; key; listen 10.0.0.1 4000 --rendezvous HOST:PORT; thread; ", NULL);
    expect_said("wake; join; close-fd 60; close-fd 61; exchanges; store; no-key; ");
    tess__kv_terms own = terms;
    own.launcher = 0;
    own.secret = NULL;
    own.members = NULL;
    starts("/run/x", 3, &own, TESS_OK,
           "eventfd; heartbeat; rendezvous-timeout; listen /run/x 4000 MASTER_PORT; thread; ", NULL);
    expect_said("wake; join; close-fd 60; close-fd 61; exchanges; store; unlink /run/x; no-key; ");
    starts("10.0.0.1", 3, &own, TESS_E_INVALID, "",
           "listening on 10.0.0.1 needs a shared secret: set TESSERA_SECRET to the same text on all ranks");
    own.secret = "";
    starts("10.0.0.1", 3, &own, TESS_E_INVALID, "",
           "listening on 10.0.0.1 needs a shared secret: set TESSERA_SECRET to the same text on all ranks");
    starts("/run/x", 0, &own, TESS_E_INVALID, "", "a world of 0 ranks cannot be served, expected 1 or more");
    starts("/run/x", -1, &own, TESS_E_INVALID, "", "a world of -1 ranks cannot be served, expected 1 or more");
    static const struct {
        const char *fails, *said, *text;
        tess_status status;
    } cases[] = {
        { "heartbeat", "eventfd; heartbeat; close-fd 61; exchanges; store; no-key; ", "heartbeat failed",
          TESS_E_DEVICE },
        { "rendezvous-timeout", "eventfd; heartbeat; rendezvous-timeout; close-fd 61; exchanges; store; no-key; ",
          "rendezvous-timeout failed", TESS_E_DEVICE },
        { "key", "eventfd; heartbeat; rendezvous-timeout; key; close-fd 61; exchanges; store; no-key; ", NULL,
          TESS_E_NOMEM },
        { "listen",
          "eventfd; heartbeat; rendezvous-timeout; key; listen 10.0.0.1 4000 --rendezvous HOST:PORT; close-fd 60; "
          "close-fd 61; exchanges; store; no-key; ",
          "in use", TESS_E_INVALID },
        { "thread",
          "eventfd; heartbeat; rendezvous-timeout; key; listen 10.0.0.1 4000 --rendezvous HOST:PORT; thread; "
          "close-fd 60; close-fd 61; exchanges; store; no-key; ",
          "cannot start the key-value server's thread", TESS_E_SYSTEM },
        { "eventfd", "eventfd; exchanges; store; no-key; ", "no memory for a key-value server of 4 ranks",
          TESS_E_NOMEM },
        { "store", "eventfd; close-fd 61; exchanges; no-store; no-key; ", "no memory for a key-value server of 4 ranks",
          TESS_E_NOMEM }
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        calls.fails = cases[i].fails;
        starts("10.0.0.1", RANKS, &terms, cases[i].status, cases[i].said, cases[i].text);
        assert_int_equal(world.given, 0);
    }
    calls.fails = NULL;
    for (int left = 0; left < 6; left++) {
        tess__kv_server *out = NULL;
        int32_t port = 1;
        world.memory_left = left;
        assert_int_equal(tess__kv_server_start("/run/x", &port, RANKS, &terms, &out), TESS_E_NOMEM);
        assert_int_equal(world.given, 0);
        assert_null(strstr(said_so_far, "thread"));
    }
    world.memory_left = -1;
    tess__kv_server_stop(NULL);
}

static void test_server_turns__as_many_files_as_ranks_can_be_open(void **state) {
    (void)state;
    world.files = 10;
    world.limit = 14;
    assert_int_equal(check_files(4), TESS_OK);
    world.files = 10;
    assert_int_equal(check_files(5), TESS_E_SYSTEM);
    assert_string_equal(tess_last_error(),
                        "the key-value server of 5 ranks needs 15 files open at once, ulimit -n allows "
                        "14: Too many open files");
    world.files = 10;
    calls.fails = "limit";
    assert_int_equal(check_files(5), TESS_OK);
}

/* ---- what the launcher asks ---- */

static void test_server_turns__ranks_are_known_by_their_first_numbers(void **state) {
    char word[16] = "x";
    (void)state;
    atomic_store(&s->silent[2], 1);
    for (int32_t r = -1; r <= WORLD; r++) {
        assert_int_equal(tess__kv_server_joined(s, r), r == 0 || r == 2);
        assert_int_equal(tess__kv_server_silent(s, r), r == 3);
    }
    assert_int_equal(tess__kv_server_culprit(s), -1);
    for (int32_t place = 0; place < RANKS; place++) {
        atomic_store(&s->culprit, place);
        assert_int_equal(tess__kv_server_culprit(s), members[place]);
        for (int32_t r = -1; r <= WORLD; r++) {
            strcpy(s->cause.last_word, "its own end");
            const int own = r == members[place];
            assert_int_equal(tess__kv_server_last_word(s, r, word, sizeof word), own);
            assert_string_equal(word, own ? "its own end" : "x");
            strcpy(word, "x");
            s->cause.last_word[0] = 0;
            assert_int_equal(tess__kv_server_last_word(s, r, word, sizeof word), 0);
        }
    }
    tess__kv_fits fits = { .n = 7 };
    assert_int_equal(tess__kv_server_ready(s), 0);
    assert_int_equal(tess__kv_server_fits(s, &fits), 0);
    assert_int_equal(fits.n, 7);
    s->fits.n = 2;
    atomic_store(&s->mirrored, 1);
    assert_int_equal(tess__kv_server_ready(s), 1);
    assert_int_equal(tess__kv_server_fits(s, &fits), 1);
    assert_int_equal(fits.n, 2);
    assert_int_equal(tess__kv_server_closing(s), 0);
    atomic_store(&s->closing, 1);
    assert_int_equal(tess__kv_server_closing(s), 1);
    atomic_store(&s->n_connected, 3);
    assert_int_equal(tess__kv_server_connected(s), 3);
}

static void test_server_turns__waits_of_the_launcher_end(void **state) {
    (void)state;
    tess__kv_server_linger(s, world.now_ns + 5 * MS);
    assert_int_equal(world.naps, 0); /* nobody is there */
    atomic_store(&s->n_connected, 1);
    tess__kv_server_linger(s, world.now_ns + 5 * MS);
    assert_int_equal(world.naps, 5);
    world.naps = 0;
    world.connected_for = 2;
    tess__kv_server_linger(s, world.now_ns + 5 * MS);
    assert_int_equal(world.naps, 2);
    world.naps = 0;
    world.caught_after = 3;
    tess__kv_server_catch_up(s);
    assert_true(world.naps == 3 && s->asked == 1);
    expect_said("wake; ");
    world.naps = world.caught_after = 0;
    tess__kv_server_catch_up(s);
    assert_true(world.naps == TESS__KV_STRANGER_MS && s->asked == 2);
    tess__kv_wait wait = { .id = 8 }; /* who is swept gives back what it waits for */
    clients[4]->waits = &wait;
    clients[4]->link.fd = -1;
    said_so_far[0] = 0;
    sweep_clients(s);
    expect_said("close -1; clear-in; clear-out; cancel 8; ");
    assert_true(s->n_clients == 3 && s->clients[2] == clients[5]);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(test_server_turns__##name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(who_is_wrong_here_is_told_why),
        TEST(the_last_that_comes_makes_all_ready),
        TEST(each_message_has_its_answer),
        TEST(all_that_has_come_is_handled),
        TEST(strangers_have_their_time),
        TEST(crowds_of_strangers_push_each_other_out),
        TEST(connections_are_taken_as_there_is_room),
        TEST(all_that_waits_is_read_when_the_launcher_asks),
        TEST(what_waits_is_sent_and_who_was_told_to_go_goes),
        TEST(a_wait_ends_when_a_cause_is_due),
        TEST(a_turn_has_its_order),
        TEST(the_thread_works_until_it_is_stopped),
        TEST(starting_and_stopping_are_whole),
        TEST(as_many_files_as_ranks_can_be_open),
        TEST(ranks_are_known_by_their_first_numbers),
        TEST(waits_of_the_launcher_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
