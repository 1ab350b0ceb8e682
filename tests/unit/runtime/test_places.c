/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks that wait for each other in a circle of engines and groups are told, and no others. What the ranks say of
 * themselves lies in a table here, in place of the control plane. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/unit/counted.h"

#define tess__control_set fake_set
#define tess__control_get fake_get
#define tess__control_engines fake_engines
#define tess__control_each_seat fake_each_seat
#include "core/runtime/places.c"

enum { RANKS = 5, ENGINES = 18 };
static struct {
    char bytes[sizeof(place)];
    uint64_t n; /* 0: said nothing */
} table[RANKS];
static tess__comms engine[RANKS][ENGINES];
static int32_t asking; /* the rank that calls */
static uint32_t opened;

tess_status fake_set(tess__control *c, const char *key, const void *value, uint64_t bytes) {
    int rank = -1;
    (void)c;
    assert_int_equal(sscanf(key, "place/%d", &rank), 1);
    assert_int_equal(rank, asking);
    memcpy(table[rank].bytes, value, bytes);
    table[rank].n = bytes;
    return TESS_OK;
}
tess_status fake_get(tess__control *c, const char *key, void *value, uint64_t *bytes, int64_t timeout_ns) {
    int rank = -1;
    (void)c, (void)timeout_ns;
    assert_int_equal(sscanf(key, "place/%d", &rank), 1);
    if (!table[rank].n)
        return TESS_E_TIMEOUT;
    assert_true(table[rank].n <= *bytes);
    memcpy(value, table[rank].bytes, *bytes = table[rank].n);
    return TESS_OK;
}
uint32_t fake_engines(void) {
    return opened;
}
void fake_each_seat(void (*visit)(void *ctx, uint32_t number, void *user), void *ctx) {
    for (uint32_t e = 0; e < opened; e++)
        visit(ctx, engine[asking][e].seat.engine, &engine[asking][e]);
}

/* Every rank has so many engines of all ranks, with the first `posted` collectives of each. */
static void start(uint32_t engines, uint64_t posted) {
    memset(table, 0, sizeof table);
    opened = engines;
    for (int32_t r = 0; r < RANKS; r++)
        for (uint32_t e = 0; e < ENGINES; e++) {
            tess__comms *c = &engine[r][e];
            *c = (tess__comms){ .control = (tess__control *)table, .seat.engine = e + 1, .n_collectives = posted };
            c->world.rank = r;
            c->world.nranks = c->all_ranks = RANKS;
            snprintf(c->title, sizeof c->title, "engine %d", (int)e + 1);
        }
}

/* Engine `e` is a group of the ranks that `members` lists, up to -1. */
static void group(uint32_t e, int32_t *members) {
    int32_t n = 0;
    while (members[n] >= 0)
        n++;
    for (int32_t i = 0; i < n; i++) {
        tess__comms *c = &engine[members[i]][e];
        c->members = members;
        c->world.rank = i;
        c->world.nranks = n;
    }
}

/* The rank has posted its next collective on the engine, and waits for it. */
static tess_status waits(int32_t rank, uint32_t e) {
    tess__comms *c = &engine[rank][e];
    asking = rank;
    snprintf(c->activity[0], sizeof c->activity[0], "gather %d", (int)e + 1);
    return tess__places_check(c, TESS__WORLD, c->n_collectives++);
}

static tess_status exchanges(int32_t rank, uint32_t e) {
    asking = rank;
    engine[rank][e].exchange_count++;
    return tess__places_enter_exchange(&engine[rank][e], "tess_shard");
}

static void test_places__two_engines_in_two_orders_are_told(void **state) {
    (void)state;
    start(2, 7);
    assert_int_equal(waits(0, 0), TESS_OK); /* of the others nothing is known */
    assert_int_equal(waits(1, 0), TESS_OK); /* with it */
    assert_int_equal(waits(2, 1), TESS_E_MISMATCH);
    assert_string_equal(tess_last_error(), "the ranks use their engines and groups in different orders: rank 0 is in "
                                           "gather 1 of engine 1, rank 2 is in gather 2 of engine 2");
    engine[2][1].n_collectives--;
    assert_int_equal(waits(2, 1), TESS_E_MISMATCH); /* asked again, as each second */
    engine[2][1].n_collectives--;
    engine[2][0].n_collectives++; /* rank 2 has posted on the first engine: it comes there no more than rank 0 waits */
    assert_int_equal(waits(2, 1), TESS_OK);
}

