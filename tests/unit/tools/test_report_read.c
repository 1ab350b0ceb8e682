/* SPDX-License-Identifier: BSD-3-Clause */
/* Reading, order of time and files of `tessera report`. */
#include "report_fixture.h"

#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/scratch_dir.h"

/* ---- reading ----------------------------------------------------------------------------------- */
static void test_report_read__all_events_are_kept(void **state) {
    (void)state;
    report_run run;
    assert_int_equal(
        fixture_read(
            "{\"event\":\"start\",\"model\":\"other\"}\n\n" FIXTURE_LEDGER("planned") FIXTURE_PLAN
            "{\"event\":\"unit\",\"index\":0,\"name\":\"a\",\"parameters\":2,\"elements\":100,"
            "\"shard_bytes\":64,\"unsharded_bytes\":128,\"gradient_bytes\":129,\"state_bytes\":130}\n" FIXTURE_SPAN(
                "measured", "transfer_up", "fetch", 0.5, 0.25),
            &run),
        TESS_OK);
    assert_int_equal(run.n_points[REPORT_PLANNED], 11);
    assert_int_equal(run.n_points[REPORT_MEASURED], 0);
    const report_point *p = &run.points[REPORT_PLANNED][5];
    assert_int_equal(p->point, REPORT_PRE_BACKWARD + 1);
    assert_string_equal(report_name(&run, p->unit), "a");
    assert_int_equal(p->domain[REPORT_DEVICE].total, 4700);
    assert_int_equal(p->domain[REPORT_DEVICE].bytes[4], 500);
    assert_int_equal(p->domain[REPORT_HOST].total, 0);
    assert_int_equal(run.n_units, 1);
    assert_int_equal(run.units[0].state_bytes, 130);
    assert_int_equal(run.n_spans, 1);
    assert_int_equal(run.spans[0].lane, 2);
    assert_true(run.spans[0].start == 0.5 && run.spans[0].seconds == 0.25);
    assert_string_equal(run.settings[0], "toy");
    assert_string_equal(run.settings[1], "2");
    assert_int_equal(run.planned_peak[REPORT_DEVICE], 6000);
    assert_int_equal(run.budget[REPORT_DEVICE], 7000);
    assert_int_equal(run.has_fits && run.fits, 1);
    report_run_free(&run);
}

static void test_report_read__summary_gives_the_time_of_a_step(void **state) {
    (void)state;
    report_run run;
    assert_int_equal(
        fixture_read("{\"event\":\"summary\",\"model\":\"gpt\",\"steps\":4,\"step_seconds\":0.5,\"loss\":null,"
                     "\"peak_device_bytes\":10,\"planned_peak_device_bytes\":11,\"peak_host_bytes\":12}",
                     &run),
        TESS_OK);
    assert_true(run.step_seconds == 0.5);
    assert_int_equal(run.has_loss, 0);
    assert_int_equal(run.measured_peak[REPORT_DEVICE], 10);
    assert_int_equal(run.planned_peak[REPORT_DEVICE], 11);
    assert_int_equal(run.measured_peak[REPORT_HOST], 12);
    report_run_free(&run);
}

static void test_report_read__unknown_category_is_not_lost(void **state) {
    (void)state;
    report_run run;
    assert_int_equal(
        fixture_read(FIXTURE_POINT("planned", 0, "before_optimizer", "null", "\"later\":5,\"newer\":6"), &run),
        TESS_OK);
    assert_int_equal(run.points[0][0].domain[0].bytes[REPORT_CATEGORIES - 1], 11);
    assert_int_equal(run.points[0][0].domain[0].total, 11);
    report_run_free(&run);
}

