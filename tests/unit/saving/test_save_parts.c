/* SPDX-License-Identifier: BSD-3-Clause */
/* Parts of a save, each alone: the snapshot's room and how each kind of memory comes there, who is busy, whose past a
 * process learns, what is said of a failure and to whom, and which failures are the disk's. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/status.h"
#include "core/proof/proof.h"
#include "core/saving/saver.h"
#include "tests/unit/logged.h"
#include "tests/unit/said.h"

enum { RANKS = 3, ROOM = 4 * TESS__SNAPSHOT_ALIGN, VALUE = 8192 };
static struct {
    char values[RANKS][VALUE];
    int32_t rank; /* whose value this rank's is */
    tess_status exchanges, copies, syncs;
    int busy, aborting, joined;
} world;
static tess engine;

static tess_status note(const char *what, tess_status s) {
    say("%s ", what);
    return s ? tess__fail(s, "%s failed", what) : TESS_OK;
}
static tess_status exchange(tess__comms *c, const char *what, const void *mine, uint64_t bytes, void *out) {
    assert_ptr_equal(c, &engine.comms);
    assert_true(bytes <= VALUE);
    memcpy(world.values[world.rank], mine, bytes);
    for (int32_t r = 0; r < RANKS; r++)
        memcpy((char *)out + (uint64_t)r * bytes, world.values[r], bytes);
    return note(what, world.exchanges);
}
static tess_status copy(const char *how, void *to, const void *from, uint64_t bytes) {
    memcpy(to, from, bytes);
    return note(how, world.copies);
}
#define tess__comms_exchange exchange
#define tess__side_thread_busy(s) (world.busy)
#define tess__side_thread_join(s) ((void)(world.joined++))
#define tess__control_aborting(c) (world.aborting)
#define tess__copy_now(t, to, tm, from, fm, bytes)                                                                     \
    ((void)(tm), copy((fm) == TESS__MEM_STORE ? "store" : "store?", to, from, bytes))
#define tess__device_copy(d, to, tm, from, fm, bytes, s)                                                               \
    copy((tm) == TESS_MEM_PINNED ? "device" : "device?", to, from, bytes)
#define tess__streams_sync(s) note("sync", world.syncs)
#include "core/saving/checkpoint.c"

static char snapshot[ROOM], host[64], pinned[64], cuda[64], stored[64], stays[64];
static tess__shard_piece pieces[5];
static tess__saver saver;

/* A device with memory of its own, or one whose memory the host's is; a piece of each kind of memory. */
static void begin(uint32_t mem) {
    static void *at[1];
    static uint64_t booked[1];
    memset(&world, 0, sizeof world);
    memset(&logged, 0, sizeof logged);
    said_so_far[0] = 0;
    memset(&engine, 0, sizeof engine);
    memset(&saver, 0, sizeof saver);
    memset(snapshot, 0, sizeof snapshot);
    char *const places[] = { host, pinned, cuda, stored, stays };
    static const uint32_t kinds[] = { TESS_MEM_HOST, TESS_MEM_PINNED, TESS_MEM_CUDA, TESS__MEM_STORE, TESS_MEM_HOST };
    for (int i = 0; i < 5; i++) {
        memset(places[i], 'a' + i, 64);
        pieces[i] =
            (tess__shard_piece){ .at = places[i], .bytes = 10u + (uint64_t)i, .mem = kinds[i], .stays = i == 4 };
    }
    engine.plan.setup.env.mem = mem;
    engine.comms.world.nranks = RANKS;
    engine.memory.arenas[TESS_DOMAIN_HOST][TESS__PAGEABLE].memory.mem = TESS_MEM_HOST;
    engine.memory.arenas[TESS_DOMAIN_HOST][TESS__RESIDENT].memory.mem = TESS_MEM_PINNED;
    engine.memory.address[TESS__SNAPSHOT] = at;
    engine.memory.booked_bytes[TESS__SNAPSHOT] = booked;
    at[0] = snapshot;
    booked[0] = ROOM;
    saver.t = &engine;
    saver.pieces.pieces = pieces;
    saver.pieces.n = 5;
    saver.step = 20;
}

