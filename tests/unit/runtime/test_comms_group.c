/* SPDX-License-Identifier: BSD-3-Clause */
/* Who is in which group, by what each rank says of itself, and what the group is called. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/unit/counted.h"

#define tess__comms_exchange fake_exchange
#include "core/runtime/comms_group.c"

enum { RANKS = 12 };
static choice said[RANKS];

tess_status fake_exchange(tess__comms *c, const char *what, const void *mine, uint64_t bytes, void *out) {
    assert_string_equal(what, "tess_options.group");
    assert_int_equal(bytes, sizeof(choice));
    memcpy(&said[c->world.rank], mine, bytes);
    memcpy(out, said, RANKS * bytes);
    return TESS_OK;
}

/* All ranks are in color rank / 4, in the order of their numbers, and say so. */
static void start(void) {
    memset(said, 0, sizeof said);
    for (int32_t r = 0; r < RANKS; r++) {
        said[r].color = r / 4;
        strcpy(said[r].name, "tp");
    }
}

static tess_status joins(tess__comms *c, int32_t rank, int32_t key, int32_t ranks, const char *name, int *outside) {
    tess_group_options o = { .struct_size = sizeof o, .color = said[rank].color, .key = key, .ranks = ranks };
    o.name = name;
    *c = (tess__comms){ .control = NULL };
    c->world.rank = rank;
    c->world.nranks = RANKS;
    *outside = 7;
    return tess__comms_join_group(c, &o, outside);
}

static void test_group__has_the_ranks_of_its_color_in_order_of_keys(void **state) {
    (void)state;
    tess__comms c;
    int outside;
    start();
    said[4].key = 2, said[5].key = 1, said[7].key = 1;
    assert_int_equal(joins(&c, 6, 1, 4, "tp", &outside), TESS_OK);
    assert_false(outside);
    assert_int_equal(c.color, 1);
    assert_int_equal(c.all_ranks, RANKS);
    assert_int_equal(c.world.nranks, 4);
    assert_int_equal(c.world.rank, 1); /* of those with key 1 the second */
    static const int32_t members[] = { 5, 6, 7, 4 };
    assert_memory_equal(c.members, members, sizeof members);
    assert_string_equal(c.title, "group tp (ranks 5, 6, 7, 4)");
    assert_int_equal(tess__comms_rank(&c, 3), 4);
    tess__comms_leave_group(&c);
    assert_null(c.members);
}

/* Whatever the keys, and in whatever order the ranks have them. */
static void test_group__any_keys_order_it(void **state) {
    (void)state;
    static const int32_t keys[][4] = {
        { 0, 1, 2, 3 }, { 3, 2, 1, 0 }, { 1, 3, 0, 2 }, { 2, -5, INT32_MAX, INT32_MIN }
    };
    static const int32_t members[][4] = { { 0, 1, 2, 3 }, { 3, 2, 1, 0 }, { 2, 0, 3, 1 }, { 3, 1, 0, 2 } };
    for (int i = 0; i < 4; i++)
        for (int32_t self = 0; self < 4; self++) {
            tess__comms c;
            int outside;
            start();
            for (int32_t r = 0; r < 4; r++)
                said[r].key = keys[i][r];
            assert_int_equal(joins(&c, self, keys[i][self], 4, "tp", &outside), TESS_OK);
            assert_memory_equal(c.members, members[i], sizeof members[i]);
            assert_int_equal(c.members[c.world.rank], self);
            tess__comms_leave_group(&c);
        }
}

static void test_group__is_named_by_few_of_many_ranks(void **state) {
    (void)state;
    tess__comms c;
    int outside;
    start();
    for (int32_t r = 0; r < RANKS; r++)
        said[r].color = r > 8;
    assert_int_equal(joins(&c, 0, 0, 0, "tp", &outside), TESS_OK);
    assert_int_equal(c.world.nranks, 9);
    assert_string_equal(c.title, "group tp (ranks 0, 1, 2, 3, 4, 5, 6, 7, …)");
    tess__comms_leave_group(&c);
    said[8].color = 1;
    assert_int_equal(joins(&c, 0, 0, 0, "tp", &outside), TESS_OK);
    assert_string_equal(c.title, "group tp (ranks 0, 1, 2, 3, 4, 5, 6, 7)");
    tess__comms_leave_group(&c);
    said[3].color = 9;
    assert_int_equal(joins(&c, 3, 0, 1, "tp", &outside), TESS_OK);
    assert_string_equal(c.title, "group tp (rank 3)");
    tess__comms_leave_group(&c);
}

