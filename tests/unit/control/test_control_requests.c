/* SPDX-License-Identifier: BSD-3-Clause */
/* Set, drop, get and exchange of a rank, without a connection: each one's message, wait and outcomes. The wait is this
 * test's, and so is the store of a rank that is alone. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/control/control_state.h"

enum { OK, ERROR, LATE, LOST, OTHERS, NOW = 1000 };
static struct {
    int acts[4], n_acts; /* what happens in each wait */
    tess__message sent;  /* the last one that was queued; its key and value: */
    char key[TESS__KV_KEY_MAX + 1], value[4 * TESS__KV_MEMBERS_MAX];
    int n_sent, wakes, cancels, mallocs, changes, no_memory;
    uint32_t cancelled;
    int64_t deadline_ns;
    int32_t arg; /* of the error that comes */
    const char *answer;
    uint32_t bytes; /* of the answer */
    tess__blob *stored;
    int sets, drops;
} world;
static tess__control c;
static tess__control_request others[2]; /* of other threads: one before this rank's, one behind it */

static int queue(const tess__message *m) {
    world.sent = *m;
    assert_int_equal(m->key_bytes, strlen(m->key) + 1);
    strcpy(world.key, m->key);
    assert_true(m->value_bytes <= sizeof world.value);
    if (m->value_bytes)
        memcpy(world.value, m->value, m->value_bytes);
    world.n_sent++;
    return world.no_memory;
}

static int act(int64_t deadline_ns);
static void push(uint32_t type, uint32_t id) {
    assert_int_equal(type, TESS__WIRE_CANCEL);
    world.cancelled = id;
    world.cancels++;
}
static void *get_memory(size_t n) {
    world.mallocs++;
    return world.no_memory ? NULL : malloc(n);
}
static tess_status store_set(const char *key, const void *value, uint64_t bytes, const char **why) {
    world.sets++;
    strcpy(world.key, key);
    memcpy(world.value, value, bytes);
    *why = "it is full";
    return world.no_memory ? TESS_E_NOMEM : TESS_OK;
}
static int change(void) {
    return world.changes++ * 0;
}
#define tess__now_ns() ((int64_t)NOW)
#define tess__outbox_copy(out, m) queue(m)
#define tess__outbox_push(out, type, id, arg, v) push(type, id)
#define tess__control_wake(control) ((void)world.wakes++)
#define tess__control_wait(control, deadline_ns) act(deadline_ns)
#define tess__kv_store_set(s, key, value, bytes, why) ((void)(s), store_set(key, value, bytes, why))
#define tess__kv_store_get(s, key) (strcpy(world.key, key), world.stored)
#define tess__kv_store_drop(s, key) (strcpy(world.key, key), (void)world.drops++)
#define pthread_cond_broadcast(x) change()
#define malloc get_memory
#include "core/control/control_requests.c"
#undef malloc

static void answer(uint32_t type, uint32_t id) {
    tess__control_answer(&c, &(tess__message){ .type = type,
                                               .id = id,
                                               .arg = world.arg,
                                               .value = (const unsigned char *)world.answer,
                                               .value_bytes = world.bytes });
}

/* The caller waits, and its answer may come. Others' requests come and go, too. */
static int act(int64_t deadline_ns) {
    assert_in_range(world.n_acts, 0, 3);
    const int what = world.acts[world.n_acts++];
    world.deadline_ns = deadline_ns;
    if (c.requests && c.requests != &others[0]) { /* another thread asks behind this one */
        others[0] = (tess__control_request){ .next = c.requests, .id = 77 };
        c.requests = &others[0];
    }
    if (what == OK || what == ERROR)
        answer(what == OK ? TESS__WIRE_OK : TESS__WIRE_ERROR, world.sent.id);
    if (what == OTHERS) {
        answer(TESS__WIRE_OK, 99); /* of one who has given up */
        answer(TESS__WIRE_OK, 77);
    }
    c.has_cause |= what == LOST;
    return what == LATE;
}

static int begin(void **state) {
    (void)state;
    memset(&world, 0, sizeof world);
    memset(&c, 0, sizeof c);
    memset(others, 0, sizeof others);
    pthread_mutex_init(&c.lock, NULL);
    c.connected = 1;
    c.next_id = 40;
    c.world.nranks = 3;
    strcpy(c.cause_text, "rank 2 was lost");
    others[1].id = 5; /* asked before this one, and waits still */
    c.requests = &others[1];
    return 0;
}

