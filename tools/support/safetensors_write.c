/* SPDX-License-Identifier: BSD-3-Clause */
/* Writes a whole safetensors file with the order and header of checkpoints. */
#include "safetensors.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checkpoint/disk.h"
#include "core/checkpoint/safetensors.h"

struct tool_safetensors_writer {
    char path[PATH_MAX], temporary[PATH_MAX];
    int file;
    uint64_t *place, *bytes, n; /* each tensor's offset and size in the file, in the caller's order */
    uint64_t current, within;   /* where the next data goes */
    uint64_t written, total;    /* bytes of data so far and in all */
};

static tess_status write_error(const tool_safetensors_writer *w, uint64_t offset, int error) {
    return tess_fail(TESS_E_DATA, "%s: cannot write at offset %" PRIu64 ": %s", w->path, offset, strerror(error));
}

static tess_status open_temporary(tool_safetensors_writer *w, const char *path) {
    if ((size_t)snprintf(w->path, sizeof w->path, "%s", path) >= sizeof w->path ||
        (size_t)snprintf(w->temporary, sizeof w->temporary, "%s.tmp", path) >= sizeof w->temporary)
        return tess_fail(TESS_E_DATA, "the path of a file to write is longer than %d bytes", PATH_MAX);
    w->file = tess__disk_real.open(NULL, w->temporary, TESS__DISK_CREATE);
    if (w->file < 0)
        return tess_fail(TESS_E_DATA, "%s: cannot be written: %s", w->path, strerror(-w->file));
    return TESS_OK;
}

/* Sets w->place and w->bytes for each tensor in the given order. */
static tess_status find_places(tool_safetensors_writer *w, const tool_tensor *given, const tess__tensor *arranged,
                               uint64_t n, uint64_t data_start) {
    for (uint64_t i = 0; i < n; i++) {
        uint64_t low = 0;
        while (low < n && strcmp(arranged[low].name, given[i].name) != 0)
            low++;
        if (low == n)
            return tess_fail(TESS_E_INTERNAL, "%s: tensor '%s' is lost", w->path, given[i].name);
        w->place[i] = data_start + arranged[low].offset;
        w->bytes[i] = arranged[low].bytes;
    }
    return TESS_OK;
}

/* Converts the tensors to the list that the core's writer takes. */
static tess__tensor *list_of(const tool_tensor *tensors, uint64_t n) {
    tess__tensor *list = calloc(n + 1, sizeof *list);
    for (uint64_t i = 0; list && i < n; i++) {
        list[i].dtype = tensors[i].dtype;
        list[i].ndim = tensors[i].ndim;
        memcpy(list[i].name, tensors[i].name, sizeof list[i].name);
        memcpy(list[i].shape, tensors[i].shape, sizeof list[i].shape);
    }
    return list;
}

static tess_status write_header(tool_safetensors_writer *w, const tool_tensor *tensors, uint64_t n) {
    char *header = NULL;
    size_t bytes = 0;
    tess__tensor *arranged = list_of(tensors, n);
    w->place = calloc(2 * (n + 1), sizeof *w->place);
    if (!arranged || !w->place) {
        free(arranged);
        return tess_fail(TESS_E_NOMEM, "%s: no memory for the header", w->path);
    }
    w->bytes = w->place + n + 1;
    w->n = n;
    w->total = tess__safetensors_arrange(arranged, n);
    tess_status status = tess__safetensors_header(w->path, arranged, n, "\"format\":\"pt\"", 8, &header, &bytes);
    if (status == TESS_OK)
        status = find_places(w, tensors, arranged, n, bytes);
    int failed = status ? 0 : tess__disk_write_all(&tess__disk_real, w->file, header, bytes, 0);
    free(header);
    free(arranged);
    return failed ? write_error(w, 0, -failed) : status;
}

tess_status tool_safetensors_create(const char *path, const tool_tensor *tensors, uint64_t n,
                                    tool_safetensors_writer **out) {
    tool_safetensors_writer *w = calloc(1, sizeof *w);
    if (!w)
        return tess_fail(TESS_E_NOMEM, "%s: no memory to write it", path);
    tess_status status = open_temporary(w, path);
    if (status != TESS_OK) {
        free(w);
        return status;
    }
    status = write_header(w, tensors, n);
    if (status != TESS_OK)
        tool_safetensors_discard(w);
    else
        *out = w;
    return status;
}

tess_status tool_safetensors_write(tool_safetensors_writer *w, const void *data, uint64_t bytes) {
    if (bytes > w->total - w->written)
        return tess_fail(TESS_E_INTERNAL, "%s: more data than the %" PRIu64 " bytes announced", w->path, w->total);
    while (bytes) {
        uint64_t left = w->bytes[w->current] - w->within, n = left < bytes ? left : bytes;
        uint64_t offset = w->place[w->current] + w->within;
        int failed = n ? tess__disk_write_all(&tess__disk_real, w->file, data, n, offset) : 0;
        if (failed)
            return write_error(w, offset, -failed);
        data = (const char *)data + n;
        bytes -= n;
        w->within += n;
        w->written += n;
        if (w->within == w->bytes[w->current])
            w->current++, w->within = 0;
    }
    return TESS_OK;
}

static void sync_dir_of(const char *path) {
    char dir[PATH_MAX];
    snprintf(dir, sizeof dir, "%s", path);
    char *slash = strrchr(dir, '/');
    if (slash)
        slash[slash == dir] = '\0';
    (void)tess__disk_sync_dir(&tess__disk_real, slash ? dir : "."); /* a lost rename leaves no partial file */
}

tess_status tool_safetensors_commit(tool_safetensors_writer *w) {
    tess_status status = TESS_OK;
    int failed = 0;
    if (w->written != w->total)
        status = tess_fail(TESS_E_INTERNAL, "%s: %" PRIu64 " bytes of data came, %" PRIu64 " were announced", w->path,
                           w->written, w->total);
    else if ((failed = tess__disk_real.sync(NULL, w->file)))
        status = write_error(w, w->total, -failed);
    else if ((failed = tess__disk_real.rename(NULL, w->temporary, w->path)))
        status = tess_fail(TESS_E_DATA, "%s: cannot be put in place: %s", w->path, strerror(-failed));
    if (status == TESS_OK) {
        sync_dir_of(w->path);
        tess__disk_real.close(NULL, w->file);
        free(w->place);
        free(w);
        return TESS_OK;
    }
    tool_safetensors_discard(w);
    return status;
}

void tool_safetensors_discard(tool_safetensors_writer *w) {
    if (!w)
        return;
    tess__disk_real.close(NULL, w->file);
    (void)tess__disk_real.remove(NULL, w->temporary);
    free(w->place);
    free(w);
}
