/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera bench SUBJECT…: measurements against the machine's limits. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "tools/support/command_line.h"
#include "tools/support/world.h"
#include "tools/support/options.h"
#include <tessera/plugin_options.h>
#include "tools/launch/launch.h"
#include "tools/support/say.h"
#include <tessera/tessera.h>
#include "tools/train/train.h"

enum { KEY_BYTES = 0x100, KEY_LEAST, KEY_ROUNDS, KEY_SECONDS, KEY_OP, KEY_TOGETHER, KEY_MACHINE, MOST_SUBJECTS = 16 };

static const char *const subjects[] = { "comm", "blocks", "step", "cast", "optimizer", "sum", "norm" };
enum { N_SUBJECTS = sizeof subjects / sizeof subjects[0] };

typedef struct {
    const char *chosen[MOST_SUBJECTS];
    size_t n_chosen;
    int comm, blocks, step;
    const char *machine; /* path of the machine's description */
    const char *model;   /* behind "blocks" or "step" */
    tool_bench_options kernels;
    tool_bench_comm_options collectives;
} arguments;

static error_t take_subject(arguments *a, const char *word, const struct argp_state *state) {
    for (size_t i = 0; i < N_SUBJECTS; i++)
        if (strcmp(subjects[i], word) == 0) {
            if (a->n_chosen == MOST_SUBJECTS)
                return tool_usage_error(state, "more than %d subjects", MOST_SUBJECTS);
            a->chosen[a->n_chosen++] = subjects[i];
            a->comm |= i == 0;
            a->blocks |= i == 1;
            a->step |= i == 2;
            return 0;
        }
    for (size_t i = 0; (a->blocks || a->step) && !a->model && train_models[i]; i++)
        if (strcmp(train_models[i], word) == 0) {
            a->model = word;
            return 0;
        }
    const char *near = tool_suggestion(word, subjects, N_SUBJECTS);
    return tool_usage_error(state, "unknown subject '%s'%s", word,
                            *near ? near : "; there are comm, blocks, step, cast, optimizer, sum and norm");
}

static error_t take_bytes(const char *text, const char *name, uint64_t *out, const struct argp_state *state) {
    if (!tess_option_parse_bytes(text, out) || *out == 0)
        return tool_usage_error(state, "--%s is '%s', expected a number of bytes as in 64MiB", name, text);
    return 0;
}

static error_t take_rounds(arguments *a, const char *text, const struct argp_state *state) {
    uint64_t rounds;
    if (!tess_option_parse_bytes(text, &rounds) || rounds < 1 || rounds > 1000000)
        return tool_usage_error(state, "--rounds is '%s', expected 1 to 1000000", text);
    a->kernels.rounds = a->collectives.rounds = (int32_t)rounds;
    return 0;
}

static error_t take_together(arguments *a, const char *text, const struct argp_state *state) {
    uint64_t n;
    if (!tess_option_parse_bytes(text, &n) || n < 1 || n > 16)
        return tool_usage_error(state, "--together is '%s', expected 1 to 16", text);
    a->collectives.together = (int32_t)n;
    return 0;
}

static error_t take_seconds(arguments *a, const char *text, const struct argp_state *state) {
    if (!tess_option_parse_real(text, &a->collectives.seconds) || a->collectives.seconds <= 0)
        return tool_usage_error(state, "--seconds is '%s', expected a number above 0", text);
    return 0;
}

static error_t finish(arguments *a, const struct argp_state *state) {
    if ((a->comm || a->blocks || a->step) && a->n_chosen > 1)
        return tool_usage_error(state, "comm, blocks and step come alone: one at a time");
    if (a->machine && a->n_chosen)
        return tool_usage_error(state, "--machine measures what it needs, no subject beside it");
    if (!a->comm && (a->collectives.op || a->collectives.least_bytes || a->collectives.seconds > 0))
        return tool_usage_error(state, "--op, --least-bytes and --seconds are for the subject comm");
    a->collectives.most_bytes = a->kernels.bytes;
    return 0;
}

