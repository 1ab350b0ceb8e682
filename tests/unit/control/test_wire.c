/* SPDX-License-Identifier: BSD-3-Clause */
/* Messages byte by byte, and the addresses that they travel between. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/control/wire.h"

static void open_pair(int fd[2]) {
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
}

static size_t flushed(tess__outbox *box, int fd[2], unsigned char *out, size_t room) {
    assert_int_equal(tess__outbox_flush(box, &(tess__link){ .fd = fd[0] }), 1);
    ssize_t got = recv(fd[1], out, room, 0);
    return got > 0 ? (size_t)got : 0;
}

static void test_wire__a_message_has_these_bytes(void **state) {
    (void)state;
    static const unsigned char header[TESS__WIRE_HEADER] = { 'T', 'S', 'S', 'K', 1,    0,    0,    0, /* version */
                                                             2,   0,   0,   0,   0x0d, 0x0c, 0x0b, 0x0a,
                                                             254, 255, 255, 255, 2,    0,    0,    0, /* -2; the key */
                                                             3,   0,   0,   0 };
    unsigned char got[64];
    int fd[2];
    tess__outbox box;
    const tess__message message = { .type = TESS__WIRE_SET,
                                    .id = 0x0a0b0c0d,
                                    .arg = -2,
                                    .key = "k",
                                    .key_bytes = 2,
                                    .value = (const unsigned char *)"xyz",
                                    .value_bytes = 3 };
    open_pair(fd);
    tess__outbox_init(&box);
    assert_int_equal(tess__outbox_copy(&box, &message), 0);
    assert_int_equal(box.n, 1);
    assert_int_equal(flushed(&box, fd, got, sizeof got), TESS__WIRE_HEADER + 5);
    assert_memory_equal(got, header, sizeof header);
    assert_memory_equal(got + TESS__WIRE_HEADER, "k\0xyz", 5);
    assert_int_equal(box.n, 0);
    assert_null(box.first);
    tess__outbox_clear(&box);
    close(fd[0]);
    close(fd[1]);
}

/* Sizes around a small body's room, and beyond what a socket takes at once: what was queued comes out in its order. */
static void test_wire__messages_of_all_sizes_arrive_as_they_were_queued(void **state) {
    (void)state;
    static const uint32_t sizes[] = { 0, 1, 319, 320, 321, 5000, 1 << 20, 3, 70000, 0 };
    enum { N = sizeof sizes / sizeof sizes[0] };
    static unsigned char data[1 << 20];
    int fd[2];
    tess__outbox out;
    tess__inbox in = { 0 };
    tess__message got;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 7 + i / 251);
    open_pair(fd);
    tess__outbox_init(&out);
    tess__outbox_reserve(&out);
    for (int turn = 0; turn < 2; turn++) { /* of one's own, and shared */
        tess__blob *blob = NULL;
        for (uint32_t i = 0; i < N; i++) {
            tess__message m = { .type = TESS__WIRE_SET, .id = i, .key = "ab", .key_bytes = 3, .value = data };
            m.value_bytes = sizes[i];
            if (!turn) {
                assert_int_equal(tess__outbox_copy(&out, &m), 0);
                continue;
            }
            blob = tess__blob_new(data, sizes[i]);
            assert_non_null(blob);
            assert_int_equal(tess__outbox_push(&out, TESS__WIRE_OK, i, (int32_t)i - 3, blob), 0);
            assert_int_equal(blob->refs, 2);
            tess__blob_drop(blob);
        }
        assert_int_equal(out.n, N);
        for (uint32_t i = 0; i < N;) {
            int sent = tess__outbox_flush(&out, &(tess__link){ .fd = fd[0] });
            assert_true(sent >= 0);
            assert_int_equal(sent, out.first == NULL);
            int some = tess__inbox_read(&in, &(tess__link){ .fd = fd[1] });
            assert_true(some >= 0);
            while (tess__inbox_next(&in, (1 << 20) + 3, &got) == 1) {
                assert_int_equal(got.type, turn ? TESS__WIRE_OK : TESS__WIRE_SET);
                assert_int_equal(got.id, i);
                assert_int_equal(got.arg, turn ? (int32_t)i - 3 : 0);
                assert_string_equal(got.key, turn ? "" : "ab");
                assert_int_equal(got.key_bytes, turn ? 0 : 3);
                assert_int_equal(got.value_bytes, sizes[i]);
                if (sizes[i])
                    assert_memory_equal(got.value, data, sizes[i]);
                tess__inbox_drop(&in, &got);
                i++;
            }
        }
        assert_int_equal(in.bytes, 0);
        assert_int_equal(tess__inbox_read(&in, &(tess__link){ .fd = fd[1] }), 0);
        assert_int_equal(out.n, 0);
        assert_int_equal(out.n_spare, 8);
    }
    assert_true(in.capacity <= 1 << 20); /* what a large message needed is given back */
    close(fd[0]);
    assert_int_equal(tess__inbox_read(&in, &(tess__link){ .fd = fd[1] }), -1);
    assert_int_equal(tess__outbox_push(&out, TESS__WIRE_BEAT, 0, 0, NULL), 0);
    assert_int_equal(tess__outbox_flush(&out, &(tess__link){ .fd = fd[1] }), -1);
    tess__outbox_clear(&out);
    tess__inbox_clear(&in);
    assert_null(in.data);
    close(fd[1]);
}

