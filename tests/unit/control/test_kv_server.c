/* SPDX-License-Identifier: BSD-3-Clause */
/* The key-value server against clients that do not behave. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/control/kv_state.h"
#include "core/control/kv_store.h"
#include "kv_fixture.h"

/* 1: the other side hung up within that time. */
static int hangs_up(int fd, int seconds) {
    char bytes[4096];
    int64_t deadline_ns = tess__now_ns() + seconds * SECOND_NS;
    while (tess__now_ns() < deadline_ns) {
        struct pollfd wait = { .fd = fd, .events = POLLIN };
        if (poll(&wait, 1, 20) <= 0)
            continue;
        if (recv(fd, bytes, sizeof bytes, 0) <= 0)
            return 1;
    }
    return 0;
}

/* Two well-behaved ranks, for showing that the world still works. */
typedef struct {
    tess__kv_server *server;
    tess__control *controls[2];
} world;

typedef struct {
    tess__world world;
    tess__control *control;
    tess_status status;
} seat;

static void *open_seat(void *user) {
    seat *s = user;
    s->status = tess__control_open(&s->world, &s->control);
    return NULL;
}

static void open_world(world *w) {
    seat seats[2];
    pthread_t threads[2];
    w->server = start_here(2);
    for (int r = 0; r < 2; r++) {
        seats[r] = (seat){ .world = { .rank = r, .nranks = 2, .launched = 1 } };
        snprintf(seats[r].world.address, sizeof seats[r].world.address, "%s", place());
        pthread_create(&threads[r], NULL, open_seat, &seats[r]);
    }
    for (int r = 0; r < 2; r++) {
        pthread_join(threads[r], NULL);
        assert_int_equal(seats[r].status, TESS_OK);
        w->controls[r] = seats[r].control;
    }
}

static void expect_works(world *w) {
    static int n;
    char key[32], got[8];
    uint64_t bytes = sizeof got;
    snprintf(key, sizeof key, "works %d", n++);
    assert_int_equal(tess__control_set(w->controls[0], key, "yes", 3), TESS_OK);
    assert_int_equal(tess__control_get(w->controls[1], key, got, &bytes, 5 * SECOND_NS), TESS_OK);
    assert_int_equal(bytes, 3);
    assert_int_equal(tess__control_cause(w->controls[0], NULL), TESS_OK);
    assert_int_equal(tess__control_cause(w->controls[1], NULL), TESS_OK);
}

static void close_world(world *w) {
    tess__control_close(w->controls[0], 1);
    tess__control_close(w->controls[1], 1);
    tess__kv_server_stop(w->server);
}

static int count_fds(void) {
    int n = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder))
        n++;
    closedir(folder);
    return n;
}

static void put_u32(unsigned char *at, uint32_t value) {
    for (int i = 0; i < 4; i++)
        at[i] = (unsigned char)(value >> (8 * i));
}

/* ---- strangers ---------------------------------------------------------------------------------- */

static void test_kv_server__garbage_is_hung_up_on(void **state) {
    (void)state;
    world w;
    open_world(&w);
    static const char *const garbage[] = { "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "\n",
                                           "TSSKTSSKTSSKTSSKTSSKTSSKTSSKTSSK", "SSH-2.0-OpenSSH_9.2\r\n" };
    for (size_t i = 0; i < sizeof garbage / sizeof garbage[0]; i++) {
        int fd = connect_here();
        send(fd, garbage[i], strlen(garbage[i]), MSG_NOSIGNAL);
        if (strlen(garbage[i]) >= 4)
            assert_true(hangs_up(fd, 2));
        close(fd);
        expect_works(&w);
    }
    unsigned int seed = 1;
    for (int i = 0; i < 200; i++) {
        unsigned char bytes[256];
        for (size_t k = 0; k < sizeof bytes; k++)
            bytes[k] = (unsigned char)rand_r(&seed);
        if (i % 2)
            memcpy(bytes, "TSSK\1\0\0\0", 8);
        int fd = connect_here();
        send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
        close(fd);
    }
    expect_works(&w);
    close_world(&w);
}

