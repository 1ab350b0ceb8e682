/* SPDX-License-Identifier: BSD-3-Clause */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <locale.h>

#include <cmocka.h>

#include "core/base/option_fields.h"

static void set(const char *name, const char *text) {
    assert_int_equal(setenv(name, text, 1), 0);
}

/* ---- values ------------------------------------------------------------------------------------ */

static void test_options__bytes_with_suffix_are_exact(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        { "0", 0 },
        { "512", 512 },
        { "512B", 512 },
        { "64KiB", 65536 },
        { "1.5GiB", UINT64_C(1610612736) },
        { "0.1KiB", 102 },
        { "2TiB", UINT64_C(2199023255552) },
        { "0.999999TiB", UINT64_C(1099510528264) },
        { "18446744073709551615", UINT64_MAX },
        { "16777215TiB", UINT64_C(16777215) << 40 },
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        uint64_t out = 1;
        assert_true(tess_option_parse_bytes(good[i].text, &out));
        assert_true(out == good[i].bytes);
    }
}

static void test_options__malformed_bytes_fail_and_leave_out_alone(void **state) {
    (void)state;
    static const char *const bad[] = {
        "",
        " 1",
        "1 ",
        "-1",
        "+1",
        "KiB",
        "1.KiB",
        ".5KiB",
        "1.5",
        "1.5B",
        "1kib",
        "1KB",
        "1K",
        "0x10",
        "1e3",
        "1,5KiB",
        "nan",
        "1KiBKiB",
        "1.5.5KiB",
        "16777216TiB",
        "1.1234567KiB",
        "18446744073709551616",
        "99999999999999999999999GiB",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint64_t out = 77;
        assert_false(tess_option_parse_bytes(bad[i], &out));
        assert_true(out == 77);
    }
}

static void test_options__reals_are_parsed_whatever_the_locale(void **state) {
    (void)state;
    double out = 0;
    setlocale(LC_ALL, "de_DE.UTF-8"); /* where there is one */
    assert_true(tess_option_parse_real("0.25", &out));
    setlocale(LC_ALL, "C");
    assert_true(out == 0.25);
    assert_true(tess_option_parse_real("-1e-3", &out));
    assert_true(out == -1e-3);
    static const char *const bad[] = { "", " 1", "+1", "1 ", "nan", "inf", "-inf", "1e999", "0,5", "1x", "-", "." };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(tess_option_parse_real(bad[i], &out));
    assert_true(out == -1e-3);
}

static void test_options__unset_or_empty_leaves_out_alone(void **state) {
    (void)state;
    int64_t i = 5;
    unsetenv("TESSERA_ACCUM");
    assert_int_equal(tess__option_int("accum", 1, 9, &i), TESS_OK);
    set("TESSERA_ACCUM", "");
    assert_null(tess__option_text("accum"));
    assert_int_equal(tess__option_int("accum", 1, 9, &i), TESS_OK);
    assert_true(i == 5);
}

static void test_options__integer_in_range_is_read_and_outside_is_named(void **state) {
    (void)state;
    int64_t i = 5;
    set("TESSERA_ACCUM", "9");
    assert_int_equal(tess__option_int("accum", 1, 9, &i), TESS_OK);
    assert_true(i == 9);
    set("TESSERA_ACCUM", "10");
    assert_int_equal(tess__option_int("accum", 1, 9, &i), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "TESSERA_ACCUM is '10', expected an integer from 1 to 9");
    set("TESSERA_ACCUM", "-9223372036854775808");
    assert_int_equal(tess__option_int("accum", INT64_MIN, INT64_MAX, &i), TESS_OK);
    assert_true(i == INT64_MIN);
    set("TESSERA_ACCUM", "9223372036854775808");
    assert_int_equal(tess__option_int("accum", 0, INT64_MAX, &i), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "TESSERA_ACCUM is '9223372036854775808', expected an integer from 0 up");
    assert_true(i == INT64_MIN);
    unsetenv("TESSERA_ACCUM");
}

