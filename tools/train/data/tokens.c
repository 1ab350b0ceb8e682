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

#include "encoded.h"
#include "tools/models/model.h"
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
    const unsigned char *map, *data; /* the mapped file; where its tokens begin */
    uint64_t map_bytes, n;           /* n: number of tokens */
    int32_t width;                   /* bytes of one token */
    tool_encoded text;               /* used with a tokenizer */
    int is_valid;                    /* 1: the file's name marks it as held out */
} file;

typedef struct { /* a range of a file's tokens for one part */
    const file *f;
    uint64_t first, windows, before; /* before: number of windows in earlier spans */
} span;

struct tool_tokens {
    tool_tokens_options o;
    int32_t bits; /* value of --token-bits, or 0 */
    file *files;
    int32_t n_files, room;
    int marks;      /* some tokens may not be targets */
    span *spans[2]; /* [0]: training; [1]: held out */
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

/* Reads llm.c's header: magic, version, number of tokens. */
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

/* llm.c's magic numbers are dates of 2024. No pair of GPT-2's tokens gives such a number. */
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

/* Narrow tokens read as wide ones soon exceed the vocabulary, but halves of wide tokens are valid narrow ones. So only
 * the wide reading can be refuted. */
static int may_be_wide(const file *narrow, int64_t vocabulary) {
    uint64_t pairs = narrow->map_bytes / 4, i = 0;
    while (i < pairs && token_at(narrow, 2 * i) + ((int64_t)token_at(narrow, 2 * i + 1) << 16) < vocabulary)
        i++;
    return narrow->map_bytes % 4 == 0 && i == pairs;
}

/* Text is encoded into memory on every rank. */
static tess_status encode_text(tool_tokens *t, file *f) {
    if (f->map_bytes > TEXT_MOST)
        return tess_fail(TESS_E_DATA,
                         "%s: text of %" PRIu64 " bytes, expected at most %d: `tessera tokenize` writes it as tokens",
                         f->path, f->map_bytes, TEXT_MOST);
    TRY(tool_encode_file(t->o.words, f->path, t->o.context, t->o.packs, &f->text));
    t->marks |= f->text.starts != NULL;
    f->data = (const unsigned char *)f->text.ids;
    f->n = f->text.n;
    f->width = (int32_t)sizeof *f->text.ids;
    return TESS_OK;
}

static tess_status read_kind(tool_tokens *t, file *f) {
    int32_t words[HEADER_WORDS];
    f->width = 1;
    f->data = f->map;
    f->n = f->map_bytes;
    if (!ends_with(f->path, ".bin"))
        return t->o.words ? encode_text(t, f) : TESS_OK;
    if (has_header(f, words))
        return read_header(f, words);
    TRY(cut_bare(f, t->bits ? t->bits : 16));
    if (!t->bits && may_be_wide(f, t->o.vocabulary))
        return tess_fail(TESS_E_DATA,
                         "%s: its bytes are tokens as numbers of 16 and of 32 bits: --token-bits must say which",
                         f->path);
    return TESS_OK;
}

static tess_status map_file(tool_tokens *t, file *f) {
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

static file *new_file(tool_tokens *t) {
    if (t->n_files == t->room) {
        int32_t room = 2 * t->room + 16;
        file *bigger = realloc(t->files, (size_t)room * sizeof *bigger);
        if (!bigger)
            return NULL;
        t->files = bigger, t->room = room;
    }
    t->files[t->n_files] = (file){ .path = NULL };
    return &t->files[t->n_files++];
}

static tess_status add_file(tool_tokens *t, const char *dir, const char *name, int is_valid) {
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, dir ? "%s/%s" : "%s%s", dir ? dir : "", name);
    if (length < 0 || (size_t)length >= sizeof path)
        return tess_fail(TESS_E_DATA, "%.60s…: the path is longer than %d bytes", name, PATH_MAX);
    file *f = new_file(t);
    if (!f || !(f->path = strdup(path)))
        return tess_fail(TESS_E_NOMEM, "%s: no memory", path);
    f->is_valid = is_valid;
    return map_file(t, f);
}

/* ---- all files --------------------------------------------------------------------------------------- */
static int is_plain(const struct dirent *entry) {
    return entry->d_name[0] != '.' && entry->d_type != DT_DIR;
}

/* The order must not depend on the locale: ranks may have different ones. */
static int by_bytes(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static tess_status open_dir(tool_tokens *t, const char *dir, int is_valid) {
    struct dirent **entries;
    int n = scandir(dir, &entries, is_plain, by_bytes);
    if (n < 0)
        return tess_fail(TESS_E_DATA, "%s: %s", dir, strerror(errno));
    tess_status status = n > 0 ? TESS_OK : tess_fail(TESS_E_DATA, "%s: no files in this folder", dir);
    for (int i = 0; i < n; i++) {
        if (status == TESS_OK)
            status = add_file(t, dir, entries[i]->d_name, is_valid || strstr(entries[i]->d_name, "val"));
        free(entries[i]);
    }
    free(entries);
    return status;
}

int tool_tokens_are_text_at(const char *path) {
    struct dirent **entries;
    struct stat st;
    int is_there = stat(path, &st) == 0;
    if (!is_there || !S_ISDIR(st.st_mode))
        return is_there && !ends_with(path, ".bin");
    int n = scandir(path, &entries, is_plain, by_bytes), is_text = n > 0 && !ends_with(entries[0]->d_name, ".bin");
    for (int i = 0; i < n; i++)
        free(entries[i]);
    if (n >= 0)
        free(entries);
    return is_text;
}

static tess_status open_path(tool_tokens *t, const char *path, int is_valid) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? open_dir(t, path, is_valid)
                                                       : add_file(t, NULL, path, is_valid);
}

static tess_status open_paths(tool_tokens *t) {
    TRY(open_path(t, t->o.path, 0));
    if (t->o.valid)
        TRY(open_path(t, t->o.valid, 1));
    for (int32_t i = 1; i < t->n_files; i++)
        if (t->files[i].width != t->files[0].width)
            return tess_fail(TESS_E_DATA, "%s: tokens of %d bytes, but %s has some of %d", t->files[i].path,
                             t->files[i].width, t->files[0].path, t->files[0].width);
    return TESS_OK;
}

static void add_span(tool_tokens *t, int valid, const file *f, uint64_t first, uint64_t n) {
    uint64_t windows = f->text.starts ? n : n > 1 ? (n - 1) / (uint64_t)t->o.context : 0;
    if (windows == 0)
        return;
    t->spans[valid][t->n_spans[valid]++] = (span){ f, first, windows, t->windows[valid] };
    t->windows[valid] += windows;
}

/* Returns the held-out part of a file: tokens, or windows of its samples. */
static uint64_t held_out_of(const tool_tokens *t, const file *f, uint64_t n, int any_valid) {
    uint64_t share = t->o.share > 0 ? (uint64_t)((double)n * t->o.share) : n / 10;
    if (any_valid)
        return f->is_valid ? n : 0;
    return f->text.starts && share == 0 && n > 1 ? 1 : share;
}

static tess_status too_few(const tool_tokens *t, int any_valid) {
    double share = t->o.share > 0 ? t->o.share : 0.1;
    double part = any_valid || t->windows[0] == 0 ? 1 : share;
    return tess_fail(TESS_E_DATA, "%s: too few tokens to %s: expected at least %.0f in one file", t->o.path,
                     t->windows[0] ? "hold some out" : "train on", (double)(t->o.context + 1) / part);
}

static tess_status make_spans(tool_tokens *t) {
    int any_valid = 0;
    for (int valid = 0; valid < 2; valid++)
        if (!(t->spans[valid] = calloc((size_t)t->n_files, sizeof(span))))
            return tess_fail(TESS_E_NOMEM, "%s: no memory", t->o.path);
    for (int32_t i = 0; i < t->n_files; i++)
        any_valid |= t->files[i].is_valid;
    for (int32_t i = 0; i < t->n_files; i++) {
        const file *f = &t->files[i];
        uint64_t n = f->text.starts ? f->text.windows : f->n, held_out = held_out_of(t, f, n, any_valid);
        add_span(t, 0, f, 0, n - held_out);
        add_span(t, 1, f, n - held_out, held_out);
    }
    return t->windows[0] == 0 || t->windows[1] == 0 ? too_few(t, any_valid) : TESS_OK;
}

static tess_status read_bits(int32_t *out) {
    const char *bits = "auto";
    tess_status status = tool_option_choice("token-bits", &bits);
    *out = (int32_t)strtol(bits, NULL, 10); /* "auto" gives 0 */
    return status;
}

tess_status tool_tokens_open(const tool_tokens_options *o, tool_tokens **out) {
    int32_t bits;
    TRY(read_bits(&bits));
    tool_tokens *t = calloc(1, sizeof *t);
    if (!t)
        return tess_fail(TESS_E_NOMEM, "%s: no memory", o->path);
    *t = (tool_tokens){ .o = *o, .bits = bits, .marks = o->packs };
    tess_status status = open_paths(t);
    if (status == TESS_OK)
        status = make_spans(t);
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
        tool_encoded_free(&t->files[i].text);
    }
    free(t->files);
    free(t->spans[0]);
    free(t->spans[1]);
    free(t);
}

