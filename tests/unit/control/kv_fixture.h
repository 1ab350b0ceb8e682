/* SPDX-License-Identifier: BSD-3-Clause */
/* A key-value server on a Unix socket, and ranks that are sockets, so that a test says each word itself. */
#ifndef TEST_KV_FIXTURE_H
#define TEST_KV_FIXTURE_H
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/control/control.h"
#include "core/control/wire.h"

#define SECOND_NS 1000000000ll

/* A Unix socket of this test. */
static inline const char *place(void) {
    static char path[64];
    snprintf(path, sizeof path, "/tmp/test_kv-%d.sock", (int)getpid());
    return path;
}

static inline int connect_here(void) {
    int fd = -1;
    assert_int_equal(tess__wire_connect(place(), 0, tess__now_ns() + SECOND_NS, &fd), 0);
    return fd;
}

static const tess__kv_terms no_terms;
static inline tess__kv_server *start_here(int32_t nranks) {
    tess__kv_server *server = NULL;
    int32_t port = 0;
    assert_int_equal(tess__kv_server_start(place(), &port, nranks, &no_terms, &server), TESS_OK);
    return server;
}

static inline void send_all(int fd, const tess__message *message) {
    tess__outbox box;
    tess__link link = { .fd = fd };
    tess__outbox_init(&box);
    assert_int_equal(tess__outbox_copy(&box, message), 0);
    while (tess__outbox_flush(&box, &link) == 0)
        usleep(1000);
    tess__outbox_clear(&box);
}

static inline void say_hello(int fd, int32_t rank, const char *nranks, const char *job) {
    tess__message hello = { .type = TESS__WIRE_HELLO,
                            .arg = rank,
                            .key = nranks,
                            .key_bytes = (uint32_t)strlen(nranks) + 1,
                            .value = (const unsigned char *)job,
                            .value_bytes = (uint32_t)strlen(job) };
    send_all(fd, &hello);
}

static inline void expect_message(int fd, tess__inbox *box, uint32_t type, tess__message *out) {
    int64_t deadline_ns = tess__now_ns() + 5 * SECOND_NS;
    for (;;) {
        int got = tess__inbox_next(box, 64 << 20, out);
        assert_true(got >= 0);
        if (got > 0 && out->type == type)
            return;
        if (got > 0) {
            tess__inbox_drop(box, out);
            continue;
        }
        assert_true(tess__now_ns() < deadline_ns);
        struct pollfd wait = { .fd = fd, .events = POLLIN };
        poll(&wait, 1, 50);
        assert_true(tess__inbox_read(box, &(tess__link){ .fd = fd }) >= 0);
    }
}
#endif
