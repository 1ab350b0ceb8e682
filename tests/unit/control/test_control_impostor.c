/* SPDX-License-Identifier: BSD-3-Clause */
/* Who stands in the place of the key-value server, or of a rank, without the secret: a rank ends with one line within
 * its time, or goes on to the true server; a server seats nobody. */
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "kv_fixture.h"

enum { SILENT, HANGS_UP, IN_CLEAR, CERTIFIED, ECHOES, REPLAYS, ROLES };
static const tess__kv_terms terms = { .secret = "a secret that is long enough" };

static tess__world world_at(int32_t port, int32_t rank, int32_t nranks) {
    tess__world me = {
        .rank = rank, .nranks = nranks, .local_nranks = 1, .port = port, .launched = 1, .address = "127.0.0.1"
    };
    snprintf(me.secret, sizeof me.secret, "%s", terms.secret);
    return me;
}

static tess__kv_server *start_server(int32_t *port, int32_t nranks, const char *secret) {
    const tess__kv_terms mine = { .secret = secret };
    tess__kv_server *server = NULL;
    assert_int_equal(tess__kv_server_start("127.0.0.1", port, nranks, &mine, &server), TESS_OK);
    return server;
}

/* ---- what was recorded of a real meeting ---------------------------------------------------------- */

typedef struct {
    unsigned char data[1 << 16];
    size_t bytes;
} recorded;

typedef struct { /* stands between a rank and the server */
    int listener;
    int32_t port, server_port;
    pthread_t thread;
    recorded said[2]; /* by the rank, by the server */
} tap;

static int pump(recorded *r, int from, int to) {
    unsigned char *at = r->data + r->bytes;
    ssize_t got = recv(from, at, sizeof r->data - r->bytes, 0);
    if (got <= 0)
        return 0;
    r->bytes += (size_t)got;
    return send(to, at, (size_t)got, MSG_NOSIGNAL) == got;
}

static void accept_within(int listener, int ms, int *fd) {
    struct pollfd wait = { .fd = listener, .events = POLLIN };
    *fd = poll(&wait, 1, ms) > 0 ? accept(listener, NULL, NULL) : -1;
}

static void *run_tap(void *user) {
    tap *t = user;
    int in, out;
    accept_within(t->listener, 10000, &in);
    if (tess__wire_connect("127.0.0.1", t->server_port, tess__now_ns() + SECOND_NS, &out) != 0)
        return NULL;
    struct pollfd both[2] = { { .fd = in, .events = POLLIN }, { .fd = out, .events = POLLIN } };
    while (poll(both, 2, 10000) > 0)
        if ((both[0].revents && !pump(&t->said[0], in, out)) || (both[1].revents && !pump(&t->said[1], out, in)))
            break;
    close(in);
    close(out);
    return NULL;
}

/* A rank of its own meets a server, sets a key and leaves. */
static void record(tap *t) {
    tess__control *control;
    memset(t, 0, sizeof *t);
    tess__kv_server *server = start_server(&t->server_port, 1, terms.secret);
    assert_int_equal(tess__wire_listen("127.0.0.1", &t->port, "MASTER_PORT", &t->listener), TESS_OK);
    pthread_create(&t->thread, NULL, run_tap, t);
    const tess__world me = world_at(t->port, 0, 1);
    assert_int_equal(tess__control_open(&me, &control), TESS_OK);
    assert_int_equal(tess__control_set(control, "k", "v", 1), TESS_OK);
    tess__control_close(control, 1);
    tess__kv_server_stop(server);
    pthread_join(t->thread, NULL);
    close(t->listener);
    assert_true(t->said[0].bytes > 100 && t->said[1].bytes > 100);
}

/* ---- the impostor --------------------------------------------------------------------------------- */

typedef struct {
    int role, listener;
    int32_t port;
    const recorded *server;
    SSL_CTX *tls;
    pthread_t thread;
    atomic_int ended, heard; /* heard: bytes of frames that somebody told it */
} impostor;

/* As the server would say it. */
static size_t welcome(unsigned char *out, size_t room) {
    static const uint32_t types[] = { TESS__WIRE_WELCOME, TESS__WIRE_READY };
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    for (int i = 0; i < 2; i++)
        send_all(ends[0], &(tess__message){ .type = types[i], .value = (const unsigned char *)"1", .value_bytes = !i });
    ssize_t got = recv(ends[1], out, room, 0);
    close(ends[0]);
    close(ends[1]);
    return got > 0 ? (size_t)got : 0;
}

static SSL_CTX *self_signed(void) {
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *paper = X509_new();
    SSL_CTX *tls = SSL_CTX_new(TLS_server_method());
    X509_gmtime_adj(X509_getm_notBefore(paper), 0);
    X509_gmtime_adj(X509_getm_notAfter(paper), 3600);
    X509_set_pubkey(paper, key);
    assert_true(X509_sign(paper, key, EVP_sha256()) > 0);
    assert_int_equal(SSL_CTX_use_certificate(tls, paper), 1);
    assert_int_equal(SSL_CTX_use_PrivateKey(tls, key), 1);
    SSL_CTX_set_options(tls, SSL_OP_NO_TICKET);
    X509_free(paper);
    EVP_PKEY_free(key);
    return tls;
}