static void test_save_parts__a_snapshot_has_the_room_that_was_planned(void **state) {
    (void)state;
    begin(TESS_MEM_CUDA);
    for (uint64_t skipped = 0; skipped < 100; skipped += 33)
        for (int more = -1; more <= 1; more++) {
            const uint64_t need = 10 + 11 + 12 + 13 + skipped; /* not what stays where it is */
            engine.memory.booked_bytes[TESS__SNAPSHOT][0] = need + (uint64_t)more;
            assert_int_equal(check_room(&saver, skipped), more < 0 ? TESS_E_INTERNAL : TESS_OK);
            if (more < 0) {
                char want[96];
                snprintf(want, sizeof want, "a snapshot of %d bytes, %d were planned", (int)need, (int)need - 1);
                assert_string_equal(tess_last_error(), want);
            }
        }
}

static void test_save_parts__each_kind_of_memory_comes_there_in_its_way(void **state) {
    (void)state;
    for (int one = 0; one < 2; one++)
        for (uint64_t by = 0; by < 3; by++) { /* where the room begins */
            begin(one ? TESS_MEM_HOST : TESS_MEM_CUDA);
            char *room = snapshot + by * 64;
            engine.memory.address[TESS__SNAPSHOT][0] = room;
            if (one)
                pieces[2].mem = TESS_MEM_HOST;
            assert_int_equal(take_snapshot(&saver), TESS_OK);
            expect_said(one ? "store sync " : "device device store sync ");
            assert_int_equal((uintptr_t)saver.image % TESS__SNAPSHOT_ALIGN, 0);
            assert_true(saver.image >= room && saver.image < room + TESS__SNAPSHOT_ALIGN);
            char want[46];
            for (int i = 0, at = 0; i < 4; at += 10 + i++)
                memset(want + at, 'a' + i, 10u + (unsigned)i);
            assert_memory_equal(saver.image, want, 46);
            assert_int_equal(saver.image[46], 0);
        }
    begin(TESS_MEM_CUDA);
    world.syncs = TESS_E_DEVICE;
    assert_int_equal(take_snapshot(&saver), TESS_E_DEVICE);
    for (int i = 0; i < 2; i++) {
        begin(TESS_MEM_CUDA);
        world.copies = TESS_E_DATA;
        pieces[i ? 0 : 3].mem = TESS_MEM_HOST;
        if (i)
            pieces[1].mem = pieces[2].mem = TESS_MEM_HOST; /* only the store's fails */
        assert_int_equal(take_snapshot(&saver), TESS_E_DATA);
        expect_said(i ? "store " : "device ");
    }
    begin(TESS_MEM_CUDA);
    engine.memory.booked_bytes[TESS__SNAPSHOT][0] = 1;
    assert_int_equal(take_snapshot(&saver), TESS_E_INTERNAL);
    expect_said("");
    assert_null(saver.image);
}

static void test_save_parts__one_that_is_busy_is_enough(void **state) {
    (void)state;
    for (int who = 0; who < 1 << RANKS; who++)
        for (int32_t rank = 0; rank < RANKS; rank++) {
            int busy = 7;
            begin(TESS_MEM_HOST);
            world.rank = rank;
            for (int r = 0; r < RANKS; r++)
                world.values[r][0] = (char)(who >> r & 1);
            world.busy = who >> rank & 1;
            assert_int_equal(anyone_busy(&saver, &busy), TESS_OK);
            assert_int_equal(busy, who != 0);
        }
    int busy = 7;
    begin(TESS_MEM_HOST);
    world.busy = 1;
    world.exchanges = TESS_E_PEER;
    assert_int_equal(anyone_busy(&saver, &busy), TESS_E_PEER);
    assert_false(busy);
}

/* The first rank that has a past gives it to all; a run from its beginning has none. */
static void test_save_parts__a_process_learns_the_past_of_the_others(void **state) {
    (void)state;
    for (int who = 0; who < 1 << RANKS; who++)
        for (int settled = 0; settled < 2; settled++)
            for (int32_t rank = 0; rank < RANKS; rank++) {
                begin(TESS_MEM_HOST);
                world.rank = rank;
                int first = -1;
                for (int r = RANKS; r-- > 0;) {
                    tess__past p = { .passed = 50 + (uint64_t)r };
                    if (who >> r & 1) {
                        p.settled = settled;
                        p.of.n = (uint64_t)!settled;
                        first = r;
                    }
                    memcpy(world.values[r], &p, sizeof p);
                    if (r == rank)
                        engine.past = p;
                }
                assert_int_equal(tess__past_share(&engine), TESS_OK);
                assert_int_equal(engine.past.passed, 50 + (first < 0 ? rank : first));
                expect_said("tess_recover ");
            }
    begin(TESS_MEM_HOST);
    engine.past.passed = 9;
    world.exchanges = TESS_E_PEER;
    tess__past other = { .settled = 1 };
    memcpy(world.values[1], &other, sizeof other);
    assert_int_equal(tess__past_share(&engine), TESS_E_PEER);
    assert_int_equal(engine.past.passed, 9);
}

