/* SPDX-License-Identifier: BSD-3-Clause */
#include "tokens.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/support/say.h"
#include "tools/support/options.h"
#include <tessera/tessera.h>

enum {
    HEADER_BYTES = 1024,
    HEADER_WORDS = 3,
    MAGIC_16 = 20240520,
    MAGIC_32 = 20240801,
    VERSION_16 = 1,
    VERSION_32 = 7,
    TEXT_MOST = 256 << 20
};

typedef struct {
    char *path;
    const unsigned char *map, *data; /* the file; its tokens */
    uint64_t map_bytes, n;           /* tokens */
    int32_t width;                   /* bytes of one */
    int32_t *ids;                    /* of a text, where there is a tokenizer */
    int is_valid;                    /* by its name */
} file;

typedef struct { /* tokens that belong together */
    const file *f;
    uint64_t first, windows, before; /* before: windows of the spans before this one */
} span;

struct tool_tokens {
    int64_t context, vocabulary;
    int32_t bits; /* as --token-bits says; 0: it does not */
    const tokenizer *words;
    file *files;
    int32_t n_files;
    span *spans[2]; /* training, held out */
    int32_t n_spans[2];
    uint64_t windows[2];
};

/* ---- one file ---------------------------------------------------------------------------------------- */
static int ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static tess_status cut_short(const file *f, uint64_t expected) {
    return tess_fail(TESS_E_DATA, "%s: %" PRIu64 " bytes, expected %" PRIu64 " by its header", f->path, f->map_bytes,
                     expected);
}

/* A header of llm.c: magic, version, number of tokens. */
static tess_status read_header(file *f, const int32_t words[HEADER_WORDS]) {
    int wide = words[0] == MAGIC_32, version = wide ? VERSION_32 : VERSION_16;
    if (words[0] != MAGIC_16 && !wide)
        return tess_fail(TESS_E_DATA, "%s: offset 0: magic %d, expected %d or %d", f->path, words[0], MAGIC_16,
                         MAGIC_32);
    if (words[1] != version)
        return tess_fail(TESS_E_DATA, "%s: offset 4: version %d, expected %d with magic %d", f->path, words[1], version,
                         words[0]);
    if (words[2] < 0)
        return tess_fail(TESS_E_DATA, "%s: offset 8: %d tokens", f->path, words[2]);
    f->width = wide ? 4 : 2;
    f->n = (uint64_t)words[2];
    f->data = f->map + HEADER_BYTES;
    uint64_t expected = HEADER_BYTES + f->n * (uint64_t)f->width;
    return f->map_bytes == expected ? TESS_OK : cut_short(f, expected);
}

/* The magic numbers of llm.c are dates; no pair of GPT-2's tokens looks like one of that year. */
static int has_header(const file *f, int32_t words[HEADER_WORDS]) {
    if (f->map_bytes < sizeof(int32_t) * HEADER_WORDS)
        return 0;
    memcpy(words, f->map, sizeof(int32_t) * HEADER_WORDS);
    return words[0] / 10000 == 2024;
}

static uint32_t token_at(const file *f, uint64_t i) {
    uint16_t half;
    uint32_t whole;
    if (f->width == 1)
        return f->data[i];
    if (f->width == 2) {
        memcpy(&half, f->data + 2 * i, sizeof half);
        return half;
    }
    memcpy(&whole, f->data + 4 * i, sizeof whole);
    return whole;
}

static tess_status cut_bare(file *f, int32_t bits) {
    f->width = bits / 8;
    f->n = f->map_bytes / (uint64_t)f->width;
    if (f->map_bytes % (uint64_t)f->width == 0)
        return TESS_OK;
    return tess_fail(TESS_E_DATA, "%s: %" PRIu64 " bytes, expected a multiple of %d: tokens of %d bits", f->path,
                     f->map_bytes, f->width, bits);
}

/* Halves of wide tokens are narrow ones. Narrow ones as wide ones are beyond a vocabulary after the first few. */
static int may_be_wide(const file *narrow, int64_t vocabulary) {
    uint64_t pairs = narrow->map_bytes / 4, i = 0;
    while (i < pairs && token_at(narrow, 2 * i) + ((int64_t)token_at(narrow, 2 * i + 1) << 16) < vocabulary)
        i++;
    return narrow->map_bytes % 4 == 0 && i == pairs;
}