static void say_certified(impostor *i, int fd, const void *text, size_t bytes) {
    unsigned char got[1024];
    SSL *tls = SSL_new(i->tls);
    SSL_set_fd(tls, fd);
    if (SSL_accept(tls) == 1 && SSL_write(tls, text, (int)bytes) > 0) {
        int n = SSL_read(tls, got, sizeof got);
        atomic_fetch_add(&i->heard, n > 0 ? n : 0);
    }
    SSL_free(tls);
}

static void play(impostor *i, int fd) {
    unsigned char text[1 << 12];
    size_t bytes = welcome(text, sizeof text);
    struct pollfd wait = { .fd = fd, .events = POLLIN };
    struct timeval brief = { .tv_sec = 2 };
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &brief, sizeof brief);
    if (i->role == CERTIFIED)
        say_certified(i, fd, text, bytes);
    else if (i->role == IN_CLEAR)
        send(fd, text, bytes, MSG_NOSIGNAL);
    else if (poll(&wait, 1, 2000) > 0 && i->role == ECHOES)
        send(fd, text, (size_t)recv(fd, text, sizeof text, 0), MSG_NOSIGNAL);
    else if (i->role == REPLAYS)
        send(fd, i->server->data, i->server->bytes, MSG_NOSIGNAL);
    while (i->role != HANGS_UP && !atomic_load(&i->ended)) { /* until it is left */
        ssize_t got = poll(&wait, 1, 20) > 0 ? recv(fd, text, sizeof text, 0) : 1;
        if (got <= 0)
            break;
        atomic_fetch_add(&i->heard, wait.revents && memmem(text, (size_t)got, "TSSK", 4) ? 1 : 0);
    }
}

static void *run_impostor(void *user) {
    impostor *i = user;
    while (!atomic_load(&i->ended)) {
        int fd;
        accept_within(i->listener, 20, &fd);
        if (fd < 0)
            continue;
        play(i, fd);
        close(fd);
    }
    return NULL;
}

static void let_in(impostor *i, int role, int32_t port, const tap *t) {
    *i = (impostor){ .role = role, .port = port, .server = &t->said[1], .tls = self_signed() };
    assert_int_equal(tess__wire_listen("127.0.0.1", &i->port, "MASTER_PORT", &i->listener), TESS_OK);
    assert_int_equal(pthread_create(&i->thread, NULL, run_impostor, i), 0);
}

static void let_out(impostor *i) {
    atomic_store(&i->ended, 1);
    pthread_join(i->thread, NULL);
    close(i->listener);
    SSL_CTX_free(i->tls);
    assert_int_equal(atomic_load(&i->heard), 0); /* no frame, in clear or under its own certificate */
}

static const char *const lines[ROLES] = {
    [SILENT] = "nothing answers at 127.0.0.1 port %d (--rendezvous): it takes connections and says nothing",
    [HANGS_UP] = "nothing answers at 127.0.0.1 port %d (--rendezvous): the connection ended at once",
};

static void test_control_impostor__who_answers_for_the_server_is_left(void **state) {
    (void)state;
    static tap t;
    record(&t);
    setenv("TESSERA_RENDEZVOUS_TIMEOUT", "1", 1);
    for (int role = 0; role < ROLES; role++) {
        tess__control *control = NULL;
        impostor i;
        char line[256];
        let_in(&i, role, 0, &t);
        const tess__world me = world_at(i.port, 1, 2);
        const int64_t begin_ns = tess__now_ns();
        const tess_status status = tess__control_open(&me, &control);
        /* An echo in pieces ends the handshake before the secrets are compared. */
        const int like = role == ECHOES && status == TESS_E_TIMEOUT ? HANGS_UP : role;
        if (status != (lines[like] ? TESS_E_TIMEOUT : TESS_E_INVALID))
            fail_msg("role %d: status %d: %s", role, status, tess_last_error());
        assert_true(tess__now_ns() - begin_ns < 5 * SECOND_NS);
        snprintf(line, sizeof line,
                 lines[like] ? lines[like] : "what answers at 127.0.0.1 port %d has another secret than this rank",
                 (int)i.port);
        if (!strstr(tess_last_error(), line) || strchr(tess_last_error(), '\n'))
            fail_msg("role %d: %s", role, tess_last_error());
        let_out(&i);
    }
    unsetenv("TESSERA_RENDEZVOUS_TIMEOUT");
}