static void test_kv_server__messages_before_hello_are_hung_up_on(void **state) {
    (void)state;
    world w;
    open_world(&w);
    for (uint32_t type = TESS__WIRE_SET; type < TESS__WIRE_LAST; type++) {
        int fd = connect_here();
        tess__message message = { .type = type, .id = 1, .key = "k", .key_bytes = 2 };
        send_all(fd, &message);
        assert_true(hangs_up(fd, 2));
        close(fd);
    }
    expect_works(&w);
    close_world(&w);
}

static void test_kv_server__another_job_gets_one_answer_and_no_seat(void **state) {
    (void)state;
    world w;
    open_world(&w);
    static const char *const jobs[] = { "k", "another", "a job's name that is rather long" };
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        tess__inbox box = { 0 };
        tess__message got;
        int fd = connect_here();
        say_hello(fd, 0, "2", jobs[i]);
        expect_message(fd, &box, TESS__WIRE_REFUSED, &got);
        assert_int_equal(got.arg, TESS_E_INVALID);
        assert_true(hangs_up(fd, 2));
        tess__inbox_clear(&box);
        close(fd);
    }
    expect_works(&w);
    close_world(&w);
}

static void test_kv_server__job_is_compared_to_its_last_letter(void **state) {
    (void)state;
    static const char *const jobs[] = { "job7.2", "job7.200", "job7.2\n", "", "job7.20" };
    const tess__kv_terms terms = { .job = "job7.20" };
    tess__kv_server *server = NULL;
    int32_t port = 0;
    assert_int_equal(tess__kv_server_start(place(), &port, 1, &terms, &server), TESS_OK);
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        tess__inbox box = { 0 };
        tess__message got;
        int fd = connect_here();
        say_hello(fd, 0, "1", jobs[i]);
        expect_message(fd, &box, strcmp(jobs[i], terms.job) == 0 ? TESS__WIRE_WELCOME : TESS__WIRE_REFUSED, &got);
        tess__inbox_clear(&box);
        close(fd);
    }
    tess__kv_server_stop(server);
}

/* Sends a header that announces so much, and then that much or until hung up on. */
static int survives_announcing(uint32_t key_bytes, uint32_t value_bytes, int hello) {
    int fd = connect_here();
    if (hello) {
        tess__inbox box = { 0 };
        tess__message got;
        say_hello(fd, 0, "1", "");
        expect_message(fd, &box, TESS__WIRE_READY, &got);
        tess__inbox_clear(&box);
    }
    unsigned char header[TESS__WIRE_HEADER] = "TSSK\1";
    put_u32(header + 8, hello ? TESS__WIRE_SET : TESS__WIRE_HELLO);
    put_u32(header + 12, 1);
    put_u32(header + 20, key_bytes);
    put_u32(header + 24, value_bytes);
    send(fd, header, sizeof header, MSG_NOSIGNAL);
    int hung_up = hangs_up(fd, 1);
    close(fd);
    return !hung_up;
}

static void test_kv_server__oversized_messages_are_hung_up_on(void **state) {
    (void)state;
    world w;
    open_world(&w);
    assert_false(survives_announcing(2, 2000, 0));
    assert_false(survives_announcing(0xffffffff, 0xffffffff, 0));
    expect_works(&w);
    close_world(&w);

    static const uint32_t too_large[] = { (4 << 20) + 20000, 0x7fffffff, 0xffffffff };
    for (size_t i = 0; i < sizeof too_large / sizeof too_large[0]; i++) {
        tess__kv_server *server = start_here(1);
        assert_false(survives_announcing(2, too_large[i], 1));
        tess__kv_server_stop(server);
    }
}

