/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "disk.h"
#include "safetensors.h"
#include "safetensors_dtype.h"
#include "json_text.h"

/* ---- order and header ---------------------------------------------------------------------------- */
static int by_alignment(const void *a, const void *b) {
    const tess__tensor *x = a, *y = b;
    uint32_t dx = tess__tensor_dtype_bytes(x->dtype), dy = tess__tensor_dtype_bytes(y->dtype);
    return dx != dy ? (dx < dy ? 1 : -1) : strcmp(x->name, y->name);
}

uint64_t tess__safetensors_arrange(tess__tensor *tensors, uint64_t n) {
    uint64_t at = 0;
    if (n)
        qsort(tensors, n, sizeof *tensors, by_alignment);
    for (uint64_t i = 0; i < n; i++) {
        tess__tensor *t = &tensors[i];
        t->elems = 1;
        for (int32_t d = 0; d < t->ndim; d++)
            t->elems *= (uint64_t)t->shape[d];
        t->bytes = t->elems * tess__tensor_dtype_bytes(t->dtype);
        t->offset = at;
        at += t->bytes;
    }
    return at;
}

static void put_tensor(FILE *f, const tess__tensor *t) {
    fputc(',', f);
    tess__json_text(f, t->name);
    fprintf(f, ":{\"dtype\":\"%s\",\"shape\":[", tess__dtype_word(t->dtype));
    for (int32_t d = 0; d < t->ndim; d++)
        fprintf(f, "%s%" PRId64, d ? "," : "", t->shape[d]);
    fprintf(f, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", t->offset, t->offset + t->bytes);
}

tess_status tess__safetensors_header(const char *path, const tess__tensor *tensors, uint64_t n, const char *metadata,
                                     uint64_t align, char **out, size_t *bytes) {
    char *text = NULL;
    FILE *f = open_memstream(&text, bytes);
    if (!f)
        return tess__fail(TESS_E_NOMEM, "%s: no memory for the header", path);
    fwrite("\0\0\0\0\0\0\0", 1, 8, f);
    fprintf(f, "{\"__metadata__\":{%s}", metadata);
    for (uint64_t i = 0; i < n; i++)
        put_tensor(f, &tensors[i]);
    fputc('}', f);
    for (long length = ftell(f); (uint64_t)length % align != 0; length++)
        fputc(' ', f);
    if (fclose(f) != 0) {
        free(text);
        return tess__fail(TESS_E_NOMEM, "%s: no memory for the header", path);
    }
    uint64_t length = *bytes - 8;
    for (int i = 0; i < 8; i++)
        text[i] = (char)(unsigned char)(length >> (8 * i));
    *out = text;
    if (length <= TESS__TENSOR_HEADER_MOST)
        return TESS_OK;
    free(text);
    return tess__fail(TESS_E_UNSUPPORTED,
                      "%s: a header of %" PRIu64 " bytes for %" PRIu64 " tensors; the format has %d", path, length, n,
                      TESS__TENSOR_HEADER_MOST);
}

/* ---- a whole file -------------------------------------------------------------------------------- */
struct tess__safetensors_writer {
    char path[PATH_MAX], temporary[PATH_MAX];
    int file;
    uint64_t *place, *bytes, n; /* of each tensor's data in the file, in the order they were given */
    uint64_t current, within;   /* where the next data goes */
    uint64_t written, total;    /* bytes of data */
};

static tess_status write_error(const tess__safetensors_writer *w, uint64_t offset, int error) {
    return tess__fail(TESS_E_DATA, "%s: cannot write at offset %" PRIu64 ": %s", w->path, offset, strerror(error));
}

static tess_status open_temporary(tess__safetensors_writer *w, const char *path) {
    if ((size_t)snprintf(w->path, sizeof w->path, "%s", path) >= sizeof w->path ||
        (size_t)snprintf(w->temporary, sizeof w->temporary, "%s.tmp", path) >= sizeof w->temporary)
        return tess__fail(TESS_E_DATA, "the path of a file to write is longer than %d bytes", PATH_MAX);
    w->file = tess__disk_real.open(NULL, w->temporary, TESS__DISK_CREATE);
    if (w->file < 0)
        return tess__fail(TESS_E_DATA, "%s: cannot be written: %s", w->path, strerror(-w->file));
    return TESS_OK;
}

/* Arranges the tensors; `place` says where each of the given order went. */
static tess_status arrange_tensors(tess__safetensors_writer *w, const tess__tensor *given, tess__tensor *arranged,
                                   uint64_t n, uint64_t data_start) {
    for (uint64_t i = 0; i < n; i++) {
        uint64_t low = 0;
        while (low < n && strcmp(arranged[low].name, given[i].name) != 0)
            low++;
        if (low == n)
            return tess__fail(TESS_E_INTERNAL, "%s: tensor '%s' is lost", w->path, given[i].name);
        w->place[i] = data_start + arranged[low].offset;
        w->bytes[i] = arranged[low].bytes;
    }
    return TESS_OK;
}

static tess_status write_header(tess__safetensors_writer *w, const tess__tensor *tensors, uint64_t n) {
    char *header = NULL;
    size_t bytes = 0;
    tess__tensor *arranged = malloc((n + 1) * sizeof *arranged);
    w->place = calloc(2 * (n + 1), sizeof *w->place);
    if (!arranged || !w->place) {
        free(arranged);
        return tess__fail(TESS_E_NOMEM, "%s: no memory for the header", w->path);
    }
    w->bytes = w->place + n + 1;
    w->n = n;
    memcpy(arranged, tensors, n * sizeof *arranged);
    w->total = tess__safetensors_arrange(arranged, n);
    tess_status status = tess__safetensors_header(w->path, arranged, n, "\"format\":\"pt\"", 8, &header, &bytes);
    if (status == TESS_OK)
        status = arrange_tensors(w, tensors, arranged, n, bytes);
    int failed = status ? 0 : tess__disk_write_all(&tess__disk_real, w->file, header, bytes, 0);
    free(header);
    free(arranged);
    return failed ? write_error(w, 0, -failed) : status;
}

tess_status tess__safetensors_create(const char *path, const tess__tensor *tensors, uint64_t n,
                                     tess__safetensors_writer **out) {
    tess__safetensors_writer *w = calloc(1, sizeof *w);
    if (!w)
        return tess__fail(TESS_E_NOMEM, "%s: no memory to write it", path);
    tess_status status = open_temporary(w, path);
    if (status != TESS_OK) {
        free(w);
        return status;
    }
    status = write_header(w, tensors, n);
    if (status != TESS_OK)
        tess__safetensors_discard(w);
    else
        *out = w;
    return status;
}

tess_status tess__safetensors_write(tess__safetensors_writer *w, const void *data, uint64_t bytes) {
    if (bytes > w->total - w->written)
        return tess__fail(TESS_E_INTERNAL, "%s: more data than the %" PRIu64 " bytes announced", w->path, w->total);
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
    (void)tess__disk_sync_dir(&tess__disk_real, slash ? dir : "."); /* the file is whole, whatever its name's fate */
}

tess_status tess__safetensors_commit(tess__safetensors_writer *w) {
    tess_status status = TESS_OK;
    int failed = 0;
    if (w->written != w->total)
        status = tess__fail(TESS_E_INTERNAL, "%s: %" PRIu64 " bytes of data came, %" PRIu64 " were announced", w->path,
                            w->written, w->total);
    else if ((failed = tess__disk_real.sync(NULL, w->file)))
        status = write_error(w, w->total, -failed);
    else if ((failed = tess__disk_real.rename(NULL, w->temporary, w->path)))
        status = tess__fail(TESS_E_DATA, "%s: cannot be put in place: %s", w->path, strerror(-failed));
    if (status == TESS_OK) {
        sync_dir_of(w->path);
        tess__disk_real.close(NULL, w->file);
        free(w->place);
        free(w);
        return TESS_OK;
    }
    tess__safetensors_discard(w);
    return status;
}

void tess__safetensors_discard(tess__safetensors_writer *w) {
    if (!w)
        return;
    tess__disk_real.close(NULL, w->file);
    (void)tess__disk_real.remove(NULL, w->temporary);
    free(w->place);
    free(w);
}
