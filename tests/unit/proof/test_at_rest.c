/* SPDX-License-Identifier: BSD-3-Clause */
/* Which bytes at rest are watched, from when to when, and in which call a flipped bit of each ends the run. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/status.h"
#include "core/engine/state.h"
#include "halves.h"

enum { GROUPS = 3, BUFFERS = 8, BLOCKS = 40, ROOM = 64 };

static struct {
    tess engine;
    tess__group groups[GROUPS + 1]; /* the last of each is none of them */
    tess__buffer buffers[BUFFERS + 1];
    tess__unit units[2];
    uint8_t booked[TESS__N_ROLES][BUFFERS + 1];
    struct {
        int role;
        int32_t index;
        unsigned char bytes[ROOM]; /* more than any of them has */
    } block[BLOCKS];
    int n, fails_at, runs, taken;
    tess__pool *pool;
} world;

static void *take_memory(size_t n, size_t size) {
    world.taken++;
    return world.fails_at && --world.fails_at == 0 ? NULL : calloc(n, size);
}
/* Each place has memory of its own, from the first time that it is asked for. */
static unsigned char *place_of(int role, int32_t index) {
    for (int i = 0; i < world.n; i++)
        if (world.block[i].role == role && world.block[i].index == index)
            return world.block[i].bytes;
    assert_true(world.n < BLOCKS);
    world.block[world.n].role = role;
    world.block[world.n].index = index;
    for (int i = 0; i < ROOM; i++)
        world.block[world.n].bytes[i] = (unsigned char)(world.n * 37 + i * 11 + 1);
    return world.block[world.n++].bytes;
}

#define calloc(n, size) take_memory(n, size)
#define tess__address_of(t, role, i) ((void)(t), (void *)place_of(role, i))
#define tess__pool_run(p, n, least, fn, user)                                                                          \
    (assert_ptr_equal(p, world.pool), world.runs++, run_halves(n, least, fn, user))
#include "core/proof/at_rest.c"
#undef calloc

/* Group 0 has all, group 1 rests in a store but for its copy, group 2 has a parameter of three bytes and no unit. */
static tess *begin(void) {
    static char names[2][8] = { "first", "other" };
    tess *t = &world.engine;
    memset(&world, 0, sizeof world);
    world.pool = (tess__pool *)&world;
    for (int u = 0; u < 2; u++)
        world.units[u].name = names[u];
    world.groups[0] =
        (tess__group){ .unit = 1, .master = TESS_F32, .compute = TESS_BF16, .shard_elems = 7, .low_copy = 1 };
    world.groups[0].step = (tess_grain){ .n_states = 2, .state = { { TESS_F32, 1, "m" }, { TESS_U8, 1, "v" } } };
    world.groups[1] = world.groups[0];
    world.groups[1].param_rest.stored = world.groups[1].state_rest.stored = 1;
    world.groups[2] = (tess__group){ .unit = -1, .master = TESS_U8, .shard_elems = 3 };
    world.groups[GROUPS] = world.groups[0];
    static const struct {
        int role;
        int32_t index, unit;
        uint32_t domain;
        int booked;
    } buffers[BUFFERS + 1] = { { TESS__SHARD_GRAD, 0, 1, TESS_DOMAIN_DEVICE, 1 },
                               { TESS__SHARD_GRAD, 1, 1, TESS_DOMAIN_HOST, 0 }, /* already gone */
                               { TESS__BUFFERS, 0, -1, TESS_DOMAIN_DEVICE, 0 },
                               { TESS__SUM0, 0, 1, TESS_DOMAIN_HOST, 1 },
                               { TESS__SUM_LAST, 2, 0, TESS_DOMAIN_HOST, 1 },
                               { TESS__SUM0, 1, 1, TESS_DOMAIN_DISK, 1 }, /* the store's */
                               { TESS__MASTER, 0, 1, TESS_DOMAIN_DEVICE, 1 },
                               { TESS__SHARD_GRAD, 2, 0, TESS_DOMAIN_DEVICE, 1 },
                               { TESS__SHARD_GRAD, 5, 0, TESS_DOMAIN_DEVICE, 1 } };
    for (int i = 0; i <= BUFFERS; i++) {
        world.buffers[i] = (tess__buffer){ .role = (uint8_t)buffers[i].role, .domain = (uint8_t)buffers[i].domain };
        world.buffers[i].index = buffers[i].index, world.buffers[i].unit = buffers[i].unit;
        world.buffers[i].bytes = 28;
        world.booked[buffers[i].role][buffers[i].index] = (uint8_t)buffers[i].booked;
    }
    for (int r = 0; r < TESS__N_ROLES; r++)
        t->memory.booked[r] = world.booked[r];
    t->plan.layout = (tess__layout){ .groups = world.groups, .n_groups = GROUPS, .units = world.units, .n_units = 2 };
    t->plan.resident = (tess__program){ .buffers = world.buffers, .n_buffers = BUFFERS };
    t->comms.world.rank = 3;
    t->step.steps_done = 12;
    return t;
}

