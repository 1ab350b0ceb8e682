/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks of one engine that wait for what the others never come to. What they say of themselves lies in a table here, in
 * place of the control plane. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#define tess__control_set fake_set
#define tess__control_get fake_get
#include "core/runtime/deadlock.c"

enum { RANKS = 3 };
static struct {
    position said;
    int known;
} table[RANKS];
static tess__comms ranks[RANKS];

static int rank_in(const char *key) {
    const char *at = strstr(key, "waiting/");
    assert_non_null(at);
    return at[8] - '0';
}
tess_status fake_set(tess__control *c, const char *key, const void *value, uint64_t bytes) {
    (void)c;
    assert_int_equal(bytes, sizeof(position));
    memcpy(&table[rank_in(key)].said, value, bytes);
    table[rank_in(key)].known = 1;
    return TESS_OK;
}
tess_status fake_get(tess__control *c, const char *key, void *value, uint64_t *bytes, int64_t timeout_ns) {
    (void)c, (void)timeout_ns;
    assert_int_equal(*bytes, sizeof(position));
    if (!table[rank_in(key)].known)
        return TESS_E_TIMEOUT;
    memcpy(value, &table[rank_in(key)].said, *bytes);
    return TESS_OK;
}

static int start(void **state) {
    (void)state;
    memset(table, 0, sizeof table);
    for (int32_t r = 0; r < RANKS; r++) {
        ranks[r] = (tess__comms){ .control = (tess__control *)table };
        ranks[r].world.rank = r;
        ranks[r].world.nranks = RANKS;
    }
    return 0;
}

static void posts(int32_t rank, uint64_t tag, int times) {
    tess__comms *c = &ranks[rank];
    for (int i = 0; i < times; i++)
        c->recent_tags[c->n_collectives++ % TESS__RECENT_TAGS] = tag;
}

/* The rank waits for its last collective, under that name. */
static tess_status waits(int32_t rank, const char *what) {
    tess__comms *c = &ranks[rank];
    snprintf(c->activity[0], sizeof c->activity[0], "%s", what);
    return tess__deadlock_check(c, TESS__WORLD, c->n_collectives - 1);
}

static void expect_different(tess_status s, const char *text) {
    assert_int_equal(s, TESS_E_MISMATCH);
    assert_string_equal(tess_last_error(), text);
}

static void test_deadlock__ranks_that_wait_for_the_same_are_left_alone(void **state) {
    (void)state;
    for (int32_t r = 0; r < RANKS; r++) {
        posts(r, 5, 3);
        assert_int_equal(waits(r, "reduce"), TESS_OK);
    }
    assert_int_equal(waits(0, "reduce"), TESS_OK);
    assert_string_equal(ranks[0].absent, "");
    ranks[0].control = NULL;
    ranks[0].recent_tags[2] = 6;
    assert_int_equal(waits(0, "reduce"), TESS_OK); /* one rank alone asks nobody */
}

static void test_deadlock__another_collective_in_its_place_is_told(void **state) {
    (void)state;
    posts(0, 5, 3);
    posts(1, 5, 2);
    posts(1, 6, 1);
    assert_int_equal(waits(1, "gather of unit b"), TESS_OK);
    expect_different(waits(0, "gather of unit a"),
                     "the ranks call different things: rank 0 is in gather of unit a, rank 1 in gather of unit b");
    table[1].said.tags[2] = 0; /* not known */
    assert_int_equal(waits(0, "gather of unit a"), TESS_OK);
}

static void test_deadlock__a_long_run_compares_its_last(void **state) {
    (void)state;
    for (int32_t r = 0; r < 2; r++) {
        posts(r, 5, 10 * TESS__RECENT_TAGS);
        posts(r, 6 + (uint64_t)r, 1);
    }
    assert_int_equal(waits(1, "gather"), TESS_OK);
    assert_int_equal(waits(0, "gather"), TESS_E_MISMATCH);
    start(state);
    for (uint64_t tag = 1; tag <= 10 * TESS__RECENT_TAGS + 1; tag++) /* the same on both, each time another */
        for (int32_t r = 0; r < 2; r++)
            posts(r, tag, 1);
    assert_int_equal(waits(1, "gather"), TESS_OK);
    assert_int_equal(waits(0, "gather"), TESS_OK);
}

