/* SPDX-License-Identifier: BSD-3-Clause */
/* Whom the key-value server blames when ranks report that they lost each other, and one of them is gone unseen: its
 * host or its address. The ranks are sockets of this test. */
#include <stdlib.h>

#include "core/control/kv_cause.c"
#include "kv_world.h"

/* `lost`: the rank that it could not talk to, -1 none */
static void report(world *w, int r, int lost, const char *why) {
    tess__message message = { .type = TESS__WIRE_REPORT,
                              .id = (uint32_t)(lost + 1),
                              .arg = TESS_E_PEER,
                              .value = (const unsigned char *)why,
                              .value_bytes = (uint32_t)strlen(why) };
    send_all(w->fd[r], &message);
}

static void send_beat(world *w, int r, uint32_t id) {
    send_all(w->fd[r], &(tess__message){ .type = TESS__WIRE_BEAT, .id = id });
}

static void answer(world *w, int r) {
    tess__message got;
    expect_message(w->fd[r], &w->box[r], TESS__WIRE_BEAT, &got);
    uint32_t id = got.id;
    assert_int_not_equal(id, 0);
    tess__inbox_drop(&w->box[r], &got);
    send_beat(w, r, id);
}

/* 0: the server tells rank r nothing more within that time. */
static int is_told(world *w, int r, int ms) {
    tess__message got;
    struct pollfd wait = { .fd = w->fd[r], .events = POLLIN };
    return tess__inbox_next(&w->box[r], 64 << 20, &got) != 0 || poll(&wait, 1, ms) != 0;
}

static void expect_lost(world *w, int r, int32_t rank, const char *text) {
    tess__message got;
    expect_message(w->fd[r], &w->box[r], TESS__WIRE_LOST, &got);
    assert_int_equal(got.arg, rank);
    assert_int_equal(got.value_bytes, strlen(text));
    assert_memory_equal(got.value, text, strlen(text));
    tess__inbox_drop(&w->box[r], &got);
}

#define LOST_2 "rank 2 was lost: its connection closed without goodbye (killed?)"

static void test_kv_cause__report_waits_until_all_ranks_have_answered(void **state) {
    (void)state;
    world w;
    open_world(&w);
    report(&w, 1, 2, "connection to rank 2 lost");
    answer(&w, 0);
    answer(&w, 1);
    assert_false(is_told(&w, 0, 600)); /* the report alone would stand after 300 ms */
    leave(&w, 2);
    expect_lost(&w, 0, 2, LOST_2);
    expect_lost(&w, 1, 2, LOST_2);
    close_world(&w);
}

static void test_kv_cause__report_stands_once_all_have_answered(void **state) {
    (void)state;
    world w;
    open_world(&w);
    report(&w, 1, 2, "connection to rank 2 lost");
    for (int r = 0; r < RANKS; r++)
        answer(&w, r);
    for (int r = 0; r < RANKS; r++)
        expect_lost(&w, r, 1, "rank 1 failed: connection to rank 2 lost");
    close_world(&w);
}

static void test_kv_cause__end_of_a_rank_that_has_reported_is_no_second_cause(void **state) {
    (void)state;
    world w;
    open_world(&w);
    report(&w, 1, 2, "connection to rank 2 lost");
    answer(&w, 0);
    leave(&w, 1); /* it has waited long enough */
    assert_false(is_told(&w, 0, 600));
    leave(&w, 2);
    expect_lost(&w, 0, 2, LOST_2);
    close_world(&w);
}

/* An address that two hosts have: rank 1 reaches the other of them, rank 0 and the server reach rank 2. */
static void test_kv_cause__first_in_the_chain_of_who_lost_whom_is_named(void **state) {
    (void)state;
    world w;
    open_world(&w);
    report(&w, 0, 1, "connection to rank 1 lost"); /* which had closed it, because: */
    answer(&w, 0);
    report(&w, 1, 2, "connection to rank 2 lost");
    report(&w, 2, 1, "connection to rank 1 lost");
    answer(&w, 1);
    answer(&w, 2);
    for (int r = 0; r < RANKS; r++)
        expect_lost(&w, r, 1, "rank 1 failed: connection to rank 2 lost");
    close_world(&w);
}

