/* SPDX-License-Identifier: BSD-3-Clause */
/* The way of optimizer states that rest in a store, as instructions: whose come ahead of whose step, with prefetching
 * and without, within a pass and apart from it, and when the memory that they are staged in is taken and given back. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "core/base/status.h"
#include "core/plan/emit.h"

enum { GROUPS = 5, ALIGN = 256, SUMS = 3 };
static struct {
    char said[1024];
    int32_t live[TESS__MAX_STATES + 1][GROUPS]; /* -1: none is staged; the last: parameters */
    int32_t sums[SUMS + 1][GROUPS];             /* the same: gradients, and partial sums of them; none has the last */
    int fail;                                   /* the n-th call from here on */
} world;

static tess_status note(const char *what, int32_t g) {
    char text[32];
    snprintf(text, sizeof text, "%s%d ", what, (int)g);
    assert_true(strlen(world.said) + strlen(text) < sizeof world.said);
    strcat(world.said, text);
    return world.fail && --world.fail == 0 ? tess__fail(TESS_E_NOMEM, "no memory") : TESS_OK;
}

static int32_t *buffer_of(tess__compiler *b, int role, int32_t g) {
    (void)b;
    if (role == TESS__STAGED_PARAM)
        return &world.live[TESS__MAX_STATES][g];
    if (role >= TESS__STAGED_GRAD0 && role <= TESS__STAGED_GRAD_LAST)
        return &world.sums[role < TESS__STAGED_GRAD0 + SUMS ? role - TESS__STAGED_GRAD0 : SUMS][g];
    assert_in_range(role, TESS__STAGED0, TESS__STAGED_LAST);
    return &world.live[role - TESS__STAGED0][g];
}

static tess_status alloc_grad(tess__compiler *b, int role, int32_t g, uint8_t category, int32_t unit, uint64_t bytes) {
    assert_true(category == TESS_CAT_SHARD_GRAD && unit == 10 + g && bytes == 512);
    assert_int_equal(*buffer_of(b, role, g), -1);
    *buffer_of(b, role, g) = 7;
    return note(role == TESS__STAGED_GRAD0 ? "sum0-" : role == TESS__STAGED_GRAD0 + 1 ? "sum1-" : "sum2-", g);
}

static tess_status alloc_staged(tess__compiler *b, int role, int32_t g, uint8_t category, int32_t unit, uint64_t bytes,
                                uint8_t flags) {
    if (role >= TESS__STAGED_GRAD0 && role <= TESS__STAGED_GRAD_LAST)
        return alloc_grad(b, role, g, category, unit, bytes);
    const int is_param = role == TESS__STAGED_PARAM, k = is_param ? 0 : role - TESS__STAGED0;
    assert_int_equal(category, is_param ? TESS_CAT_SHARD_PARAM : TESS_CAT_OPTIMIZER);
    assert_int_equal(unit, b->layout->groups[g].unit);
    assert_int_equal(flags, 0);
    assert_int_equal(bytes, k == 0 ? 512 : 256); /* of 100 elements, in four bytes each and in one */
    assert_int_equal(*buffer_of(b, role, g), -1);
    *buffer_of(b, role, g) = 7;
    return note(is_param ? "param-" : k ? "alloc1-" : "alloc0-", g);
}

static tess_status free_staged(tess__compiler *b, int role, int32_t g) {
    if (role == TESS__SHARD_GRAD)
        return note("unbook", g);
    if (role >= TESS__STAGED_GRAD0 && role <= TESS__STAGED_GRAD_LAST) {
        int lives = *buffer_of(b, role, g) != -1;
        *buffer_of(b, role, g) = -1;
        return lives ? note("no-sum-", g) : TESS_OK;
    }
    if (role == TESS__STAGED_PARAM && *buffer_of(b, role, g) == -1)
        return TESS_OK; /* as the emitter: nothing when it does not live */
    assert_int_not_equal(*buffer_of(b, role, g), -1);
    *buffer_of(b, role, g) = -1;
    return note(role == TESS__STAGED_PARAM ? "no-param-" : role == TESS__STAGED0 ? "free0-" : "free1-", g);
}