static void test_group__a_negative_color_stays_outside(void **state) {
    (void)state;
    tess__comms c;
    int outside;
    start();
    said[2].color = -1;
    assert_int_equal(joins(&c, 2, 0, 0, "tp", &outside), TESS_OK);
    assert_int_equal(outside, 1);
    assert_null(c.members);
    assert_int_equal(joins(&c, 1, 0, 3, "tp", &outside), TESS_OK);
    assert_int_equal(c.world.nranks, 3);
    tess__comms_leave_group(&c);
}

static void test_group__what_the_ranks_say_must_fit(void **state) {
    (void)state;
    tess__comms c;
    int outside;
    start();
    assert_int_equal(joins(&c, 1, 0, 5, "tp", &outside), TESS_E_INVALID);
    assert_string_equal(tess_last_error(),
                        "tess_group_options.ranks is 5 on rank 1, but 4 ranks gave the color 0 of group tp");
    assert_false(outside);
    tess__comms_leave_group(&c);
    assert_int_equal(joins(&c, 1, 0, 4, "dp", &outside), TESS_E_MISMATCH);
    assert_string_equal(tess_last_error(),
                        "the ranks open their groups in different orders: rank 0 opens group tp, rank 1 group dp");
    start();
    assert_int_equal(joins(&c, 11, 0, 4, NULL, &outside), TESS_E_MISMATCH);
    assert_non_null(strstr(tess_last_error(), "rank 11 group without a name"));
    for (int32_t r = 0; r < RANKS; r++)
        memset(said[r].name, 0, NAME_BYTES);
    assert_int_equal(joins(&c, 11, 0, 4, NULL, &outside), TESS_OK);
    assert_string_equal(c.title, "group without a name (ranks 8, 9, 10, 11)");
    tess__comms_leave_group(&c);
}

static void test_group__has_no_more_ranks_than_a_value_tells(void **state) {
    (void)state;
    static choice all[TESS__KV_MEMBERS_MAX + 1];
    for (int32_t n = TESS__KV_MEMBERS_MAX - 1; n <= TESS__KV_MEMBERS_MAX + 1; n++) {
        tess__comms c = { .all_ranks = n };
        int fits = n <= TESS__KV_MEMBERS_MAX;
        assert_int_equal(join(&c, &all[0], all), fits ? TESS_OK : TESS_E_UNSUPPORTED);
        assert_true(fits || strcmp(tess_last_error(), "a group of 4097 ranks; at most 4096 are possible") == 0);
        tess__comms_leave_group(&c);
    }
}

static void test_group__without_memory_it_is_not_joined(void **state) {
    (void)state;
    for (int n = 1; n <= 4; n++) {
        tess__comms c;
        int outside;
        start();
        counted.refuse = n;
        tess_status s = joins(&c, 1, 0, 4, "tp", &outside);
        assert_int_equal(s, n < 4 ? TESS_E_NOMEM : TESS_OK);
        assert_true(n == 4 || strcmp(tess_last_error(), n == 1 ? "no memory to compare 12 ranks"
                                                               : "no memory for a group of 12 ranks") == 0);
        assert_int_equal(outside, n == 1 ? 7 : 0);
        tess__comms_leave_group(&c);
        assert_int_equal(counted.live, 0);
    }
    counted.refuse = 0;
}

/* As tess__comms_create makes them. */
static tess__comms comms_of(int32_t rank, int32_t n, int32_t shard_ranks) {
    static tess_comm *const made[TESS__N_COMMS] = { (tess_comm *)said, (tess_comm *)(said + 1), (tess_comm *)(said + 2),
                                                    (tess_comm *)(said + 3), (tess_comm *)(said + 4) };
    tess__comms c = { .world = { .rank = rank, .nranks = n }, .shard_ranks = shard_ranks };
    c.shard_rank = rank % shard_ranks;
    c.replica_rank = rank / shard_ranks;
    c.copy_groups = n / 2;
    for (int i = 0; i < TESS__N_COMMS; i++)
        c.list[i] = made[i];
    return c;
}