static void expect_sent(uint32_t type, uint32_t id, int32_t arg, const char *key, const void *value, uint32_t bytes) {
    assert_int_equal(world.n_sent, 1);
    assert_int_equal(world.wakes, 1);
    assert_int_equal(world.sent.type, type);
    assert_int_equal(world.sent.id, id);
    assert_int_equal(world.sent.arg, arg);
    assert_string_equal(world.key, key);
    assert_int_equal(world.sent.value_bytes, bytes);
    if (bytes)
        assert_memory_equal(world.value, value, bytes);
    world.n_sent = world.wakes = world.n_acts = 0;
    assert_int_equal(pthread_mutex_trylock(&c.lock), 0); /* which was given back */
    pthread_mutex_unlock(&c.lock);
    assert_ptr_equal(c.requests, &others[0]); /* and this request is no more among those that wait */
    assert_ptr_equal(others[0].next, &others[1]);
    assert_null(others[1].next);
    assert_false(others[1].done);
    c.requests = &others[1];
}

static void fails(tess_status got, tess_status want, const char *text) {
    assert_int_equal(got, want);
    assert_string_equal(tess_last_error(), text);
    (void)tess__fail(TESS_E_SYSTEM, "nothing yet");
}

static void test_control_requests__a_set_waits_for_its_answer_without_end(void **state) {
    (void)state;
    world.acts[0] = OTHERS; /* which wakes this one for nothing */
    world.acts[1] = OK;
    assert_int_equal(tess__control_set(&c, "key", "value", 5), TESS_OK);
    expect_sent(TESS__WIRE_SET, 41, 0, "key", "value", 5);
    assert_true(world.deadline_ns == INT64_MAX);
    assert_true(others[0].done);
    world.acts[0] = OK;
    assert_int_equal(tess__control_drop(&c, "key"), TESS_OK);
    expect_sent(TESS__WIRE_DROP, 42, 0, "key", NULL, 0);
    assert_true(world.deadline_ns == INT64_MAX);
    c.next_id = UINT32_MAX; /* 0 is no number of a request */
    assert_int_equal(tess__control_set(&c, "key", NULL, 0), TESS_OK);
    expect_sent(TESS__WIRE_SET, 1, 0, "key", NULL, 0);
    world.acts[0] = ERROR;
    world.answer = "no room, it is full";
    world.bytes = 7;
    world.arg = TESS_E_NOMEM;
    fails(tess__control_set(&c, "key", "value", 5), TESS_E_NOMEM, "key 'key': no room");
    expect_sent(TESS__WIRE_SET, 2, 0, "key", "value", 5);
    for (world.arg = 0; world.arg < 2; world.arg++) { /* which says no failure */
        fails(tess__control_set(&c, "key", "value", 5), TESS_E_INTERNAL, "key 'key': no room");
        expect_sent(TESS__WIRE_SET, (uint32_t)(3 + world.arg), 0, "key", "value", 5);
    }
}

static void test_control_requests__nothing_is_sent_without_a_server(void **state) {
    char out[8];
    uint64_t bytes = sizeof out;
    (void)state;
    for (int i = 0; i < 4; i++) {
        begin(NULL);
        c.has_cause = i == 0;
        c.connected = i != 1;
        c.goodbye_sent = i == 2;
        world.no_memory = i == 3;
        const tess_status want = i == 0 ? TESS_E_ABORTED : i == 3 ? TESS_E_NOMEM : TESS_E_INVALID;
        const char *text = i == 0   ? "rank 2 was lost"
                           : i == 3 ? "no memory to send 'key'"
                                    : "'key': the control plane is closed";
        fails(tess__control_set(&c, "key", "value", 5), want, text);
        fails(tess__control_drop(&c, "key"), want, text);
        fails(tess__control_get(&c, "key", out, &bytes, 5), want, text);
        fails(tess__control_exchange(&c, "key", "value", 5, out), want, text);
        assert_int_equal(world.n_sent, i == 3 ? 4 : 0);
        assert_true(world.wakes == 0 && bytes == sizeof out);
        assert_ptr_equal(c.requests, &others[1]);
        assert_int_equal(pthread_mutex_trylock(&c.lock), 0);
    }
}