static void test_kv_server__a_rank_that_breaks_the_protocol_is_lost_not_followed(void **state) {
    (void)state;
    tess__kv_server *server = start_here(1);
    int fd = connect_here();
    tess__inbox box = { 0 };
    tess__message got;
    say_hello(fd, 0, "1", "");
    expect_message(fd, &box, TESS__WIRE_READY, &got);
    tess__message no_id = { .type = TESS__WIRE_EXCHANGE, .key = "k", .key_bytes = 2 };
    send_all(fd, &no_id);
    assert_true(hangs_up(fd, 2));
    for (int i = 0; i < 200 && tess__kv_server_culprit(server) < 0; i++)
        usleep(10000);
    assert_int_equal(tess__kv_server_culprit(server), 0);
    tess__inbox_clear(&box);
    close(fd);
    tess__kv_server_stop(server);
}

static void test_kv_server__crowds_of_silent_strangers_keep_nobody_out(void **state) {
    (void)state;
    int before = count_fds();
    int fds[200];
    tess__kv_server *server = start_here(1);
    for (int i = 0; i < 200; i++)
        fds[i] = connect_here();
    tess__world me = { .rank = 0, .nranks = 1, .launched = 1 };
    snprintf(me.address, sizeof me.address, "%s", place());
    tess__control *control;
    assert_int_equal(tess__control_open(&me, &control), TESS_OK);
    assert_int_equal(tess__control_set(control, "k", "v", 1), TESS_OK);
    assert_true(hangs_up(fds[0], 2)); /* the oldest had to go */
    for (int i = 0; i < 200; i++)
        close(fds[i]);
    tess__control_close(control, 1);
    tess__kv_server_stop(server);
    assert_int_equal(count_fds(), before);
}

/* ---- what travels ------------------------------------------------------------------------------- */

typedef struct { /* stands between a rank and the server, and keeps what it sees */
    int listener;
    int32_t port;
    pthread_t thread;
    unsigned char seen[1 << 20];
    size_t bytes;
} relay;

static int pump(relay *r, int from, int to) {
    unsigned char *at = r->seen + r->bytes;
    ssize_t got = recv(from, at, sizeof r->seen - r->bytes, 0);
    if (got <= 0)
        return 0;
    r->bytes += (size_t)got;
    return send(to, at, (size_t)got, MSG_NOSIGNAL) == got;
}

static void *run_relay(void *user) {
    relay *r = user;
    struct pollfd wait = { .fd = r->listener, .events = POLLIN };
    int out;
    poll(&wait, 1, 10000);
    int in = accept(r->listener, NULL, NULL);
    tess__wire_connect("127.0.0.1", r->port, tess__now_ns() + SECOND_NS, &out);
    struct pollfd both[2] = { { .fd = in, .events = POLLIN }, { .fd = out, .events = POLLIN } };
    while (poll(both, 2, 10000) > 0)
        if ((both[0].revents && !pump(r, in, out)) || (both[1].revents && !pump(r, out, in)))
            break;
    close(in);
    close(out);
    return NULL;
}

static void test_kv_server__neither_secret_nor_frames_travel_in_clear(void **state) {
    (void)state;
    static relay r;
    static const char value[] = "a value that nobody else may read";
    const tess__kv_terms terms = { .secret = "a secret that is long enough" };
    tess__kv_server *server;
    tess__control *control;
    int32_t port = 0;
    r.port = 0;
    assert_int_equal(tess__kv_server_start("127.0.0.1", &r.port, 1, &terms, &server), TESS_OK);
    assert_int_equal(tess__wire_listen("127.0.0.1", &port, "MASTER_PORT", &r.listener), TESS_OK);
    pthread_create(&r.thread, NULL, run_relay, &r);
    tess__world me = { .rank = 0, .nranks = 1, .port = port, .launched = 1, .address = "127.0.0.1" };
    snprintf(me.secret, sizeof me.secret, "%s", terms.secret);
    assert_int_equal(tess__control_open(&me, &control), TESS_OK);
    assert_int_equal(tess__control_set(control, "k", value, sizeof value), TESS_OK);
    tess__control_close(control, 1);
    tess__kv_server_stop(server);
    pthread_join(r.thread, NULL);
    close(r.listener);
    assert_true(r.bytes > 500);
    assert_null(memmem(r.seen, r.bytes, terms.secret, 8));
    assert_null(memmem(r.seen, r.bytes, value, 8));
    assert_null(memmem(r.seen, r.bytes, "TSSK", 4));
}