static tess_status emit(tess__compiler *b, uint8_t op, int32_t g) {
    (void)b;
    return note(op == TESS__STATES_FETCH        ? "fetch"
                : op == TESS__STATES_FETCH_WAIT ? "here"
                : op == TESS__STATES_STORE      ? "store"
                : op == TESS__STATES_STORE_WAIT ? "stored"
                : op == TESS__GRAD_FETCH        ? "add"
                : op == TESS__GRAD_FETCH_WAIT   ? "added"
                : op == TESS__GRAD_STORE        ? "keep"
                : op == TESS__GRAD_STORE_WAIT   ? "kept"
                                                : "?",
                g);
}

static tess_status emit_behind(tess__compiler *b, uint8_t op, uint8_t flags, int32_t g) {
    (void)b;
    assert_int_equal(flags, TESS__ASYNC);
    assert_true(op == TESS__STATES_STORE || op == TESS__GRAD_STORE);
    return note(op == TESS__STATES_STORE ? "behind" : "keep-behind", g);
}

#define tess__emit_buffer_of buffer_of
#define tess__emit_alloc alloc_staged
#define tess__emit_free free_staged
#define tess__emit emit
#define tess__emit_flagged emit_behind
#include "core/plan/compile_states.c"

static tess__setup setup;
static tess__group groups[GROUPS];
static tess__layout layout;

/* Of five groups 1 and 2 rest in the store; 3 does too, and is frozen; 0 and 4 rest in memory. */
static tess__compiler begin(int32_t prefetch, int fused) {
    memset(&world, 0, sizeof world);
    memset(world.live, 0xff, sizeof world.live);
    memset(world.sums, 0xff, sizeof world.sums);
    setup.prefetch = prefetch;
    for (int g = 0; g < GROUPS; g++) {
        groups[g] = (tess__group){ .unit = 10 + g, .trainable = g != 3, .shard_elems = 100, .step = { .n_states = 2 } };
        groups[g].step.state[0] = (tess_state){ TESS_F32, 1, "" };
        groups[g].step.state[1] = (tess_state){ TESS_U8, 1, "" };
        groups[g].state_rest.stored = g == 1 || g == 2 || g == 3;
    }
    layout = (tess__layout){ .groups = groups, .n_groups = GROUPS, .store_align = ALIGN };
    return (tess__compiler){ .setup = &setup, .layout = &layout, .fused = fused, .storing = -1, .storing_grad = -1 };
}

/* Gradients of groups 1 and 2 rest there, and nothing else. */
static tess__compiler begin_gradients(tess__program *p, int32_t prefetch, int fused) {
    tess__compiler b = begin(prefetch, fused);
    for (int g = 0; g < GROUPS; g++) {
        groups[g].state_rest.stored = 0;
        groups[g].grad_rest.stored = g >= 1 && g <= 3;
        groups[g].grad_shard = TESS_F32;
    }
    setup.accum = setup.sync_each = setup.deterministic = 0;
    b.p = p;
    return b;
}

/* A step apart from its passes goes through all groups in their order. */
static const char *whole_step(int32_t prefetch, int fused) {
    tess__compiler b = begin(prefetch, fused);
    assert_int_equal(tess__states_begin(&b), TESS_OK);
    for (int32_t g = 0; g < GROUPS; g++)
        if (groups[g].trainable) {
            assert_int_equal(tess__states_need(&b, g), TESS_OK);
            assert_int_equal(note("step", g), TESS_OK);
            assert_int_equal(tess__states_store(&b, g), TESS_OK);
        }
    assert_int_equal(tess__states_end(&b), TESS_OK);
    assert_int_equal(b.storing, -1);
    for (int g = 0; g < GROUPS; g++)
        assert_true(world.live[0][g] == -1 && world.live[1][g] == -1); /* nothing is left staged */
    return world.said;
}

static void test_compile_states__come_while_the_group_before_is_stepped(void **state) {
    (void)state;
    static const char *const ahead =
        "alloc0-1 alloc1-1 fetch1 step0 alloc0-2 alloc1-2 fetch2 here1 step1 store1 here2 step2 "
        "store2 stored1 free0-1 free1-1 step4 stored2 free0-2 free1-2 ";
    assert_string_equal(whole_step(1, 0), ahead);
    assert_string_equal(whole_step(3, 0), ahead); /* however many units are gathered ahead */
}