static error_t parse(int key, char *text, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_ARG: return take_subject(a, text, state);
    case ARGP_KEY_END: return finish(a, state);
    case KEY_BYTES: return take_bytes(text, "bytes", &a->kernels.bytes, state);
    case KEY_LEAST: return take_bytes(text, "least-bytes", &a->collectives.least_bytes, state);
    case KEY_ROUNDS: return take_rounds(a, text, state);
    case KEY_SECONDS: return take_seconds(a, text, state);
    case KEY_OP: a->collectives.op = text; return 0;
    case KEY_TOGETHER: return take_together(a, text, state);
    case KEY_MACHINE: a->machine = text ? text : "1"; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* Rank 0 prints; the others must not empty its file. */
static tess_status open_output(int32_t rank, int *is_json, FILE **out) {
    const char *json = tool_option_text("json");
    *is_json = json != NULL;
    if (!json || strcmp(json, "1") == 0 || rank != 0)
        return TESS_OK;
    *out = fopen(json, "we");
    if (!*out)
        return tess_fail(TESS_E_DATA, "--json=%s: %s", json, strerror(errno));
    return TESS_OK;
}

static int close_output(FILE *out, int code) {
    if (!out || fclose(out) == 0)
        return code;
    tool_say(SAY_ERROR, "--json: not everything could be written: %s", strerror(errno));
    return TOOL_CONFIG;
}

static int bench_kernels(arguments *a) {
    int64_t threads = 0;
    tess_status status = tool_option_int("threads", &threads);
    if (status == TESS_OK)
        status = open_output(0, &a->kernels.json, &a->kernels.out);
    if (status != TESS_OK)
        return tool_report(status);
    a->kernels.threads = (int32_t)threads;
    int code = a->step       ? tool_bench_step(&a->kernels, a->model)
               : a->n_chosen ? TOOL_OK
                             : tool_bench_kernels(NULL, &a->kernels);
    for (size_t i = 0; !a->step && i < a->n_chosen && code == TOOL_OK; i++)
        code = tool_bench_kernels(a->chosen[i], &a->kernels);
    return close_output(a->kernels.out, code);
}

/* Runs as one rank of a world that a launcher has started. */
static int bench_comm(arguments *a) {
    tool_world world;
    tess_status status = tool_world_read(&world);
    if (status == TESS_OK)
        status = open_output(world.rank, &a->collectives.json, &a->collectives.out);
    if (status != TESS_OK)
        return tool_report(status);
    if (a->blocks)
        return close_output(a->collectives.out, tool_bench_blocks(a->collectives.out, a->collectives.json, a->model));
    a->collectives.comm = tool_option_text("comm");
    return close_output(a->collectives.out, tool_bench_comm(&a->collectives));
}

static int start_ranks(int32_t ranks, int argc, char **argv) {
    char **words = calloc((size_t)argc + 2, sizeof *words);
    if (!words)
        return TOOL_MEMORY;
    words[0] = "tessera";
    words[1] = "bench";
    memcpy(words + 2, argv + 1, (size_t)(argc - 1) * sizeof *words);
    int code = launch_self(&(launch_options){ .ranks = ranks, .bind = 1, .ranks_explain = 1, .argv = words });
    free(words);
    return code;
}

static int run_comm(arguments *a, int argc, char **argv) {
    int64_t ranks = 0;
    tess_status status = tool_option_ranks(65536, &ranks);
    if (status != TESS_OK)
        return tool_report(status);
    if (ranks == 0 && !getenv("WORLD_SIZE") && a->comm)
        ranks = 2; /* one rank has nobody to talk to */
    int start = ranks ? launch_wanted("bench", ranks) : 0;
    if (start < 0)
        return TOOL_USAGE;
    return start ? start_ranks((int32_t)ranks, argc, argv) : bench_comm(a);
}

static const tool_subject page_subjects[] = {
    { "comm", "collectives of every comm plugin that can run here, on -n ranks" },
    { "blocks", "the blocks of the reference models, or of the MODEL behind it, on -n ranks" },
    { "step", "a pass of the engine against its blocks called directly, of five models or of MODEL" },
    { "cast", "casts of the cpu device" },
    { "optimizer", "optimizer steps of the cpu device" },
    { "sum", "tree sums of the cpu device" },
    { "norm", "gradient norms of the cpu device" },
    { NULL, NULL },
};
#define OF_MODELS "blocks step"
static const tool_takers takers[] = {
    { "least-bytes", "comm" },
    { "seconds", "comm" },
    { "op", "comm" },
    { "together", "comm" },
    { "comm", "comm" },
    { "ranks", "comm " OF_MODELS },
    { "bytes", "comm cast optimizer sum norm" },
    { "rounds", "comm step cast optimizer sum norm" },
    { "model", OF_MODELS },
    { "config", OF_MODELS },
    { "layers", OF_MODELS },
    { "heads", OF_MODELS },
    { "width", OF_MODELS },
    { "context", OF_MODELS },
    { "image-size", OF_MODELS },
    { "hidden", OF_MODELS },
    { "batch", OF_MODELS },
    { "seed", OF_MODELS },
    { "precision", OF_MODELS },
    { "device", OF_MODELS },
    { NULL, NULL },
};
static const tool_page page = {
    .command = "bench",
    .usage = "[SUBJECT…] [OPTION…]",
    .doc = "Measures against the machine's limits. Without a subject: all kernels of the cpu device.",
    .subjects_title = "Subjects",
    .subjects = page_subjects,
    .takers = takers,
    .without = "cast",
    .examples = "tessera bench comm -n 2 --bytes 16MiB\n"
                "  every backend that can run here\n"
                "tessera bench blocks gpt --layers 2\n"
                "  forward and backward of each block\n"
                "tessera bench step gpt\n"
                "  what the engine costs over the blocks alone, and where it goes\n"
                "tessera bench --machine=here.json\n"
                "  describe this machine for plan and tune",
    .shared = TOOL_BENCH,
};

int cmd_bench(int argc, char **argv) {
    static const struct argp_option own[] = {
        { "bytes", KEY_BYTES, "BYTES", 0, "size of the largest array, or of a collective's whole buffer", 0 },
        { "least-bytes", KEY_LEAST, "BYTES", 0, "the size to begin with; each is four times the last", 0 },
        { "rounds", KEY_ROUNDS, "N", 0, "how many measurements of a case", 0 },
        { "seconds", KEY_SECONDS, "S", 0, "the longest to spend on a case", 0 },
        { "op", KEY_OP, "NAME", 0, "one collective, as in all_gather", 0 },
        { "together", KEY_TOGETHER, "N", 0, "collectives posted before the first is waited for", 0 },
        { "machine", KEY_MACHINE, "FILE", OPTION_ARG_OPTIONAL,
          "measure this machine for tessera plan --machine and tessera tune, and write its description", 0 },
        { NULL, 0, NULL, 0, NULL, 0 },
    };
    struct argp_child children[] = { { tool_common_argp(), 0, NULL, 0 }, { NULL, 0, NULL, 0 } };
    struct argp argp = { own, parse, NULL, NULL, children, NULL, NULL };
    arguments a = { .n_chosen = 0 };
    int code = tool_parse_page(&page, &argp, 0, argc, argv, &a);
    if (code != TOOL_OK)
        return code;
    if (a.machine)
        return tool_bench_machine(a.machine);
    return a.comm || a.blocks ? run_comm(&a, argc, argv) : bench_kernels(&a);
}