static void test_options__word_beside_a_value_means_unset(void **state) {
    (void)state;
    int64_t i = -1;
    set("TESSERA_PREFETCH", "auto");
    assert_int_equal(tess__option_int("prefetch", 0, 8, &i), TESS_OK);
    assert_true(i == -1);
    set("TESSERA_PREFETCH", "8");
    assert_int_equal(tess__option_int("prefetch", 0, 8, &i), TESS_OK);
    assert_true(i == 8);
    set("TESSERA_PREFETCH", "9");
    assert_int_equal(tess__option_int("prefetch", 0, 8, &i), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "TESSERA_PREFETCH is '9', expected an integer from 0 to 8 or auto");
    unsetenv("TESSERA_PREFETCH");
}

static void test_options__other_types_name_variable_text_and_expectation(void **state) {
    (void)state;
    uint64_t bytes = 1;
    int flag = 7;
    double real = 7;
    const char *choice = NULL;
    set("TESSERA_DEVICE_MEMORY", "12 MB");
    assert_int_equal(tess__option_bytes("device-memory", &bytes), TESS_E_INVALID);
    assert_string_equal(tess_last_error(),
                        "TESSERA_DEVICE_MEMORY is '12 MB', expected bytes such as 512, 64KiB or 1.5GiB");
    set("TESSERA_DEVICE_MEMORY", "12MiB");
    assert_int_equal(tess__option_bytes("device-memory", &bytes), TESS_OK);
    assert_true(bytes == 12582912);
    unsetenv("TESSERA_DEVICE_MEMORY");

    set("TESSERA_STRICT", "2");
    assert_int_equal(tess__option_flag("strict", &flag), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "TESSERA_STRICT is '2', expected 0, 1, no, yes, off, on, false or true");
    set("TESSERA_STRICT", "off");
    assert_int_equal(tess__option_flag("strict", &flag), TESS_OK);
    assert_int_equal(flag, 0);
    set("TESSERA_STRICT", "1");
    assert_int_equal(tess__option_flag("strict", &flag), TESS_OK);
    assert_int_equal(flag, 1);
    unsetenv("TESSERA_STRICT");

    set("TESSERA_TIMEOUT", "fast");
    assert_int_equal(tess__option_real("timeout", &real), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "TESSERA_TIMEOUT is 'fast', expected a finite number");
    unsetenv("TESSERA_TIMEOUT");

    set("TESSERA_SYNC", "eac");
    assert_int_equal(tess__option_choice("sync", &choice), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "TESSERA_SYNC is 'eac', expected one of each|end");
    assert_null(choice);
    set("TESSERA_SYNC", "end");
    assert_int_equal(tess__option_choice("sync", &choice), TESS_OK);
    assert_string_equal(choice, "end");
    unsetenv("TESSERA_SYNC");
    assert_int_equal(tess__option_choice("accum", &choice), TESS_E_INTERNAL);
}

static void test_options__text_outlives_a_change_of_the_variable(void **state) {
    (void)state;
    set("TESSERA_ISA", "first");
    const char *first = tess__option_text("isa");
    set("TESSERA_ISA", "second");
    assert_string_equal(first, "first");
    assert_string_equal(tess__option_text("isa"), "second");
    unsetenv("TESSERA_ISA");
    assert_string_equal(first, "first");
}

static void test_options__key_that_is_none_gives_no_variable(void **state) {
    (void)state;
    char out[80], longest[100];
    assert_string_equal(tess__option_variable("gloo-interface", out), "TESSERA_GLOO_INTERFACE");
    assert_null(tess__option_variable("", out));
    assert_null(tess__option_variable("Gloo", out));
    assert_null(tess__option_variable("a=b", out));
    assert_null(tess__option_variable("../x", out));
    memset(longest, 'a', sizeof longest);
    longest[71] = 0;
    assert_non_null(tess__option_variable(longest, out));
    assert_int_equal(strlen(out), 79);
    longest[71] = 'a', longest[72] = 0;
    assert_null(tess__option_variable(longest, out));
    assert_null(tess__option_text("a b"));
}

/* ---- plugins' options -------------------------------------------------------------------------- */

static tess_option_spec an_option(const char *key, uint32_t type, const char *fallback, const char *choices) {
    tess_option_spec o = { .struct_size = sizeof o, .type = type, .help = "for the test" };
    snprintf(o.key, sizeof o.key, "%s", key);
    snprintf(o.fallback, sizeof o.fallback, "%s", fallback);
    snprintf(o.choices, sizeof o.choices, "%s", choices);
    return o;
}

