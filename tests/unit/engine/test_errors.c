/* SPDX-License-Identifier: BSD-3-Clause */
/* The first error of an engine stays. All others are told of it once, and whoever only heard of another rank's failure
 * says whose it was. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "core/base/status.h"
#include "core/engine/state.h"
#include "tests/unit/logged.h"
#include "tests/unit/said.h"

static struct {
    const char *cause;
    int was_lost, killed;
} world;
static tess t;

static int kill_self(void) {
    return world.killed++;
}
#define raise(s) kill_self()
#define tess__control_report(c, s, rank, own) say("report %d, rank %d, %s; ", s, (int)(rank), own)
#define tess__control_cause_text(c, out, n) snprintf(out, n, "%s", world.cause)
#define tess__control_was_lost(c) (world.was_lost)
#define tess__comms_abort(c, s) say("abort %d; ", s)
#include "core/engine/errors.c"

static int begin(void **state) {
    (void)state;
    memset(&world, 0, sizeof world);
    memset(&logged, 0, sizeof logged);
    said_so_far[0] = 0;
    memset(&t, 0, sizeof t);
    world.cause = "";
    t.comms.world.nranks = 2;
    t.comms.control = (tess__control *)&world;
    return 0;
}

static void expect(tess_status s, tess_status want, const char *text, const char *said) {
    assert_int_equal(s, want);
    assert_string_equal(tess_last_error(), text);
    expect_said(said);
}

static void test_errors__the_first_one_stays_and_is_told_once(void **state) {
    (void)state;
    char said[64];
    assert_int_equal(tess__engine_check(&t), TESS_OK);
    t.comms.lost_peer = 4;
    tess__fail(TESS_E_DATA, "the disk is gone");
    snprintf(said, sizeof said, "report %d, rank 3, the disk is gone; abort %d; ", TESS_E_DATA, TESS_E_DATA);
    expect(tess__engine_fail(&t, TESS_E_DATA), TESS_E_DATA, "the disk is gone", said);
    tess__fail(TESS_E_PEER, "another");
    expect(tess__engine_fail(&t, TESS_E_PEER), TESS_E_DATA, "the disk is gone", "");
    tess__fail(TESS_E_PEER, "another");
    expect(tess__engine_check(&t), TESS_E_DATA, "the disk is gone", "");
    expect(tess__engine_check(NULL), TESS_E_INVALID, "the engine pointer is null", "");
    begin(state); /* a rank alone has nobody to tell */
    t.comms.world.nranks = 1;
    t.comms.control = NULL;
    tess__fail(TESS_E_DATA, "the disk is gone");
    expect(tess__engine_fail(&t, TESS_E_DATA), TESS_E_DATA, "the disk is gone", "");
}

static void test_errors__an_echo_names_its_cause(void **state) {
    static const tess_status echoes[] = { TESS_E_ABORTED, TESS_E_PEER, TESS_E_TIMEOUT, TESS_E_SYSTEM };
    for (int i = 0; i < 4; i++)
        for (int in_call = 0; in_call < 2; in_call++) {
            char want[96], said[96];
            begin(state);
            world.cause = "rank 1: its disk is gone";
            snprintf(t.comms.activity[0], sizeof t.comms.activity[0], "%s", in_call ? "a gather" : "");
            tess__fail(echoes[i], "own");
            tess_status result = i < 3 ? TESS_E_PEER : TESS_E_SYSTEM; /* which is this rank's own */
            snprintf(want, sizeof want, "%s%s", i < 3 ? "rank 1: its disk is gone" : "own",
                     i < 3 && in_call ? "; this rank was in a gather" : "");
            snprintf(said, sizeof said, "report %d, rank -1, own; abort %d; ", echoes[i], result);
            expect(tess__engine_fail(&t, echoes[i]), result, want, said);
            assert_string_equal(t.message, want);
        }
    for (int i = 0; i < 4; i++) { /* a lost rank is one that images can replace */
        begin(state);
        world.cause = "rank 1 was lost";
        world.was_lost = i & 1;
        t.mirror.ready = i >> 1;
        tess__fail(TESS_E_PEER, "own");
        assert_int_equal(tess__engine_fail(&t, TESS_E_PEER), i == 3 ? TESS_E_LOST : TESS_E_PEER);
        assert_int_equal(t.error, i == 3 ? TESS_E_LOST : TESS_E_PEER);
    }
    begin(state); /* without a cause it is this rank's */
    tess__fail(TESS_E_TIMEOUT, "own");
    assert_int_equal(tess__engine_fail(&t, TESS_E_TIMEOUT), TESS_E_TIMEOUT);
    assert_string_equal(tess_last_error(), "own");
}

static void test_errors__a_rank_without_its_store_ends_where_images_are(void **state) {
    for (int i = 0; i < 16; i++) {
        begin(state);
        t.mirror.ready = i & 1;
        t.comms.world.nranks = i & 2 ? 2 : 1;
        t.comms.world.rank = 1;
        atomic_store(&t.memory.store.failed, i >> 2 & 1);
        tess_status s = i & 8 ? TESS_E_SYSTEM : TESS_E_PEER;
        tess__fail(s, "the disk is gone");
        assert_int_equal(tess__engine_fail(&t, s), s);
        assert_int_equal(world.killed, i == 15);
        expect_logged(i == 15, TESS_LOG_ERROR,
                      i == 15 ? "the disk is gone: rank 1 ends, and the others go on from images "
                                "(TESSERA_MIRROR)"
                              : "");
    }
}

static void test_errors__a_callback_without_words_is_named(void **state) {
    (void)state;
    uint64_t before = tess__fail_count();
    expect(tess__callback_failed(3, before, "forward of block", "h.0"), TESS_E_INVALID,
           "forward of block \"h.0\" failed with TESS_E_INVALID", "");
    before = tess__fail_count();
    expect(tess__callback_failed(TESS_E_DEVICE, before, "forward of block", "h.0"), TESS_E_DEVICE,
           "forward of block \"h.0\" failed with TESS_E_DEVICE", "");
    before = tess__fail_count();
    tess__fail(TESS_E_NOMEM, "no room");
    expect(tess__callback_failed(1, before, "forward of block", "h.0"), TESS_E_INVALID, "no room", "");
}

static void test_errors__a_program_gives_up_with_a_failure(void **state) {
    (void)state;
    tess__fail(TESS_E_DATA, "no more data");
    assert_int_equal(tess_give_up(&t, TESS_E_DATA), TESS_E_DATA);
    assert_int_equal(t.error, TESS_E_DATA);
    begin(state);
    tess__fail(TESS_E_DATA, "no more data");
    assert_int_equal(tess_give_up(&t, TESS_OK), TESS_E_INVALID);
    begin(state);
    assert_int_equal(tess_give_up(&t, 1), TESS_E_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_errors__the_first_one_stays_and_is_told_once, begin),
        cmocka_unit_test_setup(test_errors__an_echo_names_its_cause, begin),
        cmocka_unit_test_setup(test_errors__a_rank_without_its_store_ends_where_images_are, begin),
        cmocka_unit_test_setup(test_errors__a_callback_without_words_is_named, begin),
        cmocka_unit_test_setup(test_errors__a_program_gives_up_with_a_failure, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
