/* SPDX-License-Identifier: BSD-3-Clause */
/* Who can give back whose image after which deaths: without replicas the next in the circle of copies, with them any of
 * the shard's; and what an image holds. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>

#include "core/recovery/mirror.h"

enum { MOST = 8 };

/* Everyone has its images of steps 4 and 5, and copies of the one before it in the circle. */
static void fill(tess__holding *all, int32_t n) {
    for (int32_t r = 0; r < n; r++)
        all[r] = (tess__holding){ { 4, 5 }, { 4, 5 } };
}

/* The rank is another process now, and has nothing. */
static void lose(tess__holding *all, int32_t rank) {
    all[rank] = (tess__holding){ { -1, -1 }, { -1, -1 } };
}

/* `keepers`: who has the copy of each rank's image. */
static void check_copies(int32_t n, const int32_t *keepers) {
    tess__setup s = { .nranks = n, .shard_ranks = n, .replicas = 1, .mirror = 1 };
    for (int32_t lost = 0; lost < n; lost++) {
        tess__holding all[MOST];
        int32_t torn = -2;
        fill(all, n);
        lose(all, lost);
        for (int32_t r = 0; r < n; r++) {
            assert_int_equal(tess__image_giver(&s, all, r, 5), r == lost ? keepers[r] : r);
            assert_int_equal(tess__image_giver(&s, all, r, 4), r == lost ? keepers[r] : r);
            assert_int_equal(tess__image_giver(&s, all, r, 3), -1);
        }
        assert_int_equal(tess__image_newest(&s, all, &torn), 5);
        assert_int_equal(torn, -1);
        all[keepers[lost]].copy[1] = -1; /* it died while the copy of 5 was on its way */
        assert_int_equal(tess__image_newest(&s, all, &torn), 4);
        assert_int_equal(torn, lost);
        lose(all, keepers[lost]);
        assert_int_equal(tess__image_newest(&s, all, &torn), -1);
        assert_true(torn == lost || torn == keepers[lost]);
    }
}

static void test_mirror__a_copy_is_with_the_next_of_the_circle(void **state) {
    (void)state;
    check_copies(2, (int32_t[]){ 1, 0 });
    check_copies(3, (int32_t[]){ 1, 2, 0 });
    check_copies(4, (int32_t[]){ 2, 3, 0, 1 });
    check_copies(5, (int32_t[]){ 2, 3, 4, 1, 0 });
    check_copies(6, (int32_t[]){ 3, 4, 5, 0, 1, 2 });
}

static void test_mirror__any_replica_of_a_shard_gives_it(void **state) {
    (void)state;
    tess__setup s = { .nranks = 6, .shard_ranks = 2, .replicas = 3, .mirror = 1 };
    tess__holding all[MOST];
    int32_t torn = -2;
    fill(all, MOST); /* two that are not of the group */
    lose(all, 3);
    assert_int_equal(tess__image_giver(&s, all, 3, 5), 1);
    fill(all, MOST);
    lose(all, 1);
    assert_int_equal(tess__image_giver(&s, all, 1, 5), 3);
    lose(all, 3);
    assert_int_equal(tess__image_giver(&s, all, 1, 5), 5);
    assert_int_equal(tess__image_giver(&s, all, 3, 4), 5);
    assert_int_equal(tess__image_giver(&s, all, 0, 5), 0);
    assert_int_equal(tess__image_newest(&s, all, &torn), 5);
    assert_int_equal(torn, -1);
    all[5].own[1] = -1; /* copies do not count where there are replicas */
    assert_int_equal(tess__image_newest(&s, all, &torn), 4);
    assert_int_equal(torn, 1);
    lose(all, 5);
    assert_int_equal(tess__image_newest(&s, all, &torn), -1);
    assert_int_equal(torn, 1);
}

static void test_mirror__the_newest_step_is_found_wherever_it_is(void **state) {
    (void)state;
    tess__setup s = { .nranks = 2, .shard_ranks = 2, .replicas = 1, .mirror = 1 };
    tess__holding none[2] = { { { -1, -1 }, { -1, -1 } }, { { -1, -1 }, { -1, -1 } } };
    tess__holding all[2] = { { { 7, 0 }, { 7, 0 } }, { { 7, 0 }, { 7, 0 } } };
    int32_t torn = -2;
    assert_int_equal(tess__image_newest(&s, none, &torn), -1);
    assert_int_equal(torn, 0);
    none[0].copy[0] = none[1].copy[0] = 0; /* copies alone count for none, of step 0 too */
    assert_int_equal(tess__image_newest(&s, none, &torn), -1);
    assert_int_equal(torn, 0);
    assert_int_equal(tess__image_newest(&s, all, &torn), 7);
    all[1].own[0] = -1; /* torn while it was taken; its copy is whole */
    assert_int_equal(tess__image_newest(&s, all, &torn), 7);
    all[0].copy[0] = -1;
    assert_int_equal(tess__image_newest(&s, all, &torn), 0); /* an image of step 0 is one */
    assert_int_equal(torn, 1);
    all[0].own[0] = all[1].copy[0] = -1; /* and when there is no other */
    assert_int_equal(tess__image_newest(&s, all, &torn), 0);
    assert_int_equal(torn, -1);
    all[0].own[0] = 7;
    assert_int_equal(tess__image_slot(all[0].own, 7), 0);
    assert_int_equal(tess__image_slot(all[0].own, 0), 1);
}