/* A text is one document, whose tokens every rank has in memory. */
static tess_status encode_text(const tool_tokens *t, file *f) {
    token_list ids = { 0 };
    if (ends_with(f->path, ".jsonl"))
        return tess_fail(TESS_E_DATA, "%s: lines of JSON, expected text: `tessera tokenize` writes them as tokens",
                         f->path);
    if (f->map_bytes > TEXT_MOST)
        return tess_fail(TESS_E_DATA,
                         "%s: text of %" PRIu64 " bytes, expected at most %d: `tessera tokenize` writes it as tokens",
                         f->path, f->map_bytes, TEXT_MOST);
    tokenizer_encoder *e = tokenizer_encoder_create(t->words);
    tess_status status =
        e ? tokenizer_encode_document(e, (const char *)f->map, f->map_bytes, tokenizer_end(t->words), &ids)
          : tess_fail(TESS_E_NOMEM, "%s: no memory", f->path);
    tokenizer_encoder_free(e);
    f->ids = ids.ids;
    f->data = (const unsigned char *)ids.ids;
    f->n = ids.n;
    f->width = (int32_t)sizeof *ids.ids;
    return status;
}

static tess_status read_kind(const tool_tokens *t, file *f) {
    int32_t words[HEADER_WORDS];
    f->width = 1;
    f->data = f->map;
    f->n = f->map_bytes;
    if (!ends_with(f->path, ".bin"))
        return t->words ? encode_text(t, f) : TESS_OK;
    if (has_header(f, words))
        return read_header(f, words);
    tess_status status = cut_bare(f, t->bits ? t->bits : 16);
    if (status == TESS_OK && !t->bits && may_be_wide(f, t->vocabulary))
        return tess_fail(TESS_E_DATA,
                         "%s: its bytes are tokens as numbers of 16 and of 32 bits: --token-bits must say which",
                         f->path);
    return status;
}

static tess_status map_file(const tool_tokens *t, file *f) {
    struct stat st;
    int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    tess_status status = TESS_OK;
    if (fd < 0)
        return tess_fail(TESS_E_DATA, "%s: %s", f->path, strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        status = tess_fail(TESS_E_DATA, "%s: not a file, expected tokens or text", f->path);
    else if (st.st_size == 0)
        status = tess_fail(TESS_E_DATA, "%s: no tokens: 0 bytes", f->path);
    if (status == TESS_OK) {
        void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
            status = tess_fail(TESS_E_DATA, "%s: cannot be mapped: %s", f->path, strerror(errno));
        else
            f->map = map, f->map_bytes = (uint64_t)st.st_size;
    }
    close(fd);
    return status == TESS_OK ? read_kind(t, f) : status;
}

static tess_status add_file(tool_tokens *t, const char *dir, const char *name) {
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, dir ? "%s/%s" : "%s%s", dir ? dir : "", name);
    file *f = &t->files[t->n_files++];
    if (length < 0 || (size_t)length >= sizeof path)
        return tess_fail(TESS_E_DATA, "%.60s…: the path is longer than %d bytes", name, PATH_MAX);
    f->path = strdup(path);
    f->is_valid = dir && strstr(name, "val") != NULL;
    return f->path ? map_file(t, f) : tess_fail(TESS_E_NOMEM, "%s: no memory", path);
}

/* ---- all files --------------------------------------------------------------------------------------- */
static int is_plain(const struct dirent *entry) {
    return entry->d_name[0] != '.' && entry->d_type != DT_DIR;
}