static void test_report_read__bad_lines_are_named(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        { "",
          "runs/toy.json: nothing about memory or time, expected what `tessera train --json` or `tessera plan --json` "
          "writes" },
        { "{\"event\":\"step\"}\n",
          "runs/toy.json: nothing about memory or time, expected what `tessera train --json` or "
          "`tessera plan --json` writes" },
        { "\n\nhello\n", "runs/toy.json:3: no JSON at column 1, expected '{'" },
        { "{\"event\":\"step\"}\n{\"event\":\"led",
          "runs/toy.json:2: cut off JSON at column 14, expected the end of the string" },
        { "{\"event\":\"step\"}\n{\"event\":\"ledger\",\n",
          "runs/toy.json:2: cut off JSON at column 20, expected '\"'" },
        { "{\"a\":1}",
          "runs/toy.json:1: an object without \"event\", expected what `tessera train --json` or `tessera plan "
          "--json` writes" },
        { "{\"event\":\"ledger\",\"source\":\"guessed\"}",
          "runs/toy.json:1: \"source\" is 'guessed', expected planned or measured" },
        { "{\"event\":\"ledger\",\"source\":\"planned\"}",
          "runs/toy.json:1: \"index\" is missing, expected a whole number" },
        { "{\"event\":\"ledger\",\"source\":\"planned\",\"index\":-1}",
          "runs/toy.json:1: \"index\" is not a whole number" },
        { "{\"event\":\"ledger\",\"source\":\"planned\",\"index\":0}",
          "runs/toy.json:1: \"point\" is missing, expected a point of the step" },
        { FIXTURE_POINT("planned", 0, "peak", "5", ""),
          "runs/toy.json:1: \"unit\" is not a text of less than 1024 bytes" },
        { FIXTURE_POINT("planned", 0, "peak", "null", "\"activation\":-1"),
          "runs/toy.json:1: \"activation\" of \"device\" is no number of bytes, of 2^58 in all" },
        { FIXTURE_POINT("planned", 0, "peak", "null", "\"activation\":200000000000000000,\"input\":200000000000000000"),
          "runs/toy.json:1: \"input\" of \"device\" is no number of bytes, of 2^58 in all" },
        { FIXTURE_SPAN("measured", "compute", "x", -1, 0), "runs/toy.json:1: \"start\" is not seconds" },
        { "{\"event\":\"unit\",\"name\":\"a\",\"elements\":1.5}",
          "runs/toy.json:1: \"elements\" is not a whole number" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        report_run run;
        FILE *in = tmpfile();
        fputs(cases[i].text, in);
        rewind(in);
        assert_int_equal(report_read(in, "runs/toy.json", &run), TESS_E_DATA);
        assert_string_equal(tess_last_error(), cases[i].message);
        fclose(in);
        report_run_free(&run);
    }
}

static void test_report_read__line_without_end_is_refused(void **state) {
    (void)state;
    report_run run;
    FILE *in = fopen("/dev/zero", "r");
    assert_non_null(in);
    assert_int_equal(report_read(in, "zero", &run), TESS_E_DATA);
    assert_string_equal(tess_last_error(), "zero:1: a line of a mebibyte or more, expected shorter ones");
    report_run_free(&run);
    fclose(in);
}

/* ---- order ------------------------------------------------------------------------------------- */
static report_run run;
static report_order order;

static void make_order(const char *text) {
    assert_int_equal(fixture_read(text, &run), TESS_OK);
    assert_int_equal(report_order_make(&run, &order), TESS_OK);
}

static int drop_order(void **state) {
    (void)state;
    report_order_free(&order);
    report_run_free(&run);
    return 0;
}

static void test_report_order__planned_and_measured_share_columns(void **state) {
    (void)state;
    make_order(FIXTURE_LEDGER("planned") FIXTURE_LEDGER("measured") FIXTURE_PLAN);
    assert_int_equal(order.n, 11);
    assert_int_equal(order.area, REPORT_PLANNED);
    assert_int_equal(order.both, 11);
    assert_int_equal(order.different, 0);
    for (size_t i = 0; i < order.n; i++)
        assert_true(order.columns[i].of[0] && order.columns[i].of[1]);
}

static void test_report_order__peak_between_points_stands_after_the_point_of_the_plan(void **state) {
    (void)state;
    make_order(FIXTURE_LEDGER("planned") FIXTURE_PLAN);
    assert_int_equal(order.peak[REPORT_DEVICE], 7); /* after point 6, before_post_backward */
    assert_int_equal(order.columns[7].of[0]->point, REPORT_PEAK);
    assert_int_equal(report_stack_at(&order, REPORT_PLANNED, 7, REPORT_DEVICE)->total, 5250);
    assert_int_equal(order.phases[7], REPORT_BACKWARD);
}

static void test_report_order__peak_that_equals_a_point_has_no_column(void **state) {
    (void)state;
    make_order(FIXTURE_POINT("measured", 0, "before_optimizer", "null", "\"input\":5")
                   FIXTURE_POINT("measured", 1, "after_optimizer", "null", "\"input\":9")
                       FIXTURE_POINT("measured", 2, "peak", "null", "\"input\":9"));
    assert_int_equal(order.area, REPORT_MEASURED);
    assert_int_equal(order.n, 2);
    assert_int_equal(order.peak[REPORT_DEVICE], 1);
}

