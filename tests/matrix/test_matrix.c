/* SPDX-License-Identifier: BSD-3-Clause */
/* The matrix: one test per combination of strategies, each a run of the toy on real processes. In every cell the bytes
 * planned are the bytes obtained, in each domain and category and at the system call, and the bytes alive at every
 * ledger point of every unit; nothing is allocated after the
 * first step; nothing stays booked. Cells whose digests may depend on nothing else than what they have in common share
 * one digest: docs/matrix.md.
 *
 *   test_matrix [--seed N] [--device] [--part I/N] [--list] [PATTERN]   PATTERN: a shell pattern over names, "*W=4*"
 *   test_matrix --steps N [--audited] …  so many steps in each cell; with audits wherever there can be some
 *   test_matrix --cell NAME             "comm=shm,W=3": the first value on every axis that NAME does not have
 *   test_matrix --stored [--device]     the cells below, also of the toy's large shape; digests that are stored in
 *                                       tests/matrix/expected must be those
 *
 * Each seed gives another set in which every triple of values occurs; CI runs that of the default.
 *
 * TESSERA_MATRIX_DEVICE, _COMM, _OFFLOAD, _PRECISION, _WRAP, _OPTIMIZER: plugins of yours as more values of an axis.
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

enum { NAME_CHARS = 320, MOST_WHOLE = 8, WHOLE_EVERYWHERE = 2 /* the index of the strategy "none" */ };
enum {
    PLAIN_COMM = 2 /* the index of shm, which takes less of a processor than gloo; cells on gloo compare the two */
};

/* Messages of every length a backend tells apart, and what tests/reference/toy.py has computed. */
static const char *const stored_cells[] = {
    "comm=self,wrap=scopes",
    "comm=shm,W=2,wrap=scopes",
    "comm=shm,W=3,wrap=scopes",
    "comm=shm,W=4,wrap=scopes",
    "large,comm=self,wrap=scopes,api=hooks",
    "large,comm=gloo,W=2,wrap=none,strategy=grad_op,prefetch=3",
    "large,comm=gloo,W=3,wrap=size:100,api=fused",
    "large,comm=shm,W=2,wrap=none,prefetch=1",
    "large,comm=shm,W=3,wrap=none,strategy=none",
    "large,comm=shm,W=4,wrap=scopes,strategy=hybrid:2,api=hooks",
    "large,comm=fault:over=shm,W=4,wrap=scopes,strategy=grad_op,api=fused",
    "large,comm=gloo,W=2,wrap=scopes,precision=bf16,accum=2each,clip=on",
    "large,comm=shm,W=2,wrap=scopes,precision=bf16:grad=bf16,offload=cpu,activations=offload,accum=2end",
    "large,comm=gloo,W=4,wrap=none,strategy=hybrid:2,accum=2end,deterministic=1,groups=2",
    "large,comm=shm,W=4,wrap=scopes,accum=2each,deterministic=1,groups=2,offload=cpu:fraction=0.5",
};
enum { STORED_CELLS = sizeof stored_cells / sizeof *stored_cells, STORED_DIGESTS = 8 };

static struct {
    unsigned seed;
    int list, part, parts, stored, steps, audited;
    const char *pattern, *name;
} asked = { .parts = 1, .seed = 20220518, .steps = 3 };
static char *toy_path;
static struct {
    int run[8][8], passed[8][8]; /* by strategy and number of ranks */
    int steps, audited;          /* in all, and with audits */
} tally;

/* ---- digests ---- */

typedef struct {
    char key[NAME_CHARS], digest[32], norm[32], first[NAME_CHARS];
} expectation;
enum { MOST_KEYS = 16384 };
static expectation expected[MOST_KEYS];
static int n_expected;

static const char *value(const cell *c, int axis) {
    return axes[axis].values[c->v[axis]];
}

static int power_of_two(int n) {
    return (n & (n - 1)) == 0;
}

/* Groups that are no power of two sum in another order (docs/numbers.md). */
static int groups_of_three(const cell *c) {
    char strategy[32];
    cell_strategy(c, strategy, sizeof strategy);
    return strncmp(strategy, "hybrid", 6) == 0 && strstr(strategy, ":3") && cell_ranks(c) > 3;
}

