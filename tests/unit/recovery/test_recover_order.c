/* SPDX-License-Identifier: BSD-3-Clause */
/* tess_recover alone, with all that it calls written down: in which order a rank leaves a group and joins the next, how
 * long it looks for one, what it goes back to, what it returns, and what becomes of each failure on the way. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "core/base/log.h"
#include "core/base/status.h"
#include "core/control/wire.h"
#include "core/engine/finite.h"
#include "core/engine/scaler.h"
#include "core/recovery/smaller.h"
#include "tests/unit/said.h"

#include <stdio.h>
#include <time.h>

static struct {
    const char *fails[2];  /* calls that fail, one after the other, as: */
    tess_status status[2]; /* with "failed" as message */
    int32_t place[2];      /* this rank's in the group that is found */
    int32_t tried[64], n_tried;
    int64_t now_ns, tick_ns; /* the clock, and by how much each look at it moves it */
    tess_status joins[64];   /* of each attempt */
    int64_t mirror_step;
    int naps;
    tess *t;
} world;

static tess_status note(const char *what) {
    say("%s ", what);
    if (!world.fails[0] || strcmp(world.fails[0], what))
        return TESS_OK;
    tess_status s = world.status[0];
    world.fails[0] = world.fails[1];
    world.status[0] = world.status[1];
    world.fails[1] = NULL;
    return tess__fail(s, "failed");
}

/* What the source calls, by the names that the test writes down. */
#define tess__comms_abort(c, why) note((why) == TESS_E_LOST ? "abort" : "abort?")
#define tess__drop_requests(t) note("requests")
#define tess__transfers_end(t) note("lanes")
#define tess__memory_forget(m, p) note((p) == &world.t->pass.deviating_program ? "memory" : "memory?")
#define tess__close_comms(t) note("comms")
#define tess__control_leave(seat, orderly) note(orderly ? "leave?" : "leave")
#define tess__transfers_forget(t) note("flights")
#define tess__pass_forget(t) note("pass")
#define tess__step_forget(t) note("step")
#define tess__forget_steps(t) note("steps")
#define tess__result_forget(s) note("result")
#define tess__comms_reset(c) note("reset")
#define tess__smaller_join(t) join_smaller(t)
#define tess__find_hosts(t) note("hosts")
#define tess__comms_create(c, s) note("create")
#define tess__plan_recompile(p) note("recompile")
#define tess__handshake_programs(t, p, n) note((n) == TESS__N_PROGRAMS ? "handshake" : "handshake?")
#define tess__memory_renew(m) note("renew")
#define tess__memory_share(m) note("share")
#define tess__guard_create(t, g) note((g) == &world.t->pass.guard ? "guard" : "guard?")
#define tess__transfers_start(t, d) note((d) == 3 ? "start" : "start?")
#define tess__device_index(t) 3
#define tess__scaler_go_back(t, step) note((step) == world.mirror_step ? "scale" : "scale?")
#define tess__mirror_take(t) note("take")
#define tess__smaller_finish(t) note("finish")
#define tess__smaller_restore(t, step) restore("cut", step)
#define tess__mirror_restore(t, step) restore("back", step)
#define tess__engine_fail(t, s) fail_engine(t, s)
#define tess__now_ns() (world.now_ns += world.tick_ns)
#define nanosleep(pause, left) (void)(world.naps += (pause)->tv_nsec == 10000000 && !(pause)->tv_sec)
#define tess__world_at_generation(w, n) at_generation(w, n)
#define tess__control_join(w, lost, user, seat) join_control(w, user, seat)
#define tess__control_place(c, rank, n) (*(rank) = world.place[0], *(n) = world.place[1], (void)note("place"))

static tess_status restore(const char *what, int64_t *step) {
    assert_true(world.t->masters_changed); /* copies of them are old from here on, whatever comes */
    TRY(note(what));
    *step = world.mirror_step;
    return TESS_OK;
}

