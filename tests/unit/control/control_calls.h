/* SPDX-License-Identifier: BSD-3-Clause */
/* Calls of the control plane's two ends, one of which may fail, and their settings of seconds. After cmocka.h. */
#ifndef TEST_CONTROL_CALLS_H
#define TEST_CONTROL_CALLS_H
#include "core/control/kv_store.h"
#include "core/control/wire.h"
#include "tests/unit/noted.h"

static struct {
    const char *fails; /* the call that does; null: none */
    int64_t heartbeat_ns, rendezvous_ns;
} calls;

static inline void begin_calls(int64_t heartbeat_ns, int64_t rendezvous_ns) {
    calls = (__typeof__(calls)){ NULL, heartbeat_ns, rendezvous_ns };
    said_so_far[0] = 0;
}
static inline int fails(const char *what) {
    return calls.fails && !strcmp(calls.fails, what);
}
static inline int note(const char *what, int result) {
    return noted(&calls.fails, 1, "%s", what) ? -1 : result;
}
static inline tess_status seconds(const char *key, double fallback, double most, int64_t *out) {
    const int beats = !strcmp(key, "heartbeat");
    assert_true(fallback == (beats ? 5 : 60) && most == 86400);
    *out = beats ? calls.heartbeat_ns : calls.rendezvous_ns;
    return noted(&calls.fails, 1, "%s", key);
}
#define tess__inbox_clear(box) ((void)note("clear-in", 0))
#define tess__outbox_init(box) ((void)0)
#define tess__outbox_clear(box) ((void)note("clear-out", 0))
#define tess__kv_store_create() (fails("store") ? NULL : (tess__kv_store *)&calls)
#define tess__seconds_option(key, fallback, most, out) seconds(key, fallback, most, out)
#define pthread_join(thread, out) note("join", 0)
#endif
