/* SPDX-License-Identifier: BSD-3-Clause */
/* The kit's reductions: the engine's tree, the same bits on every instruction set. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "kit/formulas.h"
#include "kit/tree_sum.h"
#include "tessera/plugin_helpers.h"

enum { LEAVES = 9, ELEMS = 203, ODD = 1 /* leaves lie this far from any alignment */ };
static unsigned char data[LEAVES][ELEMS * 8 + 8], out[2][ELEMS * 8 + 8];
static const void *leaves[LEAVES];

static void fill(void) {
    srand(7);
    for (int l = 0; l < LEAVES; l++) {
        leaves[l] = data[l] + ODD;
        for (size_t i = 0; i < sizeof data[l]; i++)
            data[l][i] = (unsigned char)rand();
    }
}

static float tree(const float *x, int lo, int hi) {
    int p = 1;
    while (2 * p < hi - lo)
        p *= 2;
    return hi - lo == 1 ? x[lo] : tree(x, lo, lo + p) + tree(x, lo + p, hi);
}

static void test_tree_sum__f32_is_the_engines_tree(void **state) {
    (void)state;
    static float values[LEAVES][ELEMS], sums[ELEMS];
    for (int l = 0; l < LEAVES; l++) {
        leaves[l] = values[l];
        for (int i = 0; i < ELEMS; i++)
            values[l][i] = (float)(rand() % 20011) / 7.0f;
    }
    for (int n = 1; n <= LEAVES; n++) {
        const kit_reduction r = { TESS_SUM, TESS_F32, TESS_F32, 0, n & 1, 0.3 };
        kit_tree_sum(&r, leaves, n, sums, ELEMS);
        for (int i = 0; i < ELEMS; i++) {
            float x[LEAVES];
            for (int l = 0; l < n; l++)
                x[l] = values[l][i];
            const float expected = tree(x, 0, n) * 0.3f;
            assert_memory_equal(&sums[i], &expected, sizeof expected);
        }
    }
}

static void test_tree_sum__instruction_sets_give_the_same_bits(void **state) {
    (void)state;
    int pairs = 0;
    if (!kit_tree_sum_has_avx2())
        skip();
    fill();
    for (uint32_t in = TESS_U8; in <= TESS_F64; in++)
        for (uint32_t to = TESS_U8; to <= TESS_F64; to++)
            for (uint32_t redop = TESS_SUM; redop <= TESS_MAX; redop++)
                for (int n = 1; n <= LEAVES && kit_tree_sum_scalar(in, to, redop); n += 2) {
                    const kit_reduction r = { redop, in, to, redop == TESS_SUM, 0, in < TESS_F16 ? 1 : 0.7 };
                    memcpy(out[0], data[0], sizeof out[0]);
                    memcpy(out[1], data[0], sizeof out[1]);
                    kit_tree_sum_scalar(in, to, redop)(&r, leaves, n, out[0] + ODD, ELEMS);
                    kit_tree_sum_avx2(in, to, redop)(&r, leaves, n, out[1] + ODD, ELEMS);
                    assert_memory_equal(out[0], out[1], sizeof out[0]);
                    pairs += n == 1;
                }
    assert_int_equal(pairs, 3 * (8 + 6)); /* eight dtypes as they are, f16, bf16 and f32 into each other */
}

static void test_tree_sum__f32_becomes_bf16_once(void **state) {
    (void)state;
    const float a = 1.0f, b = 0x1p-9f, c = 0x1p-9f; /* rounding each partial sum to bf16 would lose both */
    const void *three[] = { &a, &b, &c };
    const kit_reduction r = { TESS_SUM, TESS_F32, TESS_BF16, 0, 0, 1 };
    uint16_t sum;
    kit_tree_sum(&r, three, 3, &sum, 1);
    assert_int_equal(sum, tess_bf16_of_f32(1.0f + 0x1p-8f));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tree_sum__f32_is_the_engines_tree),
        cmocka_unit_test(test_tree_sum__instruction_sets_give_the_same_bits),
        cmocka_unit_test(test_tree_sum__f32_becomes_bf16_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
