/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera tune: the fastest combination that fits, by planning and simulating all of them. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/support/command_line.h"
#include "tools/support/options.h"
#include "tools/plan/model_settings.h"
#include "tools/support/settings.h"
#include "tools/plan/plan_program.h"
#include "tools/plan/plan_subject.h"
#include "tools/support/say.h"
#include "tools/plan/plan_time.h"
#include "tools/support/progress.h"
#include <tessera/tessera.h>
#include "tune_search.h"

enum { SHOWN = 10, LISTED = 40 };

static void put_candidate(json_out *j, const tune_candidate *c) {
    json_object_begin(j, NULL);
    json_string(j, "event", "candidate");
    for (int k = 0; k < TUNE_KNOBS; k++)
        json_string(j, tune_keys[k], c->value[k]);
    json_double(j, "seconds", c->seconds);
    json_uint(j, "planned_peak_device_bytes", c->peak_bytes[TESS_DOMAIN_DEVICE]);
    json_uint(j, "planned_peak_host_bytes", c->peak_bytes[TESS_DOMAIN_HOST]);
    json_uint(j, "planned_peak_disk_bytes", c->peak_bytes[TESS_DOMAIN_DISK]);
    json_bool(j, "fits", c->fits);
    json_object_end(j);
    json_line(j);
}

static tess_status put_all(FILE *out, const tune_result *r, const char *name, int32_t ranks, const char *machine,
                           const char *command) {
    json_out j;
    json_init(&j, out);
    for (int32_t i = 0; i < r->n && i < LISTED; i++)
        put_candidate(&j, &r->all[i]);
    json_object_begin(&j, NULL);
    json_string(&j, "event", "tune");
    json_string(&j, "model", name);
    json_int(&j, "ranks", ranks);
    json_string(&j, "machine", machine);
    json_int(&j, "candidates", r->n);
    json_int(&j, "fitting", r->n_fit);
    json_string(&j, "command", command);
    json_object_end(&j);
    return json_line(&j) ? tess_fail(TESS_E_SYSTEM, "--json: not everything could be written") : TESS_OK;
}

static void print_all(FILE *out, const tune_result *r, const char *name, int32_t ranks, const char *machine,
                      const char *command) {
    char device[32], host[32], disk[32];
    fprintf(out, "%s, %d rank%s, on %s: %d different plans, %d fit\n\n", name, (int)ranks, ranks == 1 ? "" : "s",
            machine, (int)r->n, (int)r->n_fit);
    fprintf(out, "%12s %12s %12s %12s   %-14s %-18s %-11s %-8s %-10s %s\n", "step", "device", "host", "disk", "wrap",
            "strategy", "activations", "offload", "precision", "prefetch");
    for (int32_t i = 0; i < r->n_fit && i < SHOWN; i++) {
        const tune_candidate *c = &r->all[i];
        fprintf(out, "%9.4g ms %12s %12s %12s   %-14s %-18s %-11s %-8s %-10s %s\n", c->seconds * 1e3,
                tool_bytes_text(c->peak_bytes[TESS_DOMAIN_DEVICE], device),
                tool_bytes_text(c->peak_bytes[TESS_DOMAIN_HOST], host),
                tool_bytes_text(c->peak_bytes[TESS_DOMAIN_DISK], disk), c->value[TUNE_WRAP], c->value[TUNE_STRATEGY],
                c->value[TUNE_ACTIVATIONS], c->value[TUNE_OFFLOAD], c->value[TUNE_PRECISION], c->value[TUNE_PREFETCH]);
    }
    if (r->n_fit)
        fprintf(out, "\n%s\n", command);
}

static const char *const budgets[TUNE_DOMAINS] = { "", "device-memory", "host-memory", "disk-memory" };

/* "; 4096 of device memory are allowed", of each domain with a budget. Returns the first of them. */
static uint32_t budgets_text(char *out, size_t n) {
    static const char *const names[TUNE_DOMAINS] = { "", "device memory", "host memory", "disk" };
    uint32_t first = 0;
    uint64_t budget;
    size_t at = 0;
    out[0] = 0;
    for (uint32_t d = 1; d < TUNE_DOMAINS && at < n; d++)
        if (tool_option_text(budgets[d]) && tool_option_bytes(budgets[d], &budget) == TESS_OK) {
            at += (size_t)snprintf(out + at, n - at, "; %" PRIu64 " of %s are allowed", budget, names[d]);
            first = first ? first : d;
        }
    return first ? first : TESS_DOMAIN_DEVICE;
}