/* The order must not depend on the locale: ranks may have different ones. */
static int by_bytes(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static tess_status open_dir(tool_tokens *t, const char *dir) {
    struct dirent **entries;
    int n = scandir(dir, &entries, is_plain, by_bytes);
    if (n < 0)
        return tess_fail(TESS_E_DATA, "%s: %s", dir, strerror(errno));
    t->files = calloc((size_t)n + 1, sizeof *t->files);
    tess_status status = t->files ? TESS_OK : tess_fail(TESS_E_NOMEM, "%s: no memory", dir);
    if (n == 0 && status == TESS_OK)
        status = tess_fail(TESS_E_DATA, "%s: no files in this folder", dir);
    for (int i = 0; i < n; i++) {
        if (status == TESS_OK)
            status = add_file(t, dir, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    for (int32_t i = 1; status == TESS_OK && i < t->n_files; i++)
        if (t->files[i].width != t->files[0].width)
            status = tess_fail(TESS_E_DATA, "%s: tokens of %d bytes, but %s has some of %d", t->files[i].path,
                               t->files[i].width, t->files[0].path, t->files[0].width);
    return status;
}

static void add_span(tool_tokens *t, int valid, const file *f, uint64_t first, uint64_t n) {
    uint64_t windows = n > 1 ? (n - 1) / (uint64_t)t->context : 0;
    if (windows == 0)
        return;
    t->spans[valid][t->n_spans[valid]++] = (span){ f, first, windows, t->windows[valid] };
    t->windows[valid] += windows;
}

static tess_status make_spans(tool_tokens *t, const char *path) {
    int any_valid = 0;
    for (int valid = 0; valid < 2; valid++)
        if (!(t->spans[valid] = calloc((size_t)t->n_files, sizeof(span))))
            return tess_fail(TESS_E_NOMEM, "%s: no memory", path);
    for (int32_t i = 0; i < t->n_files; i++)
        any_valid |= t->files[i].is_valid;
    for (int32_t i = 0; i < t->n_files; i++) {
        const file *f = &t->files[i];
        uint64_t held_out = any_valid ? f->is_valid ? f->n : 0 : f->n / 10;
        add_span(t, 0, f, 0, f->n - held_out);
        add_span(t, 1, f, f->n - held_out, held_out);
    }
    if (t->windows[0] == 0 || t->windows[1] == 0)
        return tess_fail(TESS_E_DATA, "%s: too few tokens to %s: expected at least %" PRId64 " in one file", path,
                         t->windows[0] ? "hold some out" : "train on",
                         (t->context + 1) * (any_valid || t->windows[0] == 0 ? 1 : 10));
    return TESS_OK;
}

static tess_status read_bits(int32_t *out) {
    const char *bits = "auto";
    tess_status status = tool_option_choice("token-bits", &bits);
    *out = (int32_t)strtol(bits, NULL, 10); /* of "auto": 0 */
    return status;
}

tess_status tool_tokens_open(const char *path, int64_t context, int64_t vocabulary, const tokenizer *words,
                             tool_tokens **out) {
    int32_t bits;
    TRY(read_bits(&bits));
    tool_tokens *t = calloc(1, sizeof *t);
    struct stat st;
    tess_status status;
    if (!t)
        return tess_fail(TESS_E_NOMEM, "%s: no memory", path);
    t->context = context;
    t->vocabulary = vocabulary;
    t->bits = bits;
    t->words = words;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        status = open_dir(t, path);
    else if (!(t->files = calloc(1, sizeof *t->files)))
        status = tess_fail(TESS_E_NOMEM, "%s: no memory", path);
    else
        status = add_file(t, NULL, path);
    if (status == TESS_OK)
        status = make_spans(t, path);
    if (status != TESS_OK)
        tool_tokens_close(t);
    else
        *out = t;
    return status;
}

void tool_tokens_close(tool_tokens *t) {
    if (!t)
        return;
    for (int32_t i = 0; i < t->n_files; i++) {
        if (t->files[i].map)
            munmap((void *)(uintptr_t)t->files[i].map, t->files[i].map_bytes);
        free(t->files[i].path);
        free(t->files[i].ids);
    }
    free(t->files);
    free(t->spans[0]);
    free(t->spans[1]);
    free(t);
}

/* ---- reading ----------------------------------------------------------------------------------------- */
static tess_status check_file(const file *f, uint64_t first, uint64_t end, int64_t vocabulary) {
    for (uint64_t i = first; i < end; i++)
        if (token_at(f, i) >= vocabulary && f->ids)
            return tess_fail(TESS_E_DATA, "%s: token %u of its tokenizer, but the model's vocabulary has %" PRId64,
                             f->path, token_at(f, i), vocabulary);
        else if (token_at(f, i) >= vocabulary)
            return tess_fail(TESS_E_DATA, "%s: offset %" PRIu64 ": token %u, but the model's vocabulary has %" PRId64,
                             f->path, (uint64_t)(f->data - f->map) + i * (uint64_t)f->width, token_at(f, i),
                             vocabulary);
    return TESS_OK;
}

tess_status tool_tokens_check(const tool_tokens *t, int64_t vocabulary, int32_t rank, int32_t ranks) {
    tess_status status = TESS_OK;
    for (int32_t i = 0; status == TESS_OK && i < t->n_files; i++) {
        const file *f = &t->files[i];
        if (vocabulary < (int64_t)1 << (8 * f->width))
            status = check_file(f, f->n / (uint64_t)ranks * (uint64_t)rank,
                                rank == ranks - 1 ? f->n : f->n / (uint64_t)ranks * (uint64_t)(rank + 1), vocabulary);
    }
    return status;
}

int tool_tokens_are_text(const tool_tokens *t) {
    return t->files[0].width == 1;
}

uint64_t tool_tokens_windows(const tool_tokens *t, int valid) {
    return t->windows[valid];
}

void tool_tokens_window(const tool_tokens *t, int valid, uint64_t window, int32_t *out) {
    const span *s = t->spans[valid];
    int32_t low = 0, high = t->n_spans[valid] - 1;
    while (low < high) { /* the last span that begins at or before the window */
        int32_t middle = (low + high + 1) / 2;
        if (s[middle].before <= window)
            low = middle;
        else
            high = middle - 1;
    }
    uint64_t first = s[low].first + (window - s[low].before) * (uint64_t)t->context;
    for (int64_t i = 0; i <= t->context; i++)
        out[i] = (int32_t)token_at(s[low].f, first + (uint64_t)i);
}
