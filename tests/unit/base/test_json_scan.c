/* SPDX-License-Identifier: BSD-3-Clause */
/* JSON, read step by step: what is taken, where reading stops, and what was expected there. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/json_scan.h"

/* A copy without a null behind it, so that a checking build sees who reads on. */
static json_scan scan_of(const char *text) {
    static char *copy;
    size_t bytes = strlen(text);
    free(copy);
    copy = malloc(bytes ? bytes : 1);
    assert_non_null(copy);
    memcpy(copy, text, bytes);
    return (json_scan){ .text = copy, .bytes = bytes };
}

static void takes(const char *text, const char *value, const char *expected, size_t at) {
    json_scan s = scan_of(text);
    char out[32] = "untouched";
    int ok = json_scan_string(&s, out, sizeof out);
    if (ok != (value != NULL) || (value && strcmp(out, value) != 0) || (!ok && strcmp(s.expected, expected) != 0) ||
        s.at != at)
        fail_msg("%s: %d '%s' at %zu, expected %s", text, ok, out, s.at, s.expected ? s.expected : "-");
}

static void test_json_scan__strings_are_taken_with_their_escapes(void **state) {
    (void)state;
    takes("\"\"", "", NULL, 2);
    takes(" \t\r\n\"ab\"c", "ab", NULL, 8);
    takes("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t", NULL, 18);
    takes("\"\\u0041\\u00e9\\u20AC\\ud83D\\uDe00\"", "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", NULL, 32);
    takes("\"\\u0001\\u007f\\u0080\\u07ff\\u0800\\uffff\"", "\x01\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf", NULL,
          38);
    takes("\"\\ud800\\udc00\\udbff\\udfff\"", "\xf0\x90\x80\x80\xf4\x8f\xbf\xbf", NULL, 26);
    takes("\"\xc3\xa9 \x7f\"", "\xc3\xa9 \x7f", NULL, 6);
    takes("\"0123456789012345678901234567890\"", "0123456789012345678901234567890", NULL, 33);
    takes("\"01234567890123456789012345678901\"", NULL, "a shorter string", 33);
    takes("\"012345678901234567890123456789\\u00e9\"", NULL, "a shorter string", 37);
    takes("", NULL, "'\"'", 0);
    takes("ab", NULL, "'\"'", 0);
    takes("\"ab", NULL, "the end of the string", 3);
    takes("\"a\x1f\"", NULL, "no control character in a string", 3);
    takes("\"\\x\"", NULL, "an escape", 3);
    takes("\"\\", NULL, "an escape", 2);
    takes("\"\\u004\"", NULL, "four hexadecimal digits", 6);
    takes("\"\\u004g\"", NULL, "four hexadecimal digits", 6);
    takes("\"\\u00/0\"", NULL, "four hexadecimal digits", 5);
    takes("\"\\u00:0\"", NULL, "four hexadecimal digits", 5);
    takes("\"\\u00@0\"", NULL, "four hexadecimal digits", 5);
    takes("\"\\u00`0\"", NULL, "four hexadecimal digits", 5);
    takes("\"\\u00", NULL, "four hexadecimal digits", 5);
    takes("\"\\u0000\"", NULL, "no null character", 7);
    takes("\"\\ud83d\"", NULL, "a surrogate pair", 7);
    takes("\"\\ud83d", NULL, "a surrogate pair", 7);
    takes("\"\\ud83dxx\"", NULL, "a surrogate pair", 7);
    takes("\"\\ud83d\\n\"", NULL, "a surrogate pair", 7);
    takes("\"\\udc00\\udc00\"", NULL, "a surrogate pair", 7);
    takes("\"\\udfff\"", NULL, "a surrogate pair", 7);
    takes("\"\\ud83d\\udbff\"", NULL, "a surrogate pair", 13);
    takes("\"\\ud83d\\ue000\"", NULL, "a surrogate pair", 13);
    takes("\"\\ud7ff\\ue000\"", "\xed\x9f\xbf\xee\x80\x80", NULL, 14);
}

static void expect_number(const char *text, int ok, uint64_t value, size_t at) {
    json_scan s = scan_of(text);
    uint64_t out = 77;
    if (json_scan_uint(&s, &out) != ok || out != (ok ? value : 77) || s.at != at)
        fail_msg("%s: %llu at %zu", text, (unsigned long long)out, s.at);
}

