/* SPDX-License-Identifier: BSD-3-Clause */
/* The matrix: one test per combination of strategies, each a run of the toy on real processes. In every cell the bytes
 * planned are the bytes obtained, in each domain and category and at the system call, and the bytes alive at every
 * ledger point of every unit; nothing is allocated after the
 * first step; nothing stays booked. Cells that share (precision, wire, W, accumulation, clipping) share one digest.
 *
 *   test_matrix [--all] [--device] [--part I/N] [--list] [PATTERN]     PATTERN: a shell pattern over names, "*W=4*"
 *
 * TESSERA_MATRIX_DEVICE, _COMM, _OFFLOAD, _PRECISION, _WRAP: a plugin of yours as one more value of its axis.
 * --device: the cells of that device alone. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "axes.h"
#include "tests/support/ranks.h"

enum { NAME_CHARS = 256, STORED_COUNT = 141 /* cells of the covering set; a smaller set is a failure */ };

static char *toy_path;
static struct { int run[8][8], passed[8][8]; /* by strategy and number of ranks */ } tally;

/* ---- digests ---- */

typedef struct {
    char key[NAME_CHARS], digest[32], first[NAME_CHARS];
} expectation;
static expectation expected[512];
static int n_expected;

/* What a digest may depend on. Groups that are no power of two sum in another order (docs/numbers.md). */
static void digest_key(const cell *c, char *out, size_t n) {
    char strategy[32];
    cell_strategy(c, strategy, sizeof strategy);
    int own_order = strncmp(strategy, "hybrid", 6) == 0 && strstr(strategy, ":3") && cell_ranks(c) > 3;
    snprintf(out, n, "%s/%s/%s/%s%s", axes[PRECISION].values[c->v[PRECISION]], axes[RANKS].values[c->v[RANKS]],
             axes[ACCUM].values[c->v[ACCUM]], axes[CLIP].values[c->v[CLIP]], own_order ? "/groups of 3" : "");
}

/* ---- one cell ---- */

static void set(const char *name, const char *value) {
    setenv(name, value, 1);
}

static void set_environment(const cell *c) {
    char strategy[32];
    const char *accum = axes[ACCUM].values[c->v[ACCUM]];
    char k[2] = { accum[0], 0 };
    cell_strategy(c, strategy, sizeof strategy);
    set("TESSERA_STRATEGY", strategy);
    set("TESSERA_DEVICE", axes[DEVICE].values[c->v[DEVICE]]);
    if (c->v[DEVICE] > 0) /* its comm plugin may sum in an order of its own otherwise */
        set("TESSERA_DETERMINISTIC", "1");
    else
        unsetenv("TESSERA_DETERMINISTIC");
    set("TESSERA_COMM", axes[COMM].values[c->v[COMM]]);
    set("TESSERA_OFFLOAD", axes[OFFLOAD].values[c->v[OFFLOAD]]);
    set("TESSERA_PRECISION", axes[PRECISION].values[c->v[PRECISION]]);
    set("TESSERA_WRAP", axes[WRAP].values[c->v[WRAP]]);
    set("TESSERA_ACTIVATIONS", axes[ACTIVATIONS].values[c->v[ACTIVATIONS]]);
    set("TESSERA_ACCUM", k);
    set("TESSERA_SYNC", strstr(accum, "end") ? "end" : "each");
    set("TESSERA_THREADS", "1");
}

/* The text behind "name=" in the toy's line. */
static void value_of(const char *line, const char *name, char *out, size_t n) {
    const char *at = strstr(line, name);
    if (!at)
        fail_msg("no %s in: %s", name, line);
    at += strlen(name);
    snprintf(out, n, "%.*s", (int)strcspn(at, " \n"), at);
}

static uint64_t number_of(const char *line, const char *name) {
    char text[64];
    value_of(line, name, text, sizeof text);
    return strtoull(text, NULL, 10);
}

