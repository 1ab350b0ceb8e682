/* SPDX-License-Identifier: BSD-3-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "tools/support/command_line.h"
#include "tools/support/options.h"
#include "tools/support/settings.h"

/* Runs tool_parse on words, standard error caught. */
static char said[1024];
static const char *positional;

static error_t parse_word(int key, char *text, struct argp_state *state) {
    if (key != ARGP_KEY_ARG)
        return ARGP_ERR_UNKNOWN;
    if (strcmp(text, "bad") == 0)
        return tool_usage_error(state, "no %s", text);
    positional = text;
    return 0;
}

static int parse(unsigned flags, const char *const *words, int n) {
    char *argv[16] = { NULL };
    struct argp_child children[] = { { tool_common_argp(), 0, NULL, 0 }, { NULL, 0, NULL, 0 } };
    struct argp argp = { NULL, parse_word, "WORD", NULL, children, NULL, NULL };
    int pipes[2], kept = dup(STDERR_FILENO);
    assert_int_equal(pipe(pipes), 0);
    for (int i = 0; i < n; i++)
        argv[i] = strdup(words[i]);
    char *first = argv[0];
    positional = NULL;
    dup2(pipes[1], STDERR_FILENO);
    int code = tool_parse(&argp, flags, n, argv, NULL);
    positional = positional ? strcpy(said + 512, positional) : NULL;
    dup2(kept, STDERR_FILENO);
    close(pipes[1]);
    close(kept);
    ssize_t got = read(pipes[0], said, 511);
    close(pipes[0]);
    said[got > 0 ? got : 0] = '\0';
    argv[0] = first;
    for (int i = 0; i < n; i++)
        free(argv[i]);
    return code;
}

#define PARSE(flags, ...)                                                                                              \
    parse(flags, (const char *const[]){ "train", __VA_ARGS__ },                                                        \
          (int)(sizeof((const char *const[]){ "train", __VA_ARGS__ }) / sizeof(char *)))

static void assert_refused(int code, const char *line) {
    assert_int_equal(code, 2);
    assert_string_equal(said, line);
}

static int clean(void **state) {
    (void)state;
    tool_settings_back(0);
    for (char **v = environ; *v;)
        if (strncmp(*v, "TESSERA_", 8) == 0) {
            char name[80] = "";
            strncpy(name, *v, strcspn(*v, "="));
            unsetenv(name);
        } else
            v++;
    return 0;
}

static void test_common__options_win_over_their_variables(void **state) {
    (void)state;
    setenv("TESSERA_LR", "7", 1);
    assert_int_equal(PARSE(0, "mnist", "-n", "3", "--lr=0.5", "--wrap", "size:20", "--device-memory", "2MiB", "--quiet",
                           "--json", "--deterministic=no"),
                     0);
    assert_string_equal(said, "");
    assert_string_equal(positional, "mnist");
    assert_string_equal(tool_option_text("ranks"), "3");
    assert_string_equal(tool_option_text("lr"), "0.5");
    assert_string_equal(getenv("TESSERA_LR"), "7"); /* the environment stays as it is */
    assert_string_equal(tool_option_text("wrap"), "size:20");
    assert_string_equal(tool_option_text("device-memory"), "2MiB");
    assert_string_equal(tool_option_text("quiet"), "1");
    assert_string_equal(tool_option_text("json"), "1");
    assert_string_equal(tool_option_text("deterministic"), "no");
    assert_int_equal(PARSE(0, "--ranks=4", "gpt", "-n5", "--json=out"), 0);
    assert_string_equal(tool_option_text("ranks"), "5");
    assert_string_equal(tool_option_text("json"), "out");
    assert_string_equal(positional, "gpt");
}

static void test_common__unknown_options_name_the_nearest(void **state) {
    (void)state;
    assert_refused(PARSE(0, "--weight-decoy", "1"),
                   "tessera train: unknown option '--weight-decoy'; did you mean '--weight-decay'?\n");
    assert_refused(PARSE(0, "--zzzzzzzzzzzz=1"), "tessera train: unknown option '--zzzzzzzzzzzz=1'\n");
    assert_refused(PARSE(0, "-x"), "tessera train: unknown option '-x'\n");
    /* The beginning of a name is not the name: an option added later would change what it means. */
    assert_refused(PARSE(0, "--rank", "2"), "tessera train: unknown option '--rank'; did you mean '--ranks'?\n");
}

static void test_common__malformed_values_are_refused_in_one_line(void **state) {
    (void)state;
    assert_refused(PARSE(0, "--lr", "fast"), "tessera train: --lr is 'fast', expected a finite number\n");
    assert_refused(PARSE(0, "--lr", "-1"), "tessera train: --lr is '-1', expected a number from 0 to 1e+06\n");
    assert_refused(PARSE(0, "--lr"), "tessera train: option '--lr' needs a value\n");
    assert_refused(PARSE(0, "--lr="), "tessera train: --lr is empty\n");
    assert_refused(PARSE(0, "bad"), "tessera train: no bad\n");
    const char *const words[][2] = { { "-n", "0" },
                                     { "-n", "-1" },
                                     { "-n", "two" },
                                     { "--batch", "0" },
                                     { "--sync", "never" },
                                     { "--device-memory", "2 MiB" },
                                     { "--accum", "1.5" },
                                     { "--clip", "nan" },
                                     { "--momentum", "2" },
                                     { "--on-nan", "stp" },
                                     { "--seed", "-1" },
                                     { "--log", "loud" },
                                     { "--quiet=maybe", "x" },
                                     { "--steps", "99999999999999999999" } };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        assert_int_equal(PARSE(0, words[i][0], words[i][1]), 2);
        assert_non_null(strstr(said, ", expected "));
        assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1);
        assert_int_equal(strncmp(said, "tessera train: --", 17), 0);
        assert_null(strstr(said, "TESSERA_"));
    }
}

static void test_common__words_after_two_hyphens_are_left_alone(void **state) {
    (void)state;
    assert_int_equal(PARSE(ARGP_IN_ORDER, "--seed", "5", "--", "--seed"), 0);
    assert_string_equal(tool_option_text("seed"), "5");
    assert_string_equal(positional, "--seed");
}

int main(void) {
    tool_options_start();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_common__options_win_over_their_variables, clean),
        cmocka_unit_test_setup(test_common__unknown_options_name_the_nearest, clean),
        cmocka_unit_test_setup(test_common__malformed_values_are_refused_in_one_line, clean),
        cmocka_unit_test_setup(test_common__words_after_two_hyphens_are_left_alone, clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
