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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums__the_counter_adds_in_the_tree),
        cmocka_unit_test(test_sums__in_order_is_one_after_the_other),
        cmocka_unit_test(test_sums__bf16_leaves_are_summed_in_fp32),
        cmocka_unit_test(test_sums__more_microbatches_than_planned_are_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