/* The ranks of a communicator are this one and others that say the same. */
static void check_members(const tess__comms *c, int which) {
    int32_t size = tess__comms_size(c, which), self = -1;
    for (int32_t i = 0; i < size; i++) {
        int32_t rank = tess__comms_member(c, which, i);
        assert_in_range(rank, 0, c->world.nranks - 1);
        if (rank == c->world.rank)
            self = i;
        tess__comms theirs = comms_of(rank, c->world.nranks, c->shard_ranks);
        assert_int_equal(tess__comms_size(&theirs, which), size);
        assert_int_equal(tess__comms_member(&theirs, which, i), rank);
        assert_true(i == 0 || rank > tess__comms_member(c, which, i - 1));
    }
    assert_true(self >= 0);
    assert_int_equal(tess__comms_member(c, which, -1), -1); /* nobody stays nobody */
}

static void test_comms__members_are_numbered_alike_by_all(void **state) {
    (void)state;
    static const int kinds[] = { TESS__WORLD, TESS__SHARD, TESS__REPLICA, TESS__SHARD_SUMS, TESS__COPY };
    for (int32_t n = 2; n <= RANKS; n++)
        for (int32_t shard = 1; shard <= n; shard += 1)
            for (int32_t r = 0; n % shard == 0 && r < n; r++) {
                tess__comms c = comms_of(r, n, shard);
                for (int k = 0; k < 5; k++)
                    check_members(&c, kinds[k]);
                assert_int_equal(tess__comms_size(&c, TESS__WORLD), n);
                assert_int_equal(tess__comms_size(&c, TESS__SHARD), shard);
                assert_int_equal(tess__comms_size(&c, TESS__REPLICA), n / shard);
                assert_int_equal(tess__comms_size(&c, TESS__COPY), 2 + (n % 2 && r % (n / 2) == 0));
                assert_int_equal(tess__comms_member(&c, TESS__SHARD, r % shard), r);
                assert_int_equal(tess__comms_member(&c, TESS__REPLICA, r / shard), r);
                assert_int_equal(tess__comms_member(&c, TESS__COPY, r / (n / 2)), r);
                c.list[TESS__SHARD] = c.list[TESS__WORLD]; /* one group is all of them */
                assert_int_equal(tess__comms_size(&c, TESS__SHARD), n);
                assert_int_equal(tess__comms_member(&c, TESS__SHARD, n - 1), n - 1);
            }
}

static void test_group__its_title_ends_within_its_room(void **state) {
    (void)state;
    choice mine = { .name = "a-name-of-thirty-one-characters" };
    static int32_t members[RANKS];
    static tess__comms c, as_it_was;
    for (int name = 0; name < 2; name++)
        for (int32_t first = 1; first > 0 && first <= 100000000; first *= 10)
            for (c.world.nranks = 1; c.world.nranks <= RANKS; c.world.nranks++) {
                for (int i = 0; i < RANKS; i++)
                    members[i] = first + i;
                c.members = members;
                memset(c.title, 0, sizeof c.title);
                as_it_was = c;
                mine.name[name ? 1 : 31] = 0;
                make_title(&c, &mine);
                assert_in_range(strlen(c.title), 15, sizeof c.title - 1);
                memset(c.title, 0, sizeof c.title);
                assert_memory_equal(&c, &as_it_was, sizeof c);
            }
}

static void test_comms__keys_are_of_the_engine_and_its_group(void **state) {
    (void)state;
    char key[64];
    tess__comms c = comms_of(0, 2, 2);
    tess__comms_rank_key(&c, "mismatch", 1, key, sizeof key);
    assert_string_equal(key, "mismatch/1");
    c.seat.engine = 1; /* the first is as if it were the only one */
    tess__comms_key(&c, "x", key, sizeof key);
    assert_string_equal(key, "x");
    c.seat.engine = 2;
    tess__comms_key(&c, "x", key, sizeof key);
    assert_string_equal(key, "e2/x");
    c.color = 5;
    c.members = (int32_t[]){ 0, 1 };
    tess__comms_rank_key(&c, "mismatch", 1, key, sizeof key);
    assert_string_equal(key, "e2.5/mismatch/1");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comms__members_are_numbered_alike_by_all),
        cmocka_unit_test(test_group__its_title_ends_within_its_room),
        cmocka_unit_test(test_comms__keys_are_of_the_engine_and_its_group),
        cmocka_unit_test(test_group__has_the_ranks_of_its_color_in_order_of_keys),
        cmocka_unit_test(test_group__any_keys_order_it),
        cmocka_unit_test(test_group__is_named_by_few_of_many_ranks),
        cmocka_unit_test(test_group__a_negative_color_stays_outside),
        cmocka_unit_test(test_group__has_no_more_ranks_than_a_value_tells),
        cmocka_unit_test(test_group__without_memory_it_is_not_joined),
        cmocka_unit_test(test_group__what_the_ranks_say_must_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
