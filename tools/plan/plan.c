/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera plan: what a run would take, before anything is allocated. */
#include "plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tools/support/command_line.h"
#include "tools/support/shared_options.h"
#include "model_settings.h"
#include "plan_subject.h"
#include "core/base/options.h"
#include "plan_time.h"
#include "tools/report/report.h"
#include <tessera/tessera.h>

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

static int report_with(const char *word, const char *name, int32_t ranks, const machine_desc *machine) {
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
    return over == TESS_OK ? TOOL_OK : tool_report(tess_fail(over, "%s", said));
}

static int report(const char *word, const char *name, int32_t ranks) {
    machine_desc machine;
    int code = 0, described = plan_time_machine("plan", &machine, &code);
    if (described >= 0)
        code = report_with(word, name, ranks, described ? &machine : NULL);
    if (described > 0)
        machine_close(&machine);
    return code;
}

int cmd_plan(int argc, char **argv) {
    return plan_subject_run(&page, argc, argv, report);
}
