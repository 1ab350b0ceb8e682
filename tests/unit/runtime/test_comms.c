/* SPDX-License-Identifier: BSD-3-Clause */
/* Communicators over a plugin of the test's own that writes down its calls: which are made and how they end, what is
 * posted, how long a rank waits and what it says when that leads to nothing. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "core/runtime/claims.h"
#include "core/runtime/deadlock.h"
#include "tests/unit/said.h"

struct tess_comm {
    char name[32];
};
struct tess_request {
    int unused;
};
#define SECOND_NS INT64_C(1000000000)

static struct {
    struct tess_comm comms[8];
    int made, timeouts; /* waits that end with nothing */
    uint32_t caps, caps_of_comm;
    tess_status init, split, post, wait, query, sick;
    int32_t named;                          /* the rank that a failure names */
    int aborting, aborting_after, departed; /* aborting_after: made so many; departed: 1 + the rank */
    int checks, names, forever, locked, slices;
    tess_status exchange;
    const char *cause;
    char key[128];
} world;
static struct tess_request request;
static tess__comms c;
static tess__setup setup;

/* ---- the plugin ---- */

static tess_status told(tess_error *e, tess_status s) {
    if (s) {
        e->rank = world.named < 0 ? e->rank : world.named; /* a plugin that does not know it leaves it */
        snprintf(e->message, sizeof e->message, "it is broken");
    }
    return s;
}
static tess_comm *make(const tess_comm_config *k) {
    tess_comm *out = &world.comms[world.made++];
    snprintf(out->name, sizeof out->name, "%s", k->group);
    world.aborting |= world.aborting_after == world.made;
    return out;
}
static tess_status fake_query(void *ctx, tess_comm *comm, tess_comm_caps *out) {
    assert_ptr_equal(ctx, &world);
    assert_int_equal(out->struct_size, sizeof *out);
    out->caps = comm ? world.caps_of_comm : world.caps;
    return world.query;
}
static tess_status fake_init(void *ctx, const tess_comm_config *k, tess_comm **out, tess_error *e) {
    assert_ptr_equal(ctx, &world);
    say("init %s %d/%d local %d device %d, %d s, in %s; ", k->group, k->rank, k->nranks, k->local_rank, k->device,
        (int)(k->timeout_ns / SECOND_NS), c.activity[c.activity_now]);
    *out = make(k);
    return told(e, world.init);
}
static tess_status fake_split(tess_comm *of, int32_t color, int32_t key, const tess_comm_config *k, tess_comm **out,
                              tess_error *e) {
    assert_int_equal(k->rank, key);
    say("split %s: %s %d, %d/%d; ", of->name, k->group, color, key, k->nranks);
    *out = make(k);
    return told(e, world.split);
}
static tess_status fake_finalize(tess_comm *comm, int64_t timeout_ns, tess_error *e) {
    assert_int_equal(timeout_ns, 5 * SECOND_NS);
    say("finalize %s; ", comm->name);
    return told(e, TESS_OK);
}
static void fake_destroy(tess_comm *comm) {
    say("destroy %s; ", comm->name);
}
static tess_status fake_abort(tess_comm *comm, tess_status why) {
    assert_int_equal(world.locked, 1); /* or it might be destroyed meanwhile */
    say("abort %s %d; ", comm->name, why);
    return TESS_OK;
}
static tess_status fake_health(tess_comm *comm, tess_error *e) {
    say("health %s; ", comm->name);
    return told(e, strcmp(comm->name, "world") ? world.sick : TESS_OK);
}
static tess_collective posted;
static tess_status fake_post(tess_comm *comm, const tess_collective *x, uint32_t n, tess_request **out, tess_error *e) {
    say("post %s %u; ", comm->name, n);
    posted = *x;
    *out = &request;
    return told(e, world.post);
}
static tess_status fake_test(tess_request *r, tess_error *e) {
    assert_ptr_equal(r, &request);
    return told(e, world.wait);
}
static tess_status fake_wait(tess_request *r, int64_t timeout_ns, tess_error *e) {
    assert_ptr_equal(r, &request);
    if (timeout_ns == 5 * SECOND_NS) { /* of one that is dropped */
        say("wait 5 s; ");
        return told(e, world.wait);
    }
    assert_int_equal(timeout_ns, SECOND_NS / 10);
    world.slices++;
    if (world.timeouts > 0 || world.forever) {
        world.timeouts--;
        return told(e, TESS_E_TIMEOUT);
    }
    return told(e, world.wait);
}
static tess_status fake_wait_stream(tess_request *r, const tess_stream *stream, tess_error *e) {
    assert_true(r == &request && stream == &posted.after);
    say("wait on the stream; ");
    return told(e, world.wait);
}
static void fake_free(tess_request *r) {
    assert_ptr_equal(r, &request);
    say("free; ");
}