static void test_control_requests__a_get_has_its_time_and_its_room(void **state) {
    char out[8];
    uint64_t bytes = 6;
    (void)state;
    world.acts[0] = OK;
    world.answer = "abcdefgh";
    for (uint32_t n = 0; n <= 8; n++) { /* there is room for 6 */
        bytes = 6;
        memset(out, '.', sizeof out);
        world.bytes = n;
        const tess_status got = tess__control_get(&c, "key", out, &bytes, 50);
        expect_sent(TESS__WIRE_GET, 41 + n, 0, "key", NULL, 0);
        assert_true(world.deadline_ns == NOW + 50);
        assert_memory_equal(out, n <= 6 ? "abcdef" : "......", n <= 6 ? n : 6);
        assert_int_equal(out[n <= 6 ? n : 6], '.');
        if (n <= 6)
            assert_true(got == TESS_OK && bytes == n);
        else {
            char want[96];
            snprintf(want, sizeof want, "key 'key': its value has %u bytes, there is room for 6", n);
            fails(got, TESS_E_INVALID, want);
            assert_int_equal(bytes, 6); /* outputs are written on success only */
        }
    }
    static const int64_t times[][2] = { { 0, NOW },
                                        { 1, NOW + 1 },
                                        { -1, INT64_MAX },
                                        { INT64_MAX, INT64_MAX },
                                        { INT64_MAX - NOW, INT64_MAX },
                                        { INT64_MAX - NOW - 1, INT64_MAX - 1 },
                                        { INT64_MAX - NOW + 1, INT64_MAX } };
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        world.bytes = 1;
        world.n_acts = world.n_sent = world.wakes = 0;
        bytes = 6;
        assert_int_equal(tess__control_get(&c, "key", out, &bytes, times[i][0]), TESS_OK);
        assert_true(world.deadline_ns == times[i][1]);
    }
    c.requests = &others[1];
    world.n_acts = world.n_sent = world.wakes = 0;
    world.acts[0] = ERROR;
    world.arg = TESS_E_INVALID;
    world.bytes = 3;
    fails(tess__control_get(&c, "key", out, &bytes, 50), TESS_E_INVALID, "key 'key': abc");
}

static void test_control_requests__who_waited_in_vain_takes_its_question_back(void **state) {
    char out[8];
    uint64_t bytes = 6;
    (void)state;
    world.acts[0] = OTHERS;
    world.acts[1] = LATE;
    fails(tess__control_get(&c, "key", out, &bytes, 2375000000), TESS_E_TIMEOUT, "key 'key' was not set within 2.38 s");
    expect_sent(TESS__WIRE_GET, 41, 0, "key", NULL, 0);
    assert_true(world.cancels == 1 && world.cancelled == 41 && bytes == 6);
    world.acts[1] = LOST;
    fails(tess__control_get(&c, "key", out, &bytes, 50), TESS_E_ABORTED, "rank 2 was lost");
    expect_sent(TESS__WIRE_GET, 42, 0, "key", NULL, 0);
    assert_int_equal(world.cancels, 1); /* a server that has lost a rank is asked nothing more */
}

static void test_control_requests__an_exchange_gets_all_ranks_values(void **state) {
    char out[16];
    (void)state;
    world.acts[0] = OK;
    world.answer = "aabbcc";
    world.bytes = 6;
    memset(out, '.', sizeof out);
    assert_int_equal(tess__control_exchange(&c, "key", "bb", 2, out), TESS_OK);
    expect_sent(TESS__WIRE_EXCHANGE, 41, 0, "key", "bb", 2);
    assert_true(world.deadline_ns == INT64_MAX);
    assert_memory_equal(out, "aabbcc.", 7);
    for (world.bytes = 5; world.bytes <= 7; world.bytes += 2) {
        char want[96];
        snprintf(want, sizeof want, "exchange 'key': %u bytes came back, expected 6", world.bytes);
        fails(tess__control_exchange(&c, "key", "bb", 2, out), TESS_E_INTERNAL, want);
        c.requests = &others[1];
        world.n_acts = world.n_sent = world.wakes = 0;
    }
    world.acts[0] = ERROR;
    world.arg = TESS_E_MISMATCH;
    world.bytes = 3;
    fails(tess__control_exchange(&c, "key", "bb", 2, out), TESS_E_MISMATCH, "aab");
    c.requests = &others[1];
    world.n_acts = world.n_sent = world.wakes = 0;
    world.acts[0] = LOST;
    fails(tess__control_exchange(&c, "key", "bb", 2, out), TESS_E_ABORTED, "rank 2 was lost");
}

