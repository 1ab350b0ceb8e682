/* SPDX-License-Identifier: BSD-3-Clause */
/* Collectives that a stream waits for in place of the engine's thread: when their requests are freed, in which order,
 * when the host waits all the same, and what this rank is said to be doing meanwhile. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "core/base/status.h"
#include "core/runtime/streams.h"
#include "tests/unit/said.h"

struct tess_request {
    int ended;
};
static struct {
    int freed, dropped, ends; /* ends: whatever is posted has ended at once */
    tess_status wait, on_stream, post;
} world;
static struct tess_request requests[4 * TESS__RETIRED];
static tess__comms comms;
static tess__device device;
static tess__streams q;

static void set_activity(const char *text) {
    snprintf(comms.activity[0], sizeof comms.activity[0], "%s", text);
}
static int number(const tess_request *r) {
    return (int)(r - requests);
}
static tess_status wait_for_it(int which, tess_request *r, uint64_t seq) {
    say("wait for %d on %d as %d in %s; ", number(r), which, (int)seq, comms.activity[0]);
    return world.wait;
}
static void free_next(tess_request *r) {
    assert_int_equal(number(r), world.freed++); /* the oldest first */
    say("free; ");
}
static void drop_next(tess_request *r) {
    assert_int_equal(number(r), world.freed + world.dropped++);
}
static tess_status wait_on_stream(tess_request *r, const tess_stream *s) {
    assert_ptr_equal(s, &device.compute);
    say("stream waits for %d; ", number(r));
    return world.on_stream;
}
static tess_status post(int which, tess_collective *c, tess_request **out) {
    assert_int_equal(c->count, 5);
    say("post on %d in %s; ", which, comms.activity[0]);
    c->seq = 40;
    *out = &requests[world.freed + q.n_retired];
    return world.post;
}
static tess_status run(int which, const tess_collective *c, const char *doing) {
    assert_int_equal(c->count, 5);
    say("run on %d in %s; ", which, doing);
    return TESS_OK;
}
#define tess__comms_activity(c) (comms.activity[0])
#define tess__comms_doing(c, text) set_activity(text)
#define tess__comms_idle(c) set_activity("")
#define tess__comm_wait(c, which, r, seq) ((void)(c), wait_for_it(which, r, seq))
#define tess__comm_has_ended(c, r) ((r)->ended || world.ends)
#define tess__comm_free(c, r) ((void)(c), free_next(r))
#define tess__comm_drop(c, r) ((void)(c), drop_next(r))
#define tess__comm_wait_on_stream(c, r, s) ((void)(c), wait_on_stream(r, s))
#define tess__comm_post(c, which, x, out) ((void)(c), post(which, x, out))
#define tess__comm_run(c, which, x, doing) ((void)(c), run(which, x, doing))
static tess_status note(const char *what) {
    say("%s; ", what);
    return TESS_OK;
}
#define tess__device_record(d, e, s) ((void)(d), note("record"))
#define tess__device_event_wait(d, e, ns) ((void)(d), (void)(e), note("host waits"))
#include "core/runtime/streams.c"

static int begin(void **state) {
    (void)state;
    memset(&world, 0, sizeof world);
    said_so_far[0] = 0;
    memset(&comms, 0, sizeof comms);
    memset(&q, 0, sizeof q);
    memset(requests, 0, sizeof requests);
    q.device = &device;
    q.comms = &comms;
    q.on = q.comm_waits = 1;
    return 0;
}

static void retire(int i) {
    char what[16];
    snprintf(what, sizeof what, "gather %d", i);
    set_activity(what);
    assert_int_equal(tess__retire(&q, i % 3, &requests[i], (uint64_t)(10 + i)), TESS_OK);
}

static void test_retired__those_that_have_ended_are_freed_in_their_order(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++)
        retire(i);
    expect_said("stream waits for 0; stream waits for 1; stream waits for 2; ");
    requests[1].ended = 1; /* but not the one before it */
    retire(3);
    expect_said("stream waits for 3; ");
    requests[0].ended = 1;
    retire(4);
    expect_said(
        "stream waits for 4; wait for 0 on 0 as 10 in gather 0; free; wait for 1 on 1 as 11 in gather 1; free; ");
    assert_string_equal(comms.activity[0], "gather 4");
    assert_true(q.n_retired == 3 && q.ever_retired == 5);
}

static void test_retired__those_that_are_due_are_waited_for(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++)
        retire(i);
    said_so_far[0] = 0;
    set_activity("");
    assert_int_equal(sweep_retired(&q, 2), TESS_OK); /* the first two of all */
    expect_said("wait for 0 on 0 as 10 in gather 0; free; wait for 1 on 1 as 11 in gather 1; free; ");
    assert_string_equal(comms.activity[0], ""); /* idle, as before */
    assert_int_equal(sweep_retired(&q, 2), TESS_OK);
    expect_said("");
    world.wait = TESS_E_PEER;
    assert_int_equal(sweep_retired(&q, 3), TESS_E_PEER);
    expect_said("wait for 2 on 2 as 12 in gather 2; ");
    assert_string_equal(comms.activity[0], "gather 2"); /* which messages name */
    assert_int_equal(q.n_retired, 2);
    tess__streams_drop(&q);
    assert_true(world.dropped == 2 && !q.n_retired && q.first_retired == 4);
}

