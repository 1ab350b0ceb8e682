/* SPDX-License-Identifier: BSD-3-Clause */
/* How a rank waits at the key-value store for the others of its group. The store here answers by the time it is given,
 * without a clock. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "kit/plugin_base.h"

#define MS INT64_C(1000000)

typedef struct {
    int64_t way_ns; /* there and back: a turn that is shorter gets nothing */
    int missing;    /* turns in which the value is not there yet, after that it is */
    int turns, give_up;
    int64_t longest_ns;
} store;

static tess_status get(void *host, const char *key, void *value, uint64_t *bytes, int64_t timeout_ns) {
    store *s = host;
    assert_string_equal(key, "world/card/3");
    s->turns++;
    s->longest_ns = timeout_ns > s->longest_ns ? timeout_ns : s->longest_ns;
    if (timeout_ns < s->way_ns || s->turns <= s->missing)
        return TESS_E_TIMEOUT;
    memset(value, 7, 4);
    *bytes = 4;
    return TESS_OK;
}

/* Ends a wait that would go on for the test's whole time. */
static int32_t aborting(void *host) {
    const store *s = host;
    return s->turns >= s->give_up;
}

static tess_status join(store *s, int64_t timeout_ns, uint32_t *out, tess_error *e) {
    tess_host host = { .struct_size = sizeof host, .host = s, .kv_get = get, .aborting = aborting };
    const kit_joining j = kit_joining_begin(&host, "net", "world", timeout_ns);
    *e = (tess_error){ .struct_size = sizeof *e, .rank = -1 };
    *out = 0;
    return kit_joining_get(&j, "card", 3, out, sizeof *out, e);
}

static void test_joining__a_store_far_away_gets_time_to_answer(void **state) {
    (void)state;
    static const int64_t ways_ns[] = { 0, 19 * MS, 30 * MS, 100 * MS, 900 * MS };
    for (size_t i = 0; i < sizeof ways_ns / sizeof *ways_ns; i++) {
        store s = { .way_ns = ways_ns[i], .give_up = 100 };
        tess_error e;
        uint32_t value;
        assert_int_equal(join(&s, 3600000 * MS, &value, &e), TESS_OK);
        assert_int_equal(value, 0x07070707);
        assert_true(s.turns <= 7); /* 20 ms, twice as much each time */
    }
}

static void test_joining__turns_stay_short_enough_to_hear_of_an_abort(void **state) {
    (void)state;
    store s = { .missing = 1000, .give_up = 50 };
    tess_error e;
    uint32_t value;
    assert_int_equal(join(&s, 3600000 * MS, &value, &e), TESS_E_ABORTED);
    assert_int_equal(s.turns, 50);
    assert_int_equal(s.longest_ns, 1000 * MS);
    assert_int_equal(value, 0);
}

static void test_joining__the_time_limit_names_who_is_missing(void **state) {
    (void)state;
    store s = { .missing = INT32_MAX, .give_up = INT32_MAX };
    tess_error e;
    uint32_t value;
    assert_int_equal(join(&s, 5 * MS, &value, &e), TESS_E_TIMEOUT);
    assert_int_equal(e.rank, 3);
    assert_non_null(strstr(e.message, "rank 3 has not joined group 'world'"));
    assert_true(s.longest_ns <= 20 * MS); /* none passes the limit by more than the shortest turn */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joining__a_store_far_away_gets_time_to_answer),
        cmocka_unit_test(test_joining__turns_stay_short_enough_to_hear_of_an_abort),
        cmocka_unit_test(test_joining__the_time_limit_names_who_is_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
