/* SPDX-License-Identifier: BSD-3-Clause */
#include "saved.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

#define MOST_MANIFEST_BYTES (UINT64_C(1) << 32)

/* ---- the manifest ---------------------------------------------------------------------------------- */
static tess_status read_text(const tess__disk *d, const char *path, char **out, uint64_t *bytes) {
    int file = d->open(d->self, path, TESS__DISK_READ);
    int64_t size = file < 0 ? file : d->size(d->self, file);
    int failed = size < 0 ? (int)size : 0;
    char *text = failed || (uint64_t)size > MOST_MANIFEST_BYTES ? NULL : malloc((size_t)size + 1);
    if (text && (failed = tess__disk_read_all(d, file, text, (uint64_t)size, 0))) {
        free(text);
        text = NULL;
    }
    if (file >= 0)
        d->close(d->self, file);
    if (failed)
        return tess__fail(TESS_E_DATA, "%s: %s", path, strerror(-failed));
    if (!text)
        return tess__fail(TESS_E_NOMEM, "%s: no memory for its %" PRId64 " bytes", path, size);
    *out = text;
    *bytes = (uint64_t)size;
    return TESS_OK;
}

int tess__step_of(const char *name, uint64_t *step) {
    char again[64];
    char *end;
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9')
        return 0;
    errno = 0;
    *step = strtoull(name + 5, &end, 10);
    snprintf(again, sizeof again, "step-%06" PRIu64, *step);
    return !*end && !errno && strcmp(again, name) == 0;
}

/* Checks that the folder's name agrees with the manifest's step: a run counts by the step, and a search goes by the
 * name. */
static tess_status check_name(const char *path, const tess__manifest *m) {
    uint64_t step, end = strlen(path), begin;
    char name[64];
    while (end && path[end - 1] == '/')
        end--;
    for (begin = end; begin && path[begin - 1] != '/';)
        begin--;
    snprintf(name, sizeof name, "%.*s", (int)(end - begin), path + begin);
    if (!tess__step_of(name, &step) || step == m->step)
        return TESS_OK;
    return tess__fail(TESS_E_DATA, "%s: the folder has been renamed: its manifest is of step %" PRIu64, path, m->step);
}

tess_status tess__saved_manifest(const tess__disk *d, const char *path, tess__manifest *out) {
    char name[PATH_MAX];
    char *text = NULL;
    uint64_t bytes = 0;
    tess__manifest m;
    snprintf(name, sizeof name, "%s/manifest.json", path);
    TRY(read_text(d, name, &text, &bytes));
    tess_status s = tess__manifest_read(name, text, bytes, &m);
    free(text);
    TRY(s);
    if ((s = check_name(path, &m)))
        tess__manifest_free(&m);
    else
        *out = m;
    return s;
}

int tess__saved_is_foreign(const tess__disk *d, const char *path) {
    char name[PATH_MAX];
    char *text = NULL;
    uint64_t bytes = 0;
    tess__manifest m = { 0 };
    snprintf(name, sizeof name, "%s/manifest.json", path);
    if (read_text(d, name, &text, &bytes) != TESS_OK)
        return 0;
    int foreign = tess__manifest_is_newer(text, bytes) ||
                  (tess__manifest_read(name, text, bytes, &m) == TESS_OK && check_name(path, &m) != TESS_OK);
    tess__manifest_free(&m);
    free(text);
    return foreign;
}

static tess_status check_file(const tess__saved *s, const tess__data_file *f) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", s->path, f->name);
    int file = s->disk->open(s->disk->self, path, TESS__DISK_READ);
    int64_t size = file < 0 ? file : s->disk->size(s->disk->self, file);
    if (file >= 0)
        s->disk->close(s->disk->self, file);
    if (size < 0)
        return tess__fail(TESS_E_DATA, "%s: %s", path, strerror((int)-size));
    if ((uint64_t)size != f->bytes)
        return tess__fail(TESS_E_DATA, "%s: offset %" PRId64 ": the file ends here, expected %" PRIu64 " bytes", path,
                          size, f->bytes);
    return TESS_OK;
}

