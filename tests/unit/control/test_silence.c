/* SPDX-License-Identifier: BSD-3-Clause */
/* What a rank makes of its server's messages and of its silence, without a connection: whose loss it is, in which
 * words, and that no time counts in which this rank itself was stopped. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "core/control/control_state.h"

static struct {
    char cause[TESS__WIRE_TEXT_MAX];
    int32_t rank;
    int causes, answers, beats, wakes;
    uint32_t beat;
} world;
static atomic_uchar places[6], *departed = places + 1; /* and one before and behind */
static tess__control c;

static void take_cause(int32_t rank, const char *text) {
    world.causes++;
    world.rank = rank;
    snprintf(world.cause, sizeof world.cause, "%s", text);
}
static int push(uint32_t type, uint32_t id) {
    assert_int_equal(type, TESS__WIRE_BEAT);
    world.beat = id;
    return world.beats++ * 0;
}
#define tess__control_set_cause(control, rank, text) take_cause(rank, text)
static int wake(void) {
    return world.wakes++ * 0;
}
#define pthread_cond_broadcast(c) wake()
#define tess__control_answer(control, in) ((void)world.answers++)
#define tess__outbox_push(out, type, id, arg, key) ((void)(arg), push(type, id))
#include "core/control/control.c"

static int begin(void **state) {
    (void)state;
    memset(&world, 0, sizeof world);
    memset(&c, 0, sizeof c);
    memset(places, 0, sizeof places);
    places[0] = places[5] = 7;
    pthread_cond_init(&c.changed, NULL);
    c.departed = departed;
    c.world.nranks = 4;
    c.world.rank = 2;
    c.connected = 1;
    c.heartbeat_ns = 10 * SECOND_NS;
    return 0;
}

static void test_silence__counts_only_while_this_rank_ran(void **state) {
    const int64_t most = TICK_NS + 5 * SECOND_NS; /* that a turn may take */
    for (int longer = 0; longer < 2; longer++) {
        begin(state);
        c.heard_ns = 3 * SECOND_NS;
        c.turn_ns = 14 * SECOND_NS - most - longer;
        check_silence(&c, 14 * SECOND_NS);
        assert_int_equal(c.turn_ns, 14 * SECOND_NS);
        assert_int_equal(c.heard_ns, 3 * SECOND_NS + (longer ? most + 1 : 0));
        assert_int_equal(world.causes, !longer);
        assert_int_equal(c.connected, longer);
    }
    begin(state); /* just so long is not too long */
    c.turn_ns = 13 * SECOND_NS;
    c.heard_ns = 3 * SECOND_NS;
    check_silence(&c, 13 * SECOND_NS);
    assert_int_equal(world.causes, 0);
    check_silence(&c, 13 * SECOND_NS + 1);
    assert_int_equal(world.causes, 1);
    assert_string_equal(world.cause, "rank 0 was lost: no sign of life for 10.0 s (stopped?)");
    begin(state);
    c.key = (void *)&c; /* over a network */
    c.turn_ns = 25 * SECOND_NS;
    check_silence(&c, 25 * SECOND_NS);
    assert_string_equal(world.cause, "rank 0 was lost: no sign of life for 25.0 s (stopped, or it cannot be reached?)");
    begin(state); /* without heartbeats nothing is silent */
    c.heartbeat_ns = 0;
    c.turn_ns = 25 * SECOND_NS;
    check_silence(&c, 25 * SECOND_NS);
    assert_int_equal(world.causes, 0);
}

static void test_silence__whose_server_it_was_is_said(void **state) {
    (void)state;
    lose_server(&c, "why");
    assert_true(world.causes == 1 && world.rank == 0 && !c.connected && world.wakes == 1);
    assert_string_equal(world.cause, "rank 0 was lost: why");
    departed[0] = 1;
    lose_server(&c, "why");
    assert_int_equal(world.rank, 0);
    assert_string_equal(world.cause, "rank 0, which holds the key-value server, has ended");
    c.world.launched = 1;
    lose_server(&c, "why");
    assert_int_equal(world.rank, -1);
    assert_string_equal(world.cause, "the launcher (tessera run) was lost: why");
    c.goodbye_sent = c.connected = 1; /* who has left misses nobody */
    lose_server(&c, "why");
    assert_true(world.causes == 3 && !c.connected);
}