/* ---- the control plane ---- */

#define tess__control_aborting(c) (world.aborting)
#define tess__control_departed(c, r) (world.departed == (r) + 1)
#define tess__control_doing(c, text) say("doing %s; ", (text) ? (text) : "nothing")
static void note_activity(const char *text) {
    snprintf(c.activity[c.activity_now ^= 1], sizeof c.activity[0], "%s", text);
    say("doing %s; ", *text ? text : "nothing");
}
#define tess__comms_doing(c, text) note_activity(text)
#define tess__comms_idle(c) note_activity("")
#define tess__control_cause_text(c, out, n) snprintf(out, n, "%s", world.cause)
#define tess__deadlock_check(c, which, seq)                                                                            \
    (world.checks++, (which) == TESS__WORLD && (seq) == 7 ? TESS_OK : TESS_E_INTERNAL)
#define tess__deadlock_name_absent(c) ((void)world.names++)
#define tess__deadlock_enter_exchange(c, what) (say("enters %s; ", what), TESS_OK)
static tess_status fake_set(tess__control *k, const char *key, const void *value, uint64_t bytes) {
    assert_true((void *)k == &world && value && bytes == sizeof(tess__history));
    say("set %s; ", key);
    return TESS_OK;
}
static tess_status fake_get(tess__control *k, const char *key, void *value, uint64_t *bytes, int64_t timeout_ns) {
    assert_true((void *)k == &world && *bytes == sizeof(tess__history) && timeout_ns == SECOND_NS);
    say("get %s; ", key);
    if (world.cause)
        return TESS_E_TIMEOUT;
    memset(value, 0, *bytes);
    snprintf(((tess__history *)value)->now.what, 32, "a reduction");
    return TESS_OK;
}
static tess_status fake_exchange(tess__control *k, const char *key, const void *mine, uint64_t bytes, void *out) {
    assert_ptr_equal(k, &world);
    say("exchange %s; ", key);
    memcpy(out, mine, bytes);
    return world.exchange;
}
static tess_status fake_among(tess__control *k, const int32_t *members, int32_t n, const char *key, const void *mine,
                              uint64_t bytes, void *out) {
    assert_int_equal(members[n - 1], 6);
    say("of %d: ", n);
    return fake_exchange(k, key, mine, bytes, out);
}
#define pthread_mutex_lock(l) assert_int_equal(world.locked++, 0)
#define pthread_mutex_unlock(l) assert_int_equal(world.locked--, 1)
#define tess__control_set fake_set
#define tess__control_get fake_get
#define tess__control_exchange fake_exchange
#define tess__control_exchange_among fake_among
#include "core/runtime/comms.c"

static const tess_comm_ops whole = { .struct_size = sizeof whole,
                                     .query = fake_query,
                                     .init = fake_init,
                                     .split = fake_split,
                                     .finalize = fake_finalize,
                                     .destroy = fake_destroy,
                                     .abort = fake_abort,
                                     .health = fake_health,
                                     .post = fake_post,
                                     .test = fake_test,
                                     .wait = fake_wait,
                                     .wait_stream = fake_wait_stream,
                                     .request_free = fake_free };
static tess_comm_ops ops;
static tess__plugin plugin = { .kind = TESS_KIND_COMM, .name = "fake", .ops = &ops, .ctx = &world };
static tess__device device = { .mem = TESS_MEM_HOST };

static void begin(int32_t rank, int32_t nranks, int32_t shard_ranks) {
    memset(&world, 0, sizeof world);
    said_so_far[0] = 0;
    memset(&c, 0, sizeof c);
    memset(&setup, 0, sizeof setup);
    ops = whole;
    memset(&c.lock, 0x55, sizeof c.lock); /* which lies behind the communicators */
    device.mem = TESS_MEM_HOST;
    tess__comms_use(&c, &plugin, &device);
    c.world.rank = rank;
    c.world.nranks = nranks;
    c.world.local_rank = 9;
    c.timeout_ns = 30 * SECOND_NS;
    c.control = (tess__control *)&world;
    world.named = -1;
    setup.nranks = nranks;
    setup.shard_ranks = shard_ranks;
    setup.replicas = nranks / shard_ranks;
    setup.comm = &ops;
    setup.comm_ctx = &world;
}