static tess_status fail_engine(tess *t, tess_status s) {
    (void)note("fail");
    return t->error = s;
}

static tess_status join_smaller(tess *t) {
    t->mirror.carry = (tess__carry *)&world; /* something is carried */
    return note("smaller");
}

static tess_status at_generation(tess__world *w, int32_t generation) {
    assert_in_range(world.n_tried, 0, 62);
    world.tried[world.n_tried++] = w->generation = generation;
    return note("at");
}

static tess_status join_control(tess__world *w, void *user, tess__control_seat *seat) {
    assert_ptr_equal(w, &world.t->comms.world);
    assert_ptr_equal(user, &world.t->comms);
    seat->control = (tess__control *)&world;
    tess_status s = world.joins[world.n_tried - 1];
    return s ? tess__fail(s, "nobody is there") : TESS_OK;
}

#include "core/recovery/recover.c"

static void end_save(tess *t) {
    (void)t;
    (void)note("save");
}

static tess_status share_past(tess *t) {
    assert_int_equal(t->step.steps_done, world.mirror_step);
    return note("past");
}

#define LEFT "save abort requests lanes memory comms leave flights pass step steps result reset "
#define JOINED "at place hosts create handshake renew share guard start "
#define BACK "back scale take past "

/* A rank of two in generation 4, which has done 9 steps and lost another one. */
static tess *lost_rank(void) {
    static tess t;
    static const tess__hooks hooks = { .end_save = end_save, .share_past = share_past };
    memset(&world, 0, sizeof world);
    said_so_far[0] = 0;
    memset(&t, 0, sizeof t);
    world.t = &t;
    world.place[0] = 1;
    world.place[1] = 2;
    world.mirror_step = 6;
    world.tick_ns = 1;
    t.hooks = &hooks;
    t.error = TESS_E_LOST;
    strcpy(t.message, "rank 0 was lost");
    t.comms.world.generation = 4;
    t.comms.world.rank = 1;
    t.comms.world.nranks = t.plan.setup.nranks = 2;
    t.comms.control = (tess__control *)&t;
    t.plan.setup.mirror = 1;
    t.mirror.taken = 8;
    t.step.steps_done = 9;
    return &t;
}

static void test_recover_order__a_rank_leaves_joins_and_goes_back(void **state) {
    (void)state;
    tess *t = lost_rank();
    tess_recovery r = { .struct_size = sizeof r };
    assert_int_equal(tess_recover(t, &r), TESS_OK);
    expect_said(LEFT JOINED BACK);
    assert_int_equal(world.n_tried, 1);
    assert_int_equal(world.tried[0], 5);
    assert_int_equal(world.naps, 0);
    assert_int_equal(t->error, TESS_OK);
    assert_string_equal(t->message, "");
    assert_int_equal(t->mirror.taken, -1); /* none of this group yet */
    assert_true(t->mirror.ready);
    assert_true(t->masters_changed);
    assert_ptr_equal(t->comms.control, &world);
    assert_int_equal(t->step.steps_done, 6);
    assert_true(r.struct_size == sizeof r && r.recovered && r.step == 6 && r.steps_lost == 3 && r.recoveries == 5);
    assert_true(r.seconds > 0 && r.seconds < 1e-6);
}

static void test_recover_order__what_a_step_compiled_anew_is_compiled_again(void **state) {
    (void)state;
    tess *t = lost_rank();
    t->pass.n_recompiles = 1;
    assert_int_equal(tess_recover(t, NULL), TESS_OK); /* nobody asks for what was lost */
    expect_said(LEFT "at place hosts create recompile handshake renew share guard start " BACK);
    t = lost_rank();
    t->plan.setup.mirror = 0; /* a rank that is left alone keeps no images */
    assert_int_equal(tess_recover(t, NULL), TESS_OK);
    expect_said(LEFT JOINED "back scale past ");
}