/* All that is watched: where, how many bytes, as what, of which unit; by a pass: until the next one; of which group's
 * step. */
static const struct {
    int role;
    int32_t index, bytes;
    const char *what, *unit;
    int by_pass, group;
} watched[] = {
    { TESS__MASTER, 0, 28, "parameters", "other", 0, 0 },
    { TESS__LOW_COPY, 0, 14, "low-precision copies", "other", 0, -1 },
    { TESS__STATE0, 0, 28, "optimizer states", "other", 0, 0 },
    { TESS__STATE1, 0, 7, "optimizer states", "other", 0, 0 },
    { TESS__LOW_COPY, 1, 14, "low-precision copies", "other", 0, -1 },
    { TESS__MASTER, 2, 3, "parameters", "of no name", 0, 2 },
    { TESS__SHARD_GRAD, 0, 28, "gradients", "other", 1, 0 },
    { TESS__BUFFERS, 0, 28, "running statistics", "of no name", 1, -1 },
    { TESS__SUM0, 0, 28, "gradients", "other", 1, -1 },
    { TESS__SUM_LAST, 2, 28, "gradients", "first", 1, -1 },
    { TESS__SHARD_GRAD, 2, 28, "gradients", "first", 1, 2 },
};
enum { WATCHED = sizeof watched / sizeof *watched };

static void expect(tess_status s, const char *what, const char *unit) {
    char want[256];
    assert_int_equal(s, what ? TESS_E_MISMATCH : TESS_OK);
    snprintf(want, sizeof want,
             "rank 3, unit %s: the %s at rest are not what step 12 left: memory has changed (TESSERA_AT_REST_DIGESTS)",
             unit, what);
    if (what)
        assert_string_equal(tess_last_error(), want);
}

static void test_at_rest__each_byte_is_watched_where_it_is_read_next(void **state) {
    (void)state;
    for (int i = 0; i < WATCHED; i++)
        for (int32_t at = 0; at < ROOM; at++) {
            tess__at_rest a = { .sum = NULL };
            tess *t = begin();
            const char *what = at < watched[i].bytes ? watched[i].what : NULL;
            const char *rests = watched[i].by_pass ? NULL : what, *passes = watched[i].by_pass ? what : NULL;
            t->rest_changed = 1;
            assert_int_equal(tess__at_rest_take(t, &a, world.pool), TESS_OK);
            assert_int_equal(t->rest_changed, 0);
            expect(tess__at_rest_check(t, &a, world.pool, 1), NULL, "");
            place_of(watched[i].role, watched[i].index)[at] ^= 1;
            expect(tess__at_rest_check(t, &a, world.pool, 1), rests, watched[i].unit);
            expect(tess__at_rest_check(t, &a, world.pool, 0),
                   watched[i].role < TESS__STATE0 || watched[i].role > TESS__STATE3 ? rests : NULL, watched[i].unit);
            for (int32_t g = 0; g < GROUPS; g++)
                expect(tess__at_rest_check_group(t, &a, world.pool, g), watched[i].group == g ? what : NULL,
                       watched[i].unit);
            expect(tess__at_rest_check_pass(t, &a, world.pool), passes, watched[i].unit);
            tess__at_rest_free(&a);
            assert_true(!a.sum && !a.left && !a.known && !a.left_known);
        }
}

/* Nothing but what is watched is read: neither what is in a store, nor buffers that are gone, nor beyond the last. */
static void test_at_rest__nothing_else_is_read(void **state) {
    (void)state;
    tess__at_rest a = { .sum = NULL };
    tess *t = begin();
    assert_int_equal(tess__at_rest_take(t, &a, world.pool), TESS_OK);
    assert_int_equal(world.n, WATCHED);
    assert_int_equal(world.runs, WATCHED);
    for (int i = 0; i < WATCHED; i++) {
        (void)place_of(watched[i].role, watched[i].index);
        assert_int_equal(world.n, WATCHED);
    }
    tess__at_rest_free(&a);
}

