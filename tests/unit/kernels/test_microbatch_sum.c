/* SPDX-License-Identifier: BSD-3-Clause */
/* Sums of microbatches against the recursion of docs/numbers.md: T(lo, hi) = T(lo, lo + p) + T(lo + p, hi). */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "core/kernels/kernels.h"
#include "core/kernels/microbatch_sum.h"
#include "tests/unit/said.h"

enum { ELEMS = 37, MOST = 40 };
static float leaves[MOST][ELEMS];

static void make_leaves(void) {
    uint64_t seed = 11;
    for (int k = 0; k < MOST; k++)
        for (int i = 0; i < ELEMS; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            leaves[k][i] = (float)((double)(int64_t)seed / 1e19) * (float)(1 << (k % 9));
        }
}

static float tree(int lo, int hi, int i) {
    int p = 1;
    if (hi - lo == 1)
        return leaves[lo][i];
    while (2 * p < hi - lo)
        p *= 2;
    volatile float left = tree(lo, lo + p, i), right = tree(lo + p, hi, i);
    return left + right;
}

static tess_status run(void *user, tess_kernel *k) {
    (void)user;
    k->struct_size = sizeof *k;
    return tess__kernel_run(k, NULL, NULL);
}

static int levels_for(int n) {
    int levels = 1;
    while (n >> levels)
        levels++;
    return levels;
}

static void test_sums__the_counter_adds_in_the_tree(void **state) {
    (void)state;
    make_leaves();
    for (int n = 1; n <= MOST; n++) {
        static float storage[16][ELEMS];
        tess__microbatch_sum c = { .n_levels = levels_for(n), .elems = ELEMS };
        for (int l = 0; l < c.n_levels; l++)
            c.level[l] = storage[l];
        memset(storage, 0xff, sizeof storage); /* nothing of before may count */
        for (int k = 0; k < n; k++)
            assert_int_equal(tess__microbatch_add(&c, (uint32_t)k, leaves[k], TESS_F32, run, NULL), TESS_OK);
        void *sum = NULL;
        assert_int_equal(tess__microbatch_total(&c, (uint32_t)n, run, NULL, &sum), TESS_OK);
        for (int i = 0; i < ELEMS; i++) {
            float expected = tree(0, n, i);
            assert_memory_equal((float *)sum + i, &expected, sizeof expected);
        }
    }
}

static void test_sums__in_order_is_one_after_the_other(void **state) {
    (void)state;
    static float level[ELEMS];
    make_leaves();
    memset(level, 0xff, sizeof level);
    tess__microbatch_sum c = { .n_levels = 1, .in_order = 1, .elems = ELEMS, .level = { level } };
    for (int k = 0; k < 7; k++)
        assert_int_equal(tess__microbatch_add(&c, (uint32_t)k, leaves[k], TESS_F32, run, NULL), TESS_OK);
    void *sum = NULL;
    assert_int_equal(tess__microbatch_total(&c, 7, run, NULL, &sum), TESS_OK);
    assert_ptr_equal(sum, level);
    for (int i = 0; i < ELEMS; i++) {
        volatile float expected = leaves[0][i];
        for (int k = 1; k < 7; k++)
            expected = expected + leaves[k][i];
        assert_true(level[i] == expected);
    }
}

static void test_sums__bf16_leaves_are_summed_in_fp32(void **state) {
    (void)state;
    static const uint16_t one = 0x3f80, small = 0x3b80; /* 1 and 2^-8: their sum is no bf16 */
    float level[2];
    tess__microbatch_sum c = { .n_levels = 2, .elems = 1, .level = { &level[0], &level[1] } };
    assert_int_equal(tess__microbatch_add(&c, 0, &one, TESS_BF16, run, NULL), TESS_OK);
    assert_int_equal(tess__microbatch_add(&c, 1, &small, TESS_BF16, run, NULL), TESS_OK);
    void *sum = NULL;
    assert_int_equal(tess__microbatch_total(&c, 2, run, NULL, &sum), TESS_OK);
    assert_true(*(float *)sum == 1.00390625f);
}

static void test_sums__more_microbatches_than_planned_are_an_error(void **state) {
    (void)state;
    static float level[2][ELEMS];
    make_leaves();
    tess__microbatch_sum c = { .n_levels = 2, .elems = ELEMS, .level = { level[0], level[1] } };
    for (int k = 0; k < 3; k++)
        assert_int_equal(tess__microbatch_add(&c, (uint32_t)k, leaves[k], TESS_F32, run, NULL), TESS_OK);
    assert_int_equal(tess__microbatch_add(&c, 3, leaves[3], TESS_F32, run, NULL), TESS_E_INTERNAL);
}

/* ---- what is run ---- */

static float rooms[4][1];
static int fails_at;