/* Whether the sum is one tree over all microbatches, so that only their number matters. */
static int one_tree(const cell *c) {
    int each = strstr(value(c, ACCUM), "end") == NULL && cell_accum(c) > 1;
    return cell_is(c, DETERMINISTIC, "1") && !groups_of_three(c) && (!each || power_of_two(cell_ranks(c)));
}

/* What a digest may depend on. */
static void digest_key(const cell *c, char *out, size_t n) {
    char sum[32];
    if (one_tree(c))
        snprintf(sum, sizeof sum, "%d microbatches", cell_ranks(c) * cell_accum(c));
    else
        snprintf(sum, sizeof sum, "%d ranks, %s%s%s", cell_ranks(c), value(c, ACCUM),
                 groups_of_three(c) ? " in groups of 3" : "", cell_is(c, DETERMINISTIC, "1") ? " in a tree" : "");
    snprintf(out, n, "%s %s/%s/%s/%s/%s", c->large ? "large" : "small", value(c, PRECISION), value(c, OPTIMIZER),
             value(c, GROUPS), value(c, CLIP), sum);
}

/* ---- one cell ---- */

static void set(const char *name, const char *value) {
    setenv(name, value, 1);
}

static void set_environment(const cell *c) {
    static const struct {
        int axis;
        const char *variable;
    } as_they_are[] = {
        { DEVICE, "TESSERA_DEVICE" },
        { COMM, "TESSERA_COMM" },
        { OFFLOAD, "TESSERA_OFFLOAD" },
        { PRECISION, "TESSERA_PRECISION" },
        { WRAP, "TESSERA_WRAP" },
        { ACTIVATIONS, "TESSERA_ACTIVATIONS" },
        { OPTIMIZER, "TESSERA_OPTIMIZER" },
        { PREFETCH, "TESSERA_PREFETCH" },
        { DETERMINISTIC, "TESSERA_DETERMINISTIC" },
        { COPY, "TESSERA_LOW_COPY" },
        { STRICT, "TESSERA_STRICT" },
        { AUDIT, "TESSERA_AUDIT" },
    };
    char strategy[32], k[8];
    snprintf(k, sizeof k, "%d", cell_accum(c));
    for (size_t i = 0; i < sizeof as_they_are / sizeof as_they_are[0]; i++)
        set(as_they_are[i].variable, value(c, as_they_are[i].axis));
    cell_strategy(c, strategy, sizeof strategy);
    set("TESSERA_STRATEGY", strategy);
    set("TESSERA_ACCUM", k);
    set("TESSERA_SYNC", strstr(value(c, ACCUM), "end") ? "end" : "each");
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

static void check_bytes(const cell *c, const char *line) {
    char text[64];
    uint64_t device = number_of(line, " planned="), host = number_of(line, " host_planned=");
    assert_int_equal(number_of(line, " peak="), device);
    assert_int_equal(number_of(line, " host_peak="), host);
    assert_int_equal(number_of(line, " disk_peak="), number_of(line, " disk_planned="));
    assert_int_equal(number_of(line, " disk_peak=") > 0, cell_stores(c)); /* each optimizer has states */
    value_of(line, " step_allocations=", text, sizeof text);
    if (strcmp(text, "-1") != 0) { /* -1: a sanitizer owns malloc */
        assert_string_equal(text, "0");
        if (c->v[DEVICE] == 0) /* else memory is the driver's to map */
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
    assert_int_equal(number_of(line, " ranks="),
                     cell_ranks(c)); /* the toy has compared the others with their plans and bits */
}

/* ---- what the driver's double has seen ---- */

static char log_path[] = "/tmp/tessera-matrix-XXXXXX";

/* What the communicators of a cell take beside the arenas, on the device and locked on the host: 128 requests, each
 * with 64 bytes for itself and every rank. */
static uint64_t words_bytes(const cell *c) {
    char strategy[32];
    uint64_t w = (uint64_t)cell_ranks(c), k = w, bytes = 8192 * (1 + w);
    if (w == 1)
        return 0;
    cell_strategy(c, strategy, sizeof strategy);
    const char *colon = strchr(strategy, ':');
    if (colon)
        k = strtoull(colon + 1, NULL, 10);
    uint64_t groups[2] = { k, w / k }, shard = strcmp(strategy, "none") == 0 ? 1 : k;
    for (int i = 0; colon && i < 2; i++)
        bytes += groups[i] > 1 && groups[i] < w ? 8192 * (1 + groups[i]) : 0;
    return bytes + (shard > 1 ? 8192 * (1 + shard) : 0); /* reductions have one of their own */
}

/* One line of a double's log: the bytes that one rank obtained. `more`: beyond those, copies that no plan has. */
static int obtained(const char *line_name, const char *name, int rank, uint64_t bytes, uint64_t expected_bytes,
                    int more) {
    if (strcmp(line_name, name) != 0)
        return 0;
    if (more ? bytes <= expected_bytes : bytes != expected_bytes)
        fail_msg("rank %d: %s is %" PRIu64 ", expected %" PRIu64, rank, name, bytes, expected_bytes);
    return 1;
}

/* On each rank the driver has given out what was planned, and comm-nccl's words, and has locked as much of the host's
 * memory as was planned; by the driver's own count. */
static void check_driver(const cell *c, const char *line) {
    char name[64];
    int rank, ranks = 0, locked = 0, strict = cell_is(c, STRICT, "1");
    uint64_t n, device = number_of(line, " planned=") + words_bytes(c),
                host = number_of(line, " host_planned=") + words_bytes(c);
    FILE *log = fopen(log_path, "r");
    while (log && fscanf(log, "%d %63s %" SCNu64 "\n", &rank, name, &n) == 3) {
        ranks += obtained(name, "device-bytes", rank, n, device, strict);
        locked += obtained(name, "pinned-bytes", rank, n, host, 0);
    }
    if (!log) /* a real GPU */
        return;
    fclose(log);
    assert_int_equal(ranks, cell_ranks(c));
    assert_int_equal(locked, cell_ranks(c));
}

static int run_toy(const cell *c, char *output, size_t capacity) {
    char mode[64], steps[16];
    snprintf(steps, sizeof steps, "%d", asked.steps);
    snprintf(mode, sizeof mode, "%s%s%s%s%s%s", cell_is(c, API, "fused") ? "blocks-" : "", value(c, API),
             cell_is(c, CLIP, "on") ? "-clip" : "", cell_is(c, GROUPS, "1") ? "" : "-groups",
             cell_is(c, GROUPS, "rates") ? "-rates" : "", c->large ? "-large" : "");
    char *argv[] = { toy_path, mode, steps, NULL };
    set_environment(c);
    unlink(log_path);
    if (c->v[DEVICE] > 0)
        set("TESSERA_DOUBLE_LOG", log_path);
    else
        unsetenv("TESSERA_DOUBLE_LOG");
    return ranks_run(cell_ranks(c), argv, 60 + 4 * asked.steps, output, capacity);
}

/* The plainest cell with the same digest: self or shm, blocks, everything kept where it is, one unit
 * that every rank has whole; a cell that is such itself has another there. Where only the number of microbatches
 * matters, one rank has them all, up to eight: what the toy notes of more is no longer small. */
static cell plain_of(const cell *c) {
    cell plain = *c;
    static const int first[] = { DEVICE, OFFLOAD, ACTIVATIONS, API, PREFETCH, COPY, STRICT, AUDIT };
    for (size_t i = 0; i < sizeof first / sizeof first[0]; i++)
        plain.v[first[i]] = 0;
    plain.v[WRAP] = cell_is(c, WRAP, "none") ? 1 : 0;
    if (!groups_of_three(c))
        plain.v[STRATEGY] = cell_is(c, STRATEGY, "none") ? 0 : WHOLE_EVERYWHERE;
    const int microbatches = cell_ranks(c) * cell_accum(c);
    if (one_tree(c) && microbatches <= MOST_WHOLE) {
        plain.v[RANKS] = plain.v[ACCUM] = 0;
        plain.whole = (unsigned char)microbatches;
    }
    plain.v[COMM] = cell_ranks(&plain) > 1 ? PLAIN_COMM : 0;
    return plain;
}

static int n_stored; /* digests that were compared with stored ones */

/* What NumPy gives for the key, if it is stored. */
static void check_stored(const char *key, const char *digest) {
    char line[NAME_CHARS];
    FILE *in = asked.stored ? fopen(TESSERA_SOURCE_DIR "/tests/matrix/expected", "r") : NULL;
    size_t n = strlen(key);
    while (in && fgets(line, sizeof line, in)) {
        if (strncmp(line, key, n) != 0 || line[n] != '|')
            continue;
        line[strcspn(line, "\n")] = 0;
        n_stored++;
        if (strcmp(line + n + 1, digest) != 0)
            fail_msg("%s: digest %s, tests/reference/toy.py gave %s", key, digest, line + n + 1);
    }
    if (in)
        fclose(in);
}

/* The digest that all cells of this key must have: that of the plainest one among them, run for the purpose. */
static const expectation *expectation_of(const cell *c) {
    char key[NAME_CHARS], output[4096];
    digest_key(c, key, sizeof key);
    for (int i = 0; i < n_expected; i++)
        if (strcmp(expected[i].key, key) == 0)
            return &expected[i];
    cell plain = plain_of(c);
    if (n_expected == MOST_KEYS)
        fail_msg("more than %d digests", MOST_KEYS);
    expectation *e = &expected[n_expected++];
    snprintf(e->key, sizeof e->key, "%s", key);
    cell_name(&plain, e->first, sizeof e->first);
    int code = run_toy(&plain, output, sizeof output);
    if (code)
        fail_msg("the plain cell %s ended with %d: %s", e->first, code, output);
    value_of(output, "digest=", e->digest, sizeof e->digest);
    value_of(output, " norm=", e->norm, sizeof e->norm);
    check_stored(key, e->digest);
    return e;
}

static void run_cell(void **state) {
    const cell *c = *state;
    char name[NAME_CHARS], digest[64], norm[64], output[4096];
    cell_name(c, name, sizeof name);
    tally.run[c->v[STRATEGY]][c->v[RANKS]]++;
    int code = run_toy(c, output, sizeof output);
    if (code != 0)
        fail_msg("exit code %d: %s", code, output);
    check_bytes(c, output);
    if (c->v[DEVICE] > 0)
        check_driver(c, output);
    value_of(output, "digest=", digest, sizeof digest);
    const expectation *e = expectation_of(c);
    if (strcmp(e->digest, digest) != 0)
        fail_msg("digest %s, but %s gave %s", digest, e->first, e->digest);
    value_of(output, " norm=", norm, sizeof norm);
    int has_norm = cell_is(c, CLIP, "on") || cell_is(c, PRECISION, "fp16"); /* whose scale each norm decides */
    if (strcmp(e->norm, norm) != 0 || (strcmp(norm, "-1") == 0) == has_norm)
        fail_msg("the norm is %s, but %s gave %s", norm, e->first, e->norm);
    tally.passed[c->v[STRATEGY]][c->v[RANKS]]++;
    tally.steps += asked.steps;
    tally.audited += cell_is(c, AUDIT, "0") ? 0 : asked.steps;
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
    printf("%d steps, %d of them with audits\n", tally.steps, tally.audited);
    printf("%d digests over all cells; exception by rule: hybrid:3 at W = 6 (docs/numbers.md)\n", n_expected);
}

static int usage(void) {
    fprintf(stderr, "usage: test_matrix [--seed N] [--device] [--part I/N] [--steps N] [--audited] [--list] [PATTERN] "
                    "| --cell NAME | --stored "
                    "[--device]\n");
    return 2;
}

static int read_arguments(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--device") == 0)
            axes_device_alone = 1;
        else if (strcmp(argv[i], "--list") == 0)
            asked.list = 1;
        else if (strcmp(argv[i], "--audited") == 0)
            asked.audited = 1;
        else if (strcmp(argv[i], "--steps") == 0 && sscanf(next, "%d", &asked.steps) == 1)
            i++;
        else if (strcmp(argv[i], "--stored") == 0)
            asked.stored = 1;
        else if (strcmp(argv[i], "--part") == 0 && sscanf(next, "%d/%d", &asked.part, &asked.parts) == 2)
            i++;
        else if (strcmp(argv[i], "--seed") == 0 && sscanf(next, "%u", &asked.seed) == 1)
            i++;
        else if (strcmp(argv[i], "--cell") == 0 && *next)
            asked.name = argv[++i];
        else if (argv[i][0] == '-' || asked.pattern)
            return 0;
        else
            asked.pattern = argv[i];
    }
    return asked.parts >= 1 && asked.part >= 0 && asked.part < asked.parts && asked.steps > 0;
}

/* With audits, where there can be some. */
static void to_audited(cell *c) {
    cell with = *c;
    with.v[AUDIT] = 1;
    if (cell_is(c, AUDIT, "0") && cell_exists(&with))
        *c = with;
}

/* The same on the device and over the comm plugin that were added, which come last on their axes. */
static void to_device(cell *c) {
    c->v[DEVICE] = 1;
    c->v[COMM] = cell_ranks(c) > 1 ? (unsigned char)(axes[COMM].n - 1) : 0;
    c->v[DETERMINISTIC] = 1;
}

static size_t choose_stored(cell *cells) {
    const int on_device = axes_device_alone;
    axes_device_alone = 0; /* they have names on the CPU */
    for (int i = 0; i < STORED_CELLS; i++) {
        if (!cell_named(stored_cells[i], &cells[i])) {
            fprintf(stderr, "test_matrix: no cell has %s\n", stored_cells[i]);
            return 0;
        }
        if (on_device)
            to_device(&cells[i]);
    }
    return STORED_CELLS;
}

/* The one that was named, those above, or the set; 0: no such cell. */
static size_t choose_cells(cell *cells) {
    if (asked.stored)
        return choose_stored(cells);
    if (!asked.name)
        return cells_covering(asked.seed, cells);
    if (cell_named(asked.name, cells))
        return 1;
    fprintf(stderr, "test_matrix: no cell has %s\n", asked.name);
    return 0;
}

static int run_set(const struct CMUnitTest *tests, size_t n) {
    setenv("TESSERA_LOG", "error", 1);
    int fd = mkstemp(log_path);
    if (fd >= 0)
        close(fd);
    unlink(log_path);
    int failed = _cmocka_run_group_tests("matrix", tests, n, NULL, NULL);
    unlink(log_path);
    print_grid();
    printf("%zu cells run, %d failed, %d digests as stored\n", n, failed, n_stored);
    return failed != 0 || (asked.stored && !asked.pattern && n_stored != STORED_DIGESTS);
}

int main(int argc, char **argv) {
    static cell cells[MAX_CELLS];
    toy_path = getenv("TOY");
    if (!read_arguments(argc, argv) || !toy_path)
        return usage();
    int own_comms = axes[COMM].n;
    axes_extend();
    if (axes_device_alone && (axes[DEVICE].n == 1 || axes[COMM].n == own_comms)) {
        fprintf(stderr, "--device needs TESSERA_MATRIX_DEVICE and TESSERA_MATRIX_COMM\n");
        return 2;
    }
    size_t n = choose_cells(cells), n_tests = 0;
    struct CMUnitTest *tests = calloc(n + 1, sizeof *tests);
    char(*names)[NAME_CHARS] = calloc(n + 1, sizeof *names);
    for (size_t i = 0; i < n; i++) {
        if (asked.audited)
            to_audited(&cells[i]);
        cell_name(&cells[i], names[i], NAME_CHARS);
        if ((int)(i % (size_t)asked.parts) != asked.part || (asked.pattern && fnmatch(asked.pattern, names[i], 0) != 0))
            continue;
        tests[n_tests++] = (struct CMUnitTest){ names[i], run_cell, NULL, NULL, &cells[i] };
        if (asked.list)
            printf("%s\n", names[i]);
    }
    printf("%zu of %zu cells (%s)\n", n_tests, n,
           asked.name || asked.stored ? "by name" : "every triple of values occurs");
    int code = asked.list ? 0 : n_tests == 0 ? 1 : run_set(tests, n_tests);
    free(tests);
    free(names);
    return code;
}
