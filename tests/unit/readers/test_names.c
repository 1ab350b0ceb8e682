/* SPDX-License-Identifier: BSD-3-Clause */
/* The words for passes and points in what `tessera plan` writes, by heart: programs read them. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "core/readers/ledger.h"

static void test_names__points_are_named_before_and_after(void **state) {
    (void)state;
    static const char *const of[] = {
        NULL, "pre_forward", "post_forward", "pre_backward", "post_backward", "optimizer"
    };
    char want[64];
    for (uint32_t point = 0; point < 9; point++)
        for (uint32_t after = 0; after < 2; after++) {
            snprintf(want, sizeof want, "%s", "?");
            if (point >= TESS_LEDGER_PRE_FORWARD && point <= TESS_LEDGER_OPTIMIZER)
                snprintf(want, sizeof want, "%s_%s", after ? "after" : "before", of[point]);
            else if (point == TESS_LEDGER_PEAK && !after)
                snprintf(want, sizeof want, "peak");
            assert_string_equal(tess__point_name(point | after * TESS_LEDGER_AFTER), want);
        }
    assert_string_equal(tess__point_name(UINT32_MAX), "?");
}

static void test_names__passes_are_named(void **state) {
    (void)state;
    assert_string_equal(tess__pass_name(TESS_PASS_TRAIN), "train");
    assert_string_equal(tess__pass_name(TESS_PASS_TRAIN | TESS_PASS_NO_SYNC), "no_sync");
    assert_string_equal(tess__pass_name(TESS_PASS_EVAL), "eval");
    assert_string_equal(tess__pass_name(TESS__PASS_STEP), "step");
    assert_string_equal(tess__pass_name(TESS__PASS_NORM), "norm");
    assert_string_equal(tess__pass_name(TESS__PASS_CLIP), "clip");
    assert_string_equal(tess__pass_name(TESS__PASS_FULL), "full");
    assert_string_equal(tess__pass_name(TESS_PASS_EVAL | TESS_PASS_NO_SYNC), "?");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names__points_are_named_before_and_after),
        cmocka_unit_test(test_names__passes_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