/* The server has an inbox for each rank: one that small messages come to stays as it began. */
static void test_wire__small_messages_take_one_buffer(void **state) {
    (void)state;
    tess__outbox out;
    tess__inbox in = { 0 };
    tess__message got;
    int fd[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
    tess__outbox_init(&out);
    for (uint32_t i = 0; i < 3000; i++) {
        assert_int_equal(tess__outbox_copy(&out, &(tess__message){ .type = TESS__WIRE_SET, .id = i }), 0);
        assert_int_equal(tess__outbox_flush(&out, &(tess__link){ .fd = fd[0] }), 1);
        assert_int_equal(tess__inbox_read(&in, &(tess__link){ .fd = fd[1] }), 1);
        assert_int_equal(tess__inbox_next(&in, 0, &got), 1);
        assert_int_equal(got.id, i - i % 3);
        if (i % 3 == 2) /* the others stay unread for a while */
            while (tess__inbox_next(&in, 0, &got) == 1)
                tess__inbox_drop(&in, &got);
    }
    assert_int_equal(in.capacity, 64 << 10);
    tess__outbox_clear(&out);
    tess__inbox_clear(&in);
    close(fd[0]);
    close(fd[1]);
}

static void test_wire__a_blob_has_its_bytes_or_zeros(void **state) {
    (void)state;
    tess__blob *zeros = tess__blob_new(NULL, 5), *text = tess__blob_new("abc", 3), *empty = tess__blob_new("x", 0);
    assert_memory_equal(zeros->data, "\0\0\0\0\0", 5);
    assert_memory_equal(text->data, "abc", 3);
    assert_int_equal(zeros->bytes, 5);
    assert_int_equal(text->bytes, 3);
    assert_int_equal(empty->bytes, 0);
    assert_int_equal(text->refs, 1);
    assert_null(tess__blob_new(NULL, (uint64_t)UINT32_MAX + 1));
    text->refs++;
    tess__blob_drop(text);
    assert_int_equal(text->refs, 1);
    tess__blob_drop(text);
    tess__blob_drop(zeros);
    tess__blob_drop(empty);
    tess__blob_drop(NULL);
}

static void put_u32(unsigned char *at, uint32_t value) {
    for (int i = 0; i < 4; i++)
        at[i] = (unsigned char)(value >> (8 * i));
}

typedef struct {
    uint32_t magic, version, type, key_bytes, value_bytes;
    const char *body;
    size_t body_bytes, limit;
} words;

/* What tess__inbox_next says of these words, and whether it is silent until the last byte is there. */
static int judged(const words *w) {
    unsigned char data[1024] = { 0 };
    tess__message got;
    put_u32(data, w->magic);
    put_u32(data + 4, w->version);
    put_u32(data + 8, w->type);
    put_u32(data + 20, w->key_bytes);
    put_u32(data + 24, w->value_bytes);
    memcpy(data + TESS__WIRE_HEADER, w->body, w->body_bytes);
    tess__inbox box = { .data = data, .capacity = sizeof data };
    for (box.bytes = 0; box.bytes < TESS__WIRE_HEADER + w->body_bytes; box.bytes++) {
        int early = tess__inbox_next(&box, w->limit, &got);
        if (early)
            return early < 0 && box.bytes < 4 ? 99 : early;
    }
    return tess__inbox_next(&box, w->limit, &got);
}

static void test_wire__what_is_no_message_is_told_from_what_is_to_come(void **state) {
    (void)state;
    const uint32_t magic = 0x4b535354;
    static char key[300];
    memset(key, 'k', sizeof key);
    const words good = { magic, 1, TESS__WIRE_HELLO, 2, 3, "k\0xyz", 5, 5 };
    assert_int_equal(judged(&good), 1);
    words w = good;
    w.magic++;
    assert_int_equal(judged(&w), -1);
    w = good;
    w.version = 2;
    assert_int_equal(judged(&w), -1);
    for (uint32_t type = 0; type <= TESS__WIRE_LAST; type++) {
        w = good;
        w.type = type;
        assert_int_equal(judged(&w), type >= TESS__WIRE_HELLO && type < TESS__WIRE_LAST ? 1 : -1);
    }
    w = good;
    w.limit = 4;
    assert_int_equal(judged(&w), -1);
    w = (words){ magic, 1, TESS__WIRE_SET, UINT32_MAX, UINT32_MAX, "", 0, 1 << 20 }; /* no sum wraps around */
    assert_int_equal(judged(&w), -1);
    w = (words){ magic, 1, TESS__WIRE_SET, 0, 0, "", 0, 0 };
    assert_int_equal(judged(&w), 1);
    w = (words){ magic, 1, TESS__WIRE_SET, 1, 0, "", 1, 99 }; /* an empty key */
    assert_int_equal(judged(&w), 1);
    w = (words){ magic, 1, TESS__WIRE_SET, 2, 0, "kk", 2, 99 }; /* a key without an end */
    assert_int_equal(judged(&w), -1);
    w = (words){ magic, 1, TESS__WIRE_SET, 3, 0, "k\0\0", 3, 99 }; /* or with an early one */
    assert_int_equal(judged(&w), -1);
    key[255] = 0;
    w = (words){ magic, 1, TESS__WIRE_SET, 256, 0, key, 256, 999 };
    assert_int_equal(judged(&w), 1);
    key[255] = 'k', key[256] = 0;
    w = (words){ magic, 1, TESS__WIRE_SET, 257, 0, key, 257, 999 };
    assert_int_equal(judged(&w), -1);
}

static void test_wire__addresses_are_told_apart(void **state) {
    (void)state;
    char text[64];
    int before = open("/dev/null", O_RDONLY); /* the lowest number that is free, again at the end */
    close(before);
    assert_true(tess__wire_is_local("/tmp/x") && tess__wire_is_local("/"));
    assert_false(tess__wire_is_local("tmp/x") || tess__wire_is_local(""));
    assert_true(tess__wire_is_loopback("127.0.0.1") && tess__wire_is_loopback("127.255.1.2"));
    assert_true(tess__wire_is_loopback("::1") && tess__wire_is_loopback("localhost"));
    assert_false(tess__wire_is_loopback("126.0.0.1") || tess__wire_is_loopback("128.0.0.1"));
    assert_false(tess__wire_is_loopback("10.127.0.1") || tess__wire_is_loopback("::2"));
    assert_false(tess__wire_is_loopback("no host at all"));
    assert_int_equal(tess__wire_route("127.0.0.1", text, sizeof text), 0);
    assert_string_equal(text, "127.0.0.1");
    assert_int_equal(tess__wire_route("no host at all", text, sizeof text), -1);
    assert_string_equal(text, "");
    int after = open("/dev/null", O_RDONLY);
    close(after);
    assert_int_equal(after, before);
}

static void test_wire__a_port_is_listened_on_once_and_reached(void **state) {
    (void)state;
    int first = -1, second = -1, to = -1;
    int32_t port = 0, again;
    char text[128];
    assert_int_equal(tess__wire_listen("127.0.0.1", &port, "MASTER_PORT", &first), TESS_OK);
    assert_in_range(port, 1, 65535);
    assert_int_equal(fcntl(first, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_int_equal(fcntl(first, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    again = port;
    assert_int_equal(tess__wire_listen("127.0.0.1", &again, "MASTER_PORT", &second), TESS_E_INVALID);
    snprintf(text, sizeof text, "port %d on 127.0.0.1 is in use by another program; set MASTER_PORT to a free one",
             (int)port);
    assert_string_equal(tess_last_error(), text);
    assert_int_equal(second, -1);
    assert_int_equal(tess__wire_connect("127.0.0.1", port, tess__now_ns() + 1000000000, &to), 0);
    assert_int_equal(fcntl(to, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_int_equal(fcntl(to, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    tess__wire_own_address(to, text, sizeof text);
    assert_string_equal(text, "127.0.0.1");
    close(to);
    close(first);
    to = -1;
    assert_int_equal(tess__wire_connect("127.0.0.1", port, tess__now_ns() + 1000000000, &to), ECONNREFUSED);
    assert_int_equal(to, -1);
    assert_int_equal(tess__wire_connect("no host at all", 1, tess__now_ns() + 1000000000, &to), EHOSTUNREACH);
    assert_int_equal(tess__wire_listen("192.0.2.1", &again, "MASTER_PORT", &first), TESS_E_INVALID);
    snprintf(text, sizeof text, "cannot listen on 192.0.2.1 port %d: Cannot assign requested address", (int)again);
    assert_string_equal(tess_last_error(), text);
    assert_int_equal(tess__wire_listen("no host at all", &again, "MASTER_PORT", &first), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "cannot listen on 'no host at all': this is no address of a host");
    int fd[2];
    open_pair(fd);
    tess__wire_own_address(fd[0], text, sizeof text); /* of no network */
    assert_string_equal(text, "");
    close(fd[0]);
    close(fd[1]);
}

static void test_wire__seconds_are_held_to_their_bounds(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t ns; /* -1: refused */
    } cases[] = { { "0", 0 }, { "2.5", 2500000000 }, { "60", 60000000000 }, { "60.1", -1 }, { "-0.1", -1 } };
    int64_t ns = 7;
    assert_int_equal(tess__seconds_option("heartbeat", 1.25, 60, &ns), TESS_OK);
    assert_int_equal(ns, 1250000000);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        setenv("TESSERA_HEARTBEAT", cases[i].text, 1);
        ns = 7;
        tess_status s = tess__seconds_option("heartbeat", 1.25, 60, &ns);
        assert_int_equal(s, cases[i].ns < 0 ? TESS_E_INVALID : TESS_OK);
        assert_int_equal(ns, cases[i].ns < 0 ? 7 : cases[i].ns);
    }
    assert_string_equal(tess_last_error(), "TESSERA_HEARTBEAT is -0.1, expected seconds from 0 to 60");
    unsetenv("TESSERA_HEARTBEAT");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wire__a_message_has_these_bytes),
        cmocka_unit_test(test_wire__messages_of_all_sizes_arrive_as_they_were_queued),
        cmocka_unit_test(test_wire__small_messages_take_one_buffer),
        cmocka_unit_test(test_wire__a_blob_has_its_bytes_or_zeros),
        cmocka_unit_test(test_wire__what_is_no_message_is_told_from_what_is_to_come),
        cmocka_unit_test(test_wire__addresses_are_told_apart),
        cmocka_unit_test(test_wire__a_port_is_listened_on_once_and_reached),
        cmocka_unit_test(test_wire__seconds_are_held_to_their_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