static const char *name_of(const void *p) {
    static const char *const names[] = { "l0", "l1", "l2", "l3" };
    for (int l = 0; l < 4; l++)
        if (p == rooms[l])
            return names[l];
    return "leaf";
}

static tess_status note(void *user, tess_kernel *k) {
    assert_ptr_equal(user, rooms);
    assert_true(k->kernel == TESS_K_TREE_SUM && k->out_dtype == TESS_F32 && k->n_in == 1 && k->elems == 5);
    assert_true(k->scale == 1 && !(k->flags & ~(uint32_t)(TESS_KERNEL_ADD | TESS_KERNEL_Q8)));
    say("%s %s%s %s%s; ", name_of(k->out), k->flags & TESS_KERNEL_ADD ? "+" : "",
        k->flags & TESS_KERNEL_Q8 ? "q=" : "=", name_of(k->in[0]), k->in_dtype == TESS_BF16 ? " in 16 bits" : "");
    return --fails_at == 0 ? TESS_E_SYSTEM : TESS_OK;
}

static tess__microbatch_sum noted(int in_order) {
    tess__microbatch_sum c = { .n_levels = 4, .in_order = in_order, .flags = TESS_KERNEL_Q8, .elems = 5 };
    for (int l = 0; l < 4; l++)
        c.level[l] = rooms[l];
    said_so_far[0] = 0;
    fails_at = 0;
    return c;
}

static void test_sums__each_sum_of_two_has_the_trees_flags(void **state) {
    (void)state;
    static uint16_t leaf;
    void *sum = NULL;
    tess__microbatch_sum c = noted(0);
    for (uint32_t k = 0; k < 7; k++)
        assert_int_equal(tess__microbatch_add(&c, k, &leaf, TESS_BF16, note, rooms), TESS_OK);
    expect_said("l0 = leaf in 16 bits; "
                "l0 +q= leaf in 16 bits; l1 = l0; "
                "l0 = leaf in 16 bits; "
                "l0 +q= leaf in 16 bits; l1 +q= l0; l2 = l1; "
                "l0 = leaf in 16 bits; "
                "l0 +q= leaf in 16 bits; l1 = l0; "
                "l0 = leaf in 16 bits; ");
    assert_int_equal(tess__microbatch_total(&c, 7, note, rooms, &sum), TESS_OK);
    expect_said("l1 +q= l0; l2 +q= l1; ");
    assert_ptr_equal(sum, rooms[2]);
    assert_int_equal(tess__microbatch_total(&c, 5, note, rooms, &sum), TESS_OK);
    expect_said("l2 +q= l0; ");
    assert_int_equal(tess__microbatch_total(&c, 4, note, rooms, &sum), TESS_OK);
    expect_said("");
    assert_ptr_equal(sum, rooms[2]);
    c = noted(1); /* one after the other, in f32 */
    for (uint32_t k = 0; k < 3; k++)
        assert_int_equal(tess__microbatch_add(&c, k, &leaf, TESS_F32, note, rooms), TESS_OK);
    assert_int_equal(tess__microbatch_total(&c, 3, note, rooms, &sum), TESS_OK);
    expect_said("l0 = leaf; l0 += leaf; l0 += leaf; ");
    assert_ptr_equal(sum, rooms[0]);
}

static void test_sums__a_kernel_that_fails_ends_it(void **state) {
    (void)state;
    static uint16_t leaf;
    void *sum = &leaf;
    tess__microbatch_sum c = noted(0);
    fails_at = 2;
    assert_int_equal(tess__microbatch_add(&c, 3, &leaf, TESS_BF16, note, rooms), TESS_E_SYSTEM);
    expect_said("l0 +q= leaf in 16 bits; l1 +q= l0; ");
    fails_at = 1;
    assert_int_equal(tess__microbatch_total(&c, 7, note, rooms, &sum), TESS_E_SYSTEM);
    expect_said("l1 +q= l0; ");
    assert_ptr_equal(sum, &leaf);
    assert_int_equal(tess__microbatch_add(&c, 15, &leaf, TESS_BF16, note, rooms), TESS_E_INTERNAL);
    assert_int_equal(tess__microbatch_add(&c, 7, &leaf, TESS_BF16, note, rooms), TESS_OK);
    assert_non_null(strstr(said_so_far, "l3 = l2; "));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums__the_counter_adds_in_the_tree),
        cmocka_unit_test(test_sums__in_order_is_one_after_the_other),
        cmocka_unit_test(test_sums__bf16_leaves_are_summed_in_fp32),
        cmocka_unit_test(test_sums__each_sum_of_two_has_the_trees_flags),
        cmocka_unit_test(test_sums__a_kernel_that_fails_ends_it),
        cmocka_unit_test(test_sums__more_microbatches_than_planned_are_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