static void test_compile_states__one_at_a_time_where_nothing_is_gathered_ahead(void **state) {
    (void)state;
    assert_string_equal(whole_step(0, 0), "step0 alloc0-1 alloc1-1 fetch1 here1 step1 store1 stored1 free0-1 free1-1 "
                                          "alloc0-2 alloc1-2 fetch2 here2 step2 store2 stored2 free0-2 free1-2 step4 ");
}

/* Within a pass a group's turn comes when its gradient is reduced: who knows it asks ahead. */
static void test_compile_states__within_a_pass_the_caller_says_what_comes(void **state) {
    (void)state;
    assert_string_equal(whole_step(1, 1),
                        "step0 alloc0-1 alloc1-1 fetch1 here1 step1 store1 alloc0-2 alloc1-2 fetch2 here2 "
                        "step2 store2 stored1 free0-1 free1-1 step4 stored2 free0-2 free1-2 ");
    tess__compiler b = begin(2, 1);
    assert_int_equal(tess__states_ahead(&b, 2), TESS_OK);
    assert_string_equal(world.said, "alloc0-2 alloc1-2 fetch2 ");
    assert_int_equal(tess__states_ahead(&b, 2), TESS_OK); /* it is on its way */
    assert_int_equal(tess__states_ahead(&b, 0), TESS_OK); /* rests in memory */
    assert_int_equal(tess__states_ahead(&b, 3), TESS_OK); /* is frozen */
    assert_int_equal(tess__states_ahead(&b, -1), TESS_OK);
    assert_string_equal(world.said, "alloc0-2 alloc1-2 fetch2 ");
    b = begin(0, 1);
    assert_int_equal(tess__states_ahead(&b, 2), TESS_OK);
    assert_int_equal(tess__states_begin(&b), TESS_OK);
    assert_string_equal(world.said, "");
}

static void test_compile_states__the_first_that_is_stepped_comes_first(void **state) {
    (void)state;
    tess__compiler b = begin(1, 0);
    groups[0].trainable = 0;
    assert_int_equal(tess__states_begin(&b), TESS_OK);
    assert_string_equal(world.said, "alloc0-1 alloc1-1 fetch1 ");
    b = begin(1, 0);
    for (int g = 0; g < GROUPS; g++)
        groups[g].trainable = 0;
    assert_int_equal(tess__states_begin(&b), TESS_OK); /* nothing is stepped at all */
    assert_string_equal(world.said, "");
}

/* Parameters that rest there are staged behind their states, or alone. */
static void test_compile_states__parameters_are_staged_with_them(void **state) {
    (void)state;
    for (int alone = 0; alone < 2; alone++) {
        tess__compiler b = begin(0, 0);
        groups[1].param_rest.stored = 1;
        groups[1].master = TESS_F32;
        if (alone)
            groups[1].state_rest.stored = 0, groups[1].step.n_states = 0;
        assert_int_equal(tess__states_need(&b, 1), TESS_OK);
        assert_int_equal(tess__states_need(&b, 1), TESS_OK); /* once */
        assert_int_equal(tess__states_store(&b, 1), TESS_OK);
        assert_string_equal(world.said,
                            alone ? "param-1 fetch1 here1 here1 store1 stored1 no-param-1 "
                                  : "alloc0-1 alloc1-1 param-1 fetch1 here1 here1 store1 stored1 free0-1 free1-1 "
                                    "no-param-1 ");
    }
}