static void hear(uint32_t type, uint32_t id, int32_t arg, const char *text) {
    const tess__message in = {
        .type = type, .id = id, .arg = arg, .value = (const unsigned char *)text, .value_bytes = (uint32_t)strlen(text)
    };
    int causes = world.causes, answers = world.answers, beats = world.beats, wakes = world.wakes;
    tess_status refused = c.refused;
    handle_message(&c, &in); /* has its own effect, and no other's; whoever waits looks again */
    assert_int_equal(world.causes - causes, type == TESS__WIRE_LOST);
    assert_int_equal(world.answers - answers, type == TESS__WIRE_OK || type == TESS__WIRE_ERROR);
    assert_int_equal(world.beats - beats, type == TESS__WIRE_BEAT && id);
    assert_int_equal(world.wakes - wakes, type != TESS__WIRE_BEAT && type != 9999);
    assert_true(type == TESS__WIRE_REFUSED || c.refused == refused);
    assert_true(places[0] == 7 && places[5] == 7);
}

static void test_silence__each_message_has_its_effect(void **state) {
    char text[2 * TESS__WIRE_TEXT_MAX];
    hear(TESS__WIRE_BEAT, 0, 0, ""); /* asks for none back */
    assert_int_equal(world.beats, 0);
    hear(TESS__WIRE_BEAT, 7, 0, "");
    assert_true(world.beats == 1 && world.beat == 7);
    hear(TESS__WIRE_GOODBYE, 0, 0, "");
    assert_int_equal(c.goodbye_heard, 1);
    hear(TESS__WIRE_OK, 0, 0, "");
    hear(TESS__WIRE_ERROR, 0, 0, "");
    assert_int_equal(world.answers, 2);
    hear(TESS__WIRE_REFUSED, 0, TESS_E_VERSION, "no");
    assert_int_equal(c.refused, TESS_E_VERSION);
    assert_string_equal(c.refusal, "no");
    for (int32_t arg = 0; arg < 2; arg++) { /* which says no failure */
        hear(TESS__WIRE_REFUSED, 0, arg, "not now");
        assert_int_equal(c.refused, TESS_E_INTERNAL);
    }
    hear(TESS__WIRE_LOST, 0, 3, "rank 3 was lost");
    assert_true(world.causes == 1 && world.rank == 3);
    assert_string_equal(world.cause, "rank 3 was lost");
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    hear(TESS__WIRE_LOST, 0, 1, text); /* ends within its room */
    assert_int_equal(strlen(world.cause), TESS__WIRE_TEXT_MAX - 1);
    for (int32_t r = -1; r <= 4; r++) { /* there is no such rank at either end */
        begin(state);
        hear(TESS__WIRE_DEPARTED, 0, r, "");
        for (int32_t k = 0; k < 4; k++)
            assert_int_equal(departed[k], k == r);
        hear(TESS__WIRE_BACK, 0, r, "");
        for (int32_t k = 0; k < 4; k++)
            assert_int_equal(departed[k], 0);
    }
    c.link.fd = -1; /* of which no address is known */
    hear(TESS__WIRE_READY, 0, 0, "192.0.2.7");
    assert_int_equal(c.ready, 1);
    assert_string_equal(c.address, "192.0.2.7");
    hear(TESS__WIRE_READY, 0, 0, "");
    assert_string_equal(c.address, "");
    assert_int_equal(world.causes, 0);
    hear(9999, 1, 1, "of a later version"); /* is left alone */
    assert_true(world.causes == 0 && world.answers == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_silence__counts_only_while_this_rank_ran, begin),
        cmocka_unit_test_setup(test_silence__whose_server_it_was_is_said, begin),
        cmocka_unit_test_setup(test_silence__each_message_has_its_effect, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
