/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera plan: what a run would take, before anything is allocated. */
#include "plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/support/command_line.h"
#include "tools/support/shared_options.h"
#include "model_settings.h"
#include "core/base/options.h"
#include "plan_time.h"
#include "tools/report/report.h"
#include <tessera/tessera.h>

typedef struct {
    const char *word;
    char **program; /* behind "--"; null: none */
} arguments;

static error_t parse(int key, char *text, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_ARG:
        if (a->word)
            return tool_usage_error(state, "one thing at a time: '%s' and '%s'", a->word, text);
        a->word = text;
        return 0;
    case ARGP_KEY_END:
        if (!a->word && !a->program)
            return tool_usage_error(state,
                                    "nothing to plan: a model (mnist, gpt, convbn, linear), a file or -- PROGRAM");
        if (a->word && a->program)
            return tool_usage_error(state, "one thing at a time: '%s' and -- %s", a->word, a->program[0]);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const tool_page page = {
    .command = "plan",
    .usage = "MODEL [OPTION…]\nFILE [OPTION…]\n[OPTION…] -- PROGRAM [ARGUMENT…]",
    .doc = "Says what a step takes, per rank: bytes by category, where the peak is and what is alive there. Nothing is "
           "trained and no rank is started. FILE is a safetensors file, a folder with one or with an index, or "
           "MODEL.json (docs/model-json.md). PROGRAM is any program that uses the library; it runs up to tess_shard.",
    .subjects_title = "Models",
    .subjects = plan_subjects,
    .by_subject = 1,
    .examples = "tessera plan gpt -n 8 --device-memory 16MiB\n"
                "  whether eight ranks of 16 MiB can train it, and if not, what to change\n"
                "tessera plan FILE.safetensors -n 512 --machine h100-8x-node\n"
                "  memory, and the simulated time of a step\n"
                "tessera plan -n 8 -- ./my_trainer\n"
                "  a program of your own",
    .shared = TOOL_PLAN,
    .fallback = plan_fallback,
};

int plan_refuse(const char *word, int32_t ranks, tess_status over) {
    (void)word;
    (void)ranks;
    return tool_report(over);
}

static tess_status open_output(plan_output *out, json_out *json, FILE **file, report_tee *page) {
    const char *path = tess__option_text("json");
    int quiet = 0;
    tess_status status = tess__option_flag("quiet", &quiet);
    if (status != TESS_OK)
        return status;
    int to_stdout = path && strcmp(path, "1") == 0;
    if (!quiet)
        out->text = to_stdout ? stderr : stdout;
    const char *report = tess__option_text("report");
    if (path)
        *file = to_stdout ? stdout : fopen(path, "we");
    if (path && !*file)
        return tess_fail(TESS_E_DATA, "--json=%s: %s", path, strerror(errno));
    if (report)
        status = report_tee_open(page, *file, report);
    if (status != TESS_OK || (!path && !report))
        return status;
    json_init(json, report ? page->stream : *file);
    out->json = json;
    return TESS_OK;
}

static int report_with(const char *word, const char *name, int32_t ranks, const tess__machine *machine) {
    plan_source source;
    plan_output out = { 0 };
    json_out json;
    FILE *file = NULL;
    report_tee page = { .kept = NULL };
    plan_time_use(machine); /* advice is in the order of time, too */
    tess_status over = plan_open(word, ranks, &source);
    if (over != TESS_OK && over != TESS_E_BUDGET)
        return tool_report(over);
    char said[1024]; /* other calls may set a message of their own */
    snprintf(said, sizeof said, "%s", tess_last_error());
    snprintf(source.name, sizeof source.name, "%s", name);
    tess_status status = open_output(&out, &json, &file, &page);
    if (machine)
        out.spans = plan_time_spans;
    if (status == TESS_OK)
        status = plan_report(&source, over, &out);
    if (status == TESS_OK && out.text)
        plan_time_print(out.text);
    if (status == TESS_OK && page.stream)
        status = report_tee_write(&page, name);
    report_tee_close(&page);
    if (file && file != stdout && fclose(file) != 0 && status == TESS_OK)
        status = tess_fail(TESS_E_SYSTEM, "--json: not everything could be written");
    plan_close(&source);
    if (status != TESS_OK)
        return tool_report(status);
    return over == TESS_OK ? TOOL_OK : plan_refuse(word, ranks, tess_fail(over, "%s", said));
}

static int report(const char *word, const char *name, int32_t ranks) {
    tess__machine machine;
    int code = 0, described = plan_time_machine("plan", &machine, &code);
    if (described >= 0)
        code = report_with(word, name, ranks, described ? &machine : NULL);
    if (described > 0)
        machine_close(&machine);
    return code;
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

static int plan_program(char **argv, int32_t ranks) {
    char path[64];
    int code = 0;
    tess_status status = plan_program_run(argv, ranks, path, &code);
    if (status != TESS_OK)
        return tool_report(status);
    if (code != 0)
        return code;
    code = report(path, argv[0], ranks);
    unlink(path);
    return code;
}

int cmd_plan(int argc, char **argv) {
    struct argp_child children[] = { { tool_common_argp(), 0, NULL, 0 }, { NULL, 0, NULL, 0 } };
    struct argp argp = { NULL, parse, NULL, NULL, children, NULL, NULL };
    arguments a = { .word = NULL };
    int64_t ranks = 1;
    a.program = split_program(&argc, argv);
    int code = tool_parse_page(&page, &argp, 0, argc, argv, &a);
    if (code != TOOL_OK)
        return code;
    tess_status status = tess__option_int("ranks", 1, 1 << 20, &ranks);
    if (status != TESS_OK)
        return tool_report(status);
    return a.program ? plan_program(a.program, (int32_t)ranks) : report(a.word, a.word, (int32_t)ranks);
}
