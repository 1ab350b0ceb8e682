/* SPDX-License-Identifier: BSD-3-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tools/support/json_out.h"

static char text[4096];
static FILE *stream;
static json_out j;

static int setup(void **state) {
    (void)state;
    memset(text, 0, sizeof text);
    stream = fmemopen(text, sizeof text, "w");
    json_init(&j, stream);
    return stream ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    return fclose(stream);
}

static void test_json_out__objects_and_arrays_nest_with_commas(void **state) {
    (void)state;
    json_object_begin(&j, NULL);
    json_string(&j, "event", "summary");
    json_array_begin(&j, "sizes");
    json_int(&j, NULL, -1);
    json_uint(&j, NULL, UINT64_MAX);
    json_array_begin(&j, NULL);
    json_array_end(&j);
    json_object_begin(&j, NULL);
    json_object_end(&j);
    json_array_end(&j);
    json_bool(&j, "ok", 7);
    json_bool(&j, "bad", 0);
    json_null(&j, "none");
    json_string(&j, "null", NULL);
    json_object_end(&j);
    assert_int_equal(json_line(&j), 0);
    assert_string_equal(text, "{\"event\":\"summary\",\"sizes\":[-1,18446744073709551615,[],{}],\"ok\":true,"
                              "\"bad\":false,\"none\":null,\"null\":null}\n");
}

static void test_json_out__second_line_starts_afresh(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        json_object_begin(&j, NULL);
        json_int(&j, "i", i);
        json_object_end(&j);
        json_line(&j);
    }
    assert_string_equal(text, "{\"i\":0}\n{\"i\":1}\n");
}

static void test_json_out__text_is_escaped(void **state) {
    (void)state;
    json_array_begin(&j, NULL);
    json_string(&j, NULL, "a\"b\\c/\b\f\n\r\t\x01\x7f");
    json_string(&j, NULL, "Grüße €😀");
    json_array_end(&j);
    json_line(&j);
    assert_string_equal(text, "[\"a\\\"b\\\\c/\\b\\f\\n\\r\\t\\u0001\\u007f\",\"Grüße €😀\"]\n");
}

static void test_json_out__broken_utf8_becomes_the_replacement_character(void **state) {
    (void)state;
    json_array_begin(&j, NULL);
    json_string(&j, NULL,
                "x\xff"
                "y");                          /* no lead byte */
    json_string(&j, NULL, "\xc3");             /* cut short */
    json_string(&j, NULL, "\xc0\xaf");         /* overlong */
    json_string(&j, NULL, "\xed\xa0\x80");     /* surrogate */
    json_string(&j, NULL, "\xf4\x90\x80\x80"); /* past the end */
    json_array_end(&j);
    json_line(&j);
    assert_string_equal(text, "[\"x\\ufffdy\",\"\\ufffd\",\"\\ufffd\\ufffd\",\"\\ufffd\\ufffd\\ufffd\","
                              "\"\\ufffd\\ufffd\\ufffd\\ufffd\"]\n");
}

static void test_json_out__doubles_come_back_the_same(void **state) {
    (void)state;
    static const double values[] = { 0.1, -0.0, 1.0, 1e300, 5e-324, 1.7976931348623157e308, 1234567.125, -1e-7 };
    json_array_begin(&j, NULL);
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        json_double(&j, NULL, values[i]);
    json_array_end(&j);
    json_line(&j);
    char *p = text + 1;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        double back = strtod(p, &p);
        assert_memory_equal(&back, &values[i], sizeof back);
        p++;
    }
    assert_non_null(strstr(text, "0.10000000000000001"));
}

static void test_json_out__what_is_not_finite_is_null(void **state) {
    (void)state;
    json_array_begin(&j, NULL);
    json_double(&j, NULL, NAN);
    json_double(&j, NULL, -INFINITY);
    json_array_end(&j);
    json_line(&j);
    assert_string_equal(text, "[null,null]\n");
}

static void test_json_out__decimal_comma_of_a_locale_stays_out(void **state) {
    (void)state;
    static const char *const names[] = { "de_DE.UTF-8", "fr_FR.UTF-8", "de_DE.utf8", "de_DE" };
    const char *found = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !found; i++)
        found = setlocale(LC_NUMERIC, names[i]);
    if (!found) {
        print_message("skipped: no locale with a decimal comma is installed\n");
        skip();
    }
    json_array_begin(&j, NULL);
    json_double(&j, NULL, 0.5);
    json_double(&j, NULL, 1e300);
    json_array_end(&j);
    json_line(&j);
    setlocale(LC_NUMERIC, "C");
    assert_string_equal(text, "[0.5,1.0000000000000001e+300]\n");
}

static void test_json_out__full_device_is_reported(void **state) {
    (void)state;
    FILE *full = fopen("/dev/full", "w");
    assert_non_null(full);
    json_out k;
    json_init(&k, full);
    json_object_begin(&k, NULL);
    json_object_end(&k);
    assert_int_equal(json_line(&k), -1);
    fclose(full);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_json_out__objects_and_arrays_nest_with_commas, setup, teardown),
        cmocka_unit_test_setup_teardown(test_json_out__second_line_starts_afresh, setup, teardown),
        cmocka_unit_test_setup_teardown(test_json_out__text_is_escaped, setup, teardown),
        cmocka_unit_test_setup_teardown(test_json_out__broken_utf8_becomes_the_replacement_character, setup, teardown),
        cmocka_unit_test_setup_teardown(test_json_out__doubles_come_back_the_same, setup, teardown),
        cmocka_unit_test_setup_teardown(test_json_out__what_is_not_finite_is_null, setup, teardown),
        cmocka_unit_test_setup_teardown(test_json_out__decimal_comma_of_a_locale_stays_out, setup, teardown),
        cmocka_unit_test(test_json_out__full_device_is_reported),
    };
    return cmocka_run_group_tests_name("json_out", tests, NULL, NULL);
}
