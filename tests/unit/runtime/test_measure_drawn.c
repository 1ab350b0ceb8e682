/* SPDX-License-Identifier: BSD-3-Clause */
/* As test_measure, of plans that are drawn by chance, with plugins of the test's own: it takes no time. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include "measured.h"
#include "tests/unit/drawn_plan.h"

/* Of a comm plugin that wants scratch for each collective, and of settings that no engine on a processor takes. */
static void test_measure_drawn__plans_are_measured_as_they_are_planned(void **state) {
    (void)state;
    int planned = 0;
    for (int n = 0; n < 300; n++) {
        char what[1024];
        plan f;
        tess__plan p;
        if (plan_drawn(n, &f, &p, what) == TESS_OK)
            check_plan(&p, what), planned++;
        tess__plan_free(&p);
    }
    assert_true(planned > 200);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_measure_drawn__plans_are_measured_as_they_are_planned) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
