/* SPDX-License-Identifier: BSD-3-Clause */
/* What `tessera report` draws: markup that is whole, areas as high as the events say, traces that add up. */
#include "report_fixture.h"

#include <math.h>

#include "tools/support/json_fields.h"

#define FIXTURE_SPANS                                                                                                  \
    FIXTURE_SPAN("measured", "communication", "all_gather", 0, 0.25)                                                   \
    FIXTURE_SPAN("measured", "compute", "forward", 0.25, 0.5)                                                          \
    FIXTURE_SPAN("measured", "compute", "backward", 0.75, 1)                                                           \
    FIXTURE_SPAN("measured", "communication", "reduce_scatter", 1.75, 0.5)                                             \
    FIXTURE_SPAN("measured", "compute", "optimizer", 2.25, 0.125)
#define FIXTURE_UNIT(name)                                                                                             \
    "{\"event\":\"unit\",\"index\":0,\"name\":\"" name "\",\"parameters\":2,\"elements\":1234567,\"shard_bytes\":64,"  \
    "\"unsharded_bytes\":128,\"gradient_bytes\":129,\"state_bytes\":130}\n"
#define WHOLE                                                                                                          \
    FIXTURE_UNIT("a")                                                                                                  \
    FIXTURE_LEDGER("planned")                                                                                          \
    FIXTURE_LEDGER("measured")                                                                                         \
    FIXTURE_SPANS FIXTURE_PLAN                                                                                         \
        "{\"event\":\"summary\",\"model\":\"toy\",\"steps\":2,\"step_seconds\":2.5,\"peak_device_bytes\":6000}\n"

/* ---- the memory picture ------------------------------------------------------------------------ */
enum { COLUMNS = 11 };
/* Columns in order of time: the points, with the peak behind point 6. */
static const uint64_t parameters[COLUMNS] = { 0, 500, 500, 0, 0, 500, 500, 0, 0, 0, 0 };
static const uint64_t gradients[COLUMNS] = { 0, 0, 0, 0, 0, 500, 500, 500, 0, 0, 0 };
static const uint64_t activations[COLUMNS] = { 0, 0, 700, 700, 700, 700, 0, 0, 0, 0, 0 };
static const uint64_t communication[COLUMNS] = { 0, 0, 0, 0, 0, 0, 0, 1500, 0, 0, 0 };
static const uint64_t sharded[COLUMNS] = { 0, 0, 0, 0, 0, 0, 0, 250, 250, 250, 0 };

/* Top and bottom of an area in the middle of each column, read from its path of V and H. */
static void read_area(const char *svg, const char *category, double top[COLUMNS], double bottom[COLUMNS]) {
    char key[64];
    double x, y;
    snprintf(key, sizeof key, "data-category=\"%s\" d=\"M", category);
    const char *p = strstr(svg, key);
    assert_non_null(p);
    p += strlen(key);
    assert_int_equal(sscanf(p, "%lf %lf", &x, &y), 2);
    const double left = x, width = 620.0 / COLUMNS;
    for (p += strcspn(p, "VZ"); *p == 'V'; p += strcspn(p + 1, "VZ") + 1) {
        double to;
        assert_int_equal(sscanf(p, "V%lfH%lf", &y, &to), 2);
        for (int i = 0; i < COLUMNS; i++) {
            double middle = left + (i + 0.5) * width;
            if (x < middle && middle < to)
                top[i] = y;
            if (to < middle && middle < x)
                bottom[i] = y;
        }
        x = to;
    }
    assert_int_equal(*p, 'Z');
}

static void check_area(const char *svg, const char *category, const uint64_t *bytes) {
    const double scale = 264.0 / 7700; /* the picture ends a tenth above the budget */
    double top[COLUMNS], bottom[COLUMNS];
    read_area(svg, category, top, bottom);
    for (int i = 0; i < COLUMNS; i++)
        if (fabs(bottom[i] - top[i] - (double)bytes[i] * scale) > 0.11)
            fail_msg("%s, column %d: %.2f high, expected %.2f", category, i, bottom[i] - top[i],
                     (double)bytes[i] * scale);
}

static void test_report__areas_are_as_high_as_the_events_say(void **state) {
    (void)state;
    char *svg = fixture_render(WHOLE, REPORT_SVG);
    fixture_check_markup(svg);
    check_area(svg, "unsharded_parameter", parameters);
    check_area(svg, "unsharded_gradient", gradients);
    check_area(svg, "activation", activations);
    check_area(svg, "communication", communication);
    check_area(svg, "sharded_gradient", sharded);
    assert_int_equal(fixture_count(svg, "data-category="), 7);
    assert_int_equal(fixture_count(svg, "data-source=\"measured\""), 1);
    free(svg);
}