static void takes(const tess_option_spec *o, const char *text) {
    set("TESSERA_THETA_X", text);
    if (tess__options_register("comm", "theta", o, 1) != TESS_OK)
        print_error("%s\n", tess_last_error());
    assert_int_equal(tess__options_register("comm", "theta", o, 1), TESS_OK);
    unsetenv("TESSERA_THETA_X");
}

static void refuses(const tess_option_spec *o, const char *text, const char *expected) {
    char message[300];
    set("TESSERA_THETA_X", text);
    snprintf(message, sizeof message, "TESSERA_THETA_X is '%s', expected %s", text, expected);
    assert_int_equal(tess__options_register("comm", "theta", o, 1), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), message);
    unsetenv("TESSERA_THETA_X");
}

static void test_options__bounds_flags_and_lists_are_checked(void **state) {
    (void)state;
    tess_option_spec o = an_option("theta-x", TESS_OPTION_INT, "", "");
    o.least = -1, o.most = 8;
    takes(&o, "-1"), takes(&o, "8");
    refuses(&o, "9", "an integer from -1 to 8");
    refuses(&o, "-2", "an integer from -1 to 8");
    o.least = 1, o.most = INFINITY;
    takes(&o, "9000000000");
    refuses(&o, "0", "an integer from 1 up");
    o = an_option("theta-x", TESS_OPTION_REAL, "0.5", "");
    o.least = 0, o.most = 1;
    takes(&o, "1"), takes(&o, "0.125");
    refuses(&o, "1.01", "a finite number from 0 to 1");
    o = an_option("theta-x", TESS_OPTION_FLAG, "on", "");
    takes(&o, "no"), takes(&o, "true"), takes(&o, "0");
    refuses(&o, "2", "0, 1, no, yes, off, on, false or true");
    o = an_option("theta-x", TESS_OPTION_LIST, "a,c", "a|b|c");
    takes(&o, "b"), takes(&o, "c,a,b");
    refuses(&o, "a,d", "words of a|b|c, joined by commas");
    refuses(&o, "a,", "words of a|b|c, joined by commas");
    o = an_option("theta-x", TESS_OPTION_BYTES, "64KiB", "");
    takes(&o, "1.5GiB");
    refuses(&o, "1.5", "bytes such as 512, 64KiB or 1.5GiB");
}

static void test_options__values_are_what_the_text_says(void **state) {
    (void)state;
    tess_option_value v;
    tess_option_spec o = an_option("theta-x", TESS_OPTION_LIST, "", "a|b|c");
    assert_true(tess_option_parse(&o, "c,a", &v));
    assert_int_equal(v.number, 5);
    o.type = TESS_OPTION_CHOICE;
    assert_true(tess_option_parse(&o, "b", &v));
    assert_int_equal(v.number, 1);
    o.type = TESS_OPTION_FLAG;
    assert_true(tess_option_parse(&o, "yes", &v));
    assert_int_equal(v.number, 1);
    assert_true(tess_option_parse(&o, "off", &v));
    assert_int_equal(v.number, 0);
    o.type = TESS_OPTION_INT;
    assert_true(tess_option_parse(&o, "-9223372036854775808", &v));
    assert_true(v.integer == INT64_MIN);
    assert_false(tess_option_parse(&o, "9223372036854775808", &v));
    assert_true(v.integer == INT64_MIN); /* as before */
}

static void test_options__registered_value_is_checked_by_type(void **state) {
    (void)state;
    tess_option_spec o[] = { an_option("alpha-port", TESS_OPTION_INT, "0", ""),
                             an_option("alpha-mode", TESS_OPTION_CHOICE, "a", "a|b") };
    set("TESSERA_ALPHA_PORT", "x");
    assert_int_equal(tess__options_register("comm", "alpha", o, 2), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "TESSERA_ALPHA_PORT is 'x', expected an integer");
    set("TESSERA_ALPHA_PORT", "80");
    set("TESSERA_ALPHA_MODE", "c");
    assert_int_equal(tess__options_register("comm", "alpha", o, 2), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "TESSERA_ALPHA_MODE is 'c', expected one of a|b");
    set("TESSERA_ALPHA_MODE", "b");
    assert_int_equal(tess__options_register("comm", "alpha", o, 2), TESS_OK);
    unsetenv("TESSERA_ALPHA_PORT");
    unsetenv("TESSERA_ALPHA_MODE");
}

