/* SPDX-License-Identifier: BSD-3-Clause */
/* Who is in which group, by what each rank says of itself, and what the group is called. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_group__has_the_ranks_of_its_color_in_order_of_keys),
        cmocka_unit_test(test_group__is_named_by_few_of_many_ranks),
        cmocka_unit_test(test_group__a_negative_color_stays_outside),
        cmocka_unit_test(test_group__what_the_ranks_say_must_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