tess_status tess__saved_open(const tess__disk *d, const char *path, tess__saved *out) {
    tess__saved s = { .disk = d };
    if ((size_t)snprintf(s.path, sizeof s.path, "%s", path) >= sizeof s.path - 128)
        return tess__fail(TESS_E_DATA, "%.60s…: the path is longer than %d bytes", path, PATH_MAX);
    TRY(tess__saved_manifest(d, path, &s.manifest));
    for (uint64_t i = 0; i < s.manifest.n_files; i++) {
        tess_status status = check_file(&s, &s.manifest.files[i]);
        if (status) {
            tess__saved_close(&s);
            return status;
        }
    }
    *out = s;
    return TESS_OK;
}

void tess__saved_close(tess__saved *s) {
    tess__manifest_free(&s->manifest);
}

/* ---- one file ---------------------------------------------------------------------------------------- */
struct tess__saved_file {
    const tess__saved *of;
    const tess__data_file *known; /* of the manifest */
    char path[PATH_MAX];
    int file;
    char *chunk; /* the chunk that was read last, verified */
    uint64_t chunk_index, chunk_filled;
    tess__safetensors *header;
    const char *reading; /* the tensor, for messages; null: the header */
};

static tess_status read_chunk(tess__saved_file *f, uint64_t index, char *into, uint64_t *filled) {
    uint64_t size = f->of->manifest.chunk_bytes, at = index * size;
    uint64_t n = f->known->bytes - at < size ? f->known->bytes - at : size;
    uint8_t sum[TESS__SUM_BYTES];
    int failed = tess__disk_read_all(f->of->disk, f->file, into, n, at);
    if (failed)
        return tess__fail(TESS_E_DATA, "%s: offset %" PRIu64 ": %s", f->path, at,
                          failed == -ENODATA ? "the file ends too early" : strerror(-failed));
    if (f->of->manifest.has_sums && tess__sum_known()) {
        tess__sum(into, n, sum);
        if (memcmp(sum, f->known->sums[index], sizeof sum) != 0)
            return tess__fail(TESS_E_DATA,
                              "%s: %s%s%s: the checksum of %" PRIu64 " bytes at offset %" PRIu64
                              " is wrong: the file has been damaged",
                              f->path, f->reading ? "tensor '" : "header", f->reading ? f->reading : "",
                              f->reading ? "'" : "", n, at);
    }
    *filled = n;
    return TESS_OK;
}

static tess_status load_chunk(tess__saved_file *f, uint64_t index) {
    if (f->chunk_index == index)
        return TESS_OK;
    f->chunk_index = UINT64_MAX;
    TRY(read_chunk(f, index, f->chunk, &f->chunk_filled));
    f->chunk_index = index;
    return TESS_OK;
}

static tess_status read_verified(void *user, void *into, uint64_t bytes, uint64_t offset) {
    tess__saved_file *f = user;
    uint64_t size = f->of->manifest.chunk_bytes;
    while (bytes) {
        uint64_t index = offset / size, within = offset % size, whole = 0;
        if (offset >= f->known->bytes || bytes > f->known->bytes - offset)
            return tess__fail(TESS_E_DATA, "%s: offset %" PRIu64 ": expected %" PRIu64 " bytes more", f->path, offset,
                              bytes);
        uint64_t n = size - within < bytes ? size - within : bytes;
        if (within == 0 && n == size) /* a whole chunk goes straight to where it is wanted */
            TRY(read_chunk(f, index, into, &whole));
        else {
            TRY(load_chunk(f, index));
            memcpy(into, f->chunk + within, n);
        }
        into = (char *)into + n;
        offset += n;
        bytes -= n;
    }
    return TESS_OK;
}

tess_status tess__saved_file_open(const tess__saved *s, uint64_t i, tess__saved_file **out) {
    tess__saved_file *f = calloc(1, sizeof *f);
    char *chunk = malloc(s->manifest.chunk_bytes);
    if (!f || !chunk) {
        free(f);
        free(chunk);
        return tess__fail(TESS_E_NOMEM, "%s: no memory to read it", s->path);
    }
    f->of = s;
    f->known = &s->manifest.files[i];
    f->chunk = chunk;
    f->chunk_index = UINT64_MAX;
    snprintf(f->path, sizeof f->path, "%s/%s", s->path, f->known->name);
    f->file = s->disk->open(s->disk->self, f->path, TESS__DISK_READ);
    tess_status status;
    if (f->file < 0)
        status = tess__fail(TESS_E_DATA, "%s: %s", f->path, strerror(-f->file));
    else
        status = tess__safetensors_open_source(
            f->path, &(tess__source){ .user = f, .read = read_verified, .bytes = f->known->bytes }, &f->header);
    if (status)
        tess__saved_file_close(f);
    else
        *out = f;
    return status;
}