static void test_options__stranger_with_the_plugins_prefix_is_an_error(void **state) {
    (void)state;
    tess_option_spec o[] = { an_option("beta-interface", TESS_OPTION_TEXT, "", "") };
    set("TESSERA_BETA_INTERFCE", "eth0");
    assert_int_equal(tess__options_register("comm", "beta", o, 1), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "TESSERA_BETA_INTERFCE is set, but comm plugin beta has no such option; "
                                           "did you mean TESSERA_BETA_INTERFACE?");
    unsetenv("TESSERA_BETA_INTERFCE");
    /* The kind's prefix is checked for a plugin that uses it, and the core's own variables are no strangers. */
    tess_option_spec p[] = { an_option("offload-part", TESS_OPTION_REAL, "1", "") };
    set("TESSERA_OFFLOAD_PRAT", "1");
    assert_int_equal(tess__options_register("offload", "gamma", p, 1), TESS_E_INVALID);
    unsetenv("TESSERA_OFFLOAD_PRAT");
    tess_option_spec d[] = { an_option("device-index", TESS_OPTION_INT, "0", "") };
    set("TESSERA_DEVICE_MEMORY", "1GiB");
    assert_int_equal(tess__options_register("device", "delta", d, 1), TESS_OK);
    unsetenv("TESSERA_DEVICE_MEMORY");
}

static void test_options__ill_declared_options_are_refused(void **state) {
    (void)state;
    tess_option_spec o = an_option("other-port", TESS_OPTION_INT, "", "");
    assert_int_equal(tess__options_register("comm", "eps", &o, 1), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "comm plugin eps declares option 'other-port', which begins with neither "
                                           "'eps-' nor 'comm-'");
    o = an_option("eps-Port", TESS_OPTION_INT, "", "");
    assert_int_equal(tess__options_register("comm", "eps", &o, 1), TESS_E_INVALID);
    o = an_option("", TESS_OPTION_INT, "", "");
    assert_int_equal(tess__options_register("comm", "eps", &o, 1), TESS_E_INVALID);
    o = an_option("device-memory", TESS_OPTION_INT, "", "");
    assert_int_equal(tess__options_register("device", "eps", &o, 1), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "device plugin eps declares option 'device-memory', which is the core's");
    for (uint32_t type = 0; type < 10; type = type ? type + 8 : 8) {
        o = an_option("eps-port", type, "", "");
        assert_int_equal(tess__options_register("comm", "eps", &o, 1), TESS_E_INVALID);
        assert_non_null(strstr(tess_last_error(), "of unknown type"));
    }
    o = an_option("eps-port", TESS_OPTION_CHOICE, "", "");
    assert_int_equal(tess__options_register("comm", "eps", &o, 1), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "comm plugin eps declares option 'eps-port' without choices");
    o = an_option("eps-port", TESS_OPTION_CHOICE, "c", "a|b");
    assert_int_equal(tess__options_register("comm", "eps", &o, 1), TESS_E_INVALID);
    assert_string_equal(tess_last_error(),
                        "comm plugin eps declares option 'eps-port' with the fallback 'c', expected one of a|b");
    o = an_option("eps-port", TESS_OPTION_TEXT, "", "");
    memset(o.help, 'x', sizeof o.help);
    assert_int_equal(tess__options_register("comm", "eps", &o, 1), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "texts that end"));
}

/* ---- unknown variables ------------------------------------------------------------------------- */

/* What `call` writes to standard error. */
static void captured(int (*call)(void), int *result, char *text, size_t size) {
    FILE *aside = tmpfile();
    int saved = dup(STDERR_FILENO);
    assert_non_null(aside);
    dup2(fileno(aside), STDERR_FILENO);
    *result = call();
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(aside);
    text[fread(text, 1, size - 1, aside)] = 0;
    fclose(aside);
}

