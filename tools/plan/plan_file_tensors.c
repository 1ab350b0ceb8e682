/* SPDX-License-Identifier: BSD-3-Clause */
/* Tensors of safetensors files as parameters: by their headers, one file or as many as an index lists. */
#include "plan_file_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/support/names.h"
#include <tessera/tessera.h>
#include "tools/support/hf_names.h"
#include "tools/support/say.h"

/* ---- one tensor -------------------------------------------------------------------------------- */

static int ends_with(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* Tensors that are not trained, as far as names tell: running statistics, masks, tables of positions. */
static int is_buffer(const tool_tensor *t) {
    static const char *const ends[] = { "running_mean", "running_var", "num_batches_tracked" };
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (ends_with(t->name, ends[i]))
            return 1;
    return hf_is_table(t->name, t->ndim);
}

/* A model in training: floating numbers are trained in fp32, whatever they were stored in, and whole ones are buffers,
 * which take the bytes that they take in the file. */
static tess_status add_tensor(plan_model *m, const char *path, const tool_tensor *t) {
    plan_param p = { .name = (char *)t->name, .dtype = TESS_F32, .ndim = t->ndim };
    int whole = t->dtype == TESS_U8 || t->dtype == TESS_I8 || t->dtype == TESS_I32 || t->dtype == TESS_I64;
    if (t->elems == 0)
        return TESS_OK;
    memcpy(p.shape, t->shape, sizeof p.shape);
    if (whole) {
        p.ndim = 1;
        p.shape[0] = (int64_t)((t->bytes + 3) / 4);
    } else if (t->dtype == TESS_F64) {
        p.dtype = TESS_F64;
    }
    p.flags = whole || is_buffer(t) ? TESS_BUFFER : 0;
    if (p.dtype == TESS_F32 && !p.flags)
        p.compute_dtypes = 1u << TESS_F32 | 1u << TESS_BF16 | 1u << TESS_F16;
    return plan_model_param(m, path, &p);
}

tess_status plan_tensors_file(plan_model *m, const char *path) {
    tool_safetensors *s = NULL;
    uint64_t n = 0;
    tess_status status = tool_safetensors_open_header(path, &s);
    if (status != TESS_OK)
        return status;
    const tool_tensor *list = tool_safetensors_list(s, &n);
    for (uint64_t i = 0; i < n && status == TESS_OK; i++)
        status = add_tensor(m, path, &list[i]);
    tool_safetensors_close(s);
    return status;
}

/* ---- an index ---------------------------------------------------------------------------------- */

enum { MOST_FILES = 4096 };
typedef struct {
    char *name;
    int32_t file;
} entry;
typedef struct {
    const char *path;
    entry *entries;
    char *files[MOST_FILES];
    int32_t n_entries, cap_entries, n_files;
    tool_names file_index;
} tensor_index;

/* A file beside the index: nothing that leads out of the folder. */
static int is_plain_name(const char *name) {
    return name[0] && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static tess_status file_of(tensor_index *x, const char *name, int32_t *out) {
    *out = tool_names_find(&x->file_index, name, strlen(name));
    if (*out >= 0)
        return TESS_OK;
    if (!is_plain_name(name))
        return tess_fail(TESS_E_DATA, "%s: file '%s' is not the name of a file in its folder", x->path, name);
    if (x->n_files == MOST_FILES)
        return tess_fail(TESS_E_DATA, "%s: more than %d files", x->path, MOST_FILES);
    char *kept = strdup(name);
    if (!kept)
        return tess_fail(TESS_E_NOMEM, "%s: no memory for its files", x->path);
    *out = x->n_files;
    x->files[x->n_files++] = kept;
    return tool_names_add(&x->file_index, kept, *out);
}

static tess_status add_entry(tensor_index *x, const char *name, const char *file) {
    if (x->n_entries == PLAN_MOST_PARAMS)
        return tess_fail(TESS_E_DATA, "%s: more than %d tensors", x->path, PLAN_MOST_PARAMS);
    if (x->n_entries == x->cap_entries) {
        int32_t cap = x->cap_entries ? 2 * x->cap_entries : 256;
        entry *grown = realloc(x->entries, (size_t)cap * sizeof *grown);
        if (!grown)
            return tess_fail(TESS_E_NOMEM, "%s: no memory for its tensors", x->path);
        x->entries = grown;
        x->cap_entries = cap;
    }
    entry *e = &x->entries[x->n_entries];
    TRY(file_of(x, file, &e->file));
    if (!(e->name = strdup(name)))
        return tess_fail(TESS_E_NOMEM, "%s: no memory for its tensors", x->path);
    x->n_entries++;
    return TESS_OK;
}

/* {"tensor": "file", …} */
static tess_status scan_map(tensor_index *x, json_in *in) {
    char name[TOOL_TENSOR_NAME], file[256];
    if (!json_in_char(in, '{'))
        return json_file_bad(x->path, in);
    if (json_in_if(in, '}'))
        return TESS_OK;
    do {
        if (!json_in_string(in, name, sizeof name) || !json_in_char(in, ':') || !json_in_string(in, file, sizeof file))
            return json_file_bad(x->path, in);
        TRY(add_entry(x, name, file));
    } while (json_in_if(in, ','));
    return json_in_char(in, '}') ? TESS_OK : json_file_bad(x->path, in);
}

static tess_status scan_index(tensor_index *x, json_in *in) {
    char key[64];
    int seen = 0;
    if (!json_in_char(in, '{') || json_in_if(in, '}'))
        return json_file_bad(x->path, in);
    do {
        if (!json_in_string(in, key, sizeof key) || !json_in_char(in, ':'))
            return json_file_bad(x->path, in);
        int map = strcmp(key, "weight_map") == 0;
        TRY(map && !seen ? scan_map(x, in) : json_in_skip(in) ? TESS_OK : json_file_bad(x->path, in));
        seen |= map;
    } while (json_in_if(in, ','));
    if (!json_in_char(in, '}') || !json_in_end(in))
        return json_file_bad(x->path, in);
    return seen ? TESS_OK : tess_fail(TESS_E_DATA, "%s: no \"weight_map\", expected tensors and their files", x->path);
}

static tess_status take_file(plan_model *m, const tensor_index *x, int32_t file) {
    const char *slash = strrchr(x->path, '/');
    char path[4096];
    tool_safetensors *s = NULL;
    int n = snprintf(path, sizeof path, "%.*s%s", slash ? (int)(slash - x->path + 1) : 0, x->path, x->files[file]);
    if (n < 0 || n >= (int)sizeof path)
        return tess_fail(TESS_E_DATA, "%s: its path is too long", x->path);
    tess_status status = tool_safetensors_open_header(path, &s);
    for (int32_t i = 0; i < x->n_entries && status == TESS_OK; i++) {
        if (x->entries[i].file != file)
            continue;
        const tool_tensor *t = tool_safetensors_find(s, x->entries[i].name);
        status = t ? add_tensor(m, path, t)
                   : tess_fail(TESS_E_DATA, "%s: tensor '%s' is not in file '%s'", x->path, x->entries[i].name,
                               x->files[file]);
    }
    tool_safetensors_close(s);
    return status;
}

tess_status plan_tensors_index(plan_model *m, const char *path) {
    enum { MOST_BYTES = 100 << 20 };
    tensor_index *x = calloc(1, sizeof *x);
    char *text = NULL;
    size_t bytes = 0;
    if (!x)
        return tess_fail(TESS_E_NOMEM, "%s: no memory to read it", path);
    x->path = path;
    tess_status status = json_file_read(path, MOST_BYTES, &text, &bytes);
    if (status == TESS_OK)
        status = scan_index(x, &(json_in){ .text = text, .bytes = bytes });
    for (int32_t f = 0; f < x->n_files && status == TESS_OK; f++)
        status = take_file(m, x, f);
    for (int32_t i = 0; i < x->n_entries; i++)
        free(x->entries[i].name);
    for (int32_t f = 0; f < x->n_files; f++)
        free(x->files[f]);
    tool_names_free(&x->file_index);
    free(x->entries);
    free(text);
    free(x);
    return status;
}
