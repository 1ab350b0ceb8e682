/* SPDX-License-Identifier: BSD-3-Clause */
#include "plan_subject.h"

#include <string.h>
#include <unistd.h>

#include "plan_program.h"
#include "tools/support/command_line.h"
#include "tools/support/mesh.h"

typedef struct {
    const tool_page *page;
    const char *word;
    char **program; /* behind "--"; null: none */
} arguments;

static error_t parse_word(arguments *a, const struct argp_state *state, const char *text) {
    if (a->word)
        return tool_usage_error(state, "one thing at a time: '%s' and '%s'", a->word, text);
    a->word = text;
    return 0;
}

static error_t check_words(const arguments *a, const struct argp_state *state) {
    if (!a->word && !a->program)
        return tool_usage_error(state, "nothing to %s: a model (mnist, gpt, convbn, linear), a file or -- PROGRAM",
                                a->page->command);
    if (a->word && a->program)
        return tool_usage_error(state, "one thing at a time: '%s' and -- %s", a->word, a->program[0]);
    return 0;
}

static error_t parse(int key, char *text, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_ARG: return parse_word(a, state, text);
    case ARGP_KEY_END: return check_words(a, state);
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* The words behind "--" are the program's; argp sees those before it. */
static char **split_program(int *argc, char **argv) {
    for (int i = 1; i < *argc; i++)
        if (strcmp(argv[i], "--") == 0) {
            argv[i] = NULL;
            *argc = i;
            return argv[i + 1] ? &argv[i + 1] : NULL;
        }
    return NULL;
}

static int use_program(char **argv, int32_t ranks, plan_subject_fn use) {
    char path[64];
    int code = 0;
    tess_status status = plan_program_run(argv, ranks, path, &code);
    if (status != TESS_OK)
        return tool_report(status);
    if (code != 0)
        return code;
    code = use(path, argv, ranks);
    int32_t opened, n = plan_program_engines(path, &opened);
    for (int32_t k = 1; k <= n; k++) {
        char own[80];
        plan_program_file(path, k, own, sizeof own);
        unlink(own);
    }
    return code;
}

int plan_subject_run(const tool_page *page, int argc, char **argv, plan_subject_fn use) {
    struct argp_child children[] = { { tool_common_argp(), 0, NULL, 0 }, { NULL, 0, NULL, 0 } };
    struct argp argp = { NULL, parse, NULL, NULL, children, NULL, NULL };
    arguments a = { .page = page };
    int64_t ranks = 1;
    a.program = split_program(&argc, argv);
    int code = tool_parse_page(page, &argp, 0, argc, argv, &a);
    if (code != TOOL_OK)
        return code;
    tess_status status = tool_option_ranks(1 << 20, &ranks);
    int64_t all = ranks;
    if (status == TESS_OK)
        status = tool_mesh_ranks(&all, &ranks);
    if (status != TESS_OK)
        return tool_report(status);
    return a.program ? use_program(a.program, (int32_t)all, use)
                     : use(a.word, (char *[]){ (char *)(uintptr_t)a.word, NULL }, (int32_t)ranks);
}