static void check_bytes(const char *line, int on_host, int ranks) {
    char text[64];
    uint64_t device = number_of(line, " planned="), host = number_of(line, " host_planned=");
    assert_int_equal(number_of(line, " peak="), device);
    assert_int_equal(number_of(line, " host_peak="), host);
    value_of(line, " step_allocations=", text, sizeof text);
    if (strcmp(text, "-1") != 0) { /* -1: a sanitizer owns malloc */
        assert_string_equal(text, "0");
        if (on_host) /* else memory is the driver's to map */
            assert_int_equal(number_of(line, " mapped="), device + host);
    }
    value_of(line, " categories=", text, sizeof text);
    assert_string_equal(text, "equal");
    value_of(line, " resting=", text, sizeof text);
    assert_string_equal(text, "equal");
    value_of(line, " ledger=", text, sizeof text); /* at every point of every unit, in three steps and evaluations */
    assert_string_equal(text, "equal");
    assert_true(number_of(line, " points=") >= 3 * 4 * number_of(line, " units="));
    value_of(line, " buffers=", text, sizeof text);
    assert_string_equal(text, "equal");
    assert_int_equal(number_of(line, " recompiles="), 0);
    assert_int_equal(number_of(line, " ranks="), ranks); /* the toy has compared the others with their plans and bits */
}

/* ---- what the driver's double has seen ---- */

static char log_path[] = "/tmp/tessera-matrix-XXXXXX";

/* What the communicators of a cell take beside the arenas: 64 requests, each with 64 bytes for itself and every rank.
 */
static uint64_t words_bytes(const cell *c) {
    char strategy[32];
    uint64_t w = (uint64_t)cell_ranks(c), k = w, bytes = 4096 * (1 + w);
    if (w == 1)
        return 0;
    cell_strategy(c, strategy, sizeof strategy);
    const char *colon = strchr(strategy, ':');
    if (colon)
        k = strtoull(colon + 1, NULL, 10);
    uint64_t groups[2] = { k, w / k };
    for (int i = 0; colon && i < 2; i++)
        bytes += groups[i] > 1 && groups[i] < w ? 4096 * (1 + groups[i]) : 0;
    return bytes;
}

/* On each rank the driver has given out what was planned, and comm-nccl's words; by the driver's own count. */
static void check_driver(const cell *c, const char *line) {
    char name[64];
    int rank, ranks = 0;
    uint64_t n, expected_bytes = number_of(line, " planned=") + words_bytes(c);
    FILE *log = fopen(log_path, "r");
    while (log && fscanf(log, "%d %63s %" SCNu64 "\n", &rank, name, &n) == 3)
        if (strcmp(name, "device-bytes") == 0) {
            ranks++;
            if (n != expected_bytes)
                fail_msg("rank %d obtained %" PRIu64 " bytes from the driver, expected %" PRIu64, rank, n,
                         expected_bytes);
        }
    if (!log) /* a real GPU */
        return;
    fclose(log);
    assert_int_equal(ranks, cell_ranks(c));
}

static int run_toy(const cell *c, char *output, size_t capacity) {
    const char *mode = strcmp(axes[CLIP].values[c->v[CLIP]], "on") == 0 ? "blocks-clip" : "blocks";
    char *argv[] = { toy_path, (char *)mode, "3", NULL };
    set_environment(c);
    unlink(log_path);
    if (c->v[DEVICE] > 0)
        set("TESSERA_DOUBLE_LOG", log_path);
    else
        unsetenv("TESSERA_DOUBLE_LOG");
    return ranks_run(cell_ranks(c), argv, 60, output, capacity);
}

/* The digest that all cells of this key must have: that of the plainest one among them, run for the purpose. */
static const expectation *expectation_of(const cell *c) {
    char key[NAME_CHARS], output[4096];
    digest_key(c, key, sizeof key);
    for (int i = 0; i < n_expected; i++)
        if (strcmp(expected[i].key, key) == 0)
            return &expected[i];
    cell plain = *c;
    plain.v[DEVICE] = 0;
    plain.v[COMM] = cell_ranks(c) > 1; /* self or gloo */
    plain.v[OFFLOAD] = plain.v[ACTIVATIONS] = 0;
    plain.v[WRAP] = 1;
    if (!strstr(key, "groups"))
        plain.v[STRATEGY] = 0;
    expectation *e = &expected[n_expected++];
    snprintf(e->key, sizeof e->key, "%s", key);
    cell_name(&plain, e->first, sizeof e->first);
    int code = run_toy(&plain, output, sizeof output);
    if (code)
        fail_msg("the plain cell %s ended with %d: %s", e->first, code, output);
    value_of(output, "digest=", e->digest, sizeof e->digest);
    return e;
}