/* Among some ranks the message begins with their numbers. */
static void test_control_requests__an_exchange_among_some_names_them(void **state) {
    static const int32_t members[TESS__KV_MEMBERS_MAX] = { 7, 0x01020304, 1 };
    static const unsigned char sent[] = { 7, 0, 0, 0, 4, 3, 2, 1, 1, 0, 0, 0, 'b', 'b' };
    static char mine[1024];
    char out[16];
    (void)state;
    world.acts[0] = OK;
    world.answer = "aabbcc";
    world.bytes = 6;
    assert_int_equal(tess__control_exchange_among(&c, members, 3, "key", "bb", 2, out), TESS_OK);
    expect_sent(TESS__WIRE_EXCHANGE, 41, 3, "key", sent, sizeof sent);
    assert_memory_equal(out, "aabbcc", 6);
    assert_int_equal(world.mallocs, 0);
    world.bytes = 0;
    assert_int_equal(tess__control_exchange_among(&c, members, 1, "key", NULL, 0, NULL), TESS_OK);
    expect_sent(TESS__WIRE_EXCHANGE, 42, 1, "key", sent, 4);
    memset(mine, 'm', sizeof mine);
    for (uint32_t bytes = 499; bytes < 502; bytes++) { /* 512 with the list fit a step that takes no memory */
        (void)tess__control_exchange_among(&c, members, 3, "key", mine, bytes, out);
        assert_int_equal(world.sent.value_bytes, 12 + bytes);
        assert_memory_equal(world.value, sent, 12);
        assert_memory_equal(world.value + 12, mine, bytes);
        assert_int_equal(world.mallocs, bytes > 500);
        world.n_acts = 0;
        c.requests = &others[1];
    }
    world.no_memory = 1;
    fails(tess__control_exchange_among(&c, members, 3, "key", mine, 501, out), TESS_E_NOMEM,
          "no memory for exchange 'key'");
    world.no_memory = 0;
    char want[96];
    world.n_sent = world.n_acts = 0;
    for (int i = 0; i < 3; i++) {
        static const int32_t n[] = { 0, -1, TESS__KV_MEMBERS_MAX + 1 };
        snprintf(want, sizeof want, "exchange 'key': %d ranks, expected 1 to %d", n[i], TESS__KV_MEMBERS_MAX);
        fails(tess__control_exchange_among(&c, members, n[i], "key", NULL, 0, out), TESS_E_INVALID, want);
    }
    assert_int_equal(world.n_sent, 0);
    assert_int_equal(tess__control_exchange_among(&c, members, TESS__KV_MEMBERS_MAX, "key", NULL, 0, NULL), TESS_OK);
    assert_int_equal(world.sent.value_bytes, sizeof members);
}

static void test_control_requests__keys_and_values_have_their_bounds(void **state) {
    static const size_t lengths[] = { 0, 1, TESS__KV_KEY_MAX, TESS__KV_KEY_MAX + 1 };
    char key[TESS__KV_KEY_MAX + 2], out[8], want[128];
    uint64_t bytes = 0;
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        memset(key, 'k', sizeof key);
        key[lengths[i]] = 0;
        snprintf(want, sizeof want, "a key of %zu bytes, expected 1 to %d", lengths[i], TESS__KV_KEY_MAX);
        const int bad = i == 0 || i == 3;
        for (int call = 0; call < 5; call++) {
            begin(NULL);
            const tess_status s = call == 0   ? tess__control_set(&c, key, "", 0)
                                  : call == 1 ? tess__control_drop(&c, key)
                                  : call == 2 ? tess__control_get(&c, key, out, &bytes, 5)
                                  : call == 3 ? tess__control_exchange(&c, key, "", 0, out)
                                              : tess__control_exchange_among(&c, &(int32_t){ 0 }, 1, key, "", 0, out);
            assert_int_equal(world.n_sent, !bad);
            if (s || bad)
                fails(s, bad ? TESS_E_INVALID : TESS_OK, want);
        }
    }
    begin(NULL);
    static char large[TESS__KV_VALUE_MAX + 1];
    snprintf(want, sizeof want, "key 'key': a value of %d bytes, expected at most %d", TESS__KV_VALUE_MAX + 1,
             TESS__KV_VALUE_MAX);
    fails(tess__control_set(&c, "key", large, sizeof large), TESS_E_INVALID, want);
    snprintf(want, sizeof want, "exchange 'key': %d bytes, expected at most %d", TESS__KV_VALUE_MAX + 1,
             TESS__KV_VALUE_MAX);
    fails(tess__control_exchange(&c, "key", large, sizeof large, large), TESS_E_INVALID, want);
    fails(tess__control_exchange_among(&c, &(int32_t){ 0 }, 1, "key", large, sizeof large, large), TESS_E_INVALID,
          want);
    assert_int_equal(world.n_sent, 0);
    assert_int_equal(check_exchange("key", TESS__KV_VALUE_MAX), TESS_OK);
}