/* It names itself as lost: at once, whatever the others say, and its end changes nothing. */
static void test_kv_cause__a_rank_that_ends_itself_says_why(void **state) {
    (void)state;
    world w;
    char word[TESS__WIRE_TEXT_MAX] = "";
    const char *why = "the audit says that I am wrong";
    open_world(&w);
    report(&w, 0, 1, "rank 1 is wrong"); /* one that is an echo of it */
    send_all(w.fd[1], &(tess__message){ .type = TESS__WIRE_REPORT,
                                        .arg = TESS_E_LOST,
                                        .value = (const unsigned char *)why,
                                        .value_bytes = (uint32_t)strlen(why) });
    for (int r = 0; r < RANKS; r++)
        expect_lost(&w, r, 1, "rank 1 was lost: the audit says that I am wrong");
    leave(&w, 1);
    tess__kv_server_rank_ended(w.server, 1, 0, "killed by signal 9 (Killed)");
    assert_int_equal(tess__kv_server_culprit(w.server), 1);
    assert_int_equal(tess__kv_server_last_word(w.server, 1, word, sizeof word), 1);
    assert_string_equal(word, why);
    for (int r = 0; r < RANKS; r += 2)
        assert_int_equal(tess__kv_server_last_word(w.server, r, word, sizeof word), 0);
    assert_int_equal(tess__kv_server_last_word(w.server, -1, word, sizeof word), 0);
    close_world(&w);
}

static void test_kv_cause__who_is_killed_has_no_last_word(void **state) {
    (void)state;
    world w;
    char word[TESS__WIRE_TEXT_MAX];
    open_world(&w);
    leave(&w, 2);
    expect_lost(&w, 0, 2, LOST_2);
    assert_int_equal(tess__kv_server_last_word(w.server, 2, word, sizeof word), 0);
    close_world(&w);
}

static void test_kv_cause__report_may_name_nobody_or_nonsense(void **state) {
    (void)state;
    static const int named[] = { -1, 1, 7, -2, 0x7ffffffe };
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
        world w;
        open_world(&w);
        report(&w, 1, named[i], "it waited in vain");
        for (int r = 0; r < RANKS; r++)
            answer(&w, r);
        expect_lost(&w, 0, 1, "rank 1 failed: it waited in vain");
        close_world(&w);
    }
}

static void test_kv_cause__rank_that_is_heard_and_never_answers_delays_for_a_while_only(void **state) {
    (void)state;
    world w;
    setenv("TESSERA_HEARTBEAT", "2", 1);
    open_world(&w);
    report(&w, 1, 2, "connection to rank 2 lost");
    answer(&w, 0);
    answer(&w, 1);
    for (int i = 0; i < 600 && tess__kv_server_culprit(w.server) < 0; i++) {
        for (int r = 0; r < RANKS; r++)
            send_beat(&w, r, 0);
        usleep(50000);
    }
    expect_lost(&w, 0, 1, "rank 1 failed: connection to rank 2 lost");
    close_world(&w);
    unsetenv("TESSERA_HEARTBEAT");
}

/* A goodbye's end of connection is read and done with; the next one is news. */
static void test_kv_cause__death_behind_a_goodbye_is_named(void **state) {
    (void)state;
    tess__message got;
    world w;
    open_world(&w);
    send_all(w.fd[0], &(tess__message){ .type = TESS__WIRE_GOODBYE });
    expect_message(w.fd[1], &w.box[1], TESS__WIRE_DEPARTED, &got);
    assert_int_equal(got.arg, 0);
    tess__inbox_drop(&w.box[1], &got);
    leave(&w, 0);
    assert_false(is_told(&w, 1, 300));
    leave(&w, 2);
    expect_lost(&w, 1, 2, LOST_2);
    close_world(&w);
}

