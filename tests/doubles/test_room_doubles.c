/* SPDX-License-Identifier: BSD-3-Clause */
/* The channels that comm-nccl gives its communicators: of the first, and of those that the engine splits from it. */
#include "plugins/comm-nccl/room.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MOST = 8 };

/* Those of a GPU with so many multiprocessors, until one finds no room; how many. All of them, with those that each
 * keeps for splits of its own, fit on the GPU. */
static int share_out(int multiprocessors, int *channels) {
    tess_comm *world = calloc(1, sizeof *world), *child = calloc(1, sizeof *child);
    tess_error e = { .struct_size = sizeof e };
    int n = 1, all;
    nccl_room_begin(world, multiprocessors);
    all = channels[0] = world->channels;
    while (n < MOST && nccl_room_take(world, child, &channels[n], &e) == TESS_OK)
        all += channels[n++] + atomic_load(&child->room);
    assert_true(all <= multiprocessors);
    free(world), free(child);
    return n;
}

static void test_room__replicas_of_hybrid_have_more_than_eight_channels_doubles(void **state) {
    enum { WORLD, SHARD, SUMS, REPLICAS, COPIES };
    int channels[MOST];
    (void)state;
    assert_true(share_out(132, channels) > COPIES); /* H100 */
    assert_int_equal(channels[WORLD], 32);
    assert_int_equal(channels[SHARD], 32);
    assert_int_equal(channels[SUMS], 32);
    assert_int_equal(channels[REPLICAS], 16);
    assert_int_equal(channels[COPIES], 4);
}

static void test_room__five_communicators_fit_doubles(void **state) {
    int channels[MOST];
    (void)state;
    for (int multiprocessors = 14; multiprocessors <= 160; multiprocessors++) { /* from a seventh of an A100 on */
        int n = share_out(multiprocessors, channels);
        assert_true(n >= 5);
        for (int i = 1; i < n; i++)
            assert_true(channels[i] <= channels[i - 1] && (channels[i] & (channels[i] - 1)) == 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_room__replicas_of_hybrid_have_more_than_eight_channels_doubles),
        cmocka_unit_test(test_room__five_communicators_fit_doubles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