/* A pass leaves them there, one behind the other. */
static void test_compile_states__gradients_go_behind_their_sum(void **state) {
    (void)state;
    tess__program pass = { .kind = TESS_PASS_TRAIN };
    for (int32_t prefetch = 0; prefetch < 2; prefetch++) {
        tess__compiler b = begin_gradients(&pass, prefetch, 0);
        for (int32_t g = GROUPS; g-- > 0;)
            if (groups[g].trainable) {
                assert_int_equal(tess__grad_memory(&b, g), TESS_OK);
                assert_int_equal(note("sum", g), TESS_OK);
                assert_int_equal(tess__grad_store(&b, g), TESS_OK);
            }
        assert_int_equal(tess__grad_end(&b), TESS_OK);
        assert_int_equal(tess__grad_end(&b), TESS_OK); /* there is nothing left to wait for */
        assert_string_equal(world.said,
                            prefetch ? "sum4 sum0-2 sum2 keep2 sum0-1 sum1 keep1 kept2 no-sum-2 sum0 kept1 no-sum-1 "
                                     : "sum4 sum0-2 sum2 keep2 kept2 no-sum-2 sum0-1 sum1 keep1 kept1 no-sum-1 sum0 ");
    }
    tess__compiler b = begin_gradients(&pass, 1, 1); /* stepped where it was summed */
    assert_int_equal(tess__grad_memory(&b, 2), TESS_OK);
    assert_int_equal(tess__states_need(&b, 2), TESS_OK);
    assert_int_equal(tess__grad_store(&b, 2), TESS_OK);
    assert_int_equal(tess__grad_free(&b, 2), TESS_OK);
    assert_int_equal(tess__grad_end(&b), TESS_OK);
    assert_string_equal(world.said, "sum0-2 no-sum-2 unbook2 ");
}

/* What a lane hands over is waited for by whoever knows when; what it hands over of gradients, as if this thread had.
 */
static void test_compile_states__a_lane_hands_over_what_rests_there(void **state) {
    (void)state;
    tess__program pass = { .kind = TESS_PASS_TRAIN };
    tess__compiler b = begin(1, 1);
    for (int32_t g = 0; g < GROUPS; g++) {
        assert_int_equal(tess__states_ahead(&b, g), TESS_OK);
        assert_int_equal(tess__states_store_behind(&b, g), TESS_OK);
        assert_int_equal(tess__states_stored(&b, g), TESS_OK);
    }
    assert_int_equal(b.storing, -1);
    assert_string_equal(world.said, "alloc0-1 alloc1-1 fetch1 behind1 stored1 free0-1 free1-1 "
                                    "alloc0-2 alloc1-2 fetch2 behind2 stored2 free0-2 free1-2 ");
    for (int32_t prefetch = 0; prefetch < 2; prefetch++) {
        b = begin_gradients(&pass, prefetch, 0);
        for (int32_t g = 0; g < GROUPS; g++) {
            assert_int_equal(tess__grad_memory(&b, groups[g].trainable ? g : 0), TESS_OK);
            assert_int_equal(tess__grad_store_behind(&b, g), TESS_OK);
            assert_int_equal(tess__grad_going(&b, g), TESS_OK);
        }
        assert_int_equal(tess__grad_stored(&b, 0), TESS_OK);
        assert_int_equal(tess__grad_end(&b), TESS_OK);
        assert_string_equal(world.said, prefetch
                                            ? "sum0-1 keep-behind1 sum0-2 keep-behind2 kept1 no-sum-1 kept2 no-sum-2 "
                                            : "sum0-1 keep-behind1 kept1 no-sum-1 sum0-2 keep-behind2 kept2 no-sum-2 ");
    }
    b = begin_gradients(&pass, 1, 1); /* is stepped where it was summed */
    assert_int_equal(tess__grad_store_behind(&b, 1), TESS_OK);
    assert_int_equal(tess__grad_going(&b, 1), TESS_OK);
    assert_string_equal(world.said, "");
}

