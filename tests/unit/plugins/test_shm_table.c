/* SPDX-License-Identifier: BSD-3-Clause */
/* How ranks of comm-shm wait for each other in a communicator's table: what counts as come, when waiting is hopeless
 * and whose fault that is, states that stay, and places in memory. The other ranks are this test. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "plugins/comm-shm/copy.h"
#include "plugins/comm-shm/group.h"

static struct {
    uint64_t dead; /* a bit for each rank of the group */
    int asked, ended;
} world;

static int is_alive(const struct shm_group *g, int rank) {
    (void)g;
    world.asked++;
    return !(world.dead >> rank & 1);
}
static void end_copy(void) {
    world.ended++;
}
#define shm_group_alive is_alive
#define shm_this_process() 4711
#define shm_copy_end end_copy
#include "plugins/comm-shm/table.c"

enum { RANKS = 3 };
static const int members[RANKS] = { 5, 2, 9 }; /* in the group */
static tess_error reason;

/* Rank 1 of three; the others are here and have counted to 0. */
static struct shm_table begin(void) {
    struct shm_table t;
    void *memory = mmap(NULL, shm_table_bytes(RANKS), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(&world, 0, sizeof world);
    assert_true(memory != MAP_FAILED);
    shm_table_open(&t, NULL, members, 1, RANKS, memory, &reason);
    for (int r = 0; r < RANKS; r += 2) {
        t.slots[r].process = 100;
        atomic_store(&t.slots[r].state, SHM_HERE);
    }
    t.spins = 10;
    return t;
}

static void count_to(struct shm_table *t, int rank, enum shm_count what, uint64_t value) {
    atomic_store(&t->slots[rank].count[what], value);
}

static void test_shm_table__slots_and_two_halves_of_each_stage_have_their_places(void **state) {
    (void)state;
    for (int size = 1; size <= 64; size++) {
        uint64_t slots = (uint64_t)size * sizeof(struct shm_slot), pages = slots / 4096 + (slots % 4096 != 0);
        assert_int_equal(shm_table_bytes(size), pages * 4096 + (uint64_t)size * 1048576);
    }
    struct shm_table t = begin();
    assert_int_equal(t.bytes, shm_table_bytes(RANKS));
    assert_ptr_equal(t.stages + RANKS * 1048576, (unsigned char *)t.slots + t.bytes);
    for (int r = 0; r < RANKS; r++)
        for (uint64_t round = 0; round < 4; round++)
            assert_ptr_equal(shm_stage(&t, r, round), t.stages + (size_t)r * 1048576 + round % 2 * 524288);
    assert_int_equal(t.slots[1].process, 4711);
    assert_int_equal(atomic_load(&t.slots[1].state), SHM_HERE);
    shm_table_close(&t);
    assert_null(t.slots);
    shm_table_close(&t);
    assert_int_equal(spins_for((int)sysconf(_SC_NPROCESSORS_ONLN)), 2000);
    assert_int_equal(spins_for((int)sysconf(_SC_NPROCESSORS_ONLN) + 1), 0);
}

static void test_shm_table__who_has_counted_so_far_is_waited_for(void **state) {
    (void)state;
    for (int what = 0; what < SHM_COUNTS; what++)
        for (int spins = 0; spins < 2; spins++) {
            struct shm_table t = begin();
            t.spins = spins;
            count_to(&t, 0, what, 4);
            count_to(&t, 2, what, 5);
            assert_int_equal(shm_await(&t, what, 0, RANKS, 4, NULL), TESS_OK); /* its own count does not matter */
            assert_int_equal(shm_await(&t, what, 2, RANKS, 5, NULL), TESS_OK);
            assert_int_equal(shm_await(&t, what, 1, 2, 9, NULL), TESS_OK);
            assert_int_equal(shm_await(&t, what, 2, 2, 9, NULL), TESS_OK); /* nobody */
            assert_int_equal(missing_rank(&t, what, 0, RANKS, 5), 0);
            assert_int_equal(missing_rank(&t, what, 1, RANKS, 6), 2);
            assert_int_equal(missing_rank(&t, what, 0, RANKS, 4), -1);
            assert_int_equal(world.asked, 0);
            assert_int_equal(atomic_load(&t.slots[1].sleeping), 0);
            shm_table_close(&t);
        }
}

static void hopeless(struct shm_table *t, tess_status status, int rank, const char *why) {
    tess_error e = { .struct_size = sizeof e, .rank = -1 };
    assert_int_equal(shm_await(t, SHM_DONE, 0, RANKS, 3, &e), status);
    assert_int_equal(e.rank, rank);
    assert_string_equal(e.message, why);
    assert_int_equal(atomic_load(&t->slots[1].sleeping), 0);
    shm_table_close(t);
}

static void test_shm_table__who_failed_or_died_is_waited_for_no_longer(void **state) {
    (void)state;
    struct shm_table t = begin();
    atomic_store(&t.slots[2].state, TESS_E_TIMEOUT);
    hopeless(&t, TESS_E_PEER, 2, "shm: rank 2 has given up its communicator");
    t = begin();
    world.dead = 1u << 9; /* rank 2, as the group counts */
    hopeless(&t, TESS_E_PEER, 2, "shm: rank 2 has died");
    t = begin();
    world.dead = 1u << 5 | 1u << 9;
    count_to(&t, 0, SHM_DONE, 3); /* it has published what it had to before it died */
    hopeless(&t, TESS_E_PEER, 2, "shm: rank 2 has died");
    t = begin();
    atomic_store(&t.slots[0].state, TESS_E_PEER);
    atomic_store(&t.slots[2].state, TESS_E_PEER);
    count_to(&t, 0, SHM_DONE, 3);
    hopeless(&t, TESS_E_PEER, 2, "shm: rank 2 has given up its communicator");
    t = begin();
    reason = (tess_error){ .struct_size = sizeof reason, .code = TESS_E_ABORTED, .rank = 7, .message = "enough" };
    shm_table_stop(&t);
    hopeless(&t, TESS_E_ABORTED, 7, "enough");
}

static void *come(void *arg) {
    struct shm_table other = *(struct shm_table *)arg;
    const struct timespec pause = { .tv_nsec = 130000000 }; /* in two looks */
    other.rank = 2;
    nanosleep(&pause, NULL);
    shm_publish(&other, SHM_DONE, 3);
    return NULL;
}

/* One that has not joined yet has no life to show; one of this process needs none. */
static void test_shm_table__who_may_come_yet_is_waited_for(void **state) {
    (void)state;
    for (int how = 0; how < 3; how++) {
        struct shm_table t = begin();
        pthread_t thread;
        world.dead = how == 2 ? 0 : 1u << 9;
        if (how == 0)
            atomic_store(&t.slots[2].state, SHM_JOINING);
        if (how == 1)
            t.slots[2].process = 4711;
        count_to(&t, 0, SHM_DONE, 3);
        assert_int_equal(pthread_create(&thread, NULL, come, &t), 0);
        assert_int_equal(shm_await(&t, SHM_DONE, 0, RANKS, 3, NULL), TESS_OK);
        pthread_join(thread, NULL);
        assert_int_equal(world.ended, 1); /* copies are whole before the count says so */
        assert_int_equal(world.asked > 0, how == 2);
        assert_int_equal(shm_count(&t, 2, SHM_DONE), 3);
        assert_true(atomic_load(&t.slots[1].wakeup) <= 1);
        shm_table_close(&t);
    }
}

/* Sleepers are woken, and nobody else. */
static void test_shm_table__what_is_published_wakes_who_sleeps(void **state) {
    (void)state;
    for (int who = 0; who < 8; who++) {
        struct shm_table t = begin();
        for (int r = 0; r < RANKS; r++)
            atomic_store(&t.slots[r].sleeping, who >> r & 1);
        shm_publish(&t, SHM_STAGED, 6);
        assert_int_equal(shm_count(&t, 1, SHM_STAGED), 6);
        for (int r = 0; r < RANKS; r++)
            assert_int_equal(atomic_load(&t.slots[r].wakeup), r != 1 && (who >> r & 1));
        shm_table_set_state(&t, SHM_LEFT);
        for (int r = 0; r < RANKS; r++)
            assert_int_equal(atomic_load(&t.slots[r].wakeup), r != 1 && (who >> r & 1) ? 2 : 0);
        shm_table_stop(&t);
        assert_int_equal(atomic_load(&t.slots[1].wakeup), 1);
        assert_int_equal(atomic_load(&t.stop), 1);
        shm_table_close(&t);
    }
}

static void test_shm_table__the_first_failure_stays(void **state) {
    (void)state;
    struct shm_table t = begin();
    shm_table_set_state(&t, SHM_LEFT);
    assert_int_equal(atomic_load(&t.slots[1].state), SHM_LEFT);
    shm_table_set_state(&t, TESS_E_PEER);
    shm_table_set_state(&t, TESS_E_TIMEOUT);
    shm_table_set_state(&t, SHM_LEFT);
    assert_int_equal(atomic_load(&t.slots[1].state), TESS_E_PEER);
    assert_int_equal(atomic_load(&t.slots[0].state), SHM_HERE);
    shm_table_close(&t);
}

static void test_shm_table__what_was_read_of_who_gave_up_does_not_count(void **state) {
    (void)state;
    for (int read = 0; read < 8; read++)
        for (int gave_up = 0; gave_up < 8; gave_up++) {
            struct shm_table t = begin();
            unsigned char of[RANKS];
            tess_error e = { .struct_size = sizeof e, .rank = -1 };
            int first = -1;
            char want[64] = "";
            for (int r = RANKS; r-- > 0;) {
                of[r] = (unsigned char)(read >> r & 1);
                atomic_store(&t.slots[r].state, gave_up >> r & 1 ? TESS_E_ABORTED : r == 2 ? SHM_LEFT : SHM_JOINING);
                first = read & gave_up & 1 << r ? r : first;
            }
            assert_int_equal(shm_still_here(&t, of, &e), first < 0 ? TESS_OK : TESS_E_PEER);
            assert_int_equal(e.rank, first);
            if (first >= 0)
                snprintf(want, sizeof want, "shm: rank %d has given up its communicator", first);
            assert_string_equal(e.message, want);
            shm_table_close(&t);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shm_table__slots_and_two_halves_of_each_stage_have_their_places),
        cmocka_unit_test(test_shm_table__who_has_counted_so_far_is_waited_for),
        cmocka_unit_test(test_shm_table__who_failed_or_died_is_waited_for_no_longer),
        cmocka_unit_test(test_shm_table__who_may_come_yet_is_waited_for),
        cmocka_unit_test(test_shm_table__what_is_published_wakes_who_sleeps),
        cmocka_unit_test(test_shm_table__the_first_failure_stays),
        cmocka_unit_test(test_shm_table__what_was_read_of_who_gave_up_does_not_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
