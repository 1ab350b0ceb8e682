/* SPDX-License-Identifier: BSD-3-Clause */
#include "idx.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#if TESSERA_HAVE_ZLIB
#include <zlib.h>
#endif

#include <tessera/tessera.h>
#include "tools/support/say.h"

enum { MAGIC_IMAGES = 0x00000803, MAGIC_LABELS = 0x00000801, DEFLATE_LIMIT = 1032 };

typedef struct {
    char path[PATH_MAX];
    uint64_t offset;     /* uncompressed offset of the next byte */
    uint64_t most_bytes; /* the file cannot hold more than this */
#if TESSERA_HAVE_ZLIB
    gzFile file; /* reads plain files too */
#else
    FILE *file;
#endif
} reader;

static tess_status data_error(const reader *r, uint64_t offset, const char *found) {
    return tess_fail(TESS_E_DATA, "%s: offset %llu: %s", r->path, (unsigned long long)offset, found);
}

static tess_status reader_attach(reader *r) {
    struct stat st;
    if (stat(r->path, &st) != 0)
        return tess_fail(TESS_E_DATA, "%s: %s", r->path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return tess_fail(TESS_E_DATA, "%s: not a file, expected an IDX file", r->path);
    size_t length = strlen(r->path);
    int gzipped = length > 3 && strcmp(r->path + length - 3, ".gz") == 0;
    r->offset = 0;
    r->most_bytes = (uint64_t)st.st_size * (gzipped ? DEFLATE_LIMIT : 1);
#if TESSERA_HAVE_ZLIB
    r->file = gzopen(r->path, "rb");
#else
    if (gzipped)
        return tess_fail(TESS_E_DATA, "%s: this build has no zlib; expected an uncompressed file", r->path);
    r->file = fopen(r->path, "rb");
#endif
    if (!r->file)
        return tess_fail(TESS_E_DATA, "%s: %s", r->path, strerror(errno ? errno : ENOMEM));
    return TESS_OK;
}

static tess_status reader_open(reader *r, const char *dir, const char *prefix, const char *kind) {
    struct stat st;
    int length = snprintf(r->path, sizeof r->path, "%s/%s-%s-ubyte", dir, prefix, kind);
    if (length < 0 || (size_t)length + 4 > sizeof r->path)
        return tess_fail(TESS_E_DATA, "--data: the path is longer than %d bytes", PATH_MAX);
    if (stat(r->path, &st) != 0 && errno == ENOENT) {
        memcpy(r->path + length, ".gz", 4);
        if (stat(r->path, &st) != 0) {
            r->path[length] = '\0';
            return tess_fail(TESS_E_DATA, "%s: no such file, with .gz or without", r->path);
        }
    }
    return reader_attach(r);
}

static void reader_close(reader *r) {
    if (!r->file)
        return;
#if TESSERA_HAVE_ZLIB
    gzclose_r(r->file);
#else
    fclose(r->file);
#endif
    r->file = NULL;
}

/* Reads up to `bytes`. *got is smaller only at the end of the file. */
static tess_status reader_some(reader *r, void *into, uint64_t bytes, uint64_t *got) {
    uint64_t done = 0;
    while (done < bytes) {
        unsigned chunk = bytes - done > (1u << 24) ? 1u << 24 : (unsigned)(bytes - done);
#if TESSERA_HAVE_ZLIB
        int n = gzread(r->file, (char *)into + done, chunk), code = Z_OK;
        const char *why = gzerror(r->file, &code);
        if (code == Z_BUF_ERROR)
            return data_error(r, r->offset + done, "the compressed data is cut off");
        if (n < 0 || code != Z_OK)
            return tess_fail(TESS_E_DATA, "%s: offset %llu: cannot be decompressed: %s", r->path,
                             (unsigned long long)(r->offset + done), code == Z_ERRNO ? strerror(errno) : why);
#else
        size_t n = fread((char *)into + done, 1, chunk, r->file);
        if (ferror(r->file))
            return data_error(r, r->offset + done, strerror(errno));
#endif
        if (n == 0)
            break;
        done += (uint64_t)n;
    }
    r->offset += done;
    *got = done;
    return TESS_OK;
}

static tess_status reader_exactly(reader *r, void *into, uint64_t bytes, const char *what) {
    uint64_t start = r->offset, got;
    TRY(reader_some(r, into, bytes, &got));
    if (got != bytes)
        return tess_fail(TESS_E_DATA, "%s: offset %llu: the file ends here, expected %llu bytes of %s from offset %llu",
                         r->path, (unsigned long long)(start + got), (unsigned long long)bytes, what,
                         (unsigned long long)start);
    return TESS_OK;
}

static tess_status reader_end(reader *r) {
    char more;
    uint64_t got;
    TRY(reader_some(r, &more, 1, &got));
    if (got != 0)
        return data_error(r, r->offset - 1, "more data, expected the end of the file");
    return TESS_OK;
}

static tess_status reader_word(reader *r, const char *what, uint32_t *out) {
    unsigned char b[4];
    TRY(reader_exactly(r, b, 4, what));
    *out = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
    return TESS_OK;
}

static tess_status reader_expect(reader *r, const char *what, uint32_t expected) {
    uint32_t found;
    TRY(reader_word(r, what, &found));
    if (found != expected)
        return tess_fail(TESS_E_DATA, "%s: offset %llu: %s is %u (0x%08x), expected %u (0x%08x)", r->path,
                         (unsigned long long)(r->offset - 4), what, found, found, expected, expected);
    return TESS_OK;
}

/* Reads the number of items, and checks it against the file's size before anything of that size is allocated. */
static tess_status read_count(reader *r, uint64_t header_bytes, uint64_t item_bytes, uint64_t *out) {
    uint32_t count;
    TRY(reader_word(r, "the number of items", &count));
    if (count == 0)
        return data_error(r, 4, "0 items, expected at least 1");
    if (header_bytes + count * item_bytes > r->most_bytes)
        return tess_fail(TESS_E_DATA, "%s: offset 4: %u items need %llu bytes, the file holds at most %llu", r->path,
                         count, (unsigned long long)(header_bytes + count * item_bytes),
                         (unsigned long long)r->most_bytes);
    *out = count;
    return TESS_OK;
}

static tess_status read_items(reader *r, uint64_t count, uint64_t item_bytes, const char *what, unsigned char **out) {
    unsigned char *items = malloc(count * item_bytes);
    if (!items)
        return tess_fail(TESS_E_NOMEM, "%s: no memory for %llu bytes of %s", r->path,
                         (unsigned long long)(count * item_bytes), what);
    tess_status status = reader_exactly(r, items, count * item_bytes, what);
    if (status == TESS_OK)
        status = reader_end(r);
    if (status != TESS_OK)
        free(items);
    else
        *out = items;
    return status;
}

static tess_status read_images(reader *r, const char *dir, const char *prefix, uint64_t *count, unsigned char **out) {
    TRY(reader_open(r, dir, prefix, "images-idx3"));
    TRY(reader_expect(r, "the magic number of images", MAGIC_IMAGES));
    TRY(read_count(r, 16, TOOL_IDX_PIXELS, count));
    TRY(reader_expect(r, "the number of rows", TOOL_IDX_SIDE));
    TRY(reader_expect(r, "the number of columns", TOOL_IDX_SIDE));
    return read_items(r, *count, TOOL_IDX_PIXELS, "pixels", out);
}

static tess_status load_images(const char *dir, const char *prefix, uint64_t *count, unsigned char **out) {
    reader r = { .offset = 0 };
    tess_status status = read_images(&r, dir, prefix, count, out);
    reader_close(&r);
    return status;
}

static tess_status check_labels(const reader *r, const unsigned char *labels, uint64_t count) {
    for (uint64_t i = 0; i < count; i++)
        if (labels[i] >= TOOL_IDX_CLASSES)
            return tess_fail(TESS_E_DATA, "%s: offset %llu: label %u, expected 0 to 9", r->path,
                             (unsigned long long)(8 + i), labels[i]);
    return TESS_OK;
}

/* The caller frees *out, even if a label is wrong. */
static tess_status read_labels(reader *r, const char *dir, const char *prefix, uint64_t images, unsigned char **out) {
    uint64_t count = 0;
    TRY(reader_open(r, dir, prefix, "labels-idx1"));
    TRY(reader_expect(r, "the magic number of labels", MAGIC_LABELS));
    TRY(read_count(r, 8, 1, &count));
    if (count != images)
        return tess_fail(TESS_E_DATA, "%s: offset 4: %llu labels, expected %llu, one for each image", r->path,
                         (unsigned long long)count, (unsigned long long)images);
    TRY(read_items(r, count, 1, "labels", out));
    return check_labels(r, *out, count);
}

static tess_status load_labels(const char *dir, const char *prefix, uint64_t images, unsigned char **out) {
    reader r = { .offset = 0 };
    tess_status status = read_labels(&r, dir, prefix, images, out);
    reader_close(&r);
    return status;
}

tess_status tool_idx_load(const char *dir, const char *prefix, tool_idx *out) {
    tool_idx set = { .count = 0 };
    tess_status status = load_images(dir, prefix, &set.count, &set.pixels);
    if (status == TESS_OK)
        status = load_labels(dir, prefix, set.count, &set.labels);
    if (status != TESS_OK)
        tool_idx_free(&set);
    else
        *out = set;
    return status;
}

void tool_idx_free(tool_idx *set) {
    free(set->pixels);
    free(set->labels);
    *set = (tool_idx){ .count = 0 };
}