/* Two groups of two shards, with their communicators. */
static void begin_hybrid(void) {
    begin(2, 4, 2);
    world.caps = world.caps_of_comm = TESS_COMM_APART;
    assert_int_equal(tess__comms_create(&c, &setup), TESS_OK);
    note_activity("the gather of unit a");
    said_so_far[0] = 0;
}

static void fails(tess_status s, tess_status want, const char *text) {
    assert_int_equal(s, want);
    assert_string_equal(tess_last_error(), text);
}

/* ---- made ---- */

#define INIT(name, rank, n) "init " name " " rank "/" n " local 9 device -1, 30 s, in the start of comm fake; "

static void test_comms__a_rank_has_those_of_its_groups(void **state) {
    (void)state;
    begin(2, 4, 4);
    assert_int_equal(tess__comms_create(&c, &setup), TESS_OK);
    expect_said(INIT("world", "2", "4"));
    assert_true(c.list[TESS__SHARD] == c.list[TESS__WORLD] && !c.list[TESS__REPLICA] && !c.list[TESS__COPY]);
    assert_true(c.list[TESS__SHARD_SUMS] == c.list[TESS__SHARD] && !tess__comms_apart(&c));
    assert_string_equal(tess__comms_activity(&c), "");
    begin(3, 6, 2);
    c.world.generation = 2;
    assert_int_equal(tess__comms_create(&c, &setup), TESS_OK);
    expect_said(INIT("world-g2", "3", "6") "split world-g2: shard 1, 1/2; split world-g2: replica 1, 1/3; ");
    assert_true(c.shard_rank == 1 && c.replica_rank == 1 && c.shard_ranks == 2 && c.copy_groups == 0);
    begin(1, 2, 1);
    assert_int_equal(tess__comms_create(&c, &setup), TESS_OK);
    expect_said(INIT("world", "1", "2"));
    assert_true(!c.list[TESS__SHARD] && c.list[TESS__REPLICA] == c.list[TESS__WORLD]);
    begin(4, 5, 5); /* images: ranks 0, 2 and 4, and ranks 1 and 3 */
    setup.mirror = 1;
    assert_int_equal(tess__comms_create(&c, &setup), TESS_OK);
    expect_said(INIT("world", "4", "5") "split world: copy 0, 2/3; ");
    begin(3, 5, 5);
    setup.mirror = 1;
    assert_int_equal(tess__comms_create(&c, &setup), TESS_OK);
    expect_said(INIT("world", "3", "5") "split world: copy 1, 1/2; ");
    begin(0, 1, 1);
    device.mem = TESS_MEM_CUDA;
    assert_int_equal(tess__comms_create(&c, &setup), TESS_OK);
    expect_said("init world 0/1 local 9 device 9, 30 s, in the start of comm fake; ");
}

static void test_comms__reductions_have_their_own_where_both_sides_say_so(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++) {
        begin(1, 2, i & 4 ? 1 : 2);
        world.caps = i & 1 ? TESS_COMM_APART : 0;
        world.caps_of_comm = i & 2 ? TESS_COMM_APART : 0;
        assert_int_equal(tess__comms_create(&c, &setup), TESS_OK);
        expect_said(i == 3 ? INIT("world", "1", "2") "split world: sums 0, 1/2; " : INIT("world", "1", "2"));
        assert_int_equal(tess__comms_apart(&c), i == 3);
    }
}

static void test_comms__one_that_is_not_made_is_said(void **state) {
    (void)state;
    begin(0, 4, 2);
    world.init = TESS_E_SYSTEM;
    fails(tess__comms_create(&c, &setup), TESS_E_SYSTEM, "comm fake: it is broken");
    begin(0, 4, 2);
    world.split = TESS_E_TIMEOUT;
    fails(tess__comms_create(&c, &setup), TESS_E_TIMEOUT, "comm fake: it is broken");
    begin(0, 4, 2);
    ops.split = NULL;
    fails(tess__comms_create(&c, &setup), TESS_E_UNSUPPORTED,
          "TESSERA_STRATEGY: comm fake cannot split, which hybrid sharding needs");
    for (int made = 1; made <= 2; made++) { /* a rank is lost meanwhile */
        begin(0, 4, 2);
        world.aborting_after = made;
        fails(tess__comms_create(&c, &setup), TESS_E_PEER, "a rank was lost while communicators were made");
        assert_int_equal(world.made, made);
        assert_non_null(strstr(said_so_far, made == 1 ? "; abort world -6; " : "; abort world -6; abort shard -6; "));
    }
}