static void test_json_scan__numbers_are_whole_and_fit(void **state) {
    (void)state;
    expect_number("0", 1, 0, 1);
    expect_number(" 7,", 1, 7, 2);
    expect_number("1234567890", 1, 1234567890, 10);
    expect_number("9223372036854775807", 1, INT64_MAX, 19);
    expect_number("9223372036854775808", 0, 0, 18);
    expect_number("9223372036854775810", 0, 0, 18);
    expect_number("92233720368547758070", 0, 0, 19);
    expect_number("00", 0, 0, 2);
    expect_number("01", 0, 0, 2);
    expect_number("", 0, 0, 0);
    expect_number("-1", 0, 0, 0);
    expect_number("x", 0, 0, 0);
    expect_number("/", 0, 0, 0);
    expect_number(":", 0, 0, 0);
}

static void expect_skip(const char *text, int ok, size_t at, const char *expected) {
    json_scan s = scan_of(text);
    if (json_scan_skip(&s) != ok || s.at != at || (expected && strcmp(s.expected, expected) != 0))
        fail_msg("%s: at %zu, expected %s", text, s.at, s.expected ? s.expected : "-");
}

static void test_json_scan__values_are_skipped_whole(void **state) {
    (void)state;
    expect_skip("1.5e3,", 1, 5, NULL);
    expect_skip("true}", 1, 4, NULL);
    expect_skip("\"a,b\",", 1, 5, NULL);
    expect_skip("{ } ", 1, 3, NULL);
    expect_skip("[ ]", 1, 3, NULL);
    expect_skip("[1,\"a\",{\"b\":[2,{}],\"c\":null}] ", 1, 29, NULL);
    expect_skip("", 0, 0, "a value");
    expect_skip(",", 0, 0, "a value");
    expect_skip("[1,]", 0, 3, "a value");
    expect_skip("[1 2]", 0, 3, "']'");
    expect_skip("{\"a\" 1}", 0, 5, "':'");
    expect_skip("{\"a\":1,}", 0, 7, "'\"'");
    expect_skip("{\"a\":1]", 0, 6, "'}'");
    expect_skip("[", 0, 1, "a value");
    char deep[80] = "";
    for (int depth = 31; depth <= 33; depth++) {
        memset(deep, '[', (size_t)depth);
        memset(deep + depth, ']', (size_t)depth);
        deep[2 * depth] = 0;
        expect_skip(deep, depth <= 32, depth <= 32 ? 2 * (size_t)depth : 32, depth <= 32 ? NULL : "less nesting");
    }
}

static void test_json_scan__characters_are_expected_by_name(void **state) {
    (void)state;
    static const char *const names[] = { "'{'", "'}'", "'['", "']'", "','", "':'", "'\"'" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char text[3] = { ' ', names[i][1], 0 };
        json_scan s = scan_of(text);
        assert_int_equal(json_scan_char(&s, names[i][1]), 1);
        assert_int_equal(s.at, 2);
        assert_int_equal(json_scan_char(&s, names[i][1]), 0);
        assert_string_equal(s.expected, names[i]);
        assert_int_equal(json_scan_char(&s, '!'), 0);
        assert_string_equal(s.expected, names[i]); /* the first counts */
    }
    json_scan s = scan_of("a");
    assert_int_equal(json_scan_char(&s, '!'), 0);
    assert_string_equal(s.expected, "another character");
    s = scan_of(" \n");
    assert_int_equal(json_scan_end(&s), 1);
    s = scan_of(" x");
    assert_int_equal(json_scan_end(&s), 0);
    assert_string_equal(s.expected, "the end");
    assert_int_equal(s.at, 1);
    s = (json_scan){ .text = "\0x", .bytes = 2 }; /* a null is no space */
    assert_int_equal(json_scan_if(&s, 'x'), 0);
    assert_int_equal(s.at, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_scan__strings_are_taken_with_their_escapes),
        cmocka_unit_test(test_json_scan__numbers_are_whole_and_fit),
        cmocka_unit_test(test_json_scan__values_are_skipped_whole),
        cmocka_unit_test(test_json_scan__characters_are_expected_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