/* Names the plan that takes the least of the first budget that is set. */
static tess_status none_fits(const tune_result *r) {
    const tune_candidate *least = &r->all[0];
    char allowed[200];
    uint32_t d = budgets_text(allowed, sizeof allowed);
    for (int32_t i = 1; i < r->n; i++)
        if (r->all[i].peak_bytes[d] < least->peak_bytes[d])
            least = &r->all[i];
    return tess_fail(TESS_E_BUDGET,
                     "none of %d plans fits: the least takes %" PRIu64 " bytes of device memory, %" PRIu64
                     " of host memory and %" PRIu64
                     " of disk (wrap=%s strategy=%s activations=%s offload=%s precision=%s)%s",
                     (int)r->n, least->peak_bytes[TESS_DOMAIN_DEVICE], least->peak_bytes[TESS_DOMAIN_HOST],
                     least->peak_bytes[TESS_DOMAIN_DISK], least->value[TUNE_WRAP], least->value[TUNE_STRATEGY],
                     least->value[TUNE_ACTIVATIONS], least->value[TUNE_OFFLOAD], least->value[TUNE_PRECISION], allowed);
}

static tess_status say_with(const tune_result *r, const char *name, int32_t ranks, const char *machine,
                            const char *command) {
    const char *path = tool_option_text("json");
    int to_stdout = path && strcmp(path, "1") == 0, quiet = 0;
    tess_status status = tool_option_flag("quiet", &quiet);
    if (status == TESS_OK && !quiet)
        print_all(to_stdout ? stderr : stdout, r, name, ranks, machine, command);
    if (status != TESS_OK || !path)
        return status;
    FILE *file = to_stdout ? stdout : fopen(path, "we");
    if (!file)
        return tess_fail(TESS_E_DATA, "--json=%s: %s", path, strerror(errno));
    status = put_all(file, r, name, ranks, machine, command);
    if (file != stdout && fclose(file) != 0 && status == TESS_OK)
        status = tess_fail(TESS_E_SYSTEM, "--json=%s: not everything could be written", path);
    return status;
}

static tess_status say(const tune_result *r, const char *word, char *const *names, int32_t ranks, const char *machine) {
    char *command = r->n_fit ? tune_command(r, &r->all[0], names, word != names[0], ranks) : NULL;
    if (r->n_fit && !command)
        return tess_fail(TESS_E_NOMEM, "no memory for the command");
    tess_status status = say_with(r, names[0], ranks, machine, command);
    free(command);
    return status;
}

static int tune(const char *word, char *const *names, int32_t ranks) {
    machine_desc machine;
    tune_result result = { .all = NULL };
    int code = TOOL_OK;
    int32_t opened;
    if (!tool_option_text("machine"))
        tool_settings_set("machine", "cpu-2-cores"); /* the kind that the cpu device runs on */
    if (plan_time_machine("tune", &machine, &code) < 0)
        return code;
    if (plan_program_engines(word, &opened) > 1)
        tool_say(SAY_WARNING, "%s has several engines: the first is tuned", names[0]);
    tess_status status = tune_search(word, ranks, &machine, &result);
    if (status == TESS_OK)
        status = say(&result, word, names, ranks, machine.name);
    if (status == TESS_OK && !result.n_fit)
        status = none_fits(&result);
    tune_result_free(&result);
    machine_close(&machine);
    return status == TESS_OK ? TOOL_OK : tool_report(status);
}

static const tool_page page = {
    .command = "tune",
    .usage = "MODEL [OPTION…]\nFILE [OPTION…]\n[OPTION…] -- PROGRAM [ARGUMENT…]",
    .doc =
        "Plans and simulates every combination of wrap, strategy, activations, offload, precision and prefetch that is "
        "not given as an option. Prints the fastest that fit --device-memory, --host-memory and --disk-memory, with "
        "the command line "
        "for the first. --machine says what to simulate.",
    .subjects_title = "Models",
    .subjects = plan_subjects,
    .by_subject = 1,
    .examples = "tessera tune gpt -n 2 --device-memory 12MiB\n"
                "  on two cores of this kind\n"
                "tessera tune gpt -n 8 --machine h100-8x-node --precision bf16\n"
                "  on a described machine; what is given stays",
    .shared = TOOL_TUNE,
    .fallback = plan_fallback,
};

int cmd_tune(int argc, char **argv) {
    return plan_subject_run(&page, argc, argv, tune);
}