static void test_recover_order__steps_are_lost_only_where_they_had_been_done(void **state) {
    (void)state;
    static const uint64_t had[] = { 5, 6, 7, 60 }, lost[] = { 0, 0, 1, 54 };
    for (int i = 0; i < 4; i++) {
        tess *t = lost_rank();
        tess_recovery r = { .struct_size = sizeof r };
        t->step.steps_done = had[i];
        assert_int_equal(tess_recover(t, &r), TESS_OK);
        assert_int_equal(r.steps_lost, lost[i]);
    }
}

static void test_recover_order__a_smaller_group_cuts_its_shards_anew(void **state) {
    (void)state;
    tess *t = lost_rank();
    t->comms.world.nranks = world.place[1] = 1;
    world.place[0] = 0;
    assert_int_equal(tess_recover(t, NULL), TESS_OK);
    expect_said(LEFT "at place smaller cut scale take finish past ");
    assert_int_equal(t->comms.world.rank, 0);
    t = lost_rank();
    t->mirror.carry = (tess__carry *)&world; /* the group has its size again, but what is carried is of the old one */
    assert_int_equal(tess_recover(t, NULL), TESS_OK);
    expect_said(LEFT "at place smaller cut scale take finish past ");
}

/* Eight generations after its own, again and again, with a rest between two attempts. */
static void test_recover_order__the_next_groups_are_tried_in_turn(void **state) {
    (void)state;
    tess *t = lost_rank();
    tess_recovery r = { .struct_size = sizeof r };
    for (int i = 0; i < 18; i++)
        world.joins[i] = i % 2 ? TESS_E_PEER : TESS_E_TIMEOUT;
    assert_int_equal(tess_recover(t, &r), TESS_OK);
    assert_int_equal(world.n_tried, 19);
    for (int i = 0; i < 19; i++)
        assert_int_equal(world.tried[i], 5 + i % 8);
    assert_int_equal(world.naps, 18);
    assert_int_equal(r.recoveries, 5 + 18 % 8);
}

static void test_recover_order__a_rank_gives_up_when_its_patience_is_over(void **state) {
    (void)state;
    tess *t = lost_rank();
    for (int i = 0; i < 64; i++)
        world.joins[i] = TESS_E_PEER;
    world.tick_ns = 10000000000; /* the option's 60 s are six of these, behind the first */
    assert_int_equal(tess_recover(t, NULL), TESS_E_PEER);
    assert_int_equal(world.n_tried, 7);
    assert_int_equal(world.naps, 6);
    assert_string_equal(tess_last_error(), "nobody took the place of a lost rank: nobody is there");
    assert_int_equal(t->error, TESS_E_PEER);
    t = lost_rank();
    world.joins[0] = TESS_E_PEER;
    world.tick_ns = 60000000001; /* one too many */
    assert_int_equal(tess_recover(t, NULL), TESS_E_PEER);
    assert_int_equal(world.n_tried, 1);
    t = lost_rank();
    world.joins[0] = TESS_E_UNSUPPORTED; /* no group can be formed: there is nothing to wait for */
    assert_int_equal(tess_recover(t, NULL), TESS_E_UNSUPPORTED);
    assert_int_equal(world.n_tried, 1);
    assert_string_equal(tess_last_error(), "nobody is there");
    t = lost_rank();
    setenv("TESSERA_RENDEZVOUS_TIMEOUT", "never", 1);
    assert_int_equal(tess_recover(t, NULL), TESS_E_INVALID);
    assert_int_equal(world.n_tried, 0);
    setenv("TESSERA_RENDEZVOUS_TIMEOUT", "86400", 1);
    t = lost_rank();
    assert_int_equal(tess_recover(t, NULL), TESS_OK);
    setenv("TESSERA_RENDEZVOUS_TIMEOUT", "86401", 1);
    t = lost_rank();
    assert_int_equal(tess_recover(t, NULL), TESS_E_INVALID);
    unsetenv("TESSERA_RENDEZVOUS_TIMEOUT");
}