static void test_deadlock__tags_that_are_too_old_are_not_compared(void **state) {
    (void)state;
    posts(0, 5, 1);
    posts(1, 6, TESS__RECENT_TAGS);
    assert_int_equal(waits(1, "far"), TESS_OK);
    assert_int_equal(waits(0, "near"), TESS_E_MISMATCH); /* just within what rank 1 knows */
    posts(1, 6, 1);
    assert_int_equal(waits(1, "far"), TESS_OK);
    assert_int_equal(waits(0, "near"), TESS_OK);
    start(state);
    posts(0, 5, TESS__RECENT_TAGS + 1); /* rank 0 has posted on, and waits for its first */
    posts(1, 6, 1);
    assert_int_equal(waits(1, "far"), TESS_OK);
    assert_int_equal(tess__deadlock_check(&ranks[0], TESS__WORLD, 0), TESS_OK);
    ranks[0].n_collectives--;
    assert_int_equal(tess__deadlock_check(&ranks[0], TESS__WORLD, 0), TESS_E_MISMATCH);
}

static void test_deadlock__a_rank_in_an_exchange_never_comes(void **state) {
    (void)state;
    posts(0, 5, 2);
    posts(1, 5, 1);
    ranks[1].exchange_count = 1;
    assert_int_equal(tess__deadlock_enter_exchange(&ranks[1], "tess_shard"), TESS_OK);
    expect_different(waits(0, "reduce"), "the ranks call different things: rank 0 is in reduce, rank 1 in tess_shard");
    ranks[0].exchange_count = 1; /* it has been in that one too: what rank 1 said is old */
    assert_int_equal(waits(0, "reduce"), TESS_OK);
    ranks[0].exchange_count = 0;
    posts(1, 5, 1); /* it had posted with rank 0 before */
    assert_int_equal(tess__deadlock_enter_exchange(&ranks[1], "tess_shard"), TESS_OK);
    assert_int_equal(waits(0, "reduce"), TESS_OK);
    ranks[1].n_collectives--; /* once it waits for a collective, it may come */
    assert_int_equal(waits(1, "reduce"), TESS_OK);
    assert_int_equal(waits(0, "reduce"), TESS_OK);
}

static void test_deadlock__steps_that_differ_are_named(void **state) {
    (void)state;
    posts(0, 5, 1);
    posts(1, 6, 1);
    snprintf(ranks[1].common_text, sizeof ranks[1].common_text, "tess_step (lr 0.1)");
    assert_int_equal(waits(1, "gather"), TESS_OK);
    expect_different(waits(0, "gather"),
                     "the ranks stepped differently before gather: rank 0 called no tess_step, rank "
                     "1 tess_step (lr 0.1)");
}