static tess_status note_part(void *user, const tess__image_part *p) {
    tess__image_part **at = user;
    *(*at)++ = *p;
    return TESS_OK;
}

static tess_status refuse_part(void *user, const tess__image_part *p) {
    (void)p;
    return --*(int *)user ? TESS_OK : TESS_E_PEER;
}

static void test_mirror__an_image_holds_every_shard_its_states_buffers_and_common_bytes(void **state) {
    (void)state;
    tess__setup s = { .align = 64, .common_bytes = 5 };
    const tess_grain two = { .n_states = 2, .state = { { TESS_F32, 1, "" }, { TESS_F32, 1, "" } } };
    const tess_grain blocks = { .n_states = 2, .state = { { TESS_U8, 1, "" }, { TESS_F32, 8, "" } } };
    tess__group groups[] = { { .shard_elems = 10, .master = TESS_F32, .step = two },
                             { .shard_elems = 33, .master = TESS_BF16 }, /* frozen */
                             { .shard_elems = 16, .master = TESS_F64, .step = blocks } };
    tess__layout l = { .groups = groups, .n_groups = 3, .buffer_bytes = 12 };
    const tess__image_part want[] = { { TESS__MASTER, 0, 0, 40 },       { TESS__STATE0, 0, 64, 40 },
                                      { TESS__STATE0 + 1, 0, 128, 40 }, { TESS__MASTER, 1, 192, 66 },
                                      { TESS__MASTER, 2, 320, 128 },    { TESS__STATE0, 2, 448, 16 },
                                      { TESS__STATE0 + 1, 2, 512, 8 },  { TESS__BUFFERS, 0, 576, 12 },
                                      { TESS__COMMON, 0, 640, 5 } };
    enum { N = sizeof want / sizeof want[0] };
    tess__image_part got[N + 1], *at = got;
    assert_int_equal(tess__image_each(&s, &l, note_part, &at), TESS_OK);
    assert_int_equal(at - got, N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(got[i].role, want[i].role);
        assert_int_equal(got[i].index, want[i].index);
        assert_int_equal(got[i].at, want[i].at);
        assert_int_equal(got[i].bytes, want[i].bytes);
    }
    for (int stop = 1; stop <= N; stop++) { /* the first refusal is the end */
        int left = stop;
        assert_int_equal(tess__image_each(&s, &l, refuse_part, &left), TESS_E_PEER);
        assert_int_equal(left, 0);
    }
    assert_int_equal(tess__image_bytes(&s, &l), 704);
    l.buffer_bytes = 0;
    at = got;
    assert_int_equal(tess__image_each(&s, &l, note_part, &at), TESS_OK);
    assert_int_equal(at - got, N - 1);
    assert_int_equal(got[N - 2].at, 576);
    s.common_bytes = 0;
    at = got;
    assert_int_equal(tess__image_each(&s, &l, note_part, &at), TESS_OK);
    assert_int_equal(at - got, N - 2);
    assert_int_equal(tess__image_bytes(&s, &l), 576);
}

/* The first ones of a group at once, then with every step that the distance divides, before its first microbatch. */
static void test_mirror__images_are_due_once_at_their_distance(void **state) {
    (void)state;
    static tess t;
    static const struct {
        int64_t taken;
        uint64_t step;
        int due;
    } cases[] = { { -1, 0, 1 }, { -1, 4, 1 }, { 0, 0, 0 }, { 0, 1, 0 }, { 0, 2, 0 }, { 0, 3, 1 },
                  { 3, 3, 0 },  { 3, 4, 0 },  { 3, 6, 1 }, { 4, 5, 0 }, { 4, 6, 1 }, { 1, 3, 1 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        t.plan.setup.mirror = 3;
        t.mirror.taken = cases[i].taken;
        t.step.steps_done = cases[i].step;
        assert_int_equal(tess__mirror_is_due(&t, TESS_PASS_TRAIN), cases[i].due);
        assert_int_equal(tess__mirror_is_due(&t, TESS_PASS_TRAIN | 16), cases[i].due);
        assert_false(tess__mirror_is_due(&t, TESS_PASS_EVAL));
        t.pass.microbatch = 1;
        assert_false(tess__mirror_is_due(&t, TESS_PASS_TRAIN));
        t.pass.microbatch = 0;
        t.pass.pending_grads = 1;
        assert_false(tess__mirror_is_due(&t, TESS_PASS_TRAIN));
        t.pass.pending_grads = 0;
        t.plan.setup.mirror = 0;
        assert_false(tess__mirror_is_due(&t, TESS_PASS_TRAIN));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mirror__a_copy_is_with_the_next_of_the_circle),
        cmocka_unit_test(test_mirror__any_replica_of_a_shard_gives_it),
        cmocka_unit_test(test_mirror__the_newest_step_is_found_wherever_it_is),
        cmocka_unit_test(test_mirror__images_are_due_once_at_their_distance),
        cmocka_unit_test(test_mirror__an_image_holds_every_shard_its_states_buffers_and_common_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
