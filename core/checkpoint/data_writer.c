/* SPDX-License-Identifier: BSD-3-Clause */
#include "data_writer.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "safetensors.h"

enum {
    BLOCK = TESS__DISK_BLOCK,
    PIECE_BYTES = 8 << 20, /* of one write: large, and still cancelled soon */
    STAGE_BYTES = 4 << 20
};

/* ---- to the disk ----------------------------------------------------------------------------------- */
static int is_whole(const void *data, uint64_t bytes, uint64_t offset) {
    return ((uint64_t)(uintptr_t)data | bytes | offset) % BLOCK == 0;
}

static int leave_direct(tess__data_writer *w) {
    w->direct = 0;
    return w->disk->direct(w->disk->self, w->file, 0);
}

/* Writes bytes. A write that was cut short within a block, or refused past the cache, goes through the cache. 0 or a
 * negative errno. */
static int put_bytes(tess__data_writer *w, const char *data, uint64_t bytes, uint64_t offset) {
    while (bytes) {
        uint64_t most = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
        int failed = w->direct && !is_whole(data, most, offset) ? leave_direct(w) : 0;
        int64_t n = failed ? failed : w->disk->write(w->disk->self, w->file, data, most, offset);
        if (n == -EINVAL && w->direct && !leave_direct(w))
            continue;
        if (n <= 0)
            return n < 0 ? (int)n : -ENOSPC;
        data += n;
        offset += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return 0;
}

static tess_status write_at(tess__data_writer *w, const char *data, uint64_t bytes, uint64_t offset) {
    int failed = put_bytes(w, data, bytes, offset);
    return failed ? tess__fail(TESS_E_DATA, "%s: cannot write at offset %" PRIu64 ": %s", w->path, offset,
                               strerror(-failed))
                  : TESS_OK;
}

/* Writes whole blocks first; the bytes left over are the end of the file. */
static tess_status flush_stage(tess__data_writer *w) {
    uint64_t whole = w->direct ? w->staged - w->staged % BLOCK : w->staged, offset = w->at - w->staged;
    TRY(write_at(w, w->stage, whole, offset));
    TRY(write_at(w, w->stage + whole, w->staged - whole, offset + whole));
    w->staged = 0;
    return TESS_OK;
}

static tess_status stage_bytes(tess__data_writer *w, const void *data, uint64_t bytes) {
    memcpy(w->stage + w->staged, data, bytes);
    w->staged += bytes;
    w->at += bytes;
    return w->staged == STAGE_BYTES ? flush_stage(w) : TESS_OK;
}

static tess_status write_straight(tess__data_writer *w, const void *data, uint64_t bytes) {
    TRY(write_at(w, data, bytes, w->at));
    w->at += bytes;
    return TESS_OK;
}

/* Counts the bytes that need not be staged. */
static uint64_t straight_bytes(const tess__data_writer *w, const void *data, uint64_t bytes) {
    uint64_t most = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
    if (w->staged || (w->direct && !is_whole(data, 0, w->at)))
        return 0;
    return w->direct ? most - most % BLOCK : most;
}

tess_status tess__data_write(tess__data_writer *w, const void *data, uint64_t bytes) {
    while (bytes) {
        uint64_t straight = straight_bytes(w, data, bytes), room = STAGE_BYTES - w->staged;
        uint64_t n = straight ? straight : room < bytes ? room : bytes;
        if (w->cancel && *w->cancel)
            return tess__fail(TESS_E_ABORTED, "%s: the run ends before it is written", w->path);
        if (tess__sums_add(&w->sums, data, n))
            return tess__fail(TESS_E_NOMEM, "%s: no memory for its checksums", w->path);
        TRY((straight ? write_straight : stage_bytes)(w, data, n));
        data = (const char *)data + n;
        bytes -= n;
    }
    return TESS_OK;
}

/* ---- a file ---------------------------------------------------------------------------------------- */
tess_status tess__data_header(const char *path, const tess__tensor *tensors, uint64_t n, char **out, size_t *bytes) {
    return tess__safetensors_header(path, tensors, n, "\"tessera\":\"checkpoint\"", BLOCK, out, bytes);
}

static tess_status begin_file(tess__data_writer *w) {
    w->file = w->disk->open(w->disk->self, w->path, TESS__DISK_CREATE);
    if (w->file < 0)
        return tess__fail(TESS_E_DATA, "%s: cannot be written: %s", w->path, strerror(-w->file));
    w->direct = w->disk->direct(w->disk->self, w->file, 1) == 0;
    w->stage = aligned_alloc(BLOCK, STAGE_BYTES);
    if (!w->stage || tess__sums_init(&w->sums, TESS__CHUNK_BYTES))
        return tess__fail(TESS_E_NOMEM, "%s: no memory to write it", w->path);
    return TESS_OK;
}

tess_status tess__data_create(const tess__disk *d, const char *step_dir, const char *name, const tess__tensor *tensors,
                              uint64_t n, tess__data_writer *out) {
    char *header = NULL;
    size_t bytes = 0;
    *out = (tess__data_writer){ .disk = d, .file = -1 };
    snprintf(out->dir, sizeof out->dir, "%s", step_dir);
    snprintf(out->path, sizeof out->path, "%s/%s", step_dir, name);
    TRY(tess__data_header(out->path, tensors, n, &header, &bytes));
    tess_status s = begin_file(out);
    if (!s)
        s = tess__data_write(out, header, bytes);
    if (!s) /* the header has whole blocks, so what follows need not be staged behind it */
        s = flush_stage(out);
    free(header);
    if (s)
        tess__data_drop(out);
    return s;
}

static tess_status sync_file(tess__data_writer *w) {
    int failed = w->disk->sync(w->disk->self, w->file);
    if (!failed)
        failed = tess__disk_sync_dir(w->disk, w->dir);
    if (failed)
        return tess__fail(TESS_E_DATA, "%s: cannot be synced to the disk: %s", w->path, strerror(-failed));
    return tess__sums_finish(&w->sums) ? tess__fail(TESS_E_NOMEM, "%s: no memory for its checksums", w->path) : TESS_OK;
}

tess_status tess__data_finish(tess__data_writer *w, tess__data_file *out) {
    tess_status s = flush_stage(w);
    if (!s)
        s = sync_file(w);
    if (!s) {
        *out = (tess__data_file){ .bytes = w->at, .n_sums = w->sums.n, .sums = w->sums.sums };
        snprintf(out->name, sizeof out->name, "%s", strrchr(w->path, '/') + 1);
        w->sums.sums = NULL;
    }
    tess__data_drop(w);
    return s;
}

void tess__data_drop(tess__data_writer *w) {
    if (w->file >= 0)
        w->disk->close(w->disk->self, w->file);
    w->file = -1;
    free(w->stage);
    w->stage = NULL;
    tess__sums_free(&w->sums);
}