/* ---- reading ----------------------------------------------------------------------------------------- */
static tess_status check_file(const file *f, uint64_t first, uint64_t end, int64_t vocabulary) {
    for (uint64_t i = first; i < end; i++) {
        uint32_t token = f->text.ids ? (uint32_t)lm_token(f->text.ids[i]) : token_at(f, i);
        if (token < vocabulary)
            continue;
        if (f->text.ids)
            return tess_fail(TESS_E_DATA, "%s: token %u of its tokenizer, but the model's vocabulary has %" PRId64,
                             f->path, token, vocabulary);
        return tess_fail(TESS_E_DATA, "%s: offset %" PRIu64 ": token %u, but the model's vocabulary has %" PRId64,
                         f->path, (uint64_t)(f->data - f->map) + i * (uint64_t)f->width, token, vocabulary);
    }
    return TESS_OK;
}

tess_status tool_tokens_check(const tool_tokens *t, int64_t vocabulary, int32_t rank, int32_t ranks) {
    for (int32_t i = 0; i < t->n_files; i++) {
        const file *f = &t->files[i];
        if (vocabulary < (int64_t)1 << (8 * f->width))
            TRY(check_file(f, f->n / (uint64_t)ranks * (uint64_t)rank,
                           rank == ranks - 1 ? f->n : f->n / (uint64_t)ranks * (uint64_t)(rank + 1), vocabulary));
    }
    return TESS_OK;
}