static void test_places__one_engine_says_nothing(void **state) {
    (void)state;
    start(1, 0);
    assert_int_equal(waits(0, 0), TESS_OK);
    assert_int_equal(exchanges(1, 0), TESS_OK);
    assert_int_equal(table[0].n + table[1].n, 0);
    engine[0][0].control = NULL;
    opened = 2;
    assert_int_equal(waits(0, 0), TESS_OK);
    assert_int_equal(table[0].n, 0);
}

/* Ranks 0 and 1, 1 and 2, 2 and 0 are groups: each rank waits in one for a rank that waits in the next. */
static void test_places__a_circle_of_groups_is_named_from_its_lowest_rank(void **state) {
    (void)state;
    int32_t a[] = { 1, 2, -1 }, b[] = { 2, 4, -1 }, c[] = { 1, 4, -1 };
    start(3, 3);
    group(0, a);
    group(1, b);
    group(2, c);
    assert_int_equal(waits(1, 0), TESS_OK);
    assert_int_equal(table[1].n, offsetof(place, members) + 4 * 2); /* for whom it waits */
    assert_int_equal(waits(2, 1), TESS_OK);
    assert_int_equal(waits(4, 2), TESS_E_MISMATCH);
    assert_non_null(strstr(tess_last_error(), "rank 1 is in gather 1 of engine 1, rank 2 is in gather 2 of engine 2, "
                                              "rank 4 is in gather 3 of engine 3"));
    assert_null(strstr(tess_last_error(), "rank 0"));
    start(3, 3); /* in order: 2 waits with 1, and 4 for 2 */
    group(0, a);
    group(1, b);
    group(2, c);
    assert_int_equal(waits(1, 0), TESS_OK);
    assert_int_equal(waits(2, 0), TESS_OK);
    assert_int_equal(waits(4, 1), TESS_OK);
}

/* One that waits for a circle is not in it. */
static void test_places__who_waits_for_a_circle_is_not_named(void **state) {
    (void)state;
    int32_t pair[] = { 3, 4, -1 };
    start(3, 0);
    group(1, pair);
    group(2, pair);
    assert_int_equal(waits(0, 0), TESS_OK); /* for all; 3 and 4 never come */
    assert_int_equal(waits(3, 1), TESS_OK);
    assert_int_equal(waits(4, 2), TESS_E_MISMATCH);
    assert_string_equal(tess_last_error(), "the ranks use their engines and groups in different orders: rank 3 is in "
                                           "gather 2 of engine 2, rank 4 is in gather 3 of engine 3");
    asking = 0;
    engine[0][0].n_collectives--;
    assert_int_equal(waits(0, 0), TESS_E_MISMATCH); /* it is told what holds it */
    assert_non_null(strstr(tess_last_error(), "orders: rank 3 is in"));
}

static void test_places__an_exchange_counts_exchanges(void **state) {
    (void)state;
    start(2, 5);
    assert_int_equal(exchanges(0, 0), TESS_OK); /* the first; all have posted 5, which says nothing of it */
    assert_int_equal(waits(1, 1), TESS_E_MISMATCH);
    assert_non_null(strstr(tess_last_error(), "rank 0 is in tess_shard of engine 1, rank 1 is in gather 2"));
    engine[1][0].exchange_count = 1; /* it was there */
    engine[1][1].n_collectives--;
    assert_int_equal(waits(1, 1), TESS_OK);
}

/* An engine that a rank has yet to open is ahead of it; one that it has closed is behind it. */
static void test_places__engines_that_a_rank_has_not_or_no_more(void **state) {
    (void)state;
    start(2, 1);
    assert_int_equal(waits(0, 0), TESS_OK);
    asking = 1;
    engine[1][1].seat.engine = 9; /* in place of the second, which it has not */
    opened = 2;
    engine[0][0].seat.engine = 3;
    assert_int_equal(waits(0, 0), TESS_OK);
    assert_int_equal(waits(1, 1), TESS_E_MISMATCH); /* it has opened 2, and 0 waits in the third */
    opened = 3;
    engine[1][2].seat.engine = 8;
    engine[1][1].n_collectives--;
    assert_int_equal(waits(1, 1), TESS_OK); /* it has opened the third, and closed it again */
}