void tess__saved_file_close(tess__saved_file *f) {
    if (!f)
        return;
    if (f->file >= 0)
        f->of->disk->close(f->of->disk->self, f->file);
    tess__safetensors_close(f->header);
    free(f->chunk);
    free(f);
}

const tess__tensor *tess__saved_file_list(const tess__saved_file *f, uint64_t *n) {
    return tess__safetensors_list(f->header, n);
}

tess_status tess__saved_file_read(tess__saved_file *f, const tess__tensor *t, uint64_t first, uint64_t elems,
                                  void *out) {
    f->reading = t->name;
    return tess__safetensors_read_raw(f->header, t, first, elems, out);
}

/* The tensor that lies at an offset; null: the header. */
static const char *tensor_at(const tess__saved_file *f, uint64_t offset) {
    uint64_t n;
    const tess__tensor *list = tess__safetensors_list(f->header, &n);
    const char *name = NULL;
    for (uint64_t i = 0; i < n && list[i].offset < offset + f->of->manifest.chunk_bytes; i++)
        if (list[i].offset + list[i].bytes > offset) {
            name = list[i].name;
            break;
        }
    return name;
}

tess_status tess__saved_file_verify(tess__saved_file *f) {
    uint64_t size = f->of->manifest.chunk_bytes;
    for (uint64_t at = 0; at < f->known->bytes; at += size) {
        f->reading = tensor_at(f, at);
        TRY(load_chunk(f, at / size));
    }
    return TESS_OK;
}

/* ---- names of the pieces ----------------------------------------------------------------------------- */
static void kind_word(int kind, char *out) {
    static const char *const words[] = { "", "param", "buffer", "program" };
    if (kind < TESS__PIECE_STATE0)
        snprintf(out, 16, "%s", words[kind]);
    else
        snprintf(out, 16, "state%d", kind - TESS__PIECE_STATE0);
}

tess_status tess__piece_name_write(const tess__piece_name *p, char out[TESS__TENSOR_NAME]) {
    char word[80];
    kind_word(p->kind, word);
    if (*p->state.name)
        snprintf(word + strlen(word), 64, ".%s:%u", p->state.name, p->state.every);
    if (snprintf(out, TESS__TENSOR_NAME, "%s/%s@%" PRIu64, word, p->name, p->first) < TESS__TENSOR_NAME)
        return TESS_OK;
    return tess__fail(TESS_E_INVALID, "parameter %.60s…: its name is longer than a checkpoint holds", p->name);
}

/* ".exp_avg:256" up to the slash. */
static int read_state(const char *text, const char *slash, tess_state *out) {
    int end = 0;
    if (sscanf(text, ".%31[a-z0-9_]:%5u%n", out->name, &out->every, &end) != 2 || text + end != slash || !out->every)
        return -1;
    return 0;
}

int tess__piece_name_read(const char *text, tess__piece_name *out) {
    const char *slash = strchr(text, '/'), *at = strrchr(text, '@');
    char word[16], *end;
    out->state = (tess_state){ .every = 1 };
    if (!slash || !at || at < slash || at[1] < '0' || at[1] > '9')
        return -1;
    errno = 0;
    out->first = strtoull(at + 1, &end, 10);
    if (*end || errno)
        return -1;
    snprintf(out->name, sizeof out->name, "%.*s", (int)(at - slash - 1), slash + 1);
    for (out->kind = TESS__PIECE_PARAM; out->kind < TESS__PIECE_STATE0 + 4; out->kind++) {
        kind_word(out->kind, word);
        size_t n = strlen(word);
        if (strncmp(word, text, n) == 0)
            return text + n == slash                 ? 0
                   : out->kind >= TESS__PIECE_STATE0 ? read_state(text + n, slash, &out->state)
                                                     : -1;
    }
    return -1;
}
