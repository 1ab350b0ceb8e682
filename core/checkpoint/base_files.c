/* SPDX-License-Identifier: BSD-3-Clause */
#include "base_files.h"

#include "base/status.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { READ_BYTES = 4 << 20 };

typedef struct { /* of one file, while it is read */
    const tess__disk *disk;
    const char *path;
    int file;
    char *room;
    tess__sums sums;
} reading;

static tess_status add_bytes(reading *r, uint64_t bytes) {
    for (uint64_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < READ_BYTES ? bytes - at : READ_BYTES;
        int failed = tess__disk_read_all(r->disk, r->file, r->room, n, at);
        if (failed)
            return tess__fail(TESS_E_DATA, "%s: offset %" PRIu64 ": %s", r->path, at, strerror(-failed));
        if (tess__sums_add(&r->sums, r->room, n))
            return tess__fail(TESS_E_NOMEM, "%s: no memory for its checksum", r->path);
    }
    return tess__sums_finish(&r->sums) ? tess__fail(TESS_E_NOMEM, "%s: no memory for its checksum", r->path) : TESS_OK;
}

static tess_status read_opened(reading *r, tess__data_file *out) {
    int64_t size = r->disk->size(r->disk->self, r->file);
    const char *name = strrchr(r->path, '/');
    name = name ? name + 1 : r->path;
    if (size <= 0 || strlen(name) >= sizeof out->name)
        return tess__fail(TESS_E_DATA, "%s: empty, or a name longer than %zu bytes", r->path, sizeof out->name - 1);
    TRY(add_bytes(r, (uint64_t)size));
    snprintf(out->name, sizeof out->name, "%s", name);
    out->bytes = (uint64_t)size;
    out->n_sums = 1;
    out->sums = r->sums.sums; /* of the whole file, as one chunk */
    r->sums.sums = NULL;
    return TESS_OK;
}

static tess_status read_file(const tess__disk *d, const char *path, tess__data_file *out) {
    reading r = {
        .disk = d, .path = path, .file = d->open(d->self, path, TESS__DISK_READ), .room = malloc(READ_BYTES)
    };
    tess_status status = TESS_OK;
    if (r.file < 0)
        status = tess__fail(TESS_E_DATA, "%s: %s", path, strerror(-r.file));
    else if (!r.room || tess__sums_init(&r.sums, UINT64_MAX))
        status = tess__fail(TESS_E_NOMEM, "%s: no memory to read it", path);
    else
        status = read_opened(&r, out);
    if (r.file >= 0)
        d->close(d->self, r.file);
    tess__sums_free(&r.sums);
    free(r.room);
    return status;
}

tess_status tess__base_files_read(const tess__disk *d, const char *const *paths, tess__base_files *out) {
    tess__base_files b = { .n = 0 };
    uint64_t n = 0;
    while (tess__sum_known() && paths[n])
        n++;
    if (n && !(b.files = calloc(n, sizeof *b.files)))
        return tess__fail(TESS_E_NOMEM, "%s: no memory for the names of %" PRIu64 " files", paths[0], n);
    for (; b.n < n; b.n++) {
        tess_status status = read_file(d, paths[b.n], &b.files[b.n]);
        if (status) {
            tess__base_files_free(&b);
            return status;
        }
    }
    *out = b;
    return TESS_OK;
}

static const tess__data_file *find(const tess__base_files *b, const char *name) {
    for (uint64_t i = 0; i < b->n; i++)
        if (strcmp(b->files[i].name, name) == 0)
            return &b->files[i];
    return NULL;
}

tess_status tess__base_files_check(const char *path, const tess__manifest *m, const tess__base_files *mine) {
    char expected[33], found[33];
    for (uint64_t i = 0; i < m->n_base; i++) {
        const tess__data_file *f = &m->base[i], *here = find(mine, f->name);
        tess__sum_text(f->sums[0], expected);
        if (!here)
            return tess__fail(TESS_E_DATA,
                              "%s: its frozen parameters are in %s (xxh128 %s), which this run does not name", path,
                              f->name, expected);
        tess__sum_text(here->sums[0], found);
        if (here->bytes != f->bytes || strcmp(found, expected) != 0)
            return tess__fail(TESS_E_DATA,
                              "%s: its frozen parameters are in %s with xxh128 %s, this run's has %s: the base changed",
                              path, f->name, expected, found);
    }
    return TESS_OK;
}

void tess__base_files_free(tess__base_files *b) {
    for (uint64_t i = 0; b->files && i < b->n; i++)
        free(b->files[i].sums);
    free(b->files);
    *b = (tess__base_files){ .n = 0 };
}
