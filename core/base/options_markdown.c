/* SPDX-License-Identifier: BSD-3-Clause */
/* docs/variables.md, from the table. */
#include <stdio.h>

#include "options.h"

static const char *type_word(uint32_t type) {
    static const char *const words[] = { "", "integer", "number", "text", "bytes", "choice", "flag" };
    return words[type];
}

/* A bar inside a table cell has to be escaped. */
static void print_cell(FILE *out, const char *text) {
    for (; *text; text++)
        fprintf(out, *text == '|' ? "\\|" : "%c", *text);
}

static void print_values(FILE *out, const tess__option *o) {
    if (o->type != TESS_OPTION_CHOICE)
        fputs(type_word(o->type), out);
    if (o->choices && o->type != TESS_OPTION_CHOICE)
        fputs(" or ", out);
    if (o->choices)
        print_cell(out, o->choices);
}

void tess__options_markdown(FILE *out) {
    fputs(
        "# Variables\n\n"
        "Every variable that Tessera reads, made from the table in core/base/option_table.c. Most are options of the\n"
        "command too: `--device-memory` is `TESSERA_DEVICE_MEMORY`. The command line is stronger than the\n"
        "environment, and that is stronger than what a program passes to `tess_open`. An empty variable counts as\n"
        "unset; in a setuid program all do. A bad value is an error, an unknown variable a warning with the nearest\n"
        "name.\n\n"
        "Bytes are a whole number, or one with a suffix KiB, MiB, GiB or TiB (`64KiB`, `1.5GiB`). Flags are 0 or 1,\n"
        "no or yes, off or on, false or true.\n\n"
        "| variable | values | default | meaning |\n| --- | --- | --- | --- |\n",
        out);
    for (const tess__option *o = tess__option_table; o->key; o++) {
        char variable[80];
        fprintf(out, "| `%s` | ", tess__option_variable(o->key, variable));
        print_values(out, o);
        fprintf(out, " | %s | ", o->fallback ? o->fallback : "");
        print_cell(out, o->help);
        fputs(" |\n", out);
    }
    fputs(
        "\nA plugin has variables of its own, which begin with its name or its kind: the plugin `gloo` reads\n"
        "`TESSERA_GLOO_…`. `tessera plugins info NAME` lists them. One that is set and that the plugin does not know\n"
        "is an error.\n\n"
        "`NO_COLOR` and the variables of launchers (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR`, `MASTER_PORT`,\n"
        "those of Slurm and Open MPI) are read as everywhere else.\n",
        out);
}