/* The page says "at all N instants" above and "all N instants" below. */
static void test_report_order__peak_that_equals_a_point_is_no_instant_of_its_own(void **state) {
    (void)state;
    make_order(FIXTURE_POINT("planned", 0, "before_optimizer", "null", "\"input\":9")
                   FIXTURE_POINT("planned", 1, "peak", "null", "\"input\":9")
                       FIXTURE_POINT("measured", 0, "before_optimizer", "null", "\"input\":9")
                           FIXTURE_POINT("measured", 1, "peak", "null", "\"input\":9"));
    assert_int_equal(order.n, 1);
    assert_int_equal(order.both, 1);
    assert_int_equal(order.different, 0);
}

static void test_report_order__peak_in_other_categories_is_a_difference(void **state) {
    (void)state;
    make_order(FIXTURE_POINT("planned", 0, "before_optimizer", "null", "\"input\":9")
                   FIXTURE_POINT("planned", 1, "peak", "null", "\"input\":9")
                       FIXTURE_POINT("measured", 0, "before_optimizer", "null", "\"input\":9")
                           FIXTURE_POINT("measured", 1, "peak", "null", "\"input\":8,\"temporary\":1"));
    assert_int_equal(order.n, 1);
    assert_int_equal(order.both, 2);
    assert_int_equal(order.different, 1);
}

static void test_report_order__host_keeps_its_level_at_the_devices_peak(void **state) {
    (void)state;
    make_order("{\"event\":\"ledger\",\"source\":\"planned\",\"index\":0,\"point\":\"before_optimizer\",\"device\":"
               "{\"input\":5},\"host\":{\"input\":7}}\n"
               "{\"event\":\"ledger\",\"source\":\"planned\",\"index\":1,\"point\":\"peak\",\"device\":{\"input\":8},"
               "\"host\":{\"input\":9}}\n");
    assert_int_equal(order.n, 2);
    assert_int_equal(report_stack_at(&order, 0, order.peak[REPORT_DEVICE], REPORT_DEVICE)->total, 8);
    assert_int_equal(report_stack_at(&order, 0, order.peak[REPORT_HOST], REPORT_HOST)->total, 9);
    assert_int_equal(report_stack_at(&order, 0, 0, REPORT_HOST)->total, 7);
}

static void test_report_order__one_byte_less_is_a_difference(void **state) {
    (void)state;
    make_order(FIXTURE_POINT("planned", 0, "before_pre_forward", "\"a\"", "\"input\":5,\"temporary\":1")
                   FIXTURE_POINT("planned", 1, "after_pre_forward", "\"a\"", "\"input\":5,\"temporary\":1")
                       FIXTURE_POINT("measured", 0, "before_pre_forward", "\"a\"", "\"input\":5,\"temporary\":1")
                           FIXTURE_POINT("measured", 1, "after_pre_forward", "\"a\"", "\"input\":6"));
    assert_int_equal(order.both, 2);
    assert_int_equal(order.different, 1); /* the same total in other categories */
    assert_int_equal(order.first_different->index, 1);
}

static void test_report_order__recomputation_belongs_to_its_backward(void **state) {
    (void)state;
    make_order(FIXTURE_POINT("planned", 0, "before_pre_forward", "\"a\"", "")
                   FIXTURE_POINT("planned", 1, "after_post_forward", "\"a\"", "")
                       FIXTURE_POINT("planned", 2, "before_pre_backward", "\"b\"", "")
                           FIXTURE_POINT("planned", 3, "after_pre_forward", "\"a\"", "")
                               FIXTURE_POINT("planned", 4, "before_pre_backward", "\"a\"", "")
                                   FIXTURE_POINT("planned", 5, "before_optimizer", "\"a\"", ""));
    static const int want[] = { REPORT_FORWARD,  REPORT_FORWARD,  REPORT_BACKWARD,
                                REPORT_BACKWARD, REPORT_BACKWARD, REPORT_STEP };
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(order.phases[i], want[i]);
    assert_int_equal(report_order_segment(&order, 0), 2);
}

