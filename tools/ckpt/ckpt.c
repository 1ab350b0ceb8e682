/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera ckpt: checkpoints without the ranks that wrote them, a bounded piece in memory at a time. */
#include "ckpt.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/support/options.h"
#include <tessera/plugin_options.h>
#include <tessera/tessera.h>
#include "tools/support/command_line.h"

enum { KEY_KEEP = 0x5000, KEY_TO, KEY_DTYPE, KEY_MAX_FILE, KEY_PLAN };

static const tool_subject verbs[] = {
    { "list", "a line per checkpoint" },
    { "show", "the same and the parameters" },
    { "verify", "every checksum, and that nothing is missing" },
    { "diff", "the first tensor and element that differ" },
    { "reshard", "the same values in another number of files" },
    { "export", "whole tensors, as Hugging Face has them" },
    { "import", "a checkpoint of step 0 from such a folder" },
    { "prune", "removes the oldest, when the newest verifies" },
    { NULL, NULL },
};
enum { N_VERBS = sizeof verbs / sizeof verbs[0] - 1 };

static const struct {
    int (*run)(ckpt_arguments *);
    size_t least, most; /* paths */
} actions[N_VERBS] = {
    { ckpt_list, 1, 1 },   { ckpt_show, 1, 1 },    { ckpt_verify, 1, CKPT_MOST_PATHS },
    { ckpt_diff, 2, 2 },   { ckpt_reshard, 2, 2 }, { ckpt_export, 2, 2 },
    { ckpt_import, 2, 2 }, { ckpt_prune, 1, 1 },
};

/* ---- arguments --------------------------------------------------------------------------------------- */
static error_t take_number(const struct argp_state *state, const char *name, const char *text, uint64_t *out) {
    char *end;
    *out = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || *out == 0 || *out > 99999)
        return tool_usage_error(state, "%s is '%.40s', expected 1 to 99999", name, text);
    return 0;
}

static error_t take_dtype(ckpt_arguments *a, const struct argp_state *state, const char *text) {
    if (strcmp(text, "fp32") != 0 && strcmp(text, "bf16") != 0)
        return tool_usage_error(state, "--dtype is '%.40s', expected fp32 or bf16", text);
    a->dtype = strcmp(text, "bf16") == 0 ? TESS_BF16 : TESS_F32;
    return 0;
}

static error_t take_word(ckpt_arguments *a, const struct argp_state *state, const char *word) {
    if (!a->verb)
        a->verb = word;
    else if (a->n == CKPT_MOST_PATHS)
        return tool_usage_error(state, "more than %d paths", CKPT_MOST_PATHS);
    else
        a->paths[a->n++] = word;
    return 0;
}

static error_t check(const ckpt_arguments *a, const struct argp_state *state) {
    const char *names[N_VERBS];
    size_t v = 0;
    for (size_t i = 0; i < N_VERBS; i++)
        names[i] = verbs[i].name;
    if (!a->verb)
        return tool_usage_error(state, "list, show, verify, diff, reshard, export, import or prune?");
    while (v < N_VERBS && strcmp(verbs[v].name, a->verb) != 0)
        v++;
    if (v == N_VERBS)
        return tool_usage_error(state, "unknown word '%s'%s", a->verb, tool_suggestion(a->verb, names, N_VERBS));
    if (a->n < actions[v].least || a->n > actions[v].most)
        return tool_usage_error(state, "%s takes %zu path%s, %zu given", a->verb, actions[v].least,
                                actions[v].least > 1  ? "s"
                                : actions[v].most > 1 ? " or more"
                                                      : "",
                                a->n);
    if (strcmp(a->verb, "reshard") == 0 && !a->to)
        return tool_usage_error(state, "reshard: into how many files? --to W is missing");
    if (strcmp(a->verb, "prune") == 0 && !a->keep)
        return tool_usage_error(state, "prune: how many stay? --keep K is missing");
    return 0;
}