/* Where a microbatch adds its shard, all sums have memory. Without, and apart from passes, the gradient alone has. */
static void test_compile_states__sums_of_microbatches_come_to_be_added_to(void **state) {
    (void)state;
    tess__program pass = { .kind = TESS_PASS_TRAIN };
    static const char *const want[] = { "sum0-1 add1 added1 keep1 kept1 no-sum-1 ",
                                        "sum0-1 sum1-1 sum2-1 add1 added1 keep1 kept1 no-sum-1 no-sum-1 no-sum-1 ",
                                        "sum0-1 add1 added1 keep1 kept1 no-sum-1 " };
    for (int k = 0; k < 3; k++) {
        tess__compiler b = begin_gradients(&pass, 1, 0);
        setup.accum = 4;
        setup.sync_each = k < 2;
        setup.deterministic = k > 0; /* a binary counter; else one sum */
        assert_int_equal(tess__grad_ahead(&b, 1), TESS_OK);
        assert_int_equal(tess__grad_ahead(&b, 0), TESS_OK); /* rests in memory */
        assert_int_equal(tess__grad_need(&b, 1), TESS_OK);
        assert_int_equal(tess__grad_need(&b, 0), TESS_OK);
        assert_int_equal(tess__grad_store(&b, 1), TESS_OK);
        assert_int_equal(tess__grad_end(&b), TESS_OK);
        assert_string_equal(world.said, want[k]);
        b = begin_gradients(&pass, 0, 0);
        assert_int_equal(tess__grad_ahead(&b, 1), TESS_OK); /* nothing ahead */
        assert_string_equal(world.said, "");
        setup.accum = 0;
    }
}

/* For the norm one comes while the other is looked at; then they come once more, with the states. */
static void test_compile_states__gradients_come_for_the_norm_and_for_the_step(void **state) {
    (void)state;
    tess__program clip = { .kind = TESS__PASS_CLIP };
    tess__compiler b = begin_gradients(&clip, 1, 0);
    groups[1].state_rest.stored = 1;
    groups[0].trainable = 0;
    assert_int_equal(tess__states_begin(&b), TESS_OK); /* without its gradient */
    assert_string_equal(world.said, "alloc0-1 alloc1-1 fetch1 ");
    for (int32_t g = 0; g < 3; g++) {
        assert_int_equal(tess__grad_need(&b, g), TESS_OK);
        assert_int_equal(note("norm", g), TESS_OK);
        assert_int_equal(tess__grad_free(&b, g), TESS_OK);
    }
    assert_string_equal(world.said + 25, "norm0 unbook0 sum0-1 add1 sum0-2 add2 added1 norm1 no-sum-1 unbook1 "
                                         "added2 norm2 no-sum-2 unbook2 ");
    *world.said = 0;
    assert_int_equal(tess__states_need(&b, 1), TESS_OK);
    assert_string_equal(world.said, "sum0-1 add1 sum0-2 add2 added1 here1 ");
}

/* Whatever call fails, nothing follows it. */
static void test_compile_states__a_failure_is_passed_on_at_once(void **state) {
    (void)state;
    static const int32_t groups_of[] = { 1, 2 };
    for (int fail = 1; fail <= 14; fail++) {
        tess__compiler b = begin(1, 0);
        world.fail = fail;
        tess_status s = tess__states_begin(&b);
        for (int i = 0; !s && i < 2; i++) {
            s = tess__states_need(&b, i ? groups_of[1] : 0);
            if (!s && !i)
                s = tess__states_need(&b, groups_of[0]);
            if (!s)
                s = tess__states_store(&b, groups_of[i]);
        }
        if (!s)
            s = tess__states_end(&b);
        int calls = 0;
        for (const char *at = world.said; (at = strchr(at, ' ')); at++)
            calls++;
        assert_int_equal(s, TESS_E_NOMEM);
        assert_int_equal(calls, fail);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compile_states__come_while_the_group_before_is_stepped),
        cmocka_unit_test(test_compile_states__one_at_a_time_where_nothing_is_gathered_ahead),
        cmocka_unit_test(test_compile_states__within_a_pass_the_caller_says_what_comes),
        cmocka_unit_test(test_compile_states__the_first_that_is_stepped_comes_first),
        cmocka_unit_test(test_compile_states__parameters_are_staged_with_them),
        cmocka_unit_test(test_compile_states__gradients_go_behind_their_sum),
        cmocka_unit_test(test_compile_states__a_lane_hands_over_what_rests_there),
        cmocka_unit_test(test_compile_states__sums_of_microbatches_come_to_be_added_to),
        cmocka_unit_test(test_compile_states__gradients_come_for_the_norm_and_for_the_step),
        cmocka_unit_test(test_compile_states__a_failure_is_passed_on_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