int tool_tokens_are_text(const tool_tokens *t) {
    return t->files[0].width == 1;
}

const char *tool_tokens_lines(const tool_tokens *t) {
    for (int32_t i = 0; i < t->n_files; i++)
        if (ends_with(t->files[i].path, ".jsonl"))
            return t->files[i].path;
    return NULL;
}

uint64_t tool_tokens_samples(const tool_tokens *t, uint64_t *left_out) {
    uint64_t n = *left_out = 0;
    for (int32_t i = 0; i < t->n_files; i++) {
        n += t->files[i].text.samples;
        *left_out += t->files[i].text.left_out;
    }
    return n;
}

uint64_t tool_tokens_windows(const tool_tokens *t, int valid) {
    return t->windows[valid];
}

typedef struct {
    const file *f;
    uint64_t first, n;
    int32_t end; /* end token, after which the next token begins a document; -1: the tokens are marked themselves */
} window_place;

static window_place place_of(const tool_tokens *t, int valid, uint64_t window) {
    const span *s = t->spans[valid];
    int32_t low = 0, high = t->n_spans[valid] - 1;
    while (low < high) { /* the last span that begins at or before the window */
        int32_t middle = (low + high + 1) / 2;
        if (s[middle].before <= window)
            low = middle;
        else
            high = middle - 1;
    }
    const file *f = s[low].f;
    uint64_t at = window - s[low].before, length = (uint64_t)t->o.context + 1;
    int32_t end = t->o.packs && t->o.words && !f->text.ids ? tokenizer_end(t->o.words) : -1;
    if (!f->text.starts)
        return (window_place){ f, s[low].first + at * (length - 1), length, end };
    const uint64_t *start = f->text.starts + s[low].first + at;
    return (window_place){ f, start[0], start[1] - start[0], -1 };
}

static int32_t marked_at(const window_place *p, uint64_t i) {
    if (i >= p->n)
        return LM_IGNORED;
    int32_t begins = p->end >= 0 && i > 0 && token_at(p->f, p->first + i - 1) == (uint32_t)p->end;
    return (int32_t)token_at(p->f, p->first + i) | (begins ? LM_BEGINS | LM_IGNORED : 0);
}

static void each_of_span(const tool_tokens *t, const span *s, void (*fn)(void *, const void *, uint64_t), void *user) {
    const file *f = s->f;
    const uint64_t *starts = f->text.starts ? f->text.starts + s->first : NULL;
    uint64_t first = starts ? *starts : s->first;
    uint64_t n = starts ? starts[s->windows] - first : s->windows * (uint64_t)t->o.context + 1;
    fn(user, f->data + first * (uint64_t)f->width, n * (uint64_t)f->width);
    (void)madvise((void *)(uintptr_t)f->map, f->map_bytes, MADV_DONTNEED); /* so that its pages are not the process's */
}

void tool_tokens_each(const tool_tokens *t, void (*fn)(void *, const void *, uint64_t), void *user) {
    for (int32_t i = 0; i < t->n_spans[0]; i++)
        each_of_span(t, &t->spans[0][i], fn, user);
}

int tool_tokens_all_count(const tool_tokens *t) {
    return !t->marks;
}

uint64_t tool_tokens_targets(const tool_tokens *t, int valid, uint64_t window) {
    window_place p = place_of(t, valid, window);
    uint64_t n = 0;
    for (uint64_t i = 1; i < p.n; i++)
        n += !(marked_at(&p, i) & LM_IGNORED);
    return n;
}

void tool_tokens_window(const tool_tokens *t, int valid, uint64_t window, int32_t *out) {
    window_place p = place_of(t, valid, window);
    for (uint64_t i = 0; i <= (uint64_t)t->o.context; i++)
        out[i] = marked_at(&p, i);
}