static void test_comms__a_plugin_says_what_it_can(void **state) {
    (void)state;
    tess_comm_caps caps;
    begin(0, 2, 2);
    for (int i = 0; i < 4; i++) {
        world.caps = TESS_COMM_SPLIT | (i & 1 ? TESS_COMM_STREAM_ORDERED : 0);
        ops.wait_stream = i & 2 ? fake_wait_stream : NULL;
        assert_int_equal(tess__comms_waits_on_streams(&c), i == 3);
        assert_int_equal(tess__comms_caps(&c, &caps), TESS_OK);
        assert_int_equal(caps.caps, world.caps);
    }
    world.query = TESS_E_SYSTEM;
    assert_int_equal(tess__comms_waits_on_streams(&c), 0);
    fails(tess__comms_caps(&c, &caps), TESS_E_SYSTEM, "comm fake cannot say what it needs");
}

/* ---- their end ---- */

static void test_comms__each_is_aborted_and_destroyed_once(void **state) {
    (void)state;
    begin_hybrid();
    tess__comms_lost(&c, 1, "gone");
    expect_said("abort world -6; abort shard -6; abort replica -6; abort sums -6; ");
    tess__comms_withdraw(&c);
    tess__comms_abort(&c, TESS_E_PEER); /* reaches nobody any more */
    expect_said("");
    tess__comms_destroy(&c, 1);
    expect_said("finalize sums; finalize replica; finalize shard; finalize world; destroy sums; destroy replica; "
                "destroy shard; destroy world; ");
    tess__comms_destroy(&c, 0);
    expect_said("destroy sums; destroy replica; destroy shard; destroy world; ");
    ops.finalize = NULL;
    tess__comms_destroy(&c, 1);
    expect_said("destroy sums; destroy replica; destroy shard; destroy world; ");
    tess__comms_reset(&c);
    tess__comms_destroy(&c, 1);
    expect_said("");
    begin(1, 2, 2); /* where the group is the world */
    assert_int_equal(tess__comms_create(&c, &setup), TESS_OK);
    said_so_far[0] = 0;
    tess__comms_withdraw(&c);
    tess__comms_destroy(&c, 1);
    expect_said("finalize world; destroy world; ");
}

/* ---- post and wait ---- */

static void test_comms__what_is_posted_says_where_and_which(void **state) {
    (void)state;
    begin_hybrid();
    char room[64];
    tess_request *r = NULL;
    uint64_t tags[3];
    device.mem = TESS_MEM_PINNED;
    device.compute = (tess_stream){ .mem = 3 };
    c.registrations[0].comm = c.list[TESS__SHARD], c.registrations[0].ptr = room, c.registrations[0].bytes = 32;
    c.registrations[0].reg = &device;
    for (int i = 0; i < 3; i++) {
        tess_collective x = {
            .op = TESS_ALL_GATHER, .send = room + (i ? 31 : 32), .recv = room + (i ? 32 : 0), .tag = 5
        };
        c.common = i == 1 ? 3 : 0;
        c.pass_kind = i == 2 ? 2 : 0;
        assert_int_equal(tess__comm_post(&c, TESS__SHARD, &x, &r), TESS_OK);
        expect_said("post shard 1; ");
        assert_true(r == &request && posted.struct_size == sizeof posted && posted.op == TESS_ALL_GATHER);
        assert_true(posted.send_mem == TESS_MEM_PINNED && posted.recv_mem == TESS_MEM_PINNED && posted.after.mem == 3);
        assert_ptr_equal(i ? posted.send_reg : posted.recv_reg, &device);
        assert_null(i ? posted.recv_reg : posted.send_reg);
        assert_true(posted.seq == (uint64_t)i && x.seq == posted.seq && posted.tag & 1);
        tags[i] = posted.tag;
        assert_int_equal(c.recent_tags[i], posted.tag);
        assert_string_equal(c.recent_what[i], "the gather of unit a");
    }
    assert_true(tags[0] != tags[1] && tags[0] != tags[2] && tags[1] != tags[2]);
    c.n_collectives = TESS__RECENT_TAGS + 1;
    tess_collective x = { .op = TESS_BARRIER };
    assert_int_equal(tess__comm_post(&c, TESS__WORLD, &x, &r), TESS_OK);
    assert_true(c.recent_tags[1] == x.tag && c.recent_tags[0] == tags[0] && c.n_collectives == TESS__RECENT_TAGS + 2);
    memset(c.activity[c.activity_now], 'x', TESS__POSTED_TEXT + 9); /* a text that is too long ends in its place */
    c.n_collectives = 5;
    c.recent_what[6][0] = 'y';
    assert_int_equal(tess__comm_post(&c, TESS__WORLD, &x, &r), TESS_OK);
    assert_int_equal(strlen(c.recent_what[5]), TESS__POSTED_TEXT - 1);
    assert_int_equal(c.recent_what[6][0], 'y');
    note_activity("the gather of unit a");
    tess__comms_skip(&c, 40);
    assert_true(c.n_collectives == 40 && !c.recent_tags[0] && !c.recent_tags[TESS__RECENT_TAGS - 1]);
    world.post = TESS_E_DEVICE;
    fails(tess__comm_post(&c, TESS__WORLD, &x, &r), TESS_E_DEVICE, "the gather of unit a failed: it is broken");
    assert_int_equal(c.lost_peer, 0);
}

