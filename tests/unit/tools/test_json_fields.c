/* SPDX-License-Identifier: BSD-3-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tools/support/json_fields.h"

static json_fields f;

static int read_text(const char *text) {
    return json_fields_read(&f, text, strlen(text));
}

static void test_json_fields__values_come_by_key_whatever_the_order(void **state) {
    (void)state;
    char text[16];
    uint64_t whole = 0;
    double real = 0;
    int flag = 0;
    json_fields inner;
    assert_int_equal(read_text(" { \"t\" : true, \"d\":-1.5e-3 ,\"n\": 9223372036854775807,\"o\":{\"x\":7,\"s\":\"}\"},"
                               "\"a\":[1,{\"n\":2}],\"z\":null,\"s\":\"a\\u00fc\\n\" } \n"),
                     1);
    assert_int_equal(json_fields_text(&f, "s", text, sizeof text), 1);
    assert_string_equal(text, "a\xc3\xbc\n");
    assert_int_equal(json_fields_uint(&f, "n", &whole), 1);
    assert_true(whole == INT64_MAX);
    assert_int_equal(json_fields_double(&f, "d", &real), 1);
    assert_true(real == -1.5e-3);
    assert_int_equal(json_fields_bool(&f, "t", &flag), 1);
    assert_int_equal(flag, 1);
    assert_int_equal(json_fields_object(&f, "o", &inner), 1);
    assert_int_equal(inner.n, 2);
    assert_int_equal(json_fields_uint(&inner, "x", &whole), 1);
    assert_int_equal(whole, 7);
    assert_int_equal(json_fields_has(&f, "z"), 0);
    assert_int_equal(json_fields_has(&f, "a"), 1);
    assert_int_equal(json_fields_has(&f, "q"), 0);
}

static void test_json_fields__value_of_another_kind_is_not_read(void **state) {
    (void)state;
    static const char *const values[] = { "\"5\"", "-5",  "5.0",  "05",   "5x",
                                          "[5]",   "{}",  "true", "null", "9223372036854775808",
                                          "1e400", "nan", "0x5" };
    uint64_t whole = 3;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        char text[64];
        snprintf(text, sizeof text, "{\"k\":%s}", values[i]);
        assert_int_equal(read_text(text), 1);
        assert_int_equal(json_fields_uint(&f, "k", &whole), 0);
        assert_int_equal(whole, 3);
    }
    double real = 3;
    static const char *const no_reals[] = { "\"5\"", "5x", "nan", "inf", "0x5", "1e400", "+5", "null", "--5" };
    for (size_t i = 0; i < sizeof no_reals / sizeof no_reals[0]; i++) {
        char text[64];
        snprintf(text, sizeof text, "{\"k\":%s}", no_reals[i]);
        assert_int_equal(read_text(text), 1);
        assert_int_equal(json_fields_double(&f, "k", &real), 0);
        assert_true(real == 3);
    }
}

static void test_json_fields__first_of_equal_keys_counts(void **state) {
    (void)state;
    uint64_t value;
    assert_int_equal(read_text("{\"k\":1,\"k\":2}"), 1);
    assert_int_equal(json_fields_uint(&f, "k", &value), 1);
    assert_int_equal(value, 1);
}

static void test_json_fields__broken_objects_say_what_is_missing(void **state) {
    (void)state;
    static const struct {
        const char *text, *expected;
    } cases[] = { { "", "'{'" },
                  { "[1]", "'{'" },
                  { "{\"k\"", "':'" },
                  { "{\"k\":", "a value" },
                  { "{\"k\":1", "'}'" },
                  { "{\"k\":1,}", "'\"'" },
                  { "{\"k\":\"abc", "the end of the string" },
                  { "{\"k\":1} x", "the end" },
                  { "{k:1}", "'\"'" } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(read_text(cases[i].text), 0);
        assert_string_equal(f.expected, cases[i].expected);
    }
}

static void test_json_fields__too_many_fields_are_refused_and_long_keys_passed_over(void **state) {
    (void)state;
    char text[2048] = "{", key[80];
    memset(key, 'k', sizeof key - 1);
    key[sizeof key - 1] = '\0';
    for (int i = 0; i < JSON_FIELDS_MOST; i++)
        sprintf(text + strlen(text), "\"f%d\":%d,", i, i);
    size_t full = strlen(text);
    sprintf(text + full, "\"%s\":1}", key);
    assert_int_equal(read_text(text), 1);
    assert_int_equal(f.n, JSON_FIELDS_MOST);
    sprintf(text + full, "\"one more\":1}");
    assert_int_equal(read_text(text), 0);
    assert_string_equal(f.expected, "at most 64 fields");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_fields__values_come_by_key_whatever_the_order),
        cmocka_unit_test(test_json_fields__value_of_another_kind_is_not_read),
        cmocka_unit_test(test_json_fields__first_of_equal_keys_counts),
        cmocka_unit_test(test_json_fields__broken_objects_say_what_is_missing),
        cmocka_unit_test(test_json_fields__too_many_fields_are_refused_and_long_keys_passed_over),
    };
    return cmocka_run_group_tests_name("json_fields", tests, NULL, NULL);
}