static void test_report__picture_says_peak_budget_and_what_was_obtained(void **state) {
    (void)state;
    char *svg = fixture_render(WHOLE, REPORT_SVG);
    assert_non_null(strstr(svg, ">most alive 5.13 KiB, later than before post-backward of a<"));
    assert_non_null(strstr(svg, ">budget 6.84 KiB<"));
    assert_non_null(strstr(svg, ">obtained 5.86 KiB<"));
    assert_non_null(strstr(svg, ">toy · 2 ranks · strategy full<"));
    assert_non_null(strstr(svg, ">forward<"));
    assert_non_null(strstr(svg, ">backward<"));
    assert_non_null(strstr(svg, ">optimizer<"));
    free(svg);
}

static void test_report__plan_alone_has_no_measured_line(void **state) {
    (void)state;
    char *svg = fixture_render(FIXTURE_LEDGER("planned"), REPORT_SVG);
    fixture_check_markup(svg);
    assert_null(strstr(svg, "data-source=\"measured\""));
    assert_non_null(strstr(svg, "alive at that instant, planned"));
    free(svg);
}

static void test_report__many_columns_keep_their_highest(void **state) {
    (void)state;
    enum { MANY = 5000, HIGH = 3333 };
    char *text = malloc(MANY * 160), *at = text;
    for (int i = 0; i < MANY; i++)
        at +=
            sprintf(at,
                    "{\"event\":\"ledger\",\"source\":\"planned\",\"index\":%d,\"point\":\"before_optimizer\",\"unit\":"
                    "\"u%d\",\"device\":{\"activation\":%d}}\n",
                    i, i, i == HIGH ? 1000 : 10);
    char *svg = fixture_render(text, REPORT_SVG);
    fixture_check_markup(svg);
    assert_in_range(strlen(svg), 1000, 60000);
    /* 1100 bytes are 264 high, and end at y 336 */
    assert_non_null(strstr(svg, "V96.0H"));
    assert_non_null(strstr(svg, ">most alive 0.98 KiB, before optimizer of u3333<"));
    free(svg);
    free(text);
}

/* ---- the page ---------------------------------------------------------------------------------- */
static void test_report__page_is_whole_and_loads_nothing(void **state) {
    (void)state;
    static const char *const refused[] = { "<script", "<link", "<img",        "src=",
                                           "@import", "url(h", "javascript:", "onload" };
    char *page = fixture_render(WHOLE, REPORT_HTML);
    fixture_check_markup(page);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        assert_null(strstr(page, refused[i]));
    assert_int_equal(fixture_count(page, "http"),
                     fixture_count(page, "http://www.w3.org/2000/svg") + 1); /* http-equiv */
    assert_non_null(strstr(page, "default-src 'none'; style-src 'unsafe-inline'"));
    assert_non_null(strstr(page, "prefers-color-scheme:dark"));
    free(page);
}

static void test_report__every_number_of_the_pictures_is_in_a_table(void **state) {
    (void)state;
    char *page = fixture_render(WHOLE, REPORT_HTML);
    static const char *const cells[] = {
        "<th scope=\"row\">communication</th><td class=\"n\">1,500</td><td class=\"n\">1,500</td><td "
        "class=\"n\">equal</td>"
        "<td class=\"n\">1,500</td>",
        "<th scope=\"row\">activation</th><td class=\"n\">0</td><td class=\"n\">0</td><td class=\"n\">equal</td><td "
        "class=\"n\">700</td>",
        "<th scope=\"row\">alive in all</th><td class=\"n\">5,250</td><td class=\"n\">5,250</td>",
        "<th scope=\"row\">fragmentation</th><td class=\"n\">750</td><td class=\"n\">750</td>",
        "<th scope=\"row\">obtained</th><td class=\"n\">6,000</td><td class=\"n\">6,000</td>",
        "communication: reduce_scatter</th><td class=\"n\">1</td><td class=\"n\">500 ms</td><td class=\"n\">21.1 "
        "%</td>",
        "<th scope=\"row\">a</th><td class=\"n\">2</td><td class=\"n\">1,234,567</td><td class=\"n\">64</td><td "
        "class=\"n\">128</td><td class=\"n\">129</td><td class=\"n\">130</td><td class=\"n\">500 ms</td><td "
        "class=\"n\">1.00 "
        "s</td><td class=\"n\">750 ms</td>",
        "Planned equals measured</span>, in every category, at all 11 instants",
        "<dt>communication that compute waits for</dt><dd>750 ms</dd>",
        "<dt>a step, median of the run</dt><dd>2.50 s</dd>",
        "<th scope=\"row\">after pre-backward of a</th><td class=\"n\">1,000</td><td class=\"n\">2,000</td><td "
        "class=\"n\">0</td><td class=\"n\">500</td><td class=\"n\">500</td><td class=\"n\">700</td><td "
        "class=\"n\">0</td><td "
        "class=\"n\">4,700</td><td>equal</td>",
    };
    for (size_t i = 0; i < sizeof cells / sizeof cells[0]; i++)
        if (!strstr(page, cells[i]))
            fail_msg("not in the page: %s", cells[i]);
    free(page);
}

