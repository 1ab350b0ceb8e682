/* SPDX-License-Identifier: BSD-3-Clause */
/* docs/variables.md, from the tables of the core and of the command. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "core/base/options.h"
#include "tools/support/options.h"

static const char *type_word(uint32_t type) {
    static const char *const words[] = { "", "integer", "number", "text", "bytes", "choice", "flag" };
    return words[type];
}

/* A bar inside a table cell has to be escaped. */
static void print_cell(FILE *out, const char *text) {
    for (; *text; text++)
        fprintf(out, *text == '|' ? "\\|" : "%c", *text);
}

/* All but the end of the line. */
static void print_row(FILE *out, const tess__option *o) {
    char variable[80];
    fprintf(out, "| `%s` | ", tess__option_variable(o->key, variable));
    if (o->type != TESS_OPTION_CHOICE)
        fputs(type_word(o->type), out);
    if (o->choices && o->type != TESS_OPTION_CHOICE)
        fputs(" or ", out);
    if (o->choices)
        print_cell(out, o->choices);
    fprintf(out, " | %s | ", o->fallback ? o->fallback : "");
    print_cell(out, o->help);
    fputs(" |", out);
}

static void print_commands(FILE *out, uint32_t commands) {
    static const char *const names[] = { "train", "plan", "tune", "bench", "ckpt" };
    const char *before = " ";
    for (int i = 0; i < 5; i++)
        if (commands >> i & 1) {
            fprintf(out, "%s%s", before, names[i]);
            before = ", ";
        }
    fputs(" |\n", out);
}

static void print_page(FILE *out) {
    fputs(
        "# Variables\n\n"
        "Every variable that Tessera reads, made from the tables in core/base/option_table.c and\n"
        "tools/support/option_table.c. Most are options of the command too: `--device-memory` is\n"
        "`TESSERA_DEVICE_MEMORY`. The command line is stronger than the environment, and that is stronger than what a\n"
        "program passes to `tess_open`. An empty variable counts as unset; in a setuid program all do. A bad value is\n"
        "an error, a variable that nothing reads a warning, with the nearest name.\n\n"
        "Bytes are a whole number, or one with a suffix KiB, MiB, GiB or TiB (`64KiB`, `1.5GiB`). Flags are 0 or 1,\n"
        "no or yes, off or on, false or true.\n\n"
        "## Of the library\n\n"
        "Every program that calls `tess_open` reads these, and so does the command.\n\n"
        "| variable | values | default | meaning |\n| --- | --- | --- | --- |\n",
        out);
    for (const tess__option *o = tess__option_table; o->key; o++) {
        print_row(out, o);
        fputc('\n', out);
    }
    fputs(
        "\nA plugin has variables of its own, which begin with its name or its kind: the plugin `gloo` reads\n"
        "`TESSERA_GLOO_…`. `tessera plugins info NAME` lists them. One that is set and that the plugin does not know\n"
        "is an error.\n\n"
        "`NO_COLOR` and the variables of launchers (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR`, `MASTER_PORT`,\n"
        "those of Slurm and Open MPI) are read as everywhere else.\n\n"
        "## Of the command\n\n"
        "The command `tessera` alone reads these. The library warns of one that is set in another program.\n"
        "`TESSERA_GRACE` is for `tessera run` and `train`. `TESSERA_RESTART` and its like are for the program that "
        "they\n"
        "start again, and the library never warns of them.\n\n"
        "| variable | values | default | meaning | option of |\n| --- | --- | --- | --- | --- |\n",
        out);
    for (const tool_option *o = tool_options; o->key; o++)
        if (o->help) {
            print_row(out, tess__option_find(o->key));
            print_commands(out, o->commands);
        }
}

/* With TESSERA_TEST_UPDATE=1 the test writes the page instead. */
static void test_options_page__equals_the_tables(void **state) {
    (void)state;
    static const char path[] = TESSERA_SOURCE_DIR "/docs/variables.md";
    static char want[65536], have[65536];
    FILE *made = fmemopen(want, sizeof want, "w");
    print_page(made);
    assert_int_equal(fclose(made), 0);
    if (getenv("TESSERA_TEST_UPDATE")) {
        FILE *page = fopen(path, "w");
        assert_non_null(page);
        fputs(want, page);
        assert_int_equal(fclose(page), 0);
    }
    FILE *page = fopen(path, "r");
    assert_non_null(page);
    have[fread(have, 1, sizeof have - 1, page)] = 0;
    fclose(page);
    assert_string_equal(have, want);
}

static int is_core(const char *key) {
    for (const tess__option *o = tess__option_table; o->key; o++)
        if (strcmp(o->key, key) == 0)
            return 1;
    return 0;
}

/* An option is said once: by the core, or in full by the command. */
static void test_options_page__rows_of_the_command_are_well_formed_and_unique(void **state) {
    (void)state;
    char variable[80];
    for (const tool_option *row = tool_options; row->key; row++) {
        const tool_option o = tool_option_of(row);
        assert_non_null(tool_option_variable(o.key, variable));
        assert_ptr_equal(tool_option_find(o.key, strlen(o.key)), row);
        assert_true(is_core(o.key) == !row->help);
        assert_true(strlen(o.help) > 5);
        assert_in_range(o.type, TESS_OPTION_INT, TESS_OPTION_FLAG);
        assert_true(o.type != TESS_OPTION_CHOICE || o.choices);
        assert_true(o.type != TESS_OPTION_INT || o.least < o.most);
        assert_true((o.type == TESS_OPTION_FLAG) == !o.value || !o.commands);
        assert_true(!o.commands == !o.group);
        assert_string_equal(tess__option_find(o.key)->help, o.help);
    }
}

int main(void) {
    tool_options_start();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_page__equals_the_tables),
        cmocka_unit_test(test_options_page__rows_of_the_command_are_well_formed_and_unique),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