static void test_report_order__exposed_time_is_what_no_compute_covers(void **state) {
    (void)state;
    make_order(FIXTURE_SPAN("measured", "compute", "forward", 1, 2)
                   FIXTURE_SPAN("measured", "compute", "backward", 4, 2)
                       FIXTURE_SPAN("measured", "communication", "all_gather", 0, 2)
                           FIXTURE_SPAN("measured", "communication", "all_gather", 1, 1.5)
                               FIXTURE_SPAN("measured", "communication", "reduce_scatter", 5, 2)
                                   FIXTURE_SPAN("measured", "compute", "wait_all_gather", 0, 1)
                                       FIXTURE_SPAN("simulated", "communication", "all_gather", 0, 100));
    assert_true(report_lane_busy(&run, REPORT_MEASURED, 1) == 4.5); /* 0 to 2.5 and 5 to 7 */
    assert_true(report_exposed(&run, REPORT_MEASURED, 1) == 2);     /* 0 to 1 and 6 to 7 */
    assert_true(report_span_end(&run, REPORT_MEASURED) == 7);
}

/* ---- files ------------------------------------------------------------------------------------- */
static void test_report_file__nothing_is_left_when_it_cannot_be_written(void **state) {
    (void)state;
    scratch_dir d;
    report_file f;
    assert_int_equal(scratch_dir_make(&d), 0);
    assert_int_equal(scratch_write(&d, "page", "old", 3), 0);
    assert_int_equal(report_file_open(&f, scratch_path(&d, "page")), TESS_OK);
    fputs("new", f.out);
    report_file_discard(&f);
    assert_int_equal(scratch_entries(&d), 1);
    assert_int_equal(report_file_open(&f, scratch_path(&d, "none/page")), TESS_E_DATA);
    assert_int_equal(report_file_open(&f, d.path), TESS_E_DATA);
    assert_non_null(strstr(tess_last_error(), "Is a directory"));
    assert_int_equal(report_file_open(&f, "/dev/full"), TESS_OK);
    fputs("new", f.out);
    assert_int_equal(report_file_commit(&f), TESS_E_DATA);
    assert_string_equal(tess_last_error(), "/dev/full: cannot be written: No space left on device");
    scratch_dir_remove(&d);
}

static void test_report_file__link_stays_and_its_file_is_replaced(void **state) {
    (void)state;
    scratch_dir d;
    report_file f;
    struct stat there;
    char text[8] = "";
    assert_int_equal(scratch_dir_make(&d), 0);
    assert_int_equal(scratch_write(&d, "page", "old", 3), 0);
    assert_int_equal(symlink("page", scratch_path(&d, "link")), 0);
    assert_int_equal(report_file_open(&f, scratch_path(&d, "link")), TESS_OK);
    fputs("new", f.out);
    assert_int_equal(report_file_commit(&f), TESS_OK);
    assert_int_equal(lstat(scratch_path(&d, "link"), &there), 0);
    assert_true(S_ISLNK(there.st_mode));
    FILE *page = fopen(scratch_path(&d, "page"), "r");
    assert_non_null(fgets(text, sizeof text, page));
    fclose(page);
    assert_string_equal(text, "new");
    assert_int_equal(scratch_entries(&d), 2);
    scratch_dir_remove(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_report_read__all_events_are_kept),
        cmocka_unit_test(test_report_read__summary_gives_the_time_of_a_step),
        cmocka_unit_test(test_report_read__unknown_category_is_not_lost),
        cmocka_unit_test(test_report_read__bad_lines_are_named),
        cmocka_unit_test(test_report_read__line_without_end_is_refused),
        cmocka_unit_test_teardown(test_report_order__planned_and_measured_share_columns, drop_order),
        cmocka_unit_test_teardown(test_report_order__peak_between_points_stands_after_the_point_of_the_plan,
                                  drop_order),
        cmocka_unit_test_teardown(test_report_order__peak_that_equals_a_point_has_no_column, drop_order),
        cmocka_unit_test_teardown(test_report_order__peak_that_equals_a_point_is_no_instant_of_its_own, drop_order),
        cmocka_unit_test_teardown(test_report_order__peak_in_other_categories_is_a_difference, drop_order),
        cmocka_unit_test_teardown(test_report_order__host_keeps_its_level_at_the_devices_peak, drop_order),
        cmocka_unit_test_teardown(test_report_order__one_byte_less_is_a_difference, drop_order),
        cmocka_unit_test_teardown(test_report_order__recomputation_belongs_to_its_backward, drop_order),
        cmocka_unit_test_teardown(test_report_order__exposed_time_is_what_no_compute_covers, drop_order),
        cmocka_unit_test(test_report_file__nothing_is_left_when_it_cannot_be_written),
        cmocka_unit_test(test_report_file__link_stays_and_its_file_is_replaced),
    };
    return cmocka_run_group_tests_name("report_read", tests, NULL, NULL);
}
