/* SPDX-License-Identifier: BSD-3-Clause */
#include "hf_export.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tessera/tessera.h>
#include "say.h"
#include "hf_names.h"

typedef struct {
    uint64_t bytes, rows, columns, elem; /* rows 0: the tensor is not transposed */
} part;

struct hf_export {
    hf_folder *folder;
    part *parts;
    uint64_t n, current, filled; /* filled: bytes of the current part so far */
    char *given, *turned;        /* room for one matrix each */
};

/* ---- config.json ---------------------------------------------------------------------------------------- */
static const char *torch_name(uint32_t dtype) {
    return dtype == TESS_BF16 ? "bfloat16" : dtype == TESS_F16 ? "float16" : "float32";
}

static tess_status write_config(const char *dir, const char *config, uint32_t dtype) {
    char path[PATH_MAX], temporary[PATH_MAX + 8];
    if ((size_t)snprintf(path, sizeof path, "%s/config.json", dir) >= sizeof path)
        return tess_fail(TESS_E_DATA, "%.60s…: the path is too long", dir);
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    FILE *f = fopen(temporary, "we");
    if (!f)
        return tess_fail(TESS_E_DATA, "%s: cannot be written: %s", path, strerror(errno));
    fprintf(f, "%.*s,\"dtype\":\"%s\"}\n", (int)(strrchr(config, '}') - config), config, torch_name(dtype));
    int failed = fflush(f) != 0 || fsync(fileno(f)) != 0;
    failed = fclose(f) != 0 || failed || rename(temporary, path) != 0;
    if (!failed)
        return TESS_OK;
    int error = errno;
    unlink(temporary);
    return tess_fail(TESS_E_DATA, "%s: cannot be written: %s", path, strerror(error));
}

/* ---- tensors ---------------------------------------------------------------------------------------------- */
/* Fills in the tensor's name and shape in the folder. */
static uint64_t rename_tensor(const char *model, const tool_tensor *given, tool_tensor *t, part *p) {
    char name[HF_NAME];
    *t = *given;
    *p = (part){ .elem = tool_dtype_bytes(t->dtype) };
    p->bytes = p->elem;
    for (int32_t d = 0; d < t->ndim; d++)
        p->bytes *= (uint64_t)t->shape[d];
    int turned = hf_knows(model) && hf_name(model, given->name, given->ndim, name);
    if (hf_knows(model))
        snprintf(t->name, sizeof t->name, "%s", name);
    if (!turned)
        return 0;
    p->rows = (uint64_t)(t->shape[1] = given->shape[0]);
    p->columns = (uint64_t)(t->shape[0] = given->shape[1]);
    return p->bytes;
}

static tess_status make_parts(hf_export *x, const char *model, const tool_tensor *given, tool_tensor *list) {
    uint64_t most = 0;
    for (uint64_t i = 0; i < x->n; i++) {
        uint64_t bytes = rename_tensor(model, &given[i], &list[i], &x->parts[i]);
        most = bytes > most ? bytes : most;
    }
    if (!most)
        return TESS_OK;
    x->given = malloc(most);
    x->turned = malloc(most);
    return x->given && x->turned
               ? TESS_OK
               : tess_fail(TESS_E_NOMEM, "no memory to turn a matrix of %llu bytes", (unsigned long long)most);
}

tess_status hf_export_create(const char *dir, const char *model, const char *config, const tool_tensor *tensors,
                             uint64_t n, uint64_t max_file_bytes, hf_export **out) {
    hf_export *x = calloc(1, sizeof *x);
    tool_tensor *list = calloc(n + 1, sizeof *list);
    if (x)
        x->parts = calloc(n + 1, sizeof *x->parts);
    tess_status status = x && x->parts && list ? TESS_OK : tess_fail(TESS_E_NOMEM, "%s: no memory to write it", dir);
    if (!status) {
        x->n = n;
        status = make_parts(x, model, tensors, list);
    }
    if (!status)
        status = hf_folder_create(dir, list, n, max_file_bytes, &x->folder);
    if (!status && config)
        status = write_config(dir, config, n ? tensors[0].dtype : TESS_F32);
    free(list);
    if (status)
        hf_export_discard(x);
    else
        *out = x;
    return status;
}

static void turn(const part *p, const char *from, char *to) {
    for (uint64_t r = 0; r < p->rows; r++)
        for (uint64_t c = 0; c < p->columns; c++)
            memcpy(to + (c * p->rows + r) * p->elem, from + (r * p->columns + c) * p->elem, p->elem);
}

/* Collects the current matrix and writes it transposed once it is complete. */
static tess_status keep(hf_export *x, const part *p, const void *data, uint64_t bytes) {
    memcpy(x->given + x->filled, data, bytes);
    if (x->filled + bytes < p->bytes)
        return TESS_OK;
    turn(p, x->given, x->turned);
    return hf_folder_write(x->folder, x->turned, p->bytes);
}

tess_status hf_export_write(hf_export *x, const void *data, uint64_t bytes) {
    while (bytes) {
        if (x->current == x->n)
            return tess_fail(TESS_E_INTERNAL, "an export gets more data than was announced");
        const part *p = &x->parts[x->current];
        uint64_t left = p->bytes - x->filled, n = left < bytes ? left : bytes;
        TRY(p->rows ? keep(x, p, data, n) : hf_folder_write(x->folder, data, n));
        data = (const char *)data + n;
        bytes -= n;
        x->filled += n;
        if (x->filled == p->bytes)
            x->current++, x->filled = 0;
    }
    return TESS_OK;
}

tess_status hf_export_commit(hf_export *x) {
    hf_folder *f = x->folder;
    x->folder = NULL;
    hf_export_discard(x);
    return hf_folder_commit(f);
}

void hf_export_discard(hf_export *x) {
    if (!x)
        return;
    hf_folder_discard(x->folder);
    free(x->parts);
    free(x->given);
    free(x->turned);
    free(x);
}