/* ---- ranks that ask too much -------------------------------------------------------------------- */

static void test_kv_server__a_rank_that_does_not_read_is_read_no_further(void **state) {
    (void)state;
    tess__kv_server *server = start_here(1);
    int fd = connect_here();
    say_hello(fd, 0, "1", "");
    static unsigned char value[1 << 20];
    tess__message set = {
        .type = TESS__WIRE_SET, .id = 1, .key = "k", .key_bytes = 2, .value = value, .value_bytes = sizeof value
    };
    send_all(fd, &set);
    /* A million gets of 1 MiB: the server's memory stays bounded because it stops reading. */
    tess__outbox box;
    tess__outbox_init(&box);
    tess__message get = { .type = TESS__WIRE_GET, .id = 2, .key = "k", .key_bytes = 2 };
    for (int i = 0; i < 20000; i++)
        assert_int_equal(tess__outbox_copy(&box, &get), 0);
    int64_t stuck_ns = 0;
    for (int round = 0; round < 50 && stuck_ns < SECOND_NS / 2; round++) {
        int64_t since_ns = tess__now_ns();
        while (tess__outbox_flush(&box, &(tess__link){ .fd = fd }) == 0 && stuck_ns < SECOND_NS / 2) {
            usleep(1000);
            stuck_ns = tess__now_ns() - since_ns;
        }
        int n = box.first ? 0 : 20000;
        for (int k = 0; k < n; k++)
            tess__outbox_copy(&box, &get);
    }
    assert_true(stuck_ns >= SECOND_NS / 2); /* it waits for us */
    tess__outbox_clear(&box);
    close(fd);
    tess__kv_server_stop(server);
}

/* Its bound is of answers that wait, not of all that there ever were. */
static void test_kv_server__a_rank_that_reads_is_served_without_end(void **state) {
    (void)state;
    tess__kv_server *server = start_here(1);
    int fd = connect_here();
    tess__inbox box = { 0 };
    tess__message got, set = { .type = TESS__WIRE_SET, .key = "k", .key_bytes = 2 };
    say_hello(fd, 0, "1", "");
    for (set.id = 1; set.id <= TESS__KV_QUEUE_MAX + 100; set.id++) {
        send_all(fd, &set);
        expect_message(fd, &box, TESS__WIRE_OK, &got);
        assert_int_equal(got.id, set.id);
        tess__inbox_drop(&box, &got);
    }
    tess__inbox_clear(&box);
    close(fd);
    tess__kv_server_stop(server);
}

static void test_kv_server__too_many_waiting_gets_are_refused(void **state) {
    (void)state;
    tess__kv_server *server = start_here(1);
    int fd = connect_here();
    tess__inbox box = { 0 };
    tess__message got, get = { .type = TESS__WIRE_GET, .key = "never", .key_bytes = 6 };
    say_hello(fd, 0, "1", "");
    for (uint32_t i = 1; i <= 4097; i++) {
        get.id = i;
        send_all(fd, &get);
    }
    expect_message(fd, &box, TESS__WIRE_ERROR, &got);
    assert_int_equal(got.id, 4097);
    assert_int_equal(got.arg, TESS_E_NOMEM);
    tess__inbox_clear(&box);
    close(fd);
    tess__kv_server_stop(server);
}

/* ---- starting ----------------------------------------------------------------------------------- */

