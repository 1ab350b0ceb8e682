/* SPDX-License-Identifier: BSD-3-Clause */
#include "hf_weights.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>
#include "tools/support/safetensors.h"
#include "tools/support/hf_import.h"
#include "tools/support/hf_names.h"

typedef struct {
    int32_t file, turned;
    const tool_tensor *tensor;
} hf_tensor_place;

struct hf_weights {
    const model *m;
    char dir[PATH_MAX];
    int32_t n_files;
    tool_safetensors **files;
    char (*names)[NAME_MAX + 1];
    hf_tensor_place *places; /* index: parameter */
};

/* ---- files ------------------------------------------------------------------------------------------- */
static int is_weights(const struct dirent *entry) {
    size_t n = strlen(entry->d_name), end = strlen(".safetensors");
    return strncmp(entry->d_name, "model", 5) == 0 && n > end && strcmp(entry->d_name + n - end, ".safetensors") == 0;
}

/* The order must not depend on the locale: ranks may have different ones. */
static int by_bytes(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static tess_status open_one(hf_weights *f, const char *name) {
    char path[PATH_MAX + NAME_MAX + 2];
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    snprintf(f->names[f->n_files], sizeof f->names[0], "%s", name);
    OPS_TRY(tool_safetensors_open(path, &f->files[f->n_files]));
    f->n_files++;
    return TESS_OK;
}

void hf_weights_forget(char **paths) {
    for (char **p = paths; p && *p; p++)
        free(*p);
    free(paths);
}

tess_status hf_weights_files(const char *dir, char ***out) {
    struct dirent **entries;
    int n = scandir(dir, &entries, is_weights, by_bytes);
    if (n < 0)
        return tess_fail(TESS_E_DATA, "%s: %s", dir, strerror(errno));
    char **paths = calloc((size_t)n + 1, sizeof *paths);
    int failed = !paths;
    for (int i = 0; i < n; i++) {
        failed = failed || asprintf(&paths[i], "%s/%s", dir, entries[i]->d_name) < 0;
        free(entries[i]);
    }
    free(entries);
    if (failed) {
        hf_weights_forget(paths);
        return tess_fail(TESS_E_NOMEM, "%s: no memory for the names of %d files", dir, n);
    }
    *out = paths;
    return TESS_OK;
}

static tess_status open_files(hf_weights *f) {
    struct dirent **entries;
    int n = scandir(f->dir, &entries, is_weights, by_bytes);
    if (n < 0)
        return tess_fail(TESS_E_DATA, "%s: %s", f->dir, strerror(errno));
    f->files = calloc((size_t)n + 1, sizeof(tool_safetensors *));
    f->names = calloc((size_t)n + 1, sizeof *f->names);
    tess_status status = TESS_OK;
    if (!f->files || !f->names)
        status = tess_fail(TESS_E_NOMEM, "%s: no memory for %d files", f->dir, n);
    if (n == 0)
        status = tess_fail(TESS_E_DATA, "%s: no model*.safetensors in this folder", f->dir);
    for (int i = 0; i < n; i++) {
        if (status == TESS_OK)
            status = open_one(f, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    return status;
}

/* ---- tensors ----------------------------------------------------------------------------------------- */
static const tool_tensor *find(const hf_weights *f, const char *name, int32_t *file) {
    for (*file = 0; *file < f->n_files; ++*file) {
        const tool_tensor *t = tool_safetensors_find(f->files[*file], name);
        if (t)
            return t;
    }
    return NULL;
}

static int has_shape(const tool_tensor *t, const model_param *p, int turned) {
    if (t->ndim != p->ndim)
        return 0;
    for (int32_t i = 0; i < p->ndim; i++)
        if (t->shape[i] != p->shape[turned ? p->ndim - 1 - i : i])
            return 0;
    return 1;
}

static void shape_text(int32_t ndim, const int64_t *shape, int turned, char out[80]) {
    size_t at = 0;
    out[0] = 0;
    for (int32_t i = 0; i < ndim && at < 60; i++)
        at += (size_t)snprintf(out + at, 80 - at, "%s%" PRId64, i ? " x " : "", shape[turned ? ndim - 1 - i : i]);
}

static tess_status find_param(hf_weights *f, int32_t i) {
    const model_param *p = &f->m->desc.params[i];
    char name[HF_NAME], has[80], expected[80];
    hf_tensor_place *at = &f->places[i];
    at->turned = hf_name(f->m->t->name, p->name, p->ndim, name);
    at->tensor = find(f, name, &at->file);
    if (!at->tensor)
        at->tensor = find(f, hf_short_name(f->m->t->name, name), &at->file);
    if (!at->tensor)
        return tess_fail(TESS_E_DATA, "%s: no tensor '%s' in %s", f->dir, name,
                         f->n_files == 1 ? f->names[0] : "any of the files");
    if (has_shape(at->tensor, p, at->turned))
        return TESS_OK;
    shape_text(at->tensor->ndim, at->tensor->shape, 0, has);
    shape_text(p->ndim, p->shape, at->turned, expected);
    return tess_fail(TESS_E_DATA, "%s/%s: tensor '%s' has shape %s, expected %s from config.json", f->dir,
                     f->names[at->file], name, has, expected);
}

tess_status hf_weights_open(const char *dir, const model *m, hf_weights **out) {
    hf_weights *f = calloc(1, sizeof *f);
    if (!f)
        return tess_fail(TESS_E_NOMEM, "%s: no memory to open it", dir);
    f->m = m;
    snprintf(f->dir, sizeof f->dir, "%s", dir);
    f->places = calloc((size_t)m->desc.n_params, sizeof *f->places);
    tess_status status = f->places ? open_files(f) : tess_fail(TESS_E_NOMEM, "%s: no memory to open it", dir);
    for (int32_t i = 0; status == TESS_OK && i < m->desc.n_params; i++)
        if (!m->desc.params[i].alias_of[0] && !m->desc.params[i].is_adapter)
            status = find_param(f, i);
    if (status != TESS_OK)
        hf_weights_close(f);
    else
        *out = f;
    return status;
}

void hf_weights_close(hf_weights *f) {
    if (!f)
        return;
    for (int32_t i = 0; i < f->n_files; i++)
        tool_safetensors_close(f->files[i]);
    free(f->files);
    free(f->names);
    free(f->places);
    free(f);
}

/* ---- ranges ------------------------------------------------------------------------------------------ */
tess_status hf_weights_fill(void *user, const tess_range *r, void *data) {
    const hf_weights *f = user;
    const hf_tensor_place *at = &f->places[r->tag];
    if (r->elems == 0)
        return TESS_OK;
    if (at->turned)
        return hf_read_turned(f->files[at->file], at->tensor, r->name, r->first_elem, r->elems, data);
    return tool_safetensors_read(f->files[at->file], at->tensor, r->first_elem, r->elems, data);
}