static void test_report__difference_is_said(void **state) {
    (void)state;
    char *page = fixture_render(FIXTURE_POINT("planned", 0, "before_optimizer", "\"a\"", "\"input\":5")
                                    FIXTURE_POINT("measured", 0, "before_optimizer", "\"a\"", "\"input\":6"),
                                REPORT_HTML);
    assert_non_null(
        strstr(page, "Planned differs from measured</span> at 1 of 1 instants, first before optimizer of a."));
    assert_non_null(strstr(page, "<td class=\"n\">differs</td>"));
    free(page);
}

static void test_report__names_cannot_break_out(void **state) {
    (void)state;
    static const char text[] = FIXTURE_UNIT("</td><script>alert(1)</script>")
        FIXTURE_POINT("planned", 0, "before_pre_forward", "\"\\\"><img src=x onerror=alert(1)>&amp;\"", "\"input\":5")
            FIXTURE_POINT("planned", 1, "after_pre_forward", "\"</svg></style>'\\u0001\\u202e\"",
                          "\"input\":9") "{\"event\":\"plan\",\"model\":\"<b onclick='x'>\",\"wrap\":\"\\\"/><i>\"}\n";
    static const int formats[] = { REPORT_HTML, REPORT_SVG };
    for (size_t i = 0; i < 2; i++) {
        char *out = fixture_render(text, formats[i]);
        fixture_check_markup(out);
        assert_null(strstr(out, "<script"));
        assert_null(strstr(out, "<img"));
        assert_null(strstr(out, "<b "));
        assert_null(strstr(out, "\x01"));
        assert_null(strstr(out, "\xe2\x80\xae"));
        assert_non_null(strstr(out, "&lt;b onclick=&#39;x&#39;&gt;"));
        free(out);
    }
}

/* ---- the trace --------------------------------------------------------------------------------- */
static json_fields event;