static void test_options__unknown_variable_is_one_warning_with_the_nearest_name(void **state) {
    (void)state;
    char text[1024];
    int n;
    captured(tess__options_warn_unknown, &n, text, sizeof text);
    assert_int_equal(n, 0);
    assert_string_equal(text, "");
    set("TESSERA_PRECISON", "bf16");
    captured(tess__options_warn_unknown, &n, text, sizeof text);
    assert_int_equal(n, 1);
    assert_string_equal(text, "tessera: warning: TESSERA_PRECISON is set, but nothing here reads it; did you mean "
                              "TESSERA_PRECISION?\n");
    captured(tess__options_warn_unknown, &n, text, sizeof text);
    assert_int_equal(n, 0);
    assert_string_equal(text, "");
    set("TESSERA_QQQQQQ", "1");
    captured(tess__options_warn_unknown, &n, text, sizeof text);
    assert_string_equal(text, "tessera: warning: TESSERA_QQQQQQ is set, but nothing here reads it\n");
    unsetenv("TESSERA_PRECISON");
    unsetenv("TESSERA_QQQQQQ");
}

/* Options of the command, which are rows only where the command's main has added them. */
static void test_options__words_of_the_command_are_unknown_until_they_are_added(void **state) {
    (void)state;
    static const tess__option own[] = {
        { "units", TESS_OPTION_CHOICE, "layer", "layer|half", "whole layers or halves" }, { NULL, 0, NULL, NULL, NULL }
    };
    static const char *const words[] = { "TESSERA_UNITS", "TESSERA_LR", "TESSERA_EPOCHS", "TESSERA_RESTART",
                                         "TESSERA_RESTART_FILE" };
    const tess_setting units = { "units", "half" };
    const tess__given given = { .list = &units, .n = 1 };
    const char *choice = "layer";
    char text[1024];
    int n;
    set("TESSERA_UNITS", "half");
    set("TESSERA_LR", "1");
    set("TESSERA_EPOCHS", "2");
    set("TESSERA_RESTART", "1"); /* for a program that tessera run has started again */
    set("TESSERA_RESTART_FILE", "/nowhere");
    captured(tess__options_warn_unknown, &n, text, sizeof text);
    assert_int_equal(n, 3);
    assert_string_equal(text, "tessera: warning: TESSERA_UNITS, TESSERA_LR, TESSERA_EPOCHS are set, but nothing here "
                              "reads them\n");
    assert_int_equal(tess__given_check(&given), TESS_E_INVALID);
    assert_int_equal(tess__option_choice("units", &choice), TESS_E_INTERNAL);
    tess__options_add(own);
    assert_int_equal(tess__given_check(&given), TESS_OK);
    assert_int_equal(tess__option_choice("units", &choice), TESS_OK);
    assert_string_equal(choice, "half");
    set("TESSERA_UNIST", "half");
    captured(tess__options_warn_unknown, &n, text, sizeof text);
    assert_string_equal(text, "tessera: warning: TESSERA_UNIST is set, but nothing here reads it; did you mean "
                              "TESSERA_UNITS?\n");
    tess__options_add(NULL);
    unsetenv("TESSERA_UNIST");
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        unsetenv(words[i]);
}

static void test_options__registered_and_empty_variables_are_not_warned_of(void **state) {
    (void)state;
    char text[1024];
    int n;
    tess_option_spec o = an_option("eta-port", TESS_OPTION_INT, "", "");
    assert_int_equal(tess__options_register("comm", "eta", &o, 1), TESS_OK);
    set("TESSERA_ETA_PORT", "3");
    set("TESSERA_SOMETHING", "");
    set("TESSERA_MATRIX_COMM", "x");
    captured(tess__options_warn_unknown, &n, text, sizeof text);
    assert_int_equal(n, 0);
    set("TESSERA_ETA_PROT", "3");
    captured(tess__options_warn_unknown, &n, text, sizeof text);
    assert_int_equal(n, 1);
    assert_non_null(strstr(text, "did you mean TESSERA_ETA_PORT?"));
    unsetenv("TESSERA_ETA_PORT");
    unsetenv("TESSERA_ETA_PROT");
    unsetenv("TESSERA_SOMETHING");
    unsetenv("TESSERA_MATRIX_COMM");
}

