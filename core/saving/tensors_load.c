/* SPDX-License-Identifier: BSD-3-Clause */
#include "tensors_load.h"

#include "base/status.h"
#include "checkpoint/disk.h"
#include "engine/state.h"
#include "kernels/kernels.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHAPE_TEXT = 22 * TESS__TENSOR_DIMS + 3 }; /* the longest: each of 20 digits and a separator */

typedef struct {
    const char *path;
    int file;
    tess__safetensors *header;
    const tess__tensor **of; /* by parameter: its tensor */
} tensors;

int tess__is_tensors_file(const char *path) {
    static const char end[] = ".safetensors";
    size_t n = strlen(path), m = sizeof end - 1;
    return n > m && strcmp(path + n - m, end) == 0;
}

static tess_status read_file(void *user, void *into, uint64_t bytes, uint64_t offset) {
    const tensors *f = user;
    int failed = tess__disk_read_all(&tess__disk_real, f->file, into, bytes, offset);
    return failed ? tess__fail(TESS_E_DATA, "%s: offset %" PRIu64 ": %s", f->path, offset, strerror(-failed)) : TESS_OK;
}

static tess_status read_elements(void *user, const tess__tensor *x, uint64_t first, uint64_t n, void *out) {
    return tess__safetensors_read_raw(((tensors *)user)->header, x, first, n, out);
}

/* ---- is it of this model? ---------------------------------------------------------------------------- */
static int is_among(const char *name, const char *const *list) {
    for (; list && *list; list++)
        if (strcmp(*list, name) == 0)
            return 1;
    return 0;
}

static void shape_text(int32_t ndim, const int64_t *shape, char out[SHAPE_TEXT]) {
    int at = snprintf(out, SHAPE_TEXT, "[");
    for (int32_t d = 0; d < ndim; d++)
        at += snprintf(out + at, (size_t)(SHAPE_TEXT - at), "%s%" PRId64, d ? ", " : "", shape[d]);
    snprintf(out + at, (size_t)(SHAPE_TEXT - at), "]");
}

static tess_status check_shape(const tensors *f, const tess__tensor *x, const tess__param *p) {
    int same = p->ndim == x->ndim;
    char there[SHAPE_TEXT], here[SHAPE_TEXT];
    for (int32_t d = 0; same && d < p->ndim; d++)
        same = p->shape[d] == x->shape[d];
    if (same)
        return TESS_OK;
    shape_text(x->ndim, x->shape, there);
    shape_text(p->ndim, p->shape, here);
    return tess__fail(TESS_E_DATA, "%s: tensor '%s' has the shape %s, expected %s", f->path, x->name, there, here);
}

/* Floats go with floats, and an integer with a buffer that counts. */
static tess_status check_dtype(const tensors *f, const tess__tensor *x, const tess__param *p) {
    int counts = x->dtype == TESS_I64 && p->dtype == TESS_F64 && p->flags & TESS_BUFFER;
    if (x->dtype == p->dtype || counts || (tess__is_float(x->dtype) && tess__is_float(p->dtype)))
        return TESS_OK;
    return tess__fail(TESS_E_DATA, "%s: tensor '%s' is %s, expected %s", f->path, x->name, tess_dtype_name(x->dtype),
                      tess_dtype_name(p->dtype));
}

/* A tied parameter may be there by each of its names. The first name is the one that counts. */
static tess_status find_tensors(tensors *f, const tess__model *m, const char *const *others) {
    uint64_t n;
    const tess__tensor *list = tess__safetensors_list(f->header, &n);
    for (uint64_t i = 0; i < n; i++) {
        int32_t at = tess__model_find_param(m, list[i].name);
        if (at < 0 && is_among(list[i].name, others))
            continue;
        if (at < 0)
            return tess__fail(TESS_E_DATA, "%s: tensor '%s' is no parameter and no buffer of this model", f->path,
                              list[i].name);
        int32_t own = m->params[at].tied_to;
        TRY(check_shape(f, &list[i], &m->params[own]));
        TRY(check_dtype(f, &list[i], &m->params[own]));
        if (at == own || !f->of[own])
            f->of[own] = &list[i];
    }
    for (int32_t i = 0; i < m->n_params; i++)
        if (m->params[i].tied_to == i && !f->of[i])
            return tess__fail(TESS_E_DATA, "%s: %s '%s' is not in it", f->path,
                              m->params[i].flags & TESS_BUFFER ? "buffer" : "parameter", m->params[i].name);
    return TESS_OK;
}

/* ---- values ------------------------------------------------------------------------------------------ */
static tess_status take_values(const tensors *f, const tess__elements *e) {
    const tess__model *m = &e->t->plan.model;
    for (int32_t i = 0; i < m->n_params; i++) {
        if (m->params[i].tied_to != i)
            continue;
        tess__owned o = tess__owned_at(e->t, TESS_OF_PARAM, i);
        if (o.piece.elems)
            TRY(tess__elements_place(e, f->of[i], o.piece.in_param, o.piece.elems, &o, 0));
    }
    return TESS_OK;
}

static tess_status load_opened(tensors *f, tess__elements *e, const char *const *others) {
    int64_t bytes = tess__disk_real.size(tess__disk_real.self, f->file);
    if (bytes < 0)
        return tess__fail(TESS_E_DATA, "%s: %s", f->path, strerror((int)-bytes));
    TRY(tess__safetensors_open_source(
        f->path, &(tess__source){ .user = f, .read = read_file, .bytes = (uint64_t)bytes }, &f->header));
    f->of = calloc((size_t)e->t->plan.model.n_params + 1, sizeof *f->of);
    if (!f->of)
        return tess__fail(TESS_E_NOMEM, "%s: no memory to read it", f->path);
    TRY(find_tensors(f, &e->t->plan.model, others));
    return take_values(f, e);
}

tess_status tess__tensors_load(tess__elements *e, const char *path, const char *const *others) {
    tensors f = { .path = path };
    f.file = tess__disk_real.open(tess__disk_real.self, path, TESS__DISK_READ);
    if (f.file < 0)
        return tess__fail(TESS_E_DATA, "%s: %s", path, strerror(-f.file));
    e->path = path, e->user = &f, e->read = read_elements;
    tess_status s = load_opened(&f, e, others);
    tess__safetensors_close(f.header);
    free(f.of);
    tess__disk_real.close(tess__disk_real.self, f.file);
    return s;
}