static void test_save_parts__a_failure_nobody_asks_for_is_said_once_by_the_leader(void **state) {
    (void)state;
    for (int how = 0; how < 8; how++) { /* pending, failed, the leader */
        begin(TESS_MEM_HOST);
        saver.pending = how & 1;
        saver.status = how & 2 ? TESS_E_DATA : TESS_OK;
        strcpy(saver.message, "the disk is full");
        engine.comms.world.rank = how & 4 ? 0 : 1;
        say_failure(&saver);
        expect_logged(how == 7, TESS_LOG_WARNING, how == 7 ? "checkpoint of step 20: the disk is full" : "");
    }
}

/* Training goes on after what the disk refuses, and after what no rank's loss explains. */
static void test_save_parts__a_wait_tells_whose_failure_it_is(void **state) {
    (void)state;
    static char control;
    for (int how = 0; how < 8; how++) { /* of the disk, with a control plane, which ends the run */
        int soft = 7;
        tess_checkpoint_info info = { .struct_size = sizeof info };
        begin(TESS_MEM_HOST);
        engine.saver = &saver;
        saver.pieces = (tess__shard_pieces){ .n = 0 };
        saver.pending = 1;
        saver.status = how & 1 ? TESS_E_DATA : TESS_E_ABORTED;
        strcpy(saver.message, "it failed");
        saver.info.step = 20;
        engine.comms.control = how & 2 ? (tess__control *)&control : NULL;
        world.aborting = how >> 2;
        assert_int_equal(wait_for(&engine, &info, &soft), saver.status);
        assert_string_equal(tess_last_error(), "it failed");
        assert_int_equal(soft, (how & 1) || how != 6);
        assert_false(saver.pending);
        assert_int_equal(info.step, 0);
        assert_int_equal(world.joined, 1);
        assert_int_equal(wait_for(&engine, &info, &soft), TESS_OK); /* it was told */
        assert_int_equal(world.joined, 1);
        saver.pending = 1;
        saver.status = TESS_OK;
        assert_int_equal(wait_for(&engine, &info, &soft), TESS_OK);
        assert_int_equal(info.step, 20);
    }
    engine.saver = NULL;
    assert_int_equal(wait_for(&engine, NULL, NULL), TESS_OK);
}

/* The end lets a save go when the engine has failed, else waits for it, and says what became of it. */
static void test_save_parts__the_end_of_an_engine_is_the_end_of_its_save(void **state) {
    (void)state;
    for (int failed = 0; failed < 2; failed++) {
        begin(TESS_MEM_HOST);
        tess__saver *own = NULL, *again = NULL;
        assert_int_equal(saver_of(&engine, &own), TESS_OK);
        assert_int_equal(saver_of(&engine, &again), TESS_OK);
        assert_ptr_equal(own, again);
        assert_true(own->t == &engine && own->store.lock == -1);
        own->pending = 1;
        own->status = TESS_E_DATA;
        own->step = 7;
        strcpy(own->message, "no room");
        engine.error = failed ? TESS_E_PEER : TESS_OK;
        tess__saver_end(&engine);
        assert_null(engine.saver);
        assert_int_equal(world.joined, 1);
        expect_logged(!failed, TESS_LOG_WARNING, failed ? "" : "checkpoint of step 7: no room");
        tess__saver_end(&engine);
        assert_int_equal(world.joined, 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_save_parts__a_snapshot_has_the_room_that_was_planned),
        cmocka_unit_test(test_save_parts__each_kind_of_memory_comes_there_in_its_way),
        cmocka_unit_test(test_save_parts__one_that_is_busy_is_enough),
        cmocka_unit_test(test_save_parts__a_process_learns_the_past_of_the_others),
        cmocka_unit_test(test_save_parts__a_failure_nobody_asks_for_is_said_once_by_the_leader),
        cmocka_unit_test(test_save_parts__a_wait_tells_whose_failure_it_is),
        cmocka_unit_test(test_save_parts__the_end_of_an_engine_is_the_end_of_its_save),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