static void test_comms__a_run_leaves_no_request(void **state) {
    (void)state;
    begin_hybrid();
    tess_collective x = { .op = TESS_BARRIER };
    c.n_collectives = 7;
    world.timeouts = 10; /* a second, after which the others are asked */
    assert_int_equal(tess__comm_run(&c, TESS__WORLD, &x, "the exchange"), TESS_OK);
    expect_said("doing the exchange; post world 1; free; doing nothing; ");
    assert_true(!c.unowned_request && world.checks == 1 && x.seq == 0);
    world.wait = TESS_E_PEER;
    world.named = 3;
    fails(tess__comm_run(&c, TESS__WORLD, &x, "the exchange"), TESS_E_PEER,
          "the exchange failed at rank 3: it is broken");
    assert_true(c.unowned_request == &request && c.lost_peer == 4);
    c.exchange_count = c.common = c.pass_kind = 5;
    c.common_text[0] = c.absent[0] = 'x';
    c.recent_tags[TESS__RECENT_TAGS - 1] = 5;
    tess__comms_reset(&c); /* as a rank that has posted nothing */
    assert_true(!c.unowned_request && !c.lost_peer && !c.n_collectives && !c.exchange_count && !c.common);
    assert_true(!c.pass_kind && !c.common_text[0] && !c.absent[0] && !c.recent_tags[TESS__RECENT_TAGS - 1]);
    assert_string_equal(tess__comms_activity(&c), "");
}

