/* SPDX-License-Identifier: BSD-3-Clause */
#include "plan_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "plan_file_model.h"
#include "tools/support/hf_import.h"
#include "tools/support/say.h"
#include <tessera/inspect.h>

struct plan_file {
    char *path;
    plan_model m;
    plan_config config;
    int has_config, estimate;
    char note[640];
};

/* ---- which file -------------------------------------------------------------------------------- */

static int is_folder(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static int exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0;
}

static int ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

int plan_file_is_path(const char *word) {
    return strchr(word, '/') || strchr(word, '.') || is_folder(word);
}

/* A file in `folder`, or, where `beside` is not null, in that file's folder. */
static int join(char out[4096], const char *folder, const char *beside, const char *name) {
    const char *slash = beside ? strrchr(beside, '/') : NULL;
    int n = beside ? snprintf(out, 4096, "%.*s%s", slash ? (int)(slash - beside + 1) : 0, beside, name)
                   : snprintf(out, 4096, "%s%s%s", folder, ends_with(folder, "/") ? "" : "/", name);
    return n > 0 && n < 4096;
}

/* Names the command that plans the model itself: "; `tessera plan llama --model l8b` …". Empty for a folder of no model
 * that the command trains. */
static const char *better(const char *folder, int has_weights, char out[320]) {
    hf_source s;
    out[0] = 0;
    if (hf_source_read(folder, &s) == TESS_OK && s.model[0] && strlen(folder) < 200)
        snprintf(out, 320, "; `tessera plan %s %s %s%s` plans the model itself", s.model,
                 has_weights ? "--model" : "--config", folder,
                 has_weights              ? ""
                 : ends_with(folder, "/") ? "config.json"
                                          : "/config.json");
    hf_source_free(&s);
    return out;
}

/* Finds the file that describes the model in a folder. */
static tess_status find_in_folder(const char *folder, char out[4096]) {
    char hint[320];
    if (!join(out, folder, NULL, "model.safetensors.index.json"))
        return tess_fail(TESS_E_DATA, "%.200s: the path is too long", folder);
    if (exists(out))
        return TESS_OK;
    join(out, folder, NULL, "model.safetensors");
    return exists(out) ? TESS_OK
                       : tess_fail(TESS_E_DATA,
                                   "%s: neither model.safetensors.index.json nor model.safetensors is in this folder%s",
                                   folder, better(folder, 0, hint));
}

/* ---- reading ----------------------------------------------------------------------------------- */

static tess_status read_config(plan_file *f, const char *file) {
    char path[4096];
    if (!join(path, NULL, file, "config.json") || !exists(path)) {
        snprintf(f->note, sizeof f->note, "activations: none, as no config.json lies beside the file");
        return TESS_OK;
    }
    TRY(plan_config_read(path, &f->m, &f->config));
    if (f->config.reason[0]) {
        snprintf(f->note, sizeof f->note, "activations: none, as config.json is not that of a decoder: %s",
                 f->config.reason);
        return TESS_OK;
    }
    f->has_config = f->estimate = 1;
    f->m.input_bytes = 2 * 4 * f->config.batch * f->config.context; /* a token and the one to predict */
    return plan_config_tie(&f->m, path, &f->config);
}

static tess_status read_checkpoint(plan_file *f, const char *file) {
    TRY(ends_with(file, ".index.json") ? plan_tensors_index(&f->m, file) : plan_tensors_file(&f->m, file));
    if (f->m.n_params == 0)
        return tess_fail(TESS_E_DATA, "%s: no tensors", file);
    TRY(plan_names_blocks(&f->m, file));
    return read_config(f, file);
}

static tess_status read_description(plan_file *f, const char *file) {
    TRY(plan_json_read(&f->m, file, &f->estimate));
    snprintf(f->note, sizeof f->note, "activations: %s",
             f->m.has_activations ? "as the file says" : "none, as the file names none");
    return TESS_OK;
}

tess_status plan_file_open(const char *path, plan_file **out) {
    char file[4096];
    plan_file *f = calloc(1, sizeof *f);
    if (!f || !(f->path = strdup(path))) {
        free(f);
        return tess_fail(TESS_E_NOMEM, "%s: no memory to read it", path);
    }
    tess_status status = TESS_OK;
    if (is_folder(path))
        status = find_in_folder(path, file);
    else if (strlen(path) < sizeof file)
        strcpy(file, path);
    else
        status = tess_fail(TESS_E_DATA, "%.200s: the path is too long", path);
    if (status == TESS_OK)
        status = ends_with(file, ".json") && !ends_with(file, ".index.json") ? read_description(f, file)
                                                                             : read_checkpoint(f, file);
    if (status != TESS_OK)
        plan_file_close(f);
    else
        *out = f;
    return status;
}

