/* SPDX-License-Identifier: BSD-3-Clause */
/* Which layouts of hosts comm-hosts takes in two steps, and which rank is on which rail: every block crosses the
 * network to every other host once. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "plugins/comm-hosts/layout.h"

enum { RANKS = 40 };

static hosts_layout layout(const uint64_t *ids, int32_t n) {
    hosts_layout l = hosts_layout_of(ids, n, 0);
    for (int32_t r = 1; r < n; r++) /* all ranks go the same way */
        assert_int_equal(hosts_layout_of(ids, n, r).kind, l.kind);
    return l;
}

static void test_layout__hosts_of_a_power_of_two_and_a_last_one_of_fewer(void **state) {
    (void)state;
    static const struct {
        uint64_t ids[8];
        int32_t n, kind, hosts, each, last;
        const char *why;
    } cases[] = {
        { { 7, 7, 7 }, 3, HOSTS_ONE, 0, 0, 0, NULL },
        { { 7, 7, 9, 9 }, 4, HOSTS_TWO_STEPS, 2, 2, 2, NULL },
        { { 7, 7, 9 }, 3, HOSTS_TWO_STEPS, 2, 2, 1, NULL },
        { { 7, 7, 7, 7, 9, 9, 9 }, 7, HOSTS_TWO_STEPS, 2, 4, 3, NULL },
        { { 7, 7, 8, 8, 9 }, 5, HOSTS_TWO_STEPS, 3, 2, 1, NULL },
        { { 1, 2, 3 }, 3, HOSTS_FLAT, 0, 0, 0, NULL },
        { { 7, 9, 9 }, 3, HOSTS_FLAT, 0, 0, 0, "the hosts have different numbers of ranks" },
        { { 7, 7, 8, 9, 9 }, 5, HOSTS_FLAT, 0, 0, 0, "the hosts have different numbers of ranks" },
        { { 7, 7, 9, 9, 9 }, 5, HOSTS_FLAT, 0, 0, 0, "the hosts have different numbers of ranks" },
        { { 7, 9, 7, 9 }, 4, HOSTS_FLAT, 0, 0, 0, "the ranks of a host are not neighbours" },
        { { 7, 7, 7, 9, 9, 9 }, 6, HOSTS_FLAT, 0, 0, 0, "the ranks of a host are no power of two" },
        { { 7, 7, 7, 9 }, 4, HOSTS_FLAT, 0, 0, 0, "the ranks of a host are no power of two" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const hosts_layout l = layout(cases[i].ids, cases[i].n);
        assert_int_equal(l.kind, cases[i].kind);
        assert_int_equal(l.hosts, cases[i].hosts);
        assert_int_equal(l.each, cases[i].each);
        assert_int_equal(l.last, cases[i].last);
        assert_int_equal(l.why != NULL, cases[i].why != NULL);
        if (l.why)
            assert_string_equal(l.why, cases[i].why);
    }
}

/* Of all ranks, `each` on a host. */
static void make_all(hosts_layout *all, int32_t n, int32_t each) {
    uint64_t ids[RANKS];
    for (int32_t r = 0; r < n; r++)
        ids[r] = (uint64_t)(r / each);
    for (int32_t r = 0; r < n; r++) {
        all[r] = hosts_layout_of(ids, n, r);
        assert_int_equal(all[r].kind, HOSTS_TWO_STEPS);
        assert_int_equal(all[r].host * each + all[r].local, r);
    }
}

/* One rank of every host is on a rail, in one round of its own. */
static void check_members(const hosts_layout *all, int32_t n, int32_t each) {
    for (int32_t rail = 0; rail < each; rail++)
        for (int32_t host = 0; host < all->hosts; host++) {
            const int32_t local = hosts_local_on(all, host, rail), rank = host * each + local;
            assert_true(local >= 0 && rank < n && all[rank].host == host);
            assert_int_equal(hosts_rail(&all[rank], host, local, hosts_round_of(all, host, rail)), rail);
            int32_t on_it = 0;
            for (int32_t r = host * each; r < n && all[r].host == host; r++)
                for (int32_t round = 0; round < hosts_rounds(all, host); round++)
                    on_it += hosts_rail(all, host, all[r].local, round) == rail;
            assert_int_equal(on_it, 1);
        }
    for (int32_t r = 0; r < n; r++)
        assert_true(hosts_has_block(all, all[r].host, hosts_rail(all, all[r].host, all[r].local, 0)));
}

/* How often block `b` comes to the host of `me` over the rail of the rank whose place in a window it is. */
static int32_t arrivals(const hosts_layout *all, const hosts_layout *me, int32_t b) {
    const int32_t from = all[b].host, size = me->sharing;
    int32_t n = 0;
    for (int32_t round = 0; round < hosts_rounds(me, me->host); round++) {
        const int32_t first = hosts_window(me, from, round);
        for (int32_t local = 0; local < size; local++) {
            const int32_t rail = hosts_rail(me, me->host, local, round);
            n += rail >= 0 && first + local == b && hosts_has_block(me, from, rail) &&
                 from * me->each + hosts_local_on(me, from, rail) == b;
        }
    }
    return n;
}

static void test_rails__every_block_comes_to_every_other_host_once(void **state) {
    (void)state;
    hosts_layout all[RANKS];
    for (int32_t each = 2; each <= 8; each *= 2)
        for (int32_t n = each + 1; n <= RANKS; n++) {
            make_all(all, n, each);
            check_members(all, n, each);
            for (int32_t r = 0; r < n; r++)
                for (int32_t b = 0; b < n; b++)
                    if (all[b].host != all[r].host)
                        assert_int_equal(arrivals(all, &all[r], b), 1);
        }
}

static void test_rails__windows_lie_within_the_blocks(void **state) {
    (void)state;
    hosts_layout all[RANKS];
    for (int32_t each = 2; each <= 8; each *= 2)
        for (int32_t n = each + 1; n <= RANKS; n++) {
            make_all(all, n, each);
            for (int32_t r = 0; r < n; r++)
                for (int32_t host = 0; host < all->hosts; host++)
                    for (int32_t round = 0; round < hosts_rounds(all, all[r].host); round++) {
                        const int32_t first = hosts_window(&all[r], host, round);
                        assert_true(first >= 0 && first + all[r].sharing <= n);
                    }
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout__hosts_of_a_power_of_two_and_a_last_one_of_fewer),
        cmocka_unit_test(test_rails__every_block_comes_to_every_other_host_once),
        cmocka_unit_test(test_rails__windows_lie_within_the_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
