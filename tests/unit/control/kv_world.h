/* SPDX-License-Identifier: BSD-3-Clause */
/* A key-value server and its three ranks, which are sockets of a test and have all joined. */
#ifndef TEST_KV_WORLD_H
#define TEST_KV_WORLD_H
#include "kv_fixture.h"

enum { RANKS = 3 };

typedef struct {
    tess__kv_server *server;
    int fd[RANKS]; /* -1: it has left */
    tess__inbox box[RANKS];
} world;

static inline void join_world(world *w, int r) {
    tess__message got;
    w->fd[r] = connect_here();
    say_hello(w->fd[r], r, "3", "");
    expect_message(w->fd[r], &w->box[r], TESS__WIRE_WELCOME, &got);
    assert_int_equal(got.arg, r);
    assert_int_equal(got.value_bytes, 1);
    assert_int_equal(got.value[0], '3');
    tess__inbox_drop(&w->box[r], &got);
}

static inline void open_world(world *w) {
    tess__message got;
    memset(w, 0, sizeof *w);
    w->server = start_here(RANKS);
    for (int r = 0; r < RANKS; r++) {
        join_world(w, r);
        assert_int_equal(tess__kv_server_connected(w->server), r + 1);
        assert_true(tess__kv_server_joined(w->server, r));
        assert_int_equal(tess__kv_server_joined(w->server, (r + 1) % RANKS), r + 1 == RANKS);
    }
    for (int r = 0; r < RANKS; r++) {
        expect_message(w->fd[r], &w->box[r], TESS__WIRE_READY, &got);
        tess__inbox_drop(&w->box[r], &got);
    }
}

static inline void leave(world *w, int r) {
    if (w->fd[r] >= 0)
        close(w->fd[r]);
    w->fd[r] = -1;
}

static inline void close_world(world *w) {
    for (int r = 0; r < RANKS; r++) {
        leave(w, r);
        tess__inbox_clear(&w->box[r]);
    }
    tess__kv_server_stop(w->server);
}
#endif
