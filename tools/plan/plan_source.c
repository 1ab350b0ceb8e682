/* SPDX-License-Identifier: BSD-3-Clause */
/* Makes a planned engine from a word and the options. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/support/options.h"
#include "plan_file.h"
#include "plan_program.h"
#include "tools/support/progress.h"
#include <tessera/inspect.h>
#include "model_run.h"
#include "plan_alternative.h"
#include "plan_read.h"
#include "tools/support/mesh.h"
#include "tools/support/settings.h"
#include "tools/support/say.h"

static int is_model(const char *word) {
    for (size_t i = 0; train_models[i]; i++)
        if (strcmp(train_models[i], word) == 0)
            return 1;
    return 0;
}

static void close_model(void *state) {
    model_destroy(state);
}

/* The engine counts blocks of codes by their bytes. */
static void note_adapters(const model *m, char *out, size_t bytes) {
    int64_t base = 0, trained = 0;
    for (int32_t i = 0; i < m->desc.n_params; i++)
        *(m->desc.params[i].is_adapter ? &trained : &base) += m->desc.params[i].elems;
    snprintf(out, bytes, "adapters: %" PRId64 " parameters are trained, beside %" PRId64 " frozen ones, products in %s",
             trained, base, stored_name(m->options.lora.matrices));
}

static tess_status open_model(const char *word, int32_t ranks, plan_source *out) {
    train_settings settings;
    model *m = NULL;
    tess_status status = train_settings_read(word, &settings);
    if (status == TESS_OK)
        status = model_run_plan(&settings, ranks, &out->t, &m);
    if (m && m->options.lora.rank)
        note_adapters(m, out->note, sizeof out->note);
    out->state = m;
    out->close = close_model;
    out->is_model = 1;
    out->of = settings.clip > 0 ? TESS_LEDGER_STEP_CLIPPED : TESS_LEDGER_STEP;
    return status;
}

static void close_file(void *state) {
    plan_file_close(state);
}

static tess_status open_planner(void *path, int32_t ranks, tess **t, void **state);

static void close_planner(tess *t, void *file) {
    tess_close(t);
    plan_file_close(file);
}

/* *file is left when *t is. */
static tess_status plan_from_file(const char *path, int32_t ranks, tess **t, plan_file **file) {
    double momentum = 0;
    plan_file *f = NULL;
    tool_planner planner = {
        .open = open_planner, .close = close_planner, .user = (char *)path, .ranks = ranks, .of = TESS_LEDGER_STEP
    };
    TRY(tool_option_real("momentum", &momentum));
    TRY(plan_file_open(path, &f));
    tess_options o = { .struct_size = sizeof o,
                       .pointer_mem = UINT32_MAX, /* none of the file's code runs, so any device works */
                       .plan_only = 1,
                       .flags = TESS_OPTIONS_LOSS_SCALE, /* a file's dtypes decide whether it is read in fp16 */
                       .ranks = ranks,
                       .momentum = (float)momentum,
                       .plan_alternative = tool_plan_alternative,
                       .plan_user = &planner,
                       .input_bytes = plan_file_input_bytes(f),
                       .group = tool_mesh_group(ranks) };
    tool_settings_give(&o);
    *file = f;
    TRY(tess_open(&o, t));
    TRY(plan_file_declare(f, *t));
    tess_status status = tess_shard(*t, NULL, NULL);
    if (status == TESS_E_INVALID && plan_check_homes(*t)) /* the file's fault */
        return tess_fail(TESS_E_DATA, "%s: %s", path, tess_last_error());
    return status == TESS_E_PLANNED ? TESS_OK : status;
}

static tess_status open_planner(void *path, int32_t ranks, tess **t, void **state) {
    plan_file *file = NULL;
    tess_status status = plan_from_file(path, ranks, t, &file);
    *state = file;
    if (status != TESS_OK && status != TESS_E_BUDGET)
        close_planner(*t, file);
    return status;
}

static tess_status open_file(const char *path, int32_t ranks, plan_source *out) {
    plan_file *file = NULL;
    double clip = 0;
    tess_status status = tool_option_real("clip", &clip);
    if (status == TESS_OK)
        status = plan_from_file(path, ranks, &out->t, &file);
    out->state = file;
    out->close = close_file;
    out->of = clip > 0 ? TESS_LEDGER_STEP_CLIPPED : TESS_LEDGER_STEP;
    out->tokens = file ? plan_file_tokens(file) : 0;
    out->estimate = file && plan_file_is_estimate(file);
    snprintf(out->note, sizeof out->note, "%s", file ? plan_file_note(file) : "");
    return status;
}

static int has_units(const tess *t) {
    tess_stats stats = { .struct_size = sizeof stats };
    return tess_stats_get(t, &stats) == TESS_OK && stats.n_units > 0;
}

tess_status plan_open(const char *word, int32_t ranks, plan_source *out) {
    char names[128];
    *out = (plan_source){ .of = TESS_LEDGER_STEP };
    snprintf(out->name, sizeof out->name, "%s", word);
    double start = tool_seconds();
    tess_status status = TESS_OK;
    if (is_model(word))
        status = open_model(word, ranks, out);
    else if (plan_program_is_description(word))
        status = plan_program_open(word, ranks, &out->t);
    else if (plan_file_is_path(word))
        status = open_file(word, ranks, out);
    else
        status = tess_fail(TESS_E_INVALID, "'%s' is no model: there are %s; a file has a '.' or a '/'", word,
                           train_model_names(names));
    out->plan_seconds = tool_seconds() - start;
    if (status == TESS_E_BUDGET && !has_units(out->t))
        status = TESS_E_NOMEM; /* no set of units fits, so there is no plan to read */
    if (status != TESS_OK && status != TESS_E_BUDGET)
        plan_close(out);
    return status;
}

void plan_close(plan_source *s) {
    tess_close(s->t);
    if (s->close)
        s->close(s->state);
    *s = (plan_source){ 0 };
}