/* Each call that may fail: its failure ends the recovery, as the engine's error, and nothing comes behind it. */
static void test_recover_order__each_failure_on_the_way_is_the_engines(void **state) {
    (void)state;
    static const char *const steps[] = { "at",    "hosts", "create", "handshake", "renew", "share",
                                         "guard", "start", "back",   "scale",     "take",  "past" };
    static const char *const before[] = { "",
                                          "at place ",
                                          "at place hosts ",
                                          "at place hosts create ",
                                          "at place hosts create handshake ",
                                          "at place hosts create handshake renew ",
                                          "at place hosts create handshake renew share ",
                                          "at place hosts create handshake renew share guard ",
                                          JOINED,
                                          JOINED "back ",
                                          JOINED "back scale ",
                                          JOINED "back scale take " };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        char want[1024];
        tess *t = lost_rank();
        tess_recovery r = { .struct_size = sizeof r, .step = 77 };
        world.fails[0] = steps[i];
        world.status[0] = TESS_E_DEVICE;
        assert_int_equal(tess_recover(t, &r), TESS_E_DEVICE);
        snprintf(want, sizeof want, LEFT "%s%s fail ", before[i], steps[i]);
        expect_said(want);
        assert_int_equal(r.step, 77); /* outputs are written on success only */
        assert_false(r.recovered);
    }
    static const char *const smaller[] = { "smaller", "cut", "scale", "take", "finish", "past" };
    for (size_t i = 0; i < sizeof smaller / sizeof *smaller; i++) {
        tess *t = lost_rank();
        world.place[1] = 1;
        world.fails[0] = smaller[i];
        world.status[0] = TESS_E_NOMEM;
        assert_int_equal(tess_recover(t, NULL), TESS_E_NOMEM);
        assert_string_equal(strstr(said_so_far, smaller[i]) + strlen(smaller[i]), " fail ");
    }
    tess *t = lost_rank();
    t->pass.n_recompiles = 2;
    world.fails[0] = "recompile";
    world.status[0] = TESS_E_NOMEM;
    assert_int_equal(tess_recover(t, NULL), TESS_E_NOMEM);
}

static void test_recover_order__another_loss_on_the_way_begins_again(void **state) {
    (void)state;
    tess *t = lost_rank();
    tess_recovery r = { .struct_size = sizeof r };
    world.fails[0] = "create";
    world.fails[1] = "back";
    world.status[0] = world.status[1] = TESS_E_LOST;
    assert_int_equal(tess_recover(t, &r), TESS_OK);
    expect_said(LEFT "at place hosts create fail " LEFT JOINED "back fail " LEFT JOINED BACK);
    assert_int_equal(world.tried[1], 6); /* each time a generation further */
    assert_int_equal(world.tried[2], 7);
    assert_int_equal(r.recoveries, 7);
}

/* All ranks find alike that no image is left, so that nobody is told. */
static void test_recover_order__without_an_image_the_error_stays_this_ranks(void **state) {
    (void)state;
    tess *t = lost_rank();
    t->mirror.gone = 1;
    world.fails[0] = "back";
    world.status[0] = TESS_E_PEER;
    assert_int_equal(tess_recover(t, NULL), TESS_E_PEER);
    expect_said(LEFT JOINED "back ");
    assert_int_equal(t->error, TESS_E_PEER);
    assert_string_equal(t->message, "failed");
}