/* Ranks are ahead of their collectives: the first that differs is named, not where they are now. */
static void test_claims__the_first_collective_that_differs_is_named(void **state) {
    (void)state;
    tess__history h[2];
    for (int r = 0; r < 2; r++) {
        posts(r, 5, 3 * TESS__RECENT_TAGS);
        h[r] = tess__history_of(&ranks[r], r ? "later" : "late");
        for (int i = 0; i < TESS__RECENT_TAGS; i++)
            snprintf(h[r].what[i], sizeof h[r].what[i], "%s %d", r ? "theirs" : "mine", i);
    }
    h[1].tags[4] = 6, h[1].tags[9] = 0, h[1].tags[11] = 7;
    tess__history mine = h[0], theirs = h[1];
    expect_different(tess__histories_differ(&ranks[0], &mine, 1, &theirs),
                     "the ranks call different things: rank 0 is in mine 4, rank 1 in theirs 4");
    mine = h[0], theirs = h[1];
    theirs.tags[4] = 0; /* unknown */
    expect_different(tess__histories_differ(&ranks[0], &mine, 1, &theirs),
                     "the ranks call different things: rank 0 is in mine 11, rank 1 in theirs 11");
    mine = h[0], theirs = h[1];
    theirs.tags[0] = 8; /* the oldest that is known differs: the first that does may be older */
    expect_different(tess__histories_differ(&ranks[0], &mine, 1, &theirs),
                     "the ranks call different things: rank 0 is in late, rank 1 in later");
    mine = h[0], theirs = h[1];
    memcpy(theirs.tags, mine.tags, sizeof theirs.tags);
    expect_different(tess__histories_differ(&ranks[0], &mine, 1, &theirs),
                     "the ranks call different things: rank 0 is in late, rank 1 in later");
    for (int r = 0; r < 2; r++) { /* all that were posted are known, of which the first differs */
        h[r].posted = 2 + (uint64_t)r;
        h[r].tags[0] = 20 + (uint64_t)r;
    }
    expect_different(tess__histories_differ(&ranks[0], &h[0], 1, &h[1]),
                     "the ranks call different things: rank 0 is in mine 0, rank 1 in theirs 0");
}

static void test_deadlock__who_does_not_wait_is_absent(void **state) {
    (void)state;
    posts(0, 5, 2);
    posts(1, 5, 1);
    assert_int_equal(waits(0, "reduce"), TESS_OK); /* nobody has said anything */
    assert_string_equal(ranks[0].absent, "rank 1, rank 2");
    assert_int_equal(waits(1, "reduce"), TESS_OK); /* it waits for the one before */
    posts(2, 5, 2);
    assert_int_equal(waits(2, "reduce"), TESS_OK);
    assert_int_equal(waits(0, "reduce"), TESS_OK);
    assert_string_equal(ranks[0].absent, "rank 1");
    posts(1, 5, 1);
    assert_int_equal(waits(1, "reduce"), TESS_OK);
    assert_int_equal(waits(0, "reduce"), TESS_OK);
    assert_string_equal(ranks[0].absent, "");
}

/* As many as there is room for, each as a whole but for the last. */
static void test_deadlock__the_names_of_many_end_within_their_room(void **state) {
    static int32_t members[9];
    tess__comms *c = &ranks[0];
    (void)state;
    c->members = members;
    for (int32_t width = 1; width < 100000000; width *= 10) {
        char want[200] = "";
        c->absent[0] = 0;
        for (int32_t r = 1; r < 9; r++) {
            members[r] = width + r;
            if (strlen(want) + 16 < sizeof c->absent)
                snprintf(want + strlen(want), sizeof want - strlen(want), "%srank %d", *want ? ", " : "", members[r]);
            add_absent(c, r);
        }
        want[sizeof c->absent - 1] = 0;
        assert_string_equal(c->absent, want);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_deadlock__ranks_that_wait_for_the_same_are_left_alone, start),
        cmocka_unit_test_setup(test_deadlock__another_collective_in_its_place_is_told, start),
        cmocka_unit_test_setup(test_deadlock__a_long_run_compares_its_last, start),
        cmocka_unit_test_setup(test_deadlock__tags_that_are_too_old_are_not_compared, start),
        cmocka_unit_test_setup(test_deadlock__the_names_of_many_end_within_their_room, start),
        cmocka_unit_test_setup(test_deadlock__a_rank_in_an_exchange_never_comes, start),
        cmocka_unit_test_setup(test_deadlock__steps_that_differ_are_named, start),
        cmocka_unit_test_setup(test_claims__the_first_collective_that_differs_is_named, start),
        cmocka_unit_test_setup(test_deadlock__who_does_not_wait_is_absent, start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