static void test_kv_server__bad_addresses_are_errors(void **state) {
    (void)state;
    tess__kv_server *server = NULL;
    const tess__kv_terms terms = { .secret = "a secret that is long enough" };
    int32_t port = 0;
    assert_int_equal(tess__kv_server_start("0.0.0.0", &port, 2, &no_terms, &server), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "listening on 0.0.0.0 needs a shared secret: set TESSERA_SECRET to the same "
                                           "text on all ranks");
    assert_int_equal(tess__kv_server_start("no such host", &port, 2, &terms, &server), TESS_E_INVALID);
    assert_int_equal(tess__kv_server_start("192.0.2.1", &port, 2, &terms, &server), TESS_E_INVALID);
    assert_int_equal(tess__kv_server_start("127.0.0.1", &port, 0, &terms, &server), TESS_E_INVALID);
    assert_int_equal(tess__kv_server_start("/no/such/folder/x.sock", &port, 2, &no_terms, &server), TESS_E_INVALID);
    assert_null(server);
    assert_int_equal(port, 0);
}

static void test_kv_server__port_can_be_used_again_at_once(void **state) {
    (void)state;
    const tess__kv_terms terms = { .secret = "a secret that is long enough" };
    tess__kv_server *server;
    int32_t port = 0;
    int fd = -1;
    assert_int_equal(tess__kv_server_start("127.0.0.1", &port, 2, &terms, &server), TESS_OK);
    assert_int_equal(tess__wire_connect("127.0.0.1", port, tess__now_ns() + SECOND_NS, &fd), 0);
    usleep(50000);
    tess__kv_server_stop(server); /* hangs up first, so that the port is left in TIME_WAIT */
    close(fd);
    assert_int_equal(tess__kv_server_start("127.0.0.1", &port, 2, &terms, &server), TESS_OK);
    tess__kv_server_stop(server);
}

static void test_kv_server__socket_of_a_dead_server_is_replaced_of_a_live_one_not(void **state) {
    (void)state;
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    snprintf(at.sun_path, sizeof at.sun_path, "%s", place());
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    close(fd);
    tess__kv_server *server = start_here(1), *second = NULL;
    int32_t port = 0;
    assert_int_equal(tess__kv_server_start(place(), &port, 1, &no_terms, &second), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "another job of this host meets at /tmp/test_kv-"));
    close(connect_here());
    tess__kv_server_stop(server);
    assert_int_equal(access(place(), F_OK), -1);
}

/* The launcher decides on `joined` when a rank has ended. More than the server accepts in one turn. */
static void test_kv_server__hello_of_a_rank_that_has_ended_is_read_first(void **state) {
    (void)state;
    enum { MANY = 100 };
    for (int turn = 0; turn < 20; turn++) {
        tess__kv_server *server = start_here(MANY);
        int fds[MANY];
        for (int r = 0; r < MANY - 1; r++) {
            fds[r] = connect_here();
            say_hello(fds[r], r, "100", "");
        }
        for (int r = 0; r < MANY - 1; r++)
            close(fds[r]);
        tess__kv_server_catch_up(server);
        for (int r = 0; r < MANY; r++)
            assert_int_equal(tess__kv_server_joined(server, r), r < MANY - 1);
        tess__kv_server_stop(server);
    }
}

static void test_kv_server__crowds_of_strangers_without_the_secret_get_nothing(void **state) {
    (void)state;
    const tess__kv_terms terms = { .secret = "a secret that is long enough" };
    tess__kv_server *server;
    int32_t port = 0;
    unsigned char bytes[300];
    unsigned seed = 1;
    assert_int_equal(tess__kv_server_start("127.0.0.1", &port, 1, &terms, &server), TESS_OK);
    int fds[200];
    for (int i = 0; i < 200; i++)
        assert_int_equal(tess__wire_connect("127.0.0.1", port, tess__now_ns() + SECOND_NS, &fds[i]), 0);
    for (int i = 0; i < 500; i++) {
        int fd;
        assert_int_equal(tess__wire_connect("127.0.0.1", port, tess__now_ns() + SECOND_NS, &fd), 0);
        for (size_t k = 0; k < sizeof bytes; k++)
            bytes[k] = (unsigned char)rand_r(&seed);
        if (i % 2)
            memcpy(bytes, "\x16\x03\x01\x01\x00\x01", 6); /* as a hello of TLS begins */
        send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
        close(fd);
    }
    tess__world me = { .rank = 0, .nranks = 1, .port = port, .launched = 1, .address = "127.0.0.1" };
    snprintf(me.secret, sizeof me.secret, "%s", terms.secret);
    tess__control *control;
    assert_int_equal(tess__control_open(&me, &control), TESS_OK);
    assert_int_equal(tess__control_set(control, "k", "v", 1), TESS_OK);
    for (int i = 0; i < 200; i++)
        close(fds[i]);
    tess__control_close(control, 1);
    tess__kv_server_stop(server);
}