/* A process that takes a lost rank's place is in its group already, and can be left alone too. */
static void test_recover_order__a_process_that_joins_only_goes_back(void **state) {
    (void)state;
    tess *t = lost_rank();
    tess_recovery r = { .struct_size = sizeof r };
    t->error = TESS_OK;
    t->mirror.joins = 1;
    t->step.steps_done = 0;
    assert_int_equal(tess_recover(t, &r), TESS_OK);
    expect_said(BACK);
    assert_true(r.recovered && r.step == 6 && r.steps_lost == 0 && r.recoveries == 4);
    assert_false(t->mirror.joins);
    assert_true(t->mirror.ready);
    assert_int_equal(tess_recover(t, &r), TESS_OK); /* from then on there is nothing to do */
    expect_said("");
    assert_true(!r.recovered && r.step == 6 && r.steps_lost == 0 && r.recoveries == 4);
    t = lost_rank(); /* and one that is left alone before it has gone back */
    t->mirror.joins = 1;
    assert_int_equal(tess_recover(t, NULL), TESS_OK);
    expect_said(LEFT JOINED BACK);
}

static void test_recover_order__calls_that_have_nothing_to_do(void **state) {
    (void)state;
    tess *t = lost_rank();
    tess_recovery r = { .struct_size = sizeof r, .step = 77, .recovered = 5 };
    t->error = TESS_OK;
    assert_int_equal(tess_recover(t, &r), TESS_OK);
    assert_true(!r.recovered && r.step == 9 && r.steps_lost == 0 && r.recoveries == 4 && r.seconds >= 0);
    assert_false(t->mirror.ready);
    assert_int_equal(tess_recover(t, NULL), TESS_OK);
    t->error = TESS_E_PEER; /* any error but a loss stays */
    assert_int_equal(tess_recover(t, &r), TESS_E_PEER);
    assert_int_equal(tess_recover(NULL, &r), TESS_E_INVALID);
    expect_said("");
}

static void test_recover_order__sizes_of_the_struct(void **state) {
    (void)state;
    static const uint32_t refused[] = { 0, 7, (1 << 16) + 1, UINT32_MAX }, taken[] = { 8, 24, 1 << 16 };
    static union {
        tess_recovery r;
        char room[1 << 16];
    } x;
    char want[128];
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        tess *t = lost_rank();
        x.r.struct_size = refused[i];
        assert_int_equal(tess_recover(t, &x.r), TESS_E_INVALID);
        snprintf(want, sizeof want, "tess_recover: struct_size is %u; set it to sizeof(tess_recovery)", refused[i]);
        assert_string_equal(tess_last_error(), want);
        expect_said(""); /* and the loss is still to be recovered from */
        assert_int_equal(t->error, TESS_E_LOST);
    }
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        tess *t = lost_rank();
        memset(x.room, 0x5a, sizeof x.room);
        x.r.struct_size = taken[i];
        assert_int_equal(tess_recover(t, &x.r), TESS_OK);
        assert_int_equal(x.r.struct_size, taken[i]);
        assert_int_equal(x.r.recovered, 1);
        assert_true(x.r.step == (taken[i] > 8 ? 6 : 0x5a5a5a5a5a5a5a5au));
        assert_true(x.r.recoveries == (taken[i] > 24 ? 5 : 0x5a5a5a5au));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recover_order__a_rank_leaves_joins_and_goes_back),
        cmocka_unit_test(test_recover_order__what_a_step_compiled_anew_is_compiled_again),
        cmocka_unit_test(test_recover_order__steps_are_lost_only_where_they_had_been_done),
        cmocka_unit_test(test_recover_order__a_smaller_group_cuts_its_shards_anew),
        cmocka_unit_test(test_recover_order__the_next_groups_are_tried_in_turn),
        cmocka_unit_test(test_recover_order__a_rank_gives_up_when_its_patience_is_over),
        cmocka_unit_test(test_recover_order__each_failure_on_the_way_is_the_engines),
        cmocka_unit_test(test_recover_order__another_loss_on_the_way_begins_again),
        cmocka_unit_test(test_recover_order__without_an_image_the_error_stays_this_ranks),
        cmocka_unit_test(test_recover_order__a_process_that_joins_only_goes_back),
        cmocka_unit_test(test_recover_order__calls_that_have_nothing_to_do),
        cmocka_unit_test(test_recover_order__sizes_of_the_struct),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