static void test_comms__a_wait_asks_each_second_and_ends_with_its_time(void **state) {
    (void)state;
    begin_hybrid();
    for (int slices = 8; slices <= 101; slices += 31) { /* 0.8, 3.9, 7 and 10.1 s */
        world.timeouts = slices;
        world.checks = world.names = 0;
        assert_int_equal(tess__comm_wait(&c, TESS__WORLD, &request, 7), TESS_OK);
        assert_int_equal(world.checks, slices / 10);
        assert_int_equal(world.names, slices >= 100);
    }
    world.timeouts = 100;
    assert_int_equal(tess__comm_wait(&c, TESS__WORLD, &request, 7), TESS_OK);
    assert_int_equal(world.names, 2);
    tess__fail(TESS_E_INVALID, "before");
    assert_int_equal(tess__comm_wait(&c, TESS__WORLD, &request, 7), TESS_OK);
    assert_string_equal(tess_last_error(), "before"); /* a wait that ends well says nothing */
    for (int64_t more = -1; more <= 0; more++) {
        c.timeout_ns = 2 * SECOND_NS + more;
        world.timeouts = 40;
        world.slices = 0;
        assert_int_equal(tess__comm_wait(&c, TESS__WORLD, &request, 7), TESS_E_TIMEOUT);
        assert_int_equal(world.slices, more ? 21 : 22);
    }
    world.timeouts = 21;
    assert_int_equal(tess__comm_wait(&c, TESS__WORLD, &request, 7), TESS_OK);
    world.forever = 1;
    fails(tess__comm_wait(&c, TESS__WORLD, &request, 7), TESS_E_TIMEOUT,
          "the gather of unit a took more than 2 s (TESSERA_TIMEOUT)");
    snprintf(c.absent, sizeof c.absent, "rank 1");
    fails(tess__comm_wait(&c, TESS__WORLD, &request, 7), TESS_E_TIMEOUT,
          "the gather of unit a took more than 2 s (TESSERA_TIMEOUT): rank 1 did not come to it and computes or hangs");
    assert_int_equal(tess__comm_wait(&c, TESS__WORLD, &request, 8), TESS_E_INTERNAL); /* what the others say */
    for (int rank = 0; rank < 5; rank++) {
        world.departed = rank + 1; /* who has ended will not come; there is no rank 4, and 2 is this one */
        tess_status s = tess__comm_wait(&c, TESS__WORLD, &request, 7);
        char want[96];
        snprintf(want, sizeof want, "rank %d has ended while rank 2 waits for it in the gather of unit a", rank);
        if (rank == 2 || rank == 4)
            assert_int_equal(s, TESS_E_TIMEOUT);
        else
            fails(s, TESS_E_PEER, want);
    }
    c.control = NULL;
    assert_int_equal(tess__comm_wait(&c, TESS__WORLD, &request, 7), TESS_E_TIMEOUT);
}

static void test_comms__a_failure_names_the_rank_of_the_process(void **state) {
    (void)state;
    static int32_t members[] = { 3, 4, 5, 6 };
    begin_hybrid();
    world.wait = TESS_E_PEER;
    world.named = 1;
    fails(tess__comm_wait(&c, TESS__SHARD, &request, 7), TESS_E_PEER,
          "the gather of unit a failed at rank 3: it is broken");
    assert_int_equal(c.lost_peer, 4);
    fails(tess__comm_wait(&c, TESS__REPLICA, &request, 7), TESS_E_PEER,
          "the gather of unit a failed at rank 2: it is broken");
    c.members = members;
    world.named = 0;
    fails(tess__comm_wait(&c, TESS__WORLD, &request, 7), TESS_E_PEER,
          "the gather of unit a failed at rank 3: it is broken");
    assert_int_equal(c.lost_peer, 4);
    world.wait = TESS_E_MISMATCH;
    c.seat.engine = 2, c.color = 8;
    fails(tess__comm_wait(&c, TESS__WORLD, &request, 7), TESS_E_MISMATCH,
          "the ranks call different things: rank 5 is in the gather of unit a, rank 3 in a reduction");
    expect_said("set e2.8/mismatch/2; get e2.8/mismatch/0; ");
    world.cause = "rank 6 says why"; /* the other side was quicker */
    fails(tess__comm_wait(&c, TESS__WORLD, &request, 7), TESS_E_MISMATCH, "rank 6 says why");
    world.cause = "";
    fails(tess__comm_wait(&c, TESS__WORLD, &request, 7), TESS_E_MISMATCH, "it is broken");
    world.named = -1;
    said_so_far[0] = 0;
    fails(tess__comm_wait(&c, TESS__WORLD, &request, 7), TESS_E_MISMATCH, "in the gather of unit a: it is broken");
    world.named = 0;
    c.control = NULL;
    fails(tess__comm_wait(&c, TESS__WORLD, &request, 7), TESS_E_MISMATCH, "in the gather of unit a: it is broken");
    expect_said("");
}

static void test_comms__a_dropped_request_is_freed_unless_it_is_under_way(void **state) {
    (void)state;
    begin_hybrid();
    const tess_status ends[] = { TESS_OK, TESS_E_ABORTED, TESS_E_TIMEOUT };
    for (int i = 0; i < 3; i++) {
        world.wait = ends[i];
        tess__comm_drop(&c, &request);
        expect_said(i == 2 ? "wait 5 s; " : "wait 5 s; free; ");
    }
    tess__comm_drop(&c, NULL);
    expect_said("");
    world.wait = TESS_PENDING;
    assert_int_equal(tess__comm_has_ended(&c, &request), 0);
    world.wait = TESS_E_PEER;
    assert_int_equal(tess__comm_has_ended(&c, &request), 1);
    fails(tess__comm_wait_on_stream(&c, &request, &posted.after), TESS_E_PEER, "comm fake: it is broken");
    world.wait = TESS_OK;
    assert_int_equal(tess__comm_wait_on_stream(&c, &request, &posted.after), TESS_OK);
    expect_said("wait on the stream; wait on the stream; ");
}