static void test_kv_server__nothing_is_left_open(void **state) {
    (void)state;
    int before = count_fds();
    for (int i = 0; i < 3; i++) {
        world w;
        open_world(&w);
        expect_works(&w);
        close_world(&w);
    }
    assert_int_equal(count_fds(), before);
}

/* ---- the store ---------------------------------------------------------------------------------- */

static void test_kv_server__store_is_bounded(void **state) {
    (void)state;
    tess__kv_store *store = tess__kv_store_create();
    unsigned char *value = calloc(1, TESS__KV_VALUE_MAX);
    const char *why;
    char key[32];
    for (int i = 0; i < 64; i++) { /* 256 MiB */
        snprintf(key, sizeof key, "%d", i);
        assert_int_equal(tess__kv_store_set(store, key, value, TESS__KV_VALUE_MAX, &why), TESS_OK);
    }
    assert_int_equal(tess__kv_store_set(store, "more", value, 1, &why), TESS_E_NOMEM);
    assert_string_equal(why, "the key-value store is full");
    assert_int_equal(tess__kv_store_set(store, "3", "x", 1, &why), TESS_OK); /* replaced: there is room again */
    assert_int_equal(tess__kv_store_set(store, "more", value, 1, &why), TESS_OK);
    assert_int_equal(tess__kv_store_get(store, "3")->bytes, 1);
    assert_null(tess__kv_store_get(store, "64"));
    tess__kv_store_drop(store, "64");
    assert_int_equal(tess__kv_store_set(store, "64", value, TESS__KV_VALUE_MAX, &why), TESS_E_NOMEM);
    tess__kv_store_drop(store, "5"); /* gone: its room is there again */
    assert_null(tess__kv_store_get(store, "5"));
    assert_int_equal(tess__kv_store_set(store, "64", value, TESS__KV_VALUE_MAX - 2, &why), TESS_OK);
    free(value);
    tess__kv_store_destroy(store);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_server__garbage_is_hung_up_on),
        cmocka_unit_test(test_kv_server__messages_before_hello_are_hung_up_on),
        cmocka_unit_test(test_kv_server__another_job_gets_one_answer_and_no_seat),
        cmocka_unit_test(test_kv_server__job_is_compared_to_its_last_letter),
        cmocka_unit_test(test_kv_server__oversized_messages_are_hung_up_on),
        cmocka_unit_test(test_kv_server__a_rank_that_breaks_the_protocol_is_lost_not_followed),
        cmocka_unit_test(test_kv_server__crowds_of_silent_strangers_keep_nobody_out),
        cmocka_unit_test(test_kv_server__a_rank_that_does_not_read_is_read_no_further),
        cmocka_unit_test(test_kv_server__a_rank_that_reads_is_served_without_end),
        cmocka_unit_test(test_kv_server__too_many_waiting_gets_are_refused),
        cmocka_unit_test(test_kv_server__bad_addresses_are_errors),
        cmocka_unit_test(test_kv_server__port_can_be_used_again_at_once),
        cmocka_unit_test(test_kv_server__socket_of_a_dead_server_is_replaced_of_a_live_one_not),
        cmocka_unit_test(test_kv_server__neither_secret_nor_frames_travel_in_clear),
        cmocka_unit_test(test_kv_server__hello_of_a_rank_that_has_ended_is_read_first),
        cmocka_unit_test(test_kv_server__crowds_of_strangers_without_the_secret_get_nothing),
        cmocka_unit_test(test_kv_server__nothing_is_left_open),
        cmocka_unit_test(test_kv_server__store_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
