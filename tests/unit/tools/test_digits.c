/* SPDX-License-Identifier: BSD-3-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "tools/train/data/digits.h"

enum { PIXELS = TOOL_DIGITS_SIDE * TOOL_DIGITS_SIDE };

static void test_digits__same_seed_and_index_draw_the_same(void **state) {
    (void)state;
    unsigned char first[PIXELS], again[PIXELS], other[PIXELS];
    tool_digits_draw(1, 17, first);
    tool_digits_draw(1, 18, other);
    tool_digits_draw(1, 17, again);
    assert_memory_equal(first, again, PIXELS);
    assert_memory_not_equal(first, other, PIXELS);
    tool_digits_draw(2, 17, other);
    assert_memory_not_equal(first, other, PIXELS);
}

static void test_digits__all_ten_are_drawn_about_equally_often(void **state) {
    (void)state;
    int counts[10] = { 0 };
    for (uint64_t i = 0; i < 6000; i++) {
        unsigned char label = tool_digits_label(1, i);
        assert_in_range(label, 0, 9);
        counts[label]++;
    }
    /* 600 expected each, standard deviation 23. */
    for (int digit = 0; digit < 10; digit++)
        assert_in_range(counts[digit], 480, 720);
}

static void test_digits__ink_lies_inside_and_the_border_is_dark(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 200; i++) {
        unsigned char pixels[PIXELS];
        int inked = 0, corners = 0;
        tool_digits_draw(3, i, pixels);
        for (int p = 0; p < PIXELS; p++)
            inked += pixels[p] > 100;
        for (int p = 0; p < TOOL_DIGITS_SIDE; p++)
            corners += pixels[p] > 100;
        assert_in_range(inked, 15, 300);
        assert_in_range(corners, 0, 4);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digits__same_seed_and_index_draw_the_same),
        cmocka_unit_test(test_digits__all_ten_are_drawn_about_equally_often),
        cmocka_unit_test(test_digits__ink_lies_inside_and_the_border_is_dark),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
