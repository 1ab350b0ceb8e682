/* tessera bench [SUBJECT…]: measurements against the machine's limits. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "common.h"
#include "log.h"
#include "options.h"
#include "status.h"

enum { KEY_BYTES = 0x100, KEY_ROUNDS, MOST_SUBJECTS = 16 };

static const char *const subjects[] = { "cast", "optimizer", "sum", "norm" };
enum { N_SUBJECTS = sizeof subjects / sizeof subjects[0] };

typedef struct {
    const char *chosen[MOST_SUBJECTS];
    size_t n_chosen;
    tool_bench_options options;
} arguments;

static error_t take_subject(arguments *a, const char *word, const struct argp_state *state) {
    for (size_t i = 0; i < N_SUBJECTS; i++)
        if (strcmp(subjects[i], word) == 0) {
            if (a->n_chosen == MOST_SUBJECTS)
                return tool_usage_error(state, "more than %d subjects", MOST_SUBJECTS);
            a->chosen[a->n_chosen++] = subjects[i];
            return 0;
        }
    const char *near = tool_suggestion(word, subjects, N_SUBJECTS);
    return tool_usage_error(state, "unknown subject '%s'%s", word,
                            *near ? near : "; there are cast, optimizer, sum and norm");
}

static error_t parse(int key, char *text, struct argp_state *state) {
    arguments *a = state->input;
    uint64_t rounds;
    switch (key) {
    case ARGP_KEY_ARG: return take_subject(a, text, state);
    case KEY_BYTES:
        if (tess__parse_bytes(text, &a->options.bytes) != TESS_OK || a->options.bytes == 0)
            return tool_usage_error(state, "--bytes is '%s', expected a number of bytes as in 64MiB", text);
        return 0;
    case KEY_ROUNDS:
        if (tess__parse_bytes(text, &rounds) != TESS_OK || rounds < 1 || rounds > 1000000)
            return tool_usage_error(state, "--rounds is '%s', expected 1 to 1000000", text);
        a->options.rounds = (int32_t)rounds;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static tess_status read_options(tool_bench_options *o) {
    int64_t threads = 0;
    const char *json = tess__option_text("json");
    tess_status status = tess__option_int("threads", 1, 4096, &threads);
    o->threads = (int32_t)threads;
    o->json = json != NULL;
    if (status != TESS_OK || !json || strcmp(json, "1") == 0)
        return status;
    o->out = fopen(json, "we");
    if (!o->out)
        return tess__fail(TESS_E_DATA, "--json=%s: %s", json, strerror(errno));
    return TESS_OK;
}

static int measure(const arguments *a) {
    int code = a->n_chosen ? TOOL_OK : tool_bench_kernels(NULL, &a->options);
    for (size_t i = 0; i < a->n_chosen && code == TOOL_OK; i++)
        code = tool_bench_kernels(a->chosen[i], &a->options);
    return code;
}

int cmd_bench(int argc, char **argv) {
    static const struct argp_option own[] = {
        { "bytes", KEY_BYTES, "BYTES", 0, "size of the largest array; unset: far beyond the caches", 0 },
        { "rounds", KEY_ROUNDS, "N", 0, "the best of so many counts", 0 },
        { NULL, 0, NULL, 0, NULL, 0 },
    };
    struct argp_child children[] = { { tool_common_argp(), 0, NULL, 0 }, { NULL, 0, NULL, 0 } };
    struct argp argp = { own,
                         parse,
                         "[SUBJECT…]",
                         "Measures against the machine's limits. Subjects: cast, optimizer, sum and norm (the cpu "
                         "device's kernels against memory bandwidth). Without one: all.",
                         children,
                         NULL,
                         NULL };
    arguments a = { .n_chosen = 0 };
    int code = tool_parse(&argp, 0, argc, argv, &a);
    if (code != TOOL_OK)
        return code;
    tess_status status = read_options(&a.options);
    if (status != TESS_OK)
        return tool_report(status);
    code = measure(&a);
    if (a.options.out && fclose(a.options.out) != 0) {
        tess__log(TESS_LOG_ERROR, "--json: not everything could be written: %s", strerror(errno));
        return TOOL_DATA;
    }
    return code;
}