/* torchrun's store, or anybody, may hold the first of the ports at which rank 0 may be. */
static void test_control_impostor__behind_an_impostor_the_true_server_is_met(void **state) {
    (void)state;
    static tap t;
    record(&t);
    for (int role = HANGS_UP; role < ROLES; role++) {
        tess__kv_server *server = NULL;
        tess__control *control;
        int32_t port = 0;
        impostor i;
        for (int tries = 0; tries < 50; tries++) { /* the port before it must be free */
            server = start_server(&port, 1, terms.secret);
            int fd;
            int32_t before = port - 1;
            if (tess__wire_listen("127.0.0.1", &before, "MASTER_PORT", &fd) == TESS_OK) {
                close(fd);
                break;
            }
            tess__kv_server_stop(server);
            port = 0;
        }
        let_in(&i, role, port - 1, &t);
        tess__world me = world_at(port - 1, 0, 1);
        me.n_ports = 2;
        if (tess__control_open(&me, &control) != TESS_OK)
            fail_msg("role %d: %s", role, tess_last_error());
        assert_int_equal(tess__control_set(control, "k", "v", 1), TESS_OK);
        tess__control_close(control, 1);
        let_out(&i);
        tess__kv_server_stop(server);
    }
}

/* ---- the other way round -------------------------------------------------------------------------- */

/* All that a rank said, at once or as its flights were, to a server with the same secret. Nobody is seated by it. */
static void replay(const recorded *r, int32_t port, size_t first) {
    unsigned char back[1 << 12];
    int fd;
    assert_int_equal(tess__wire_connect("127.0.0.1", port, tess__now_ns() + SECOND_NS, &fd), 0);
    assert_true(send(fd, r->data, first, MSG_NOSIGNAL) == (ssize_t)first);
    struct pollfd wait = { .fd = fd, .events = POLLIN };
    poll(&wait, 1, 50);
    send(fd, r->data + first, r->bytes - first, MSG_NOSIGNAL);
    int64_t end_ns = tess__now_ns() + 5 * SECOND_NS;
    ssize_t got = 1;
    while (got != 0 && tess__now_ns() < end_ns)
        if (poll(&wait, 1, 20) > 0 && (got = recv(fd, back, sizeof back, 0)) <= 0)
            break;
    assert_true(got <= 0); /* hung up on */
    close(fd);
}

static void test_control_impostor__recorded_rank_gets_no_seat(void **state) {
    (void)state;
    static tap t;
    int32_t port = 0;
    tess__control *control;
    record(&t);
    tess__kv_server *server = start_server(&port, 1, terms.secret);
    const size_t flights[] = { t.said[0].bytes, 100, 1 + 4 + 256 };
    for (int i = 0; i < 3; i++)
        replay(&t.said[0], port, flights[i] < t.said[0].bytes ? flights[i] : t.said[0].bytes);
    assert_int_equal(tess__kv_server_joined(server, 0), 0);
    assert_int_equal(tess__kv_server_connected(server), 0);
    const tess__world me = world_at(port, 0, 1);
    assert_int_equal(tess__control_open(&me, &control), TESS_OK);
    replay(&t.said[0], port, t.said[0].bytes);
    assert_int_equal(tess__control_set(control, "k", "v", 1), TESS_OK);
    assert_int_equal(tess__control_cause(control, NULL), TESS_OK);
    tess__control_close(control, 1);
    tess__kv_server_stop(server);
}

static void test_control_impostor__another_secret_is_one_line_on_both_sides(void **state) {
    (void)state;
    int32_t port = 0;
    tess__control *control = NULL;
    tess__kv_server *server = start_server(&port, 1, "another secret of this length");
    const tess__world me = world_at(port, 0, 1);
    assert_int_equal(tess__control_open(&me, &control), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "has another secret than this rank (TESSERA_SECRET)"));
    assert_int_equal(tess__kv_server_joined(server, 0), 0);
    tess__kv_server_stop(server);
}

/* A Unix socket proves its owner: that of another user is left before a word. */
static void test_control_impostor__socket_of_another_user_is_left(void **state) {
    (void)state;
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    tess__control *control = NULL;
    if (geteuid() != 0)
        skip(); /* only root can be two users */
    snprintf(at.sun_path, sizeof at.sun_path, "%s", place());
    int fd = socket(AF_UNIX, SOCK_STREAM, 0), in;
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(seteuid(65534), 0); /* whose the connection will be */
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(seteuid(0), 0);
    setenv("TESSERA_RENDEZVOUS_TIMEOUT", "0.2", 1);
    tess__world me = world_at(0, 0, 1);
    snprintf(me.address, sizeof me.address, "%s", place());
    assert_true(tess__control_open(&me, &control) < 0);
    assert_non_null(strstr(tess_last_error(), "Permission denied"));
    accept_within(fd, 1000, &in);
    char word;
    assert_int_equal(recv(in, &word, 1, 0), 0);
    unsetenv("TESSERA_RENDEZVOUS_TIMEOUT");
    close(in);
    close(fd);
    unlink(at.sun_path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_control_impostor__who_answers_for_the_server_is_left),
        cmocka_unit_test(test_control_impostor__behind_an_impostor_the_true_server_is_met),
        cmocka_unit_test(test_control_impostor__recorded_rank_gets_no_seat),
        cmocka_unit_test(test_control_impostor__another_secret_is_one_line_on_both_sides),
        cmocka_unit_test(test_control_impostor__socket_of_another_user_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