static error_t parse(int key, char *text, struct argp_state *state) {
    ckpt_arguments *a = state->input;
    switch (key) {
    case KEY_KEEP: return take_number(state, "--keep", text, &a->keep);
    case KEY_TO: return take_number(state, "--to", text, &a->to);
    case KEY_PLAN: a->plan = 1; return 0;
    case KEY_DTYPE: return take_dtype(a, state, text);
    case KEY_MAX_FILE:
        if (!tess_option_parse_bytes(text, &a->max_file_bytes) || !a->max_file_bytes)
            return tool_usage_error(state, "--max-file is '%.40s', expected bytes as in 5GiB", text);
        return 0;
    case ARGP_KEY_ARG: return take_word(a, state, text);
    case ARGP_KEY_END: return check(a, state);
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = {
    { "to", KEY_TO, "W", 0, "into as many files", 0 },
    { "plan", KEY_PLAN, NULL, 0, "say what would be written, from the headers alone", 0 },
    { "keep", KEY_KEEP, "K", 0, "how many stay, the newest", 0 },
    { "dtype", KEY_DTYPE, "fp32|bf16", 0, "of the parameters; as they are saved unless given", 0 },
    { "max-file", KEY_MAX_FILE, "BYTES", 0, "most data in one file (5 GB)", 0 },
    { NULL, 0, NULL, 0, NULL, 0 },
};

static const tool_takers takers[] = {
    { "to", "reshard import" }, { "plan", "reshard" },    { "keep", "prune" },
    { "dtype", "export" },      { "max-file", "export" }, { NULL, NULL },
};

static const tool_page page = {
    .command = "ckpt",
    .usage = "list DIR\nshow PATH\nverify PATH…\ndiff A B\nreshard PATH DIR --to W [--plan]\n"
             "export PATH FOLDER [OPTION…]\nimport FOLDER DIR [OPTION…]\nprune DIR --keep K",
    .subjects_title = "Words",
    .subjects = verbs,
    .takers = takers,
    .doc = "Looks at checkpoints and makes others of them, without the ranks that wrote them and in bounded memory. A "
           "path is a checkpoint, DIR/step-000020, or a directory of them, of which the newest is taken. Exit code 1 "
           "when verify or diff finds something, 6 for what is no checkpoint.",
    .examples = "tessera ckpt verify run\n  whether every byte is as it was written\n"
                "tessera ckpt export run/step-000020 folder --dtype bf16\n  whole tensors, as Hugging Face has them\n",
    .shared = TOOL_CKPT,
};

static int read_shared(ckpt_arguments *a, FILE **file) {
    const char *json = tool_option_text("json");
    if (tool_option_flag("quiet", &a->quiet) != TESS_OK)
        return tool_report(TESS_E_INVALID);
    *file = !json ? NULL : strcmp(json, "1") == 0 ? stdout : fopen(json, "w");
    if (json && !*file)
        return tool_report(tess_fail(TESS_E_DATA, "--json=%s: cannot be written", json));
    a->json_on = json != NULL;
    if (json)
        json_init(&a->json, *file);
    return TOOL_OK;
}

int cmd_ckpt(int argc, char **argv) {
    struct argp_child children[] = { { tool_common_argp(), 0, NULL, 0 }, { NULL, 0, NULL, 0 } };
    struct argp argp = { options, parse, "WORD PATH…", page.doc, children, NULL, NULL };
    ckpt_arguments a = { .verb = NULL };
    FILE *file = NULL;
    int code = tool_parse_page(&page, &argp, 0, argc, argv, &a);
    if (code == TOOL_OK)
        code = read_shared(&a, &file);
    if (code != TOOL_OK)
        return code;
    size_t v = 0;
    while (strcmp(verbs[v].name, a.verb) != 0)
        v++;
    code = actions[v].run(&a);
    if (file && file != stdout)
        fclose(file);
    return code;
}