static void run_cell(void **state) {
    const cell *c = *state;
    char name[NAME_CHARS], digest[64], output[4096];
    cell_name(c, name, sizeof name);
    tally.run[c->v[STRATEGY]][c->v[RANKS]]++;
    int code = run_toy(c, output, sizeof output);
    if (code != 0)
        fail_msg("exit code %d: %s", code, output);
    check_bytes(output, c->v[DEVICE] == 0, cell_ranks(c));
    if (c->v[DEVICE] > 0)
        check_driver(c, output);
    value_of(output, "digest=", digest, sizeof digest);
    const expectation *e = expectation_of(c);
    if (strcmp(e->digest, digest) != 0)
        fail_msg("digest %s, but %s gave %s", digest, e->first, e->digest);
    tally.passed[c->v[STRATEGY]][c->v[RANKS]]++;
}

/* ---- the program ---- */

static void print_grid(void) {
    printf("\ncells passed/run   ");
    for (int w = 0; w < axes[RANKS].n; w++)
        printf("  W=%-6s", axes[RANKS].values[w]);
    printf("\n");
    for (int s = 0; s < axes[STRATEGY].n; s++) {
        printf("%-19s", axes[STRATEGY].values[s]);
        for (int w = 0; w < axes[RANKS].n; w++) {
            char text[32] = "-";
            if (tally.run[s][w])
                snprintf(text, sizeof text, "%d/%d", tally.passed[s][w], tally.run[s][w]);
            printf("  %-8s", text);
        }
        printf("\n");
    }
    printf("%d digests over all cells: one for each (precision, W, accumulation, clipping)", n_expected);
    printf("; exception by rule: hybrid:3 at W = 6 (docs/numbers.md)\n");
}

static int usage(void) {
    fprintf(stderr, "usage: test_matrix [--all] [--device] [--part I/N] [--list] [PATTERN]\n");
    return 2;
}

int main(int argc, char **argv) {
    static cell cells[MAX_CELLS];
    int all = 0, list = 0, part = 0, parts = 1;
    const char *pattern = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--all") == 0)
            all = 1;
        else if (strcmp(argv[i], "--device") == 0)
            axes_device_alone = 1;
        else if (strcmp(argv[i], "--list") == 0)
            list = 1;
        else if (strcmp(argv[i], "--part") == 0 && i + 1 < argc && sscanf(argv[i + 1], "%d/%d", &part, &parts) == 2)
            i++;
        else if (argv[i][0] == '-' || pattern)
            return usage();
        else
            pattern = argv[i];
    }
    toy_path = getenv("TOY");
    if (!toy_path || parts < 1 || part < 0 || part >= parts)
        return usage();
    int added = axes_extend();
    if (axes_device_alone && (axes[DEVICE].n == 1 || axes[COMM].n == 3)) {
        fprintf(stderr, "--device needs TESSERA_MATRIX_DEVICE and TESSERA_MATRIX_COMM\n");
        return 2;
    }
    size_t n = all ? cells_all(cells) : cells_covering(cells), n_tests = 0;
    if (!all && !added && n < STORED_COUNT) {
        fprintf(stderr, "the covering set has %zu cells, fewer than the %d it had\n", n, STORED_COUNT);
        return 1;
    }
    struct CMUnitTest *tests = calloc(n, sizeof *tests);
    char(*names)[NAME_CHARS] = calloc(n, sizeof *names);
    for (size_t i = 0; i < n; i++) {
        cell_name(&cells[i], names[i], NAME_CHARS);
        if ((int)(i % (size_t)parts) != part || (pattern && fnmatch(pattern, names[i], 0) != 0))
            continue;
        tests[n_tests++] = (struct CMUnitTest){ names[i], run_cell, NULL, NULL, &cells[i] };
        if (list)
            printf("%s\n", names[i]);
    }
    printf("%zu of %zu cells (%s)\n", n_tests, n, all ? "the whole product" : "every triple of values occurs");
    if (list || n_tests == 0)
        return list ? 0 : 1;
    setenv("TESSERA_LOG", "error", 1);
    int fd = mkstemp(log_path);
    if (fd >= 0)
        close(fd);
    unlink(log_path);
    int failed = _cmocka_run_group_tests("matrix", tests, n_tests, NULL, NULL);
    unlink(log_path);
    print_grid();
    printf("%zu cells run, %d failed\n", n_tests, failed);
    free(tests);
    free(names);
    return failed != 0;
}
