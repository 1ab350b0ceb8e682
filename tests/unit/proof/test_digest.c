/* SPDX-License-Identifier: BSD-3-Clause */
/* The digest of values: it is a sum over places, and every change of one value changes it. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>

#include "core/kernels/digest.h"
#include "core/kernels/isa.h"

enum { N = 700 };

static void fill(uint32_t *words) {
    for (uint32_t i = 0; i < N; i++)
        words[i] = (uint32_t)tess__spread(i + 1);
}

static void test_digest__parts_add_up_however_they_are_cut(void **state) {
    (void)state;
    uint32_t words[N];
    fill(words);
    for (uint32_t bytes = 1; bytes <= 8; bytes *= 2) {
        const uint64_t n = bytes == 8 ? N / 2 : N, whole = tess__digest(words, bytes, 1000, n, 5);
        for (uint64_t cut = 0; cut <= n; cut++) {
            const char *second = (const char *)words + cut * bytes;
            uint64_t sum =
                tess__digest(words, bytes, 1000, cut, 5) + tess__digest(second, bytes, 1000 + cut, n - cut, 5);
            assert_true(sum == whole);
        }
        assert_true(whole != tess__digest(words, bytes, 1001, n, 5)); /* the place counts, and of what it is */
        assert_true(whole != tess__digest(words, bytes, 1000, n, 6));
    }
}

static void test_digest__every_instruction_set_gives_the_same(void **state) {
    (void)state;
    uint32_t words[N];
    fill(words);
    for (uint32_t bytes = 1; bytes <= 8; bytes *= 2) {
        tess__isa_limit(TESS_ISA_C);
        uint64_t plain = tess__digest(words, bytes, 77, N / 2, 3);
        for (int isa = TESS_ISA_AVX2; isa <= TESS_ISA_AVX512; isa++) {
            tess__isa_limit(isa);
            assert_true(tess__digest(words, bytes, 77, N / 2, 3) == plain);
        }
        tess__isa_limit(0);
    }
}

static void test_digest__a_flipped_bit_changes_it(void **state) {
    (void)state;
    uint32_t words[N];
    fill(words);
    uint64_t whole = tess__digest(words, 4, 0, N, 1);
    for (uint32_t i = 0; i < N; i++)
        for (int bit = 0; bit < 32; bit++) {
            words[i] ^= 1u << bit;
            assert_true(tess__digest(words, 4, 0, N, 1) != whole);
            words[i] ^= 1u << bit;
        }
}

/* Signs that flip in pairs meet the fewest bits of the keys: 33. */
static void test_digest__two_flipped_signs_change_it(void **state) {
    (void)state;
    uint32_t words[N] = { 0 };
    uint64_t one[N];
    for (uint32_t i = 0; i < N; i++) {
        words[i] = 1u << 31;
        one[i] = tess__digest(words, 4, 0, N, 1);
        words[i] = 0;
    }
    for (uint32_t i = 0; i < N; i++)
        for (uint32_t k = 0; k < i; k++)
            assert_true(one[i] != one[k] && one[i] + one[k] != 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digest__parts_add_up_however_they_are_cut),
        cmocka_unit_test(test_digest__every_instruction_set_gives_the_same),
        cmocka_unit_test(test_digest__a_flipped_bit_changes_it),
        cmocka_unit_test(test_digest__two_flipped_signs_change_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