static void test_kv_cause__ranks_that_do_not_come_are_named_as_far_as_there_is_room(void **state) {
    (void)state;
    enum { MANY = 100 };
    static char text[512], names[400];
    tess__inbox box = { 0 };
    tess__message got;
    size_t at = 0;
    setenv("TESSERA_RENDEZVOUS_TIMEOUT", "0.1171875", 1);
    tess__kv_server *server = start_here(MANY);
    unsetenv("TESSERA_RENDEZVOUS_TIMEOUT");
    int fd = connect_here();
    say_hello(fd, 5, "100", "");
    expect_message(fd, &box, TESS__WIRE_REFUSED, &got);
    assert_int_equal(got.arg, TESS_E_TIMEOUT);
    for (int r = 0; at < 232; r++) /* a sentence of 256 bytes, less room for what comes behind */
        if (r != 5)
            at += (size_t)snprintf(names + at, sizeof names - at, "%s%d", at ? ", " : "", r);
    for (int i = 0; at < 248; i++)
        at += (size_t)snprintf(names + at, sizeof names - at, ", …");
    snprintf(text, sizeof text,
             "99 of 100 ranks did not come within 0.117188 s (TESSERA_RENDEZVOUS_TIMEOUT): missing %s", names);
    assert_int_equal(got.value_bytes, strlen(text));
    assert_memory_equal(got.value, text, strlen(text));
    int late = connect_here(); /* who comes now hears the same */
    tess__inbox second = { 0 };
    say_hello(late, 7, "100", "");
    expect_message(late, &second, TESS__WIRE_REFUSED, &got);
    assert_int_equal(got.arg, TESS_E_TIMEOUT);
    assert_memory_equal(got.value, text, strlen(text));
    tess__inbox_clear(&box);
    tess__inbox_clear(&second);
    close(fd);
    close(late);
    tess__kv_server_stop(server);
}

/* Each that has not been heard, and no other; not while this server itself was away. */
static void test_kv_cause__silence_of_each_rank_is_found(void **state) {
    (void)state;
    for (int who = 0; who < RANKS; who++)
        for (int away = 0; away < 2; away++) {
            tess__kv_client clients[RANKS] = { 0 };
            tess__kv_rank ranks[RANKS] = { 0 };
            atomic_uchar silent[RANKS] = { 0 };
            const int64_t beat = 4749999999, now = 100 * SECOND_NS;
            tess__kv_server server = { .nranks = RANKS, .heartbeat_ns = beat, .ranks = ranks, .silent = silent };
            server.turn_ns = away ? now - 3 * SECOND_NS : now - SECOND_NS;
            for (int r = 0; r < RANKS; r++) {
                ranks[r].client = &clients[r];
                clients[r].heard_ns = r == who ? now - beat - 1 : now - beat;
            }
            find_silent(&server, now);
            for (int r = 0; r < RANKS; r++)
                assert_int_equal(silent[r], r == who && !away);
            assert_int_equal(server.cause.strength, away ? TESS__KV_NO_CAUSE : TESS__KV_DEATH);
            assert_int_equal(server.cause.rank, away ? 0 : who);
            assert_int_equal(server.turn_ns, now);
            assert_int_equal(strstr(server.cause.text, "no sign of life for 4.8 s (") == NULL, away);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_cause__report_waits_until_all_ranks_have_answered),
        cmocka_unit_test(test_kv_cause__report_stands_once_all_have_answered),
        cmocka_unit_test(test_kv_cause__end_of_a_rank_that_has_reported_is_no_second_cause),
        cmocka_unit_test(test_kv_cause__first_in_the_chain_of_who_lost_whom_is_named),
        cmocka_unit_test(test_kv_cause__a_rank_that_ends_itself_says_why),
        cmocka_unit_test(test_kv_cause__who_is_killed_has_no_last_word),
        cmocka_unit_test(test_kv_cause__report_may_name_nobody_or_nonsense),
        cmocka_unit_test(test_kv_cause__death_behind_a_goodbye_is_named),
        cmocka_unit_test(test_kv_cause__ranks_that_do_not_come_are_named_as_far_as_there_is_room),
        cmocka_unit_test(test_kv_cause__rank_that_is_heard_and_never_answers_delays_for_a_while_only),
        cmocka_unit_test(test_kv_cause__silence_of_each_rank_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