/* What a rank says has come over a network. */
static void test_places__what_is_not_sound_is_not_looked_at(void **state) {
    (void)state;
    int32_t pair[] = { 0, 1, -1 };
    start(2, 0);
    group(0, pair);
    group(1, pair);
    assert_int_equal(waits(0, 0), TESS_OK);
    char sound[sizeof(place)];
    memcpy(sound, table[0].bytes, sizeof sound);
    const uint64_t n = table[0].n;
    place *said = (place *)table[0].bytes;
    struct {
        uint64_t n;
        int32_t n_members, first;
        tess_status expected;
    } cases[] = {
        { n, 2, 0, TESS_E_MISMATCH },
        { offsetof(place, members) - 1, 2, 0, TESS_OK },
        { n - 1, 2, 0, TESS_OK },
        { n, OF_ALL - 1, 0, TESS_OK },
        { n, MOST_MEMBERS + 1, 0, TESS_OK },
        { n, 2, -1, TESS_OK },
        { n, 2, RANKS, TESS_OK },
        { n, OF_ALL, 0, TESS_E_MISMATCH },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        memcpy(table[0].bytes, sound, sizeof sound);
        said->n_members = cases[i].n_members;
        said->members[0] = cases[i].first;
        table[0].n = cases[i].n;
        engine[1][1].n_collectives = 0;
        assert_int_equal(waits(1, 1), cases[i].expected);
    }
    memcpy(table[0].bytes, sound, sizeof sound);
    memset(said->what, 'x', sizeof said->what);
    memset(said->of, 'y', sizeof said->of);
    table[0].n = n;
    engine[1][1].n_collectives = 0;
    assert_int_equal(waits(1, 1), TESS_E_MISMATCH);
    assert_non_null(strstr(tess_last_error(), "xx of yy"));
    assert_null(strstr(tess_last_error(), "xy"));
}

/* More engines than a rank tells of: those beyond are as good as closed, so nothing is said that may be wrong. */
static void test_places__engines_beyond_the_table_make_no_circle(void **state) {
    (void)state;
    start(ENGINES, 0);
    assert_int_equal(waits(0, MOST_ENGINES - 1), TESS_OK);
    assert_int_equal(waits(1, MOST_ENGINES), TESS_OK); /* 0 is ahead of it there, and does not say so */
    assert_int_equal(((place *)table[0].bytes)->n_engines, ENGINES);
    start(ENGINES, 0);
    assert_int_equal(waits(0, MOST_ENGINES - 1), TESS_OK);
    assert_int_equal(waits(1, 0), TESS_E_MISMATCH);
}

/* A group that is too large for the table is named without its members. */
static void test_places__a_place_names_as_many_members_as_fit(void **state) {
    (void)state;
    static int32_t members[MOST_MEMBERS + 1];
    for (int32_t i = 0; i <= MOST_MEMBERS; i++)
        members[i] = 3 * i;
    for (int32_t n = MOST_MEMBERS - 1; n <= MOST_MEMBERS + 1; n++) {
        tess__comms c = { .members = members, .world.nranks = n };
        place p;
        memset(&p, 0x55, sizeof p);
        set_members(&c, TESS__WORLD, &p);
        assert_int_equal(p.n_members, n <= MOST_MEMBERS ? n : 0);
        for (int32_t i = 0; i < p.n_members; i++)
            assert_int_equal(p.members[i], 3 * i);
        c.members = NULL; /* all ranks need no list */
        set_members(&c, TESS__WORLD, &p);
        assert_int_equal(p.n_members, OF_ALL);
    }
}

/* Without memory no circle is found. Each call says so where it cannot look at all. */
static void test_places__without_memory_nothing_is_told_wrongly(void **state) {
    (void)state;
    int missing = 0, told = 0;
    for (int n = 1; !told || missing < 3; n++) {
        assert_in_range(n, 1, 20);
        start(2, 7);
        counted.refuse = 0;
        assert_int_equal(waits(0, 0), TESS_OK);
        counted.refuse = n;
        tess_status s = waits(2, 1);
        missing += s == TESS_E_NOMEM;
        told = s == TESS_E_MISMATCH;
        assert_true(s == TESS_OK || told || s == TESS_E_NOMEM);
        assert_int_equal(counted.live, 0);
    }
    counted.refuse = 1;
    assert_int_equal(exchanges(1, 0), TESS_E_NOMEM);
    counted.refuse = 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places__two_engines_in_two_orders_are_told),
        cmocka_unit_test(test_places__one_engine_says_nothing),
        cmocka_unit_test(test_places__a_circle_of_groups_is_named_from_its_lowest_rank),
        cmocka_unit_test(test_places__who_waits_for_a_circle_is_not_named),
        cmocka_unit_test(test_places__an_exchange_counts_exchanges),
        cmocka_unit_test(test_places__engines_that_a_rank_has_not_or_no_more),
        cmocka_unit_test(test_places__what_is_not_sound_is_not_looked_at),
        cmocka_unit_test(test_places__engines_beyond_the_table_make_no_circle),
        cmocka_unit_test(test_places__without_memory_nothing_is_told_wrongly),
        cmocka_unit_test(test_places__a_place_names_as_many_members_as_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