/* Calls `check` for each line of the trace that is an event. */
static int each_event(const char *trace, int (*check)(void *), void *user) {
    int n = 0;
    assert_true(strncmp(trace, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", 40) == 0);
    assert_string_equal(trace + strlen(trace) - 4, "\n]}\n");
    for (const char *p = strchr(trace, '\n') + 1; *p != ']'; p = strchr(p, '\n') + 1) {
        size_t bytes = strcspn(p, "\n"), comma = p[bytes - 1] == ',';
        assert_int_equal(comma, p[bytes + 1] != ']');
        if (!json_fields_read(&event, p, bytes - comma))
            fail_msg("no JSON: %.*s", (int)bytes, p);
        n += check(user);
    }
    return n;
}

static int is_phase(const char *phase) {
    char text[8];
    return json_fields_text(&event, "ph", text, sizeof text) && strcmp(text, phase) == 0;
}

static int check_span(void *user) {
    double ts, duration, *busy = user;
    uint64_t thread, process;
    json_fields args;
    if (!is_phase("X"))
        return 0;
    assert_int_equal(json_fields_double(&event, "ts", &ts) && json_fields_double(&event, "dur", &duration), 1);
    assert_int_equal(json_fields_uint(&event, "tid", &thread) && json_fields_uint(&event, "pid", &process), 1);
    assert_int_equal(json_fields_object(&event, "args", &args), 1);
    assert_int_equal(process, 1);
    busy[thread] += duration;
    return 1;
}

typedef struct {
    double last[3];
    uint64_t highest[3];
} counters;

static int check_counter(void *user) {
    counters *c = user;
    json_fields args;
    uint64_t process, sum = 0, value;
    double ts;
    if (!is_phase("C"))
        return 0;
    assert_int_equal(json_fields_uint(&event, "pid", &process) && json_fields_double(&event, "ts", &ts), 1);
    assert_int_equal(json_fields_object(&event, "args", &args), 1);
    for (size_t i = 0; i < args.n; i++) {
        assert_int_equal(json_fields_uint(&args, args.fields[i].key, &value), 1);
        sum += value;
    }
    assert_true(process < 3 && ts >= c->last[process]);
    c->last[process] = ts;
    if (sum > c->highest[process])
        c->highest[process] = sum;
    return 1;
}

static int check_metadata(void *user) {
    char name[32];
    (void)user;
    if (!is_phase("M"))
        return 0;
    assert_int_equal(json_fields_text(&event, "name", name, sizeof name), 1);
    return strcmp(name, "thread_name") == 0;
}

static void test_report__trace_has_lanes_spans_and_counters(void **state) {
    (void)state;
    char *trace = fixture_render(WHOLE, REPORT_TRACE);
    double busy[REPORT_LANES + 1] = { 0 };
    counters c = { { 0 }, { 0 } };
    assert_int_equal(each_event(trace, check_span, busy), 5);
    assert_true(busy[1] == 1625000 && busy[2] == 750000); /* microseconds */
    assert_int_equal(each_event(trace, check_metadata, NULL), 2);
    assert_int_equal(each_event(trace, check_counter, &c), 22);
    assert_int_equal(c.highest[1], 5250);
    assert_int_equal(c.highest[2], 5250);
    assert_true(c.last[1] == 2375000); /* the end of the optimizer */
    assert_true(c.last[2] == 10000);   /* planned, without spans: an instant per millisecond */
    free(trace);
}

static void test_report__names_in_a_trace_are_escaped(void **state) {
    (void)state;
    char *trace =
        fixture_render("{\"event\":\"span\",\"source\":\"measured\",\"lane\":\"compute\",\"op\":\"a\\\"}]\",\"unit\":"
                       "\"\\\\\\n\\u00fc\",\"start\":0,\"seconds\":1}\n",
                       REPORT_TRACE);
    double busy[REPORT_LANES + 1] = { 0 };
    assert_int_equal(each_event(trace, check_span, busy), 1);
    assert_non_null(strstr(trace, "\"name\":\"a\\\"}] \\\\\\n\xc3\xbc\""));
    free(trace);
}

/* ---- labels ------------------------------------------------------------------------------------ */
static void test_report__labels_have_three_digits(void **state) {
    (void)state;
    char text[32];
    assert_string_equal(report_bytes(0, text), "0");
    assert_string_equal(report_bytes(999, text), "999 bytes");
    assert_string_equal(report_bytes(1024, text), "1 KiB");
    assert_string_equal(report_bytes(1023, text), "1.00 KiB");
    assert_string_equal(report_bytes(1572864, text), "1.50 MiB");
    assert_string_equal(report_bytes(104333312, text), "99.5 MiB");
    assert_string_equal(report_bytes(UINT64_C(123) << 30, text), "123 GiB");
    assert_string_equal(report_grouped(1234567, text), "1,234,567");
    assert_string_equal(report_grouped(999, text), "999");
    assert_string_equal(report_seconds(0.0123456, text), "12.3 ms");
    assert_string_equal(report_seconds(2.5, text), "2.50 s");
    assert_string_equal(report_seconds(0, text), "0");
}

static void test_report__axis_has_few_round_marks(void **state) {
    (void)state;
    for (uint64_t top = 6; top < UINT64_C(1) << 50; top += top / 7 + 1) {
        uint64_t tick = report_tick_bytes(top);
        assert_int_equal(tick & (tick - 1), 0);
        assert_in_range(top / tick, 2, 5);
    }
    for (double top = 1e-6; top < 1e4; top *= 1.37)
        assert_in_range((uint64_t)(top / report_tick_seconds(top)), 3, 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_report__areas_are_as_high_as_the_events_say),
        cmocka_unit_test(test_report__picture_says_peak_budget_and_what_was_obtained),
        cmocka_unit_test(test_report__plan_alone_has_no_measured_line),
        cmocka_unit_test(test_report__many_columns_keep_their_highest),
        cmocka_unit_test(test_report__page_is_whole_and_loads_nothing),
        cmocka_unit_test(test_report__every_number_of_the_pictures_is_in_a_table),
        cmocka_unit_test(test_report__difference_is_said),
        cmocka_unit_test(test_report__names_cannot_break_out),
        cmocka_unit_test(test_report__trace_has_lanes_spans_and_counters),
        cmocka_unit_test(test_report__names_in_a_trace_are_escaped),
        cmocka_unit_test(test_report__labels_have_three_digits),
        cmocka_unit_test(test_report__axis_has_few_round_marks),
    };
    return cmocka_run_group_tests_name("report", tests, NULL, NULL);
}