static void test_options__nearest_takes_small_slips_only(void **state) {
    (void)state;
    static const char *const names[] = { "gloo", "nccl", "shm", "module", "reduce_scatter" };
    assert_string_equal(tess__nearest("glo", names, 5), "gloo");
    assert_string_equal(tess__nearest("lgoo", names, 5), "gloo");
    assert_string_equal(tess__nearest("modul", names, 5), "module");
    assert_string_equal(tess__nearest("reduce-scater", names, 5), "reduce_scatter");
    assert_string_equal(tess__nearest("shm", names, 5), "shm");
    assert_null(tess__nearest("mpi", names, 5));
    assert_null(tess__nearest("", names, 5));
    assert_null(tess__nearest("gloo", names, 0));
}

/* ---- the table ----------------------------------------------------------------------------- */

static void test_options__table_rows_are_well_formed_and_unique(void **state) {
    (void)state;
    char out[80];
    for (const tess__option *o = tess__option_table; o->key; o++) {
        assert_non_null(tess__option_variable(o->key, out));
        assert_in_range(o->type, TESS_OPTION_INT, TESS_OPTION_FLAG);
        assert_true(o->type != TESS_OPTION_CHOICE || o->choices);
        assert_ptr_equal(tess__option_find(o->key), o);
        assert_true(strlen(o->help) > 5);
    }
}

/* ---- the structs of declarations ------------------------------------------------------------------ */

/* Each byte is in one field: none is forgotten, and there are no holes. */
static void covers(const tess__field *f, uint32_t struct_bytes) {
    uint32_t end = 0;
    for (; f->name; end = f->offset + f->bytes, f++) {
        if (f->offset != end)
            fail_msg("a field before %s is missing", f->name);
        if (f->type == TESS__FIELD_NUMBER)
            assert_true(f->bytes == 4 || f->bytes == 8);
    }
    assert_int_equal(end, struct_bytes);
}

static void test_options__tables_have_every_field_of_the_structs(void **state) {
    (void)state;
    covers(tess__fields_of_options, sizeof(tess_options));
    covers(tess__fields_of_param, sizeof(tess_param_options));
    covers(tess__fields_of_block, sizeof(tess_block_options));
}

int main(void) {
    unsetenv("TESSERA_LOG");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options__bytes_with_suffix_are_exact),
        cmocka_unit_test(test_options__malformed_bytes_fail_and_leave_out_alone),
        cmocka_unit_test(test_options__reals_are_parsed_whatever_the_locale),
        cmocka_unit_test(test_options__unset_or_empty_leaves_out_alone),
        cmocka_unit_test(test_options__integer_in_range_is_read_and_outside_is_named),
        cmocka_unit_test(test_options__word_beside_a_value_means_unset),
        cmocka_unit_test(test_options__other_types_name_variable_text_and_expectation),
        cmocka_unit_test(test_options__text_outlives_a_change_of_the_variable),
        cmocka_unit_test(test_options__key_that_is_none_gives_no_variable),
        cmocka_unit_test(test_options__registered_value_is_checked_by_type),
        cmocka_unit_test(test_options__stranger_with_the_plugins_prefix_is_an_error),
        cmocka_unit_test(test_options__ill_declared_options_are_refused),
        cmocka_unit_test(test_options__bounds_flags_and_lists_are_checked),
        cmocka_unit_test(test_options__values_are_what_the_text_says),
        cmocka_unit_test(test_options__unknown_variable_is_one_warning_with_the_nearest_name),
        cmocka_unit_test(test_options__words_of_the_command_are_unknown_until_they_are_added),
        cmocka_unit_test(test_options__registered_and_empty_variables_are_not_warned_of),
        cmocka_unit_test(test_options__nearest_takes_small_slips_only),
        cmocka_unit_test(test_options__table_rows_are_well_formed_and_unique),
        cmocka_unit_test(test_options__tables_have_every_field_of_the_structs),
    };
    return cmocka_run_group_tests_name("options", tests, NULL, NULL);
}
