/* SPDX-License-Identifier: BSD-3-Clause */
/* Over the core's reader and writer, which are the checkpoints'. */
#include "safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/safetensors_dtype.h"

_Static_assert((int)TOOL_TENSOR_DIMS == (int)TESS__TENSOR_DIMS && (int)TOOL_TENSOR_NAME == (int)TESS__TENSOR_NAME,
               "as the core has them");

struct tool_safetensors {
    tess__safetensors *file;
    const tess__tensor *theirs;
    tool_tensor *list; /* the same, in the same order */
    uint64_t n;
};

uint32_t tool_dtype_bytes(uint32_t dtype) {
    return tess__tensor_dtype_bytes(dtype);
}

const char *tool_dtype_word(uint32_t dtype) {
    return tess__dtype_word(dtype);
}

uint32_t tool_dtype_of_word(const char *word) {
    return tess__dtype_of_word(word);
}

/* ---- writing ----------------------------------------------------------------------------------------- */

tess_status tool_safetensors_create(const char *path, const tool_tensor *tensors, uint64_t n,
                                    tool_safetensors_writer **out) {
    tess__tensor *list = calloc(n + 1, sizeof *list);
    if (!list)
        return tess_fail(TESS_E_NOMEM, "%s: no memory for its header", path);
    for (uint64_t i = 0; i < n; i++) {
        list[i].dtype = tensors[i].dtype;
        list[i].ndim = tensors[i].ndim;
        memcpy(list[i].name, tensors[i].name, sizeof list[i].name);
        memcpy(list[i].shape, tensors[i].shape, sizeof list[i].shape);
    }
    tess_status status = tess__safetensors_create(path, list, n, out);
    free(list);
    return status;
}

tess_status tool_safetensors_write(tool_safetensors_writer *w, const void *data, uint64_t bytes) {
    return tess__safetensors_write(w, data, bytes);
}

tess_status tool_safetensors_commit(tool_safetensors_writer *w) {
    return tess__safetensors_commit(w);
}

void tool_safetensors_discard(tool_safetensors_writer *w) {
    tess__safetensors_discard(w);
}

/* ---- reading ----------------------------------------------------------------------------------------- */

static tess_status take(const char *path, tess__safetensors *file, tool_safetensors **out) {
    tool_safetensors *s = calloc(1, sizeof *s);
    if (s) {
        s->theirs = tess__safetensors_list(file, &s->n);
        s->list = calloc(s->n + 1, sizeof *s->list);
    }
    if (!s || !s->list) {
        free(s);
        tess__safetensors_close(file);
        return tess_fail(TESS_E_NOMEM, "%s: no memory for its list of tensors", path);
    }
    s->file = file;
    for (uint64_t i = 0; i < s->n; i++) {
        const tess__tensor *t = &s->theirs[i];
        s->list[i] = (tool_tensor){ .dtype = t->dtype, .ndim = t->ndim, .elems = t->elems, .bytes = t->bytes };
        memcpy(s->list[i].name, t->name, sizeof t->name);
        memcpy(s->list[i].shape, t->shape, sizeof t->shape);
    }
    *out = s;
    return TESS_OK;
}

tess_status tool_safetensors_open(const char *path, tool_safetensors **out) {
    tess__safetensors *file;
    tess_status status = tess__safetensors_open(path, &file);
    return status == TESS_OK ? take(path, file, out) : status;
}

tess_status tool_safetensors_open_header(const char *path, tool_safetensors **out) {
    tess__safetensors *file;
    tess_status status = tess__safetensors_open_header(path, &file);
    return status == TESS_OK ? take(path, file, out) : status;
}

void tool_safetensors_close(tool_safetensors *s) {
    if (!s)
        return;
    tess__safetensors_close(s->file);
    free(s->list);
    free(s);
}

const tool_tensor *tool_safetensors_list(const tool_safetensors *s, uint64_t *n) {
    *n = s->n;
    return s->list;
}

const tool_tensor *tool_safetensors_find(const tool_safetensors *s, const char *name) {
    const tess__tensor *t = tess__safetensors_find(s->file, name);
    return t ? &s->list[t - s->theirs] : NULL;
}

tess_status tool_safetensors_read(const tool_safetensors *s, const tool_tensor *t, uint64_t first, uint64_t elems,
                                  float *out) {
    return tess__safetensors_read(s->file, &s->theirs[t - s->list], first, elems, out);
}
