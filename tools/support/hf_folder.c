/* SPDX-License-Identifier: BSD-3-Clause */
#include "hf_folder.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tessera/tessera.h>
#include "say.h"
#include "json_out.h"

struct hf_folder {
    char dir[PATH_MAX - 80];
    tool_tensor *tensors;
    uint64_t n, *first; /* first tensor of each file; n_files + 1 entries */
    uint64_t n_files, current, left, total;
    tool_safetensors_writer *writer;
};

static void name_of(const hf_folder *f, uint64_t file, char out[64]) {
    if (f->n_files == 1)
        snprintf(out, 64, "model.safetensors");
    else
        snprintf(out, 64, "model-%05" PRIu64 "-of-%05" PRIu64 ".safetensors", file + 1, f->n_files);
}

static void divide(hf_folder *f, uint64_t most) {
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < f->n; i++) {
        if (i == 0 || bytes + f->tensors[i].bytes > most) {
            f->first[f->n_files++] = i;
            bytes = 0;
        }
        bytes += f->tensors[i].bytes;
        f->total += f->tensors[i].bytes;
    }
    if (!f->n_files)
        f->n_files = 1;
    f->first[f->n_files] = f->n;
}

static tess_status open_next(hf_folder *f) {
    char path[PATH_MAX], name[64];
    uint64_t first = f->first[f->current], end = f->first[f->current + 1];
    name_of(f, f->current, name);
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    f->left = 0;
    for (uint64_t i = first; i < end; i++)
        f->left += f->tensors[i].bytes;
    return tool_safetensors_create(path, f->tensors + first, end - first, &f->writer);
}

tess_status hf_folder_create(const char *dir, const tool_tensor *tensors, uint64_t n, uint64_t max_file_bytes,
                             hf_folder **out) {
    struct stat st;
    hf_folder *f = calloc(1, sizeof *f);
    if (f) {
        f->tensors = malloc((n + 1) * sizeof *f->tensors);
        f->first = calloc(n + 2, sizeof *f->first);
    }
    if (!f || !f->tensors || !f->first) {
        hf_folder_discard(f);
        return tess_fail(TESS_E_NOMEM, "%s: no memory to write it", dir);
    }
    memcpy(f->tensors, tensors, n * sizeof *tensors);
    f->n = n;
    for (uint64_t i = 0; i < n; i++) {
        tool_tensor *t = &f->tensors[i];
        t->elems = 1;
        for (int32_t d = 0; d < t->ndim; d++)
            t->elems *= (uint64_t)t->shape[d];
        t->bytes = t->elems * tool_dtype_bytes(t->dtype);
    }
    divide(f, max_file_bytes ? max_file_bytes : UINT64_C(5000000000));
    tess_status status = TESS_OK;
    if ((size_t)snprintf(f->dir, sizeof f->dir, "%s", dir) >= sizeof f->dir)
        status = tess_fail(TESS_E_DATA, "%.60s…: the path is too long", dir);
    else if (mkdir(dir, 0777) != 0 && (errno != EEXIST || stat(dir, &st) != 0 || !S_ISDIR(st.st_mode)))
        status = tess_fail(TESS_E_DATA, "%s: cannot be made a directory: %s", dir, strerror(errno));
    if (!status)
        status = open_next(f);
    if (status)
        hf_folder_discard(f);
    else
        *out = f;
    return status;
}

tess_status hf_folder_write(hf_folder *f, const void *data, uint64_t bytes) {
    while (bytes) {
        uint64_t n = f->left < bytes ? f->left : bytes;
        if (!n && f->current + 1 == f->n_files)
            return tess_fail(TESS_E_INTERNAL, "%s: more data than was announced", f->dir);
        TRY(tool_safetensors_write(f->writer, data, n));
        data = (const char *)data + n;
        bytes -= n;
        f->left -= n;
        if (f->left || f->current + 1 == f->n_files)
            continue;
        tool_safetensors_writer *full = f->writer;
        f->writer = NULL;
        TRY(tool_safetensors_commit(full));
        f->current++;
        TRY(open_next(f));
    }
    return TESS_OK;
}

static void put_index(const hf_folder *f, FILE *out) {
    char name[64];
    json_out j;
    json_init(&j, out);
    json_object_begin(&j, NULL);
    json_object_begin(&j, "metadata");
    json_uint(&j, "total_size", f->total);
    json_object_end(&j);
    json_object_begin(&j, "weight_map");
    for (uint64_t file = 0; file < f->n_files; file++) {
        name_of(f, file, name);
        for (uint64_t i = f->first[file]; i < f->first[file + 1]; i++)
            json_string(&j, f->tensors[i].name, name);
    }
    json_object_end(&j);
    json_object_end(&j);
    fputc('\n', out);
}

static tess_status write_index(const hf_folder *f) {
    char path[PATH_MAX], temporary[PATH_MAX];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", f->dir);
    snprintf(temporary, sizeof temporary, "%s/model.safetensors.index.json.tmp", f->dir);
    if (f->n_files == 1)
        return TESS_OK;
    FILE *out = fopen(temporary, "w");
    if (!out)
        return tess_fail(TESS_E_DATA, "%s: cannot be written: %s", path, strerror(errno));
    put_index(f, out);
    int failed = fflush(out) != 0 || fsync(fileno(out)) != 0;
    failed = fclose(out) != 0 || failed || rename(temporary, path) != 0;
    if (failed)
        unlink(temporary);
    return failed ? tess_fail(TESS_E_DATA, "%s: cannot be written: %s", path, strerror(errno)) : TESS_OK;
}

/* Removes weights of an earlier export with another number of files, because readers would take them for these. */
static void drop_stale(const hf_folder *f) {
    char path[PATH_MAX];
    uint64_t file, of;
    int end = 0;
    DIR *dir = opendir(f->dir);
    for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir)) {
        int is_part = sscanf(e->d_name, "model-%5" SCNu64 "-of-%5" SCNu64 ".safetensors%n", &file, &of, &end) == 2;
        int is_stale = is_part && !e->d_name[end] && (f->n_files == 1 || of != f->n_files);
        if (strcmp(e->d_name, f->n_files == 1 ? "model.safetensors.index.json" : "model.safetensors") == 0)
            is_stale = 1;
        if ((size_t)snprintf(path, sizeof path, "%s/%s", f->dir, e->d_name) < sizeof path && is_stale)
            unlink(path);
    }
    if (dir)
        closedir(dir);
}

tess_status hf_folder_commit(hf_folder *f) {
    tool_safetensors_writer *last = f->writer;
    f->writer = NULL;
    tess_status status = tool_safetensors_commit(last);
    if (!status)
        status = write_index(f);
    if (!status)
        drop_stale(f);
    hf_folder_discard(f);
    return status;
}

void hf_folder_discard(hf_folder *f) {
    if (!f)
        return;
    tool_safetensors_discard(f->writer);
    free(f->tensors);
    free(f->first);
    free(f);
}
