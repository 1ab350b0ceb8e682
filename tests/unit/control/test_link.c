/* SPDX-License-Identifier: BSD-3-Clause */
/* One connection's bytes, as they are and under TLS: parts in order and whole however small the steps, nothing readable
 * on the way, and no word with who has another secret or none. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/control/link.h"

enum { MANY = 1 << 20 };
static unsigned char sent[MANY], got[MANY];
static tess__link ends[2]; /* 0 listens */
static tess__link_key *keys[2];

/* `secrets` null: without TLS. */
static void connect_ends(const char *const secrets[2]) {
    int fd[2], small = 4096;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    for (int i = 0; i < 2; i++) {
        setsockopt(fd[i], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
        keys[i] = NULL;
        if (secrets && secrets[i])
            assert_int_equal(tess__link_key_create(secrets[i], i == 0, &keys[i]), TESS_OK);
        assert_int_equal(tess__link_open(&ends[i], fd[i], keys[i]), 0);
        assert_true(ends[i].fd == fd[i] && !ends[i].awaits_input && !ends[i].refused);
    }
}

static void close_ends(void) {
    for (int i = 0; i < 2; i++) {
        tess__link_close(&ends[i]);
        assert_true(ends[i].fd == -1 && !ends[i].tls);
        tess__link_close(&ends[i]); /* once more is fine */
        tess__link_key_destroy(keys[i]);
    }
}

/* Sends from one end to the other until `bytes` have come; both sides take what they can. */
static void move(int from, size_t bytes) {
    size_t out = 0, in = 0;
    for (long turns = 0; in < bytes; turns++) {
        const struct iovec parts[3] = { { sent + out, (bytes - out) / 3 },
                                        { NULL, 0 },
                                        { sent + out + (bytes - out) / 3, bytes - out - (bytes - out) / 3 } };
        ssize_t n = out < bytes ? tess__link_send(&ends[from], parts, 3) : 0;
        assert_true(n >= 0 && turns < 1000000);
        out += (size_t)n;
        n = tess__link_recv(&ends[!from], got + in, bytes - in < 5000 ? bytes - in : 5000);
        assert_true(n >= 0 && n <= 5000);
        in += (size_t)n;
        char nothing;
        assert_int_equal(tess__link_recv(&ends[from], &nothing, 1), 0); /* which also takes its part in a handshake */
    }
    assert_int_equal(out, bytes);
    assert_memory_equal(got, sent, bytes);
    assert_int_equal(tess__link_recv(&ends[!from], got, 1), 0);
}

static void fill(void) {
    for (size_t i = 0; i < MANY; i++)
        sent[i] = (unsigned char)(i * 31 + i / 253);
}

static void test_link__bytes_come_in_order_and_whole(void **state) {
    static const char *const secret[] = { "one secret of both", "one secret of both" };
    static const size_t sizes[] = { 1, 100, 16384, 16385, 70001, MANY };
    (void)state;
    fill();
    for (int tls = 0; tls < 2; tls++) {
        connect_ends(tls ? secret : NULL);
        for (int i = 0; i < 6; i++)
            for (int from = 1; from >= 0; from--)
                move(from, sizes[i]);
        for (int i = 0; i < 2; i++) { /* there is always room to read, and to write where something is to be */
            assert_int_equal(tess__link_events(&ends[i], 0), POLLIN);
            assert_int_equal(tess__link_events(&ends[i], 1), POLLIN | POLLOUT);
        }
        close(ends[1].fd);
        ends[1].fd = -1;
        assert_int_equal(tess__link_recv(&ends[0], got, 1), -1);
        assert_int_equal(ends[0].refused, 0);
        close_ends();
    }
}

/* Until the other side has answered, nobody waits for room to write. */
static void test_link__a_handshake_waits_for_its_answer(void **state) {
    static const char *const secret[] = { "one secret of both", "one secret of both" };
    const struct iovec hello = { "tell nobody: swordfish", 22 };
    char seen[8192];
    (void)state;
    connect_ends(secret);
    assert_int_equal(tess__link_send(&ends[1], &hello, 1), 0);
    assert_true(ends[1].awaits_input);
    assert_int_equal(tess__link_events(&ends[1], 1), POLLIN);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(tess__link_recv(&ends[0], got, 100), 0);
        if (tess__link_send(&ends[1], &hello, 1) == 22)
            break;
    }
    assert_int_equal(tess__link_events(&ends[1], 1), POLLIN | POLLOUT);
    ssize_t n = recv(ends[0].fd, seen, sizeof seen, MSG_PEEK | MSG_DONTWAIT);
    assert_true(n > 22 && !memmem(seen, (size_t)n, "swordfish", 9));
    assert_int_equal(tess__link_recv(&ends[0], got, 100), 22);
    assert_memory_equal(got, "tell nobody: swordfish", 22);
    assert_false(ends[0].awaits_input);
    close_ends();
}

/* Also where there was no room to write before. */
static void test_link__who_has_gone_is_told_from_who_is_slow(void **state) {
    static const char *const secret[] = { "one secret of both", "one secret of both" };
    const struct iovec part = { sent, 16384 };
    (void)state;
    fill();
    for (int tls = 0; tls < 2; tls++) {
        connect_ends(tls ? secret : NULL);
        move(1, 100);
        while (tess__link_send(&ends[1], &part, 1) > 0)
            ;
        assert_int_equal(tess__link_send(&ends[1], &part, 1), 0);
        close(ends[0].fd);
        ends[0].fd = -1;
        assert_int_equal(tess__link_send(&ends[1], &part, 1), -1);
        close_ends();
    }
}

static void test_link__another_secret_or_none_is_refused(void **state) {
    static const char *const others[][2] = { { "the secret", "the secreT" },
                                             { "the secret", NULL },
                                             { NULL, "the secret" } };
    const struct iovec hello = { "hello, and more than that, so that it is no record", 50 };
    (void)state;
    for (int i = 0; i < 3; i++) {
        int ended[2] = { 0 };
        connect_ends(others[i]);
        for (int turn = 0; turn < 20; turn++)
            for (int e = 0; e < 2; e++) {
                ssize_t n = ended[e] ? 0 : tess__link_send(&ends[e], &hello, 1);
                if (n >= 0 && !ended[e])
                    n = tess__link_recv(&ends[e], got, sizeof got);
                if (keys[e])
                    assert_true(n <= 0); /* no byte for the program */
                ended[e] |= n < 0;
            }
        for (int e = 0; e < 2; e++)
            assert_true(!keys[e] || ended[e]);
        assert_true(ends[0].refused || ends[1].refused);
        close_ends();
    }
    tess__link_key_destroy(NULL);
}

/* What is no TLS may be there before the first word; the failure of a call is remembered by those behind it. */
static void test_link__a_refusal_stays(void **state) {
    static const char *const secret[] = { NULL, "the secret" };
    const struct iovec hello = { "hello, and more than that, so that it is no record", 50 };
    (void)state;
    connect_ends(secret);
    assert_int_equal(tess__link_send(&ends[0], &hello, 1), 50);
    assert_int_equal(tess__link_send(&ends[1], &hello, 1), -1);
    assert_true(ends[1].refused);
    assert_int_equal(tess__link_recv(&ends[1], got, sizeof got), -1);
    assert_true(ends[1].refused);
    close_ends();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_link__bytes_come_in_order_and_whole),
        cmocka_unit_test(test_link__a_handshake_waits_for_its_answer),
        cmocka_unit_test(test_link__who_has_gone_is_told_from_who_is_slow),
        cmocka_unit_test(test_link__another_secret_or_none_is_refused),
        cmocka_unit_test(test_link__a_refusal_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
