/* SPDX-License-Identifier: BSD-3-Clause */
/* kit_options_read: the text behind the colon, the variable, the fallback, in that order, each by its type. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kit/plugin_base.h"

enum { DEPTH, RATE, ROOM, MODE, LOUD, PARTS, OVER, N };
static const tess_option_spec specs[] = {
    { sizeof specs[0], TESS_OPTION_INT, 1, 64, "kit-depth", "2", "", "" },
    { sizeof specs[0], TESS_OPTION_REAL, 0, 1, "kit-rate", "0.5", "", "" },
    { sizeof specs[0], TESS_OPTION_BYTES, 0, 0, "kit-room", "", "", "" },
    { sizeof specs[0], TESS_OPTION_CHOICE, 0, 0, "kit-mode", "calm", "wild|calm", "" },
    { sizeof specs[0], TESS_OPTION_FLAG, 0, 0, "kit-loud", "no", "", "" },
    { sizeof specs[0], TESS_OPTION_LIST, 0, 0, "kit-parts", "a,b", "a|b|c", "" },
    { sizeof specs[0], TESS_OPTION_TEXT, 0, 0, "kit-over", "self", "", "" },
};
static const kit_options readable = { "comm kit", "kit-", specs, N, "over" };

static const char *variable_key, *variable_text;
static const char *option(void *host, const char *key) {
    (void)host;
    return variable_key && strcmp(key, variable_key) == 0 ? variable_text : NULL;
}

static kit_option read[N];
static tess_error error;
static tess_status reads(const char *args, const char *key, const char *text) {
    const tess_host host = { .struct_size = sizeof host, .option = option, .args = args };
    variable_key = key, variable_text = text;
    error = (tess_error){ .struct_size = sizeof error };
    return kit_options_read(&readable, &host, read, &error);
}

static void refused(const char *args, const char *message) {
    assert_int_equal(reads(args, NULL, NULL), TESS_E_INVALID);
    assert_string_equal(error.message, message);
}

static void test_plugin_options__without_words_the_fallbacks_are_read(void **state) {
    (void)state;
    assert_int_equal(reads("", NULL, NULL), TESS_OK);
    for (int i = 0; i < N; i++)
        assert_int_equal(read[i].is_set, 0);
    assert_int_equal(read[DEPTH].value.integer, 2);
    assert_true(read[RATE].value.real == 0.5);
    assert_int_equal(read[ROOM].value.number, 0);
    assert_int_equal(read[MODE].value.number, 1);
    assert_int_equal(read[LOUD].value.number, 0);
    assert_int_equal(read[PARTS].value.number, 3);
    assert_string_equal(read[OVER].text, "self");
}

static void test_plugin_options__the_colon_wins_over_the_variable(void **state) {
    (void)state;
    assert_int_equal(reads("depth=7,room=64KiB,mode=wild,loud,c,over=gloo:a=b,c=d", "kit-depth", "9"), TESS_OK);
    assert_int_equal(read[DEPTH].value.integer, 7);
    assert_int_equal(read[ROOM].value.number, 65536);
    assert_int_equal(read[MODE].value.number, 0);
    assert_int_equal(read[LOUD].value.number, 1);
    assert_int_equal(read[PARTS].value.number, 4);
    assert_string_equal(read[OVER].text, "gloo:a=b,c=d");
    assert_int_equal(reads("a,rate=0.25,c", "kit-depth", "9"), TESS_OK);
    assert_int_equal(read[DEPTH].value.integer, 9);
    assert_int_equal(read[PARTS].value.number, 5);
    assert_true(read[RATE].value.real == 0.25 && read[RATE].is_set && !read[MODE].is_set);
    assert_int_equal(reads("depth=3,depth=4,loud=off", "kit-parts", "b"), TESS_OK);
    assert_int_equal(read[DEPTH].value.integer, 4);
    assert_int_equal(read[LOUD].value.number, 0);
    assert_int_equal(read[PARTS].value.number, 2);
}

static void test_plugin_options__bad_words_are_named_with_what_was_expected(void **state) {
    (void)state;
    char endless[400];
    refused("depth=65", "comm kit: depth is \"65\", expected an integer from 1 to 64");
    refused("mode=", "comm kit: mode is \"\", expected one of wild|calm");
    refused("deep=1",
            "comm kit: \"deep=1\" is no setting, expected depth=…, rate=…, room=…, mode=…, loud, a|b|c, over=…");
    refused("depth",
            "comm kit: \"depth\" is no setting, expected depth=…, rate=…, room=…, mode=…, loud, a|b|c, over=…");
    refused("loud,,a", "comm kit: \"\" is no setting, expected depth=…, rate=…, room=…, mode=…, loud, a|b|c, over=…");
    assert_int_equal(reads("", "kit-rate", "2"), TESS_E_INVALID);
    assert_string_equal(error.message, "comm kit: rate is \"2\", expected a finite number from 0 to 1");
    memset(endless, 'x', sizeof endless - 1);
    memcpy(endless, "over=", 5);
    endless[sizeof endless - 1] = 0;
    assert_int_equal(reads(endless, NULL, NULL), TESS_E_INVALID);
    assert_non_null(strstr(error.message, "over has 394 bytes"));
}

/* Of more than a message holds, its beginning. */
static void test_plugin_options__a_long_list_of_settings_is_cut(void **state) {
    (void)state;
    enum { MANY = 6, HELD = 159 };
    char known[512] = "", want[256];
    tess_option_spec many[MANY];
    kit_option values[MANY];
    const kit_options o = { "comm kit", "kit-", many, MANY, NULL };
    const tess_host host = { .struct_size = sizeof host, .option = option, .args = "x" };
    for (int i = 0; i < MANY; i++) {
        many[i] = specs[LOUD];
        snprintf(many[i].key, sizeof many[i].key, "kit-%c-name-of-thirty-five-letters-ab", 'a' + i);
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", many[i].key + 4);
    }
    error = (tess_error){ .struct_size = sizeof error };
    assert_int_equal(kit_options_read(&o, &host, values, &error), TESS_E_INVALID);
    snprintf(want, sizeof want, "comm kit: \"x\" is no setting, expected %.*s", HELD, known);
    assert_string_equal(error.message, want);
}

static void test_plugin_options__core_options_have_their_fallback(void **state) {
    (void)state;
    const tess_host host = { .struct_size = sizeof host, .option = option, .args = "" };
    variable_key = "deterministic", variable_text = "yes";
    assert_int_equal(kit_core_flag(&host, "deterministic", 0), 1);
    assert_int_equal(kit_core_flag(&host, "strict", 1), 1);
    variable_key = "heartbeat", variable_text = "2.5";
    assert_true(kit_core_real(&host, "heartbeat", 5) == 2.5);
    assert_true(kit_core_real(&host, "grace", 5) == 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plugin_options__without_words_the_fallbacks_are_read),
        cmocka_unit_test(test_plugin_options__the_colon_wins_over_the_variable),
        cmocka_unit_test(test_plugin_options__bad_words_are_named_with_what_was_expected),
        cmocka_unit_test(test_plugin_options__a_long_list_of_settings_is_cut),
        cmocka_unit_test(test_plugin_options__core_options_have_their_fallback),
    };
    return cmocka_run_group_tests_name("plugin options", tests, NULL, NULL);
}
