/* SPDX-License-Identifier: BSD-3-Clause */
/* Muon's small products have the same bits by each instruction set that this processor has, and
 * by none. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include "plugins/optimizer-muon/product.c"

enum { MOST = 41 };
static float a[MOST][ROWS] __attribute__((aligned(64))), b[MOST][COLS] __attribute__((aligned(64)));

/* By its definition: each sum goes on where it was, and what lies beside it stays. */
static void expect_sums(small_fn *fn, uint64_t deep) {
    static float sum[(ROWS + 1) * WIDE] __attribute__((aligned(64)));
    for (int i = 0; i < (ROWS + 1) * WIDE; i++)
        sum[i] = (float)i / 7;
    fn(a, b, deep, sum);
    for (int i = 0; i < (ROWS + 1) * WIDE; i++) {
        float one = (float)i / 7;
        for (uint64_t k = 0; k < deep && i / WIDE < ROWS && i % WIDE < COLS; k++)
            one = fmaf(a[k][i / WIDE], b[k][i % WIDE], one);
        assert_memory_equal(&one, &sum[i], sizeof one);
    }
}

static void test_muon_small__each_instruction_set_has_the_same_bits(void **state) {
    (void)state;
    uint32_t seed = 1;
    for (int k = 0; k < MOST; k++)
        for (int i = 0; i < ROWS + COLS; i++) {
            seed = seed * 1664525 + 1013904223;
            *(i < ROWS ? &a[k][i] : &b[k][i - ROWS]) = (float)((double)seed / 4294967296.0 - 0.5);
        }
    for (uint64_t deep = 0; deep <= MOST; deep++) {
        expect_sums(small_any, deep);
        expect_sums(small_of_this_cpu(), deep);
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
            expect_sums(small_avx2, deep);
#endif
    }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_muon_small__each_instruction_set_has_the_same_bits) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