double plan_file_tokens(const plan_file *f) {
    return f->has_config ? (double)f->config.batch * (double)f->config.context : 0;
}

uint64_t plan_file_input_bytes(const plan_file *f) {
    return f->m.input_bytes;
}

const char *plan_file_note(const plan_file *f) {
    return f->note;
}

int plan_file_is_estimate(const plan_file *f) {
    return f->estimate;
}

void plan_file_close(plan_file *f) {
    if (!f)
        return;
    plan_model_free(&f->m);
    free(f->path);
    free(f);
}

/* ---- declaring --------------------------------------------------------------------------------- */

static tess_status never_runs(void *user, const tess_block_call *call) {
    (void)user, (void)call;
    return tess_fail(TESS_E_INTERNAL, "a block that was read from a file is only planned");
}

/* "h.*" → "h.7" */
static void slice_name(const char *pattern, int64_t i, char *out, size_t n) {
    const char *star = strchr(pattern, '*');
    if (star)
        snprintf(out, n, "%.*s%lld%s", (int)(star - pattern), pattern, (long long)i, star + 1);
    else
        snprintf(out, n, "%s", pattern);
}

static tess_status declare_block(tess *t, const plan_block *b) {
    char name[TOOL_TENSOR_NAME + 32];
    tess_block_options o = { .struct_size = sizeof o,
                             .flags = b->keep ? TESS_BLOCK_KEEP : 0,
                             .name = b->name,
                             .output_bytes = b->output_bytes,
                             .saved_bytes = b->saved_bytes,
                             .forward_scratch_bytes = b->forward_scratch_bytes,
                             .backward_scratch_bytes = b->backward_scratch_bytes,
                             .forward = never_runs,
                             .backward = never_runs };
    if (!b->stack)
        return tess_block_add(t, &o, NULL);
    o.name = name;
    for (int64_t i = 0; i < b->stack; i++) {
        slice_name(b->name, i, name, sizeof name);
        TRY(tess_block_add(t, &o, NULL));
    }
    return TESS_OK;
}

static tess_status declare_param(tess *t, const plan_param *p) {
    tess_param_options o = { .struct_size = sizeof o,
                             .dtype = p->dtype,
                             .flags = p->flags,
                             .compute_dtypes = p->compute_dtypes,
                             .name = p->name,
                             .stack = p->stack,
                             .shape = p->ndim ? p->shape : NULL,
                             .ndim = p->ndim };
    return tess_param_add(t, &o, NULL);
}

static tess_status declare(plan_file *f, tess *t) {
    const plan_model *m = &f->m;
    for (int32_t i = 0; i < m->n_blocks; i++)
        TRY(m->has_activations ? declare_block(t, &m->blocks[i])
                               : tess_scope_add(t, m->blocks[i].name, m->blocks[i].stack, NULL));
    for (int32_t i = 0; i < m->n_params; i++)
        TRY(declare_param(t, &m->params[i]));
    for (int32_t i = 0; i < m->n_ties; i++)
        TRY(tess_param_tie(t, m->ties[i].alias, m->ties[i].of));
    return TESS_OK;
}

/* Bytes of an element that the engine's precision computes in. */
static tess_status compute_width(const tess *t, uint64_t *out) {
    tess_param_options o = { .struct_size = sizeof o, .dtype = TESS_F32, .name = "activations" };
    uint32_t dtype = 0;
    o.compute_dtypes = 1u << TESS_F32 | 1u << TESS_BF16 | 1u << TESS_F16;
    tess_status status = tess_compute_dtype(t, &o, &dtype, NULL);
    *out = dtype == TESS_F32 ? 4 : 2;
    return status;
}

static tess_status estimate(plan_file *f, tess *t) {
    const plan_config *c = &f->config;
    uint64_t width = 0;
    char hint[320] = "";
    TRY(compute_width(t, &width));
    snprintf(f->note, sizeof f->note,
             "activations: an estimate for a decoder, batch %llu, context %llu, %llu bytes each (docs/model-json.md)%s",
             (unsigned long long)c->batch, (unsigned long long)c->context, (unsigned long long)width,
             is_folder(f->path) ? better(f->path, 1, hint) : "");
    return plan_config_activations(&f->m, f->path, c, width);
}

tess_status plan_file_declare(plan_file *f, tess *t) {
    tess_status status = f->has_config ? estimate(f, t) : TESS_OK;
    if (status == TESS_OK)
        status = declare(f, t);
    /* A declaration that is refused is the file's fault. */
    return status == TESS_E_INVALID ? tess_fail(TESS_E_DATA, "%s: %s", f->path, tess_last_error()) : status;
}