/* A rank that is alone has a store of its own. */
static void test_control_requests__alone_a_rank_asks_its_store(void **state) {
    static char room[sizeof(tess__blob) + 8];
    tess__blob *blob = (tess__blob *)(void *)room;
    char out[8];
    uint64_t bytes = 3;
    (void)state;
    c.store = (tess__kv_store *)&world;
    c.world.nranks = 1;
    assert_int_equal(tess__control_set(&c, "key", "value", 5), TESS_OK);
    assert_true(world.sets == 1 && world.changes == 1); /* a get of another thread may wait for it */
    assert_string_equal(world.key, "key");
    world.no_memory = 1;
    fails(tess__control_set(&c, "key", "value", 5), TESS_E_NOMEM, "key 'key': it is full");
    assert_int_equal(world.changes, 1);
    assert_int_equal(tess__control_drop(&c, "other"), TESS_OK);
    assert_int_equal(world.drops, 1);
    world.acts[0] = OTHERS;
    world.acts[1] = LATE;
    fails(tess__control_get(&c, "key", out, &bytes, 2375000000), TESS_E_TIMEOUT, "key 'key' was not set within 2.38 s");
    assert_true(world.deadline_ns == NOW + 2375000000);
    world.n_acts = 0;
    world.acts[1] = LOST;
    fails(tess__control_get(&c, "key", out, &bytes, 50), TESS_E_ABORTED, "rank 2 was lost");
    c.has_cause = 0;
    world.stored = blob;
    memcpy(blob->data, "abcd", 4);
    for (uint32_t n = 0; n <= 4; n++) {
        blob->bytes = n;
        bytes = 3;
        memset(out, '.', sizeof out);
        const tess_status got = tess__control_get(&c, "key", out, &bytes, 50);
        assert_int_equal(got, n <= 3 ? TESS_OK : TESS_E_INVALID);
        assert_int_equal(bytes, n <= 3 ? n : 3);
        assert_memory_equal(out, "abc", n <= 3 ? n : 0);
        assert_int_equal(out[n <= 3 ? n : 0], '.');
    }
    assert_int_equal(tess__control_exchange(&c, "key", "mine", 4, out), TESS_OK);
    assert_memory_equal(out, "mine", 4);
    assert_int_equal(tess__control_exchange(&c, "key", NULL, 0, NULL), TESS_OK);
    assert_int_equal(world.n_sent, 0);
    assert_int_equal(pthread_mutex_trylock(&c.lock), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_control_requests__a_set_waits_for_its_answer_without_end, begin),
        cmocka_unit_test_setup(test_control_requests__nothing_is_sent_without_a_server, begin),
        cmocka_unit_test_setup(test_control_requests__a_get_has_its_time_and_its_room, begin),
        cmocka_unit_test_setup(test_control_requests__who_waited_in_vain_takes_its_question_back, begin),
        cmocka_unit_test_setup(test_control_requests__an_exchange_gets_all_ranks_values, begin),
        cmocka_unit_test_setup(test_control_requests__an_exchange_among_some_names_them, begin),
        cmocka_unit_test_setup(test_control_requests__keys_and_values_have_their_bounds, begin),
        cmocka_unit_test_setup(test_control_requests__alone_a_rank_asks_its_store, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
