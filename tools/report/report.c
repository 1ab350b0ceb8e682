/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera report: pictures of the memory and time of runs and plans. */
#include "report.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/support/command_line.h"
#include "tools/support/say.h"
#include <tessera/tessera.h>

enum { MOST_FILES = 32, KEY_SVG = 0x3000, KEY_PERFETTO };

/* ---- writing ----------------------------------------------------------------------------------- */
static tess_status put_in_order(const report_run *runs, size_t n, report_order *orders) {
    for (size_t i = 0; i < n; i++)
        TRY(report_order_make(&runs[i], &orders[i]));
    return TESS_OK;
}

/* A memory picture needs a ledger. */
static tess_status check_format(const report_run *runs, const report_order *orders, size_t n, int format) {
    size_t i = 0;
    while (i < n && orders[i].n == 0)
        i++;
    if (format == REPORT_SVG && i == n)
        return tess_fail(TESS_E_DATA, "%s: no ledger events, which a picture of memory shows", runs[0].path);
    return TESS_OK;
}

static void put(const report_run *runs, const report_order *orders, size_t n, int format, FILE *out) {
    if (format == REPORT_SVG)
        report_svg_file(out, runs, orders, n);
    else if (format == REPORT_TRACE)
        report_trace(out, runs, orders, n);
    else
        report_html(out, runs, orders, n);
}

static tess_status write_file(const report_run *runs, const report_order *orders, size_t n, int format,
                              const char *path) {
    report_file file;
    TRY(report_file_open(&file, path));
    put(runs, orders, n, format, file.out);
    return report_file_commit(&file);
}

/* Writes to the file at `path`, or to `out` without one. */
static tess_status write_to(const report_run *runs, size_t n, int format, const char *path, FILE *out) {
    report_order *orders = calloc(n, sizeof *orders);
    if (!orders)
        return tess_fail(TESS_E_NOMEM, "no memory for a report of %zu files", n);
    tess_status status = put_in_order(runs, n, orders);
    if (status == TESS_OK)
        status = check_format(runs, orders, n, format);
    if (status == TESS_OK && out)
        put(runs, orders, n, format, out);
    else if (status == TESS_OK)
        status = write_file(runs, orders, n, format, path);
    for (size_t i = 0; i < n; i++)
        report_order_free(&orders[i]);
    free(orders);
    return status;
}

tess_status report_write(const report_run *runs, size_t n, int format, const char *path) {
    return write_to(runs, n, format, path, NULL);
}

tess_status report_put(const report_run *runs, size_t n, int format, FILE *out) {
    return write_to(runs, n, format, NULL, out);
}

/* ---- the command ------------------------------------------------------------------------------- */
typedef struct {
    const char *files[MOST_FILES], *output;
    size_t n;
    int svg, perfetto;
} arguments;

static int same_file(const char *a, const char *b) {
    struct stat sa, sb;
    return stat(a, &sa) == 0 && stat(b, &sb) == 0 && S_ISREG(sa.st_mode) && sa.st_dev == sb.st_dev &&
           sa.st_ino == sb.st_ino;
}

static error_t check_arguments(arguments *a, const struct argp_state *state) {
    if (a->n == 0)
        return tool_usage_error(state, "no file given; `tessera train … --json=FILE` writes one");
    if (a->svg && a->perfetto)
        return tool_usage_error(state, "--svg and --perfetto are two kinds of file; ask for one at a time");
    if (!a->output && isatty(STDOUT_FILENO))
        return tool_usage_error(state, "say where the page goes with -o FILE");
    if (!a->output)
        a->output = "-";
    for (size_t i = 0; i < a->n; i++)
        if (same_file(a->files[i], a->output))
            return tool_usage_error(state, "'%s' is read, so it cannot be the output too", a->output);
    return 0;
}

static error_t parse(int key, char *text, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case 'o': a->output = text; return 0;
    case KEY_SVG: a->svg = 1; return 0;
    case KEY_PERFETTO: a->perfetto = 1; return 0;
    case ARGP_KEY_ARG:
        if (a->n == MOST_FILES)
            return tool_usage_error(state, "more than %d files", MOST_FILES);
        a->files[a->n++] = text;
        return 0;
    case ARGP_KEY_END: return check_arguments(a, state);
    default: return ARGP_ERR_UNKNOWN;
    }
}

static tess_status read_file(const char *path, report_run *out) {
    struct stat there;
    if (strcmp(path, "-") == 0)
        return report_read(stdin, "standard input", out);
    FILE *in = fopen(path, "re");
    if (!in)
        return tess_fail(TESS_E_DATA, "%s: %s", path, strerror(errno));
    tess_status status;
    if (fstat(fileno(in), &there) == 0 && S_ISDIR(there.st_mode))
        status = tess_fail(TESS_E_DATA, "%s: a folder, expected a file that `--json` wrote", path);
    else
        status = report_read(in, path, out);
    fclose(in);
    return status;
}

/* Labels each run by the last part of its path, or by the whole path if two runs share it. */
static void label_runs(report_run *runs, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const char *slash = strrchr(runs[i].path, '/');
        runs[i].label = slash ? slash + 1 : runs[i].path;
    }
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++)
            if (k != i && strcmp(runs[i].label, runs[k].label) == 0)
                runs[i].label = runs[i].path;
}

static const tool_page page = {
    .command = "report",
    .usage = "FILE… [OPTION…]",
    .doc =
        "Draws the memory and the time of training steps from FILEs that `tessera train --json=FILE` or `tessera plan "
        "--json=FILE` wrote; - is standard input. The page is one HTML file that loads nothing; several FILEs are "
        "compared in it.",
    .examples = "tessera report run.json -o run.html\n"
                "  one run\n"
                "tessera report run.json plan.json -o both.html\n"
                "  compared\n"
                "tessera report run.json --perfetto -o run.trace\n"
                "  for ui.perfetto.dev",
};
static const struct argp_option options[] = {
    { "output", 'o', "FILE", 0, "where to write; without it standard output", 0 },
    { "svg", KEY_SVG, NULL, 0, "write the picture of memory alone", 0 },
    { "perfetto", KEY_PERFETTO, NULL, 0, "write a trace, for Perfetto or chrome://tracing", 0 },
    { NULL, 0, NULL, 0, NULL, 0 }
};

int cmd_report(int argc, char **argv) {
    const struct argp argp = { options, parse, NULL, NULL, NULL, NULL, NULL };
    arguments a = { .n = 0 };
    int code = tool_parse_page(&page, &argp, 0, argc, argv, &a);
    if (code != TOOL_OK)
        return code;
    report_run *runs = calloc(a.n, sizeof *runs);
    tess_status status = runs ? TESS_OK : tess_fail(TESS_E_NOMEM, "no memory for %zu files", a.n);
    for (size_t i = 0; i < a.n && status == TESS_OK; i++)
        status = read_file(a.files[i], &runs[i]);
    if (status == TESS_OK) {
        label_runs(runs, a.n);
        status = report_write(runs, a.n, a.perfetto ? REPORT_TRACE : a.svg ? REPORT_SVG : REPORT_HTML, a.output);
    }
    for (size_t i = 0; runs && i < a.n; i++)
        report_run_free(&runs[i]);
    free(runs);
    return status == TESS_OK ? TOOL_OK : tool_report(status);
}
