/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera plan reports the memory and time of a run without allocating any of it. */
#include "plan.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "tools/support/command_line.h"
#include "tools/support/progress.h"
#include "tools/support/options.h"
#include "model_settings.h"
#include "plan_program.h"
#include "plan_subject.h"
#include "tools/support/say.h"
#include "plan_time.h"
#include "tools/report/report.h"
#include <tessera/inspect.h>

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

typedef struct { /* one report, of one engine or, of a program, of several */
    const char *name;
    int32_t ranks, engines;
    plan_output out;
    json_out json;
    FILE *file;
    report_tee page;
    uint64_t peak_bytes[3]; /* sums over all engines */
} reporting;

static tess_status open_output(reporting *r) {
    const char *path = tool_option_text("json");
    int quiet = 0;
    TRY(tool_option_flag("quiet", &quiet));
    int to_stdout = path && strcmp(path, "1") == 0;
    if (!quiet)
        r->out.text = to_stdout ? stderr : stdout;
    const char *report = tool_option_text("report");
    if (path)
        r->file = to_stdout ? stdout : fopen(path, "we");
    if (path && !r->file)
        return tess_fail(TESS_E_DATA, "--json=%s: %s", path, strerror(errno));
    if (report)
        TRY(report_tee_open(&r->page, r->file, report));
    if (!path && !report)
        return TESS_OK;
    json_init(&r->json, report ? r->page.stream : r->file);
    r->out.json = &r->json;
    return TESS_OK;
}

static tess_status close_output(reporting *r, tess_status status) {
    if (status == TESS_OK && r->page.stream)
        status = report_tee_write(&r->page, r->name);
    report_tee_close(&r->page);
    if (r->file && r->file != stdout && fclose(r->file) != 0 && status == TESS_OK)
        status = tess_fail(TESS_E_SYSTEM, "--json: not everything could be written");
    return status;
}

static tess_status report_source(reporting *r, plan_source *source, tess_status over, int32_t number) {
    tess_stats stats = { .struct_size = sizeof stats };
    if (r->engines > 1)
        snprintf(source->name, sizeof source->name, "%.200s, engine %d", r->name, number);
    else
        snprintf(source->name, sizeof source->name, "%s", r->name);
    if (number == 1)
        TRY(open_output(r));
    TRY(plan_report(source, over, &r->out));
    if (r->out.text)
        plan_time_print(r->out.text);
    TRY(tess_stats_get(source->t, &stats));
    for (int d = 0; d < 3; d++)
        r->peak_bytes[d] += stats.planned_peak_bytes[d];
    return TESS_OK;
}

/* If the plan exceeds its budget, *over receives the failure and the message is set. */
static tess_status report_engine(reporting *r, const char *word, int32_t number, char *said, size_t n,
                                 tess_status *over) {
    char own[PATH_MAX];
    plan_source source;
    plan_program_file(word, number, own, sizeof own);
    tess_status planned = plan_open(own, r->ranks, &source);
    if (planned != TESS_OK && planned != TESS_E_BUDGET)
        return planned;
    if (planned != TESS_OK && *over == TESS_OK) { /* other calls may set a message of their own */
        snprintf(said, n, "%s", tess_last_error());
        *over = planned;
    }
    tess_status status = report_source(r, &source, planned, number);
    plan_close(&source);
    return status;
}

/* Prints the sum of all engines' memory; each has a budget of its own. */
static void report_sum(reporting *r) {
    char device[32], host[32];
    if (r->out.text)
        fprintf(r->out.text, "%s: its %d engines together take at most %s of device memory and %s of host memory\n",
                r->name, r->engines, tool_bytes_text(r->peak_bytes[TESS_DOMAIN_DEVICE], device),
                tool_bytes_text(r->peak_bytes[TESS_DOMAIN_HOST], host));
    if (!r->out.json)
        return;
    json_object_begin(r->out.json, NULL);
    json_string(r->out.json, "event", "plans");
    json_string(r->out.json, "model", r->name);
    json_int(r->out.json, "engines", r->engines);
    json_uint(r->out.json, "planned_peak_device_bytes", r->peak_bytes[TESS_DOMAIN_DEVICE]);
    json_uint(r->out.json, "planned_peak_host_bytes", r->peak_bytes[TESS_DOMAIN_HOST]);
    json_object_end(r->out.json);
    json_line(r->out.json);
}

static int report_with(const char *word, const char *name, int32_t ranks, const machine_desc *machine) {
    int32_t opened;
    reporting r = { .name = name, .ranks = ranks, .engines = plan_program_engines(word, &opened) };
    char said[1024] = "";
    tess_status over = TESS_OK, status = TESS_OK;
    plan_time_use(machine); /* advice is in the order of time, too */
    if (machine)
        r.out.spans = plan_time_spans;
    for (int32_t k = 1; status == TESS_OK && (k == 1 || k <= r.engines); k++)
        status = report_engine(&r, word, k, said, sizeof said, &over);
    if (status == TESS_OK && r.engines > 1)
        report_sum(&r);
    status = close_output(&r, status);
    if (status != TESS_OK)
        return tool_report(status);
    if (r.engines && opened > r.engines)
        tool_say(SAY_WARNING,
                 "%s opens %d engines, and %d of them came to tess_shard, so that no other is planned: a program of "
                 "several goes on after TESS_E_PLANNED",
                 name, opened, r.engines);
    return over == TESS_OK ? TOOL_OK : tool_report(tess_fail(over, "%s", said));
}

static int report(const char *word, char *const *names, int32_t ranks) {
    machine_desc machine;
    int code = 0, described = plan_time_machine("plan", &machine, &code);
    if (described >= 0)
        code = report_with(word, names[0], ranks, described ? &machine : NULL);
    if (described > 0)
        machine_close(&machine);
    return code;
}

int cmd_plan(int argc, char **argv) {
    return plan_subject_run(&page, argc, argv, report);
}