static void test_retired__without_room_the_oldest_is_waited_for(void **state) {
    (void)state;
    for (int i = 0; i < 2 * TESS__RETIRED; i++) {
        retire(i);
        assert_int_equal(q.n_retired, i < TESS__RETIRED - 1 ? i + 1 : TESS__RETIRED - 1);
        said_so_far[0] = 0;
    }
    assert_int_equal(world.freed, TESS__RETIRED + 1);
    assert_int_equal(q.first_retired, 1);
    tess__streams_drop(&q);
    assert_true(world.dropped == TESS__RETIRED - 1 && q.first_retired == 0);
}

static void test_retired__a_recorded_one_has_ended_already(void **state) {
    (void)state;
    q.recording = 1;
    for (int i = 0; i < 2; i++) {
        world.on_stream = i ? TESS_E_DEVICE : TESS_OK;
        assert_int_equal(tess__retire(&q, TESS__SHARD, &requests[i], 5), world.on_stream);
        assert_true(q.n_retired == 0 && q.ever_retired == 0);
    }
    expect_said("stream waits for 0; free; stream waits for 1; free; ");
    q.recording = 0;
    assert_int_equal(tess__retire(&q, TESS__SHARD, &requests[2], 5), TESS_E_DEVICE);
    assert_int_equal(q.n_retired, 1); /* it is freed with the others */
}

static void test_retired__a_collective_of_the_engine_is_waited_for_by_the_stream(void **state) {
    (void)state;
    tess_collective c = { .count = 5 };
    for (int i = 0; i < 3; i++) { /* a device without streams, a plugin without, both */
        q.on = i != 0;
        q.comm_waits = i != 1;
        assert_int_equal(tess__stream_collective(&q, TESS__WORLD, &c, "the norm"), TESS_OK);
        expect_said(i < 2 ? "run on 0 in the norm; " : "post on 0 in the norm; stream waits for 0; ");
        assert_null(comms.unowned_request);
    }
    assert_true(q.n_retired == 1 && q.retired[0].seq == 40 && q.retired[0].which == TESS__WORLD && c.seq == 0);
    assert_string_equal(q.retired[0].what, "the norm");
    assert_string_equal(comms.activity[0], "");
    world.on_stream = TESS_E_DEVICE;
    assert_int_equal(tess__stream_collective(&q, TESS__WORLD, &c, "the norm"), TESS_E_DEVICE);
    assert_string_equal(comms.activity[0], "the norm");
    world.post = TESS_E_PEER;
    assert_int_equal(tess__stream_collective(&q, TESS__WORLD, &c, "the norm"), TESS_E_PEER);
    assert_int_equal(q.n_retired, 2);
}

/* The host would not hear of a lost rank while it waits for the device. */
static void test_retired__the_host_waits_for_collectives_before_the_device(void **state) {
    for (int how = 0; how < 3; how++) {
        begin(state);
        for (int i = 0; i < 2; i++)
            retire(i);
        said_so_far[0] = 0;
        if (how == 0)
            assert_int_equal(tess__streams_sync(&q), TESS_OK);
        else if (how == 1)
            assert_int_equal(tess__pass_wait(&q), TESS_OK);
        else { /* of a pass that ended when there was one */
            q.passes[0] = (tess__late_pass){ .under_way = 1, .retired = 1 };
            assert_int_equal(tess__passes_wait(&q), TESS_OK);
        }
        char want[256];
        snprintf(want, sizeof want, "wait for 0 on 0 as 10 in gather 0; free; %s%shost waits; ",
                 how < 2 ? "wait for 1 on 1 as 11 in gather 1; free; " : "", how ? "" : "record; ");
        expect_said(want);
        world.wait = TESS_E_PEER;
        retire(2);
        said_so_far[0] = 0;
        q.passes[0] = (tess__late_pass){ .under_way = 1, .retired = 3 };
        assert_int_equal(how == 0   ? tess__streams_sync(&q)
                         : how == 1 ? tess__pass_wait(&q)
                                    : tess__passes_wait(&q),
                         TESS_E_PEER);
        assert_null(strstr(said_so_far, "host"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_retired__those_that_have_ended_are_freed_in_their_order, begin),
        cmocka_unit_test_setup(test_retired__those_that_are_due_are_waited_for, begin),
        cmocka_unit_test_setup(test_retired__without_room_the_oldest_is_waited_for, begin),
        cmocka_unit_test_setup(test_retired__a_recorded_one_has_ended_already, begin),
        cmocka_unit_test_setup(test_retired__a_collective_of_the_engine_is_waited_for_by_the_stream, begin),
        cmocka_unit_test(test_retired__the_host_waits_for_collectives_before_the_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