static void test_comms__a_recorded_pass_is_listened_to(void **state) {
    (void)state;
    begin_hybrid();
    c.timeout_ns = 2 * SECOND_NS;
    assert_int_equal(tess__comms_listen(&c, 2 * SECOND_NS), TESS_OK);
    expect_said("health world; health shard; health replica; health sums; ");
    fails(tess__comms_listen(&c, 2 * SECOND_NS + 1), TESS_E_TIMEOUT,
          "a recorded training pass took more than 2 s (TESSERA_TIMEOUT)");
    world.departed = 1;
    fails(tess__comms_listen(&c, 0), TESS_E_PEER, "rank 0 has ended while rank 2 waits for it in the gather of unit a");
    world.sick = TESS_E_PEER;
    world.named = 0;
    fails(tess__comms_listen(&c, 0), TESS_E_PEER, "the gather of unit a failed at rank 2: it is broken");
    world.named = -1;
    fails(tess__comms_listen(&c, 0), TESS_E_PEER, "the gather of unit a failed: it is broken");
    world.departed = 0;
    ops.health = NULL;
    assert_int_equal(tess__comms_listen(&c, 0), TESS_OK);
}

/* ---- on the control plane ---- */

static void test_comms__each_exchange_has_a_key_of_its_own(void **state) {
    (void)state;
    static int32_t members[] = { 0, 2, 4, 6 };
    begin_hybrid();
    for (uint32_t engine = 1; engine <= 2; engine++) {
        int mine = 5, out = 0;
        c.seat.engine = engine;
        c.exchange_count = 0;
        assert_int_equal(tess__comms_exchange(&c, "shard", &mine, sizeof mine, &out), TESS_OK);
        assert_int_equal(out, 5);
        assert_int_equal(tess__comms_exchange_in_step(&c, "step", &mine, sizeof mine, &out), TESS_OK);
        assert_int_equal(c.exchange_count, 2);
        expect_said(engine == 1 ? "doing shard; enters shard; exchange exchange/0/shard; doing nothing; "
                                  "doing step; exchange exchange/1/step; doing nothing; "
                                : "doing shard; enters shard; exchange open/e2/shard; doing nothing; "
                                  "doing step; exchange e2/exchange/1/step; doing nothing; ");
    }
    int mine = 6, out = 0;
    c.members = members;
    assert_int_equal(tess__comms_exchange(&c, "open", &mine, sizeof mine, &out), TESS_OK);
    expect_said("doing open; enters open; of 4: exchange e2.0/exchange/2/open; doing nothing; ");
    world.exchange = TESS_E_ABORTED;
    assert_int_equal(tess__comms_exchange(&c, "open", &mine, sizeof mine, &out), TESS_E_ABORTED);
    c.members = NULL;
    assert_int_equal(tess__comms_exchange_in_step(&c, "open", &mine, sizeof mine, &out), TESS_E_ABORTED);
    c.control = NULL; /* one rank asks itself */
    out = 0;
    assert_int_equal(tess__comms_exchange(&c, "open", &mine, sizeof mine, &out), TESS_OK);
    assert_int_equal(out, 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comms__a_rank_has_those_of_its_groups),
        cmocka_unit_test(test_comms__reductions_have_their_own_where_both_sides_say_so),
        cmocka_unit_test(test_comms__one_that_is_not_made_is_said),
        cmocka_unit_test(test_comms__a_plugin_says_what_it_can),
        cmocka_unit_test(test_comms__each_is_aborted_and_destroyed_once),
        cmocka_unit_test(test_comms__what_is_posted_says_where_and_which),
        cmocka_unit_test(test_comms__a_run_leaves_no_request),
        cmocka_unit_test(test_comms__a_wait_asks_each_second_and_ends_with_its_time),
        cmocka_unit_test(test_comms__a_failure_names_the_rank_of_the_process),
        cmocka_unit_test(test_comms__a_dropped_request_is_freed_unless_it_is_under_way),
        cmocka_unit_test(test_comms__a_recorded_pass_is_listened_to),
        cmocka_unit_test(test_comms__each_exchange_has_a_key_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