static void test_at_rest__what_the_program_writes_is_no_alarm(void **state) {
    (void)state;
    for (int masters = 0; masters < 2; masters++) {
        tess__at_rest a = { .sum = NULL };
        tess *t = begin();
        assert_int_equal(tess__at_rest_take(t, &a, world.pool), TESS_OK);
        place_of(TESS__MASTER, 0)[0] ^= 1;
        place_of(TESS__SUM0, 0)[0] ^= 1;
        place_of(TESS__SHARD_GRAD, 2)[0] ^= 1;
        *(masters ? &t->masters_changed : &t->rest_changed) = 1;
        expect(tess__at_rest_check_group(t, &a, world.pool, 0), "parameters",
               "other"); /* of what has not been looked at */
        expect(tess__at_rest_check_group(t, &a, world.pool, 2), masters ? NULL : "gradients", "first");
        expect(tess__at_rest_check(t, &a, world.pool, 1), NULL, "");
        expect(tess__at_rest_check_group(t, &a, world.pool, 0), NULL, "");
        expect(tess__at_rest_check_pass(t, &a, world.pool), masters ? NULL : "gradients", "other");
        t->masters_changed = t->rest_changed = 0; /* nothing is known until the next step */
        expect(tess__at_rest_check(t, &a, world.pool, 1), NULL, "");
        assert_int_equal(tess__at_rest_take(t, &a, world.pool), TESS_OK);
        place_of(TESS__MASTER, 2)[1] ^= 1;
        expect(tess__at_rest_check(t, &a, world.pool, 0), "parameters", "of no name");
        tess__at_rest_free(&a);
    }
}

/* The pass that was looked at writes them; only what it leaves is known again. */
static void test_at_rest__a_pass_is_looked_at_once(void **state) {
    (void)state;
    tess__at_rest a = { .sum = NULL };
    tess *t = begin();
    assert_int_equal(tess__at_rest_take_pass(t, &a, world.pool), TESS_OK);
    expect(tess__at_rest_check(t, &a, world.pool, 1), NULL, ""); /* of no step yet */
    expect(tess__at_rest_check_group(t, &a, world.pool, 0), NULL, "");
    expect(tess__at_rest_check_pass(t, &a, world.pool), NULL, "");
    place_of(TESS__BUFFERS, 0)[5] ^= 1;
    place_of(TESS__SHARD_GRAD, 0)[5] ^= 1;
    expect(tess__at_rest_check_pass(t, &a, world.pool), NULL, "");
    expect(tess__at_rest_check_group(t, &a, world.pool, 0), NULL, "");
    assert_int_equal(tess__at_rest_take_pass(t, &a, world.pool), TESS_OK);
    place_of(TESS__BUFFERS, 0)[5] ^= 1;
    expect(tess__at_rest_check_pass(t, &a, world.pool), "running statistics", "of no name");
    tess__at_rest_free(&a);
}

/* A smaller group of ranks has a plan of its own, with more groups or fewer. */
static void test_at_rest__a_plan_may_change(void **state) {
    (void)state;
    tess__at_rest a = { .sum = NULL };
    tess *t = begin();
    for (int n = 0; n < 3; n++) {
        t->plan.layout.n_groups = (const int32_t[]){ 1, GROUPS, 2 }[n];
        t->plan.resident.n_buffers = (const int32_t[]){ 1, BUFFERS, 3 }[n];
        assert_int_equal(tess__at_rest_take(t, &a, world.pool), TESS_OK);
        assert_true(a.n_groups == t->plan.layout.n_groups && a.n_left == t->plan.resident.n_buffers);
        const int taken = world.taken;
        expect(tess__at_rest_check(t, &a, world.pool, 1), NULL, "");
        expect(tess__at_rest_check_pass(t, &a, world.pool), NULL, "");
        assert_int_equal(tess__at_rest_take(t, &a, world.pool), TESS_OK);
        assert_int_equal(world.taken, taken);
    }
    tess__at_rest_free(&a);
    for (int n = 1; n <= 2; n++) {
        world.fails_at = n;
        assert_int_equal(tess__at_rest_take(t, &a, world.pool), TESS_E_NOMEM);
        assert_string_equal(tess_last_error(), "no memory for the digests of what rests");
        tess__at_rest_free(&a);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_at_rest__each_byte_is_watched_where_it_is_read_next),
        cmocka_unit_test(test_at_rest__nothing_else_is_read),
        cmocka_unit_test(test_at_rest__what_the_program_writes_is_no_alarm),
        cmocka_unit_test(test_at_rest__a_pass_is_looked_at_once),
        cmocka_unit_test(test_at_rest__a_plan_may_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
