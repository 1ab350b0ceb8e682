/* SPDX-License-Identifier: BSD-3-Clause */
#include "documents.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/support/json_fields.h"
#include "tools/support/say.h"

struct documents {
    char **files;
    size_t n, next, room;
    FILE *lines; /* the open .jsonl file, or null */
    size_t line; /* number of the last line read */
    char *text;
    size_t text_room;
    int samples;
};

static tess_status no_memory(const char *path) {
    return tess_fail(TESS_E_NOMEM, "%s: no memory", path);
}

/* ---- the files --------------------------------------------------------------------------------------- */
static tess_status add_file(documents *d, const char *path) {
    if (d->n == d->room) {
        size_t room = 2 * d->room + 16;
        char **bigger = realloc(d->files, room * sizeof *bigger);
        if (!bigger)
            return no_memory(path);
        d->files = bigger, d->room = room;
    }
    d->files[d->n] = strdup(path);
    return d->files[d->n] ? (d->n++, TESS_OK) : no_memory(path);
}

static int is_shown(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

static int by_bytes(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static tess_status add_folder(documents *d, const char *folder) {
    struct dirent **entries;
    struct stat st;
    char path[PATH_MAX];
    tess_status status = TESS_OK;
    int n = scandir(folder, &entries, is_shown, by_bytes);
    if (n < 0)
        return tess_fail(TESS_E_DATA, "%s: %s", folder, strerror(errno));
    for (int i = 0; i < n; i++) {
        int fits = snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name) < PATH_MAX;
        if (status == TESS_OK && !fits)
            status = tess_fail(TESS_E_DATA, "%.60s…: the path is too long", path);
        if (status == TESS_OK && stat(path, &st) == 0 && S_ISREG(st.st_mode))
            status = add_file(d, path);
        free(entries[i]);
    }
    free(entries);
    return status;
}

static tess_status add_path(documents *d, const char *path) {
    struct stat st;
    size_t before = d->n;
    if (stat(path, &st) != 0)
        return tess_fail(TESS_E_DATA, "%s: %s", path, strerror(errno));
    TRY(S_ISDIR(st.st_mode) ? add_folder(d, path) : add_file(d, path));
    return d->n == before ? tess_fail(TESS_E_DATA, "%s: no files in this folder", path) : TESS_OK;
}

tess_status documents_open(const char *const *paths, size_t n, int samples, documents **out) {
    documents *d = calloc(1, sizeof *d);
    tess_status status = d ? TESS_OK : no_memory("documents");
    for (size_t i = 0; i < n && status == TESS_OK; i++)
        status = add_path(d, paths[i]);
    if (status != TESS_OK) {
        documents_close(d);
        return status;
    }
    d->samples = samples;
    *out = d;
    return TESS_OK;
}

void documents_close(documents *d) {
    if (!d)
        return;
    for (size_t i = 0; i < d->n; i++)
        free(d->files[i]);
    if (d->lines)
        fclose(d->lines);
    free(d->files);
    free(d->text);
    free(d);
}

/* ---- their documents --------------------------------------------------------------------------------- */
static tess_status read_whole(FILE *f, const char *path, document *out) {
    struct stat st;
    if (fstat(fileno(f), &st) != 0 || !S_ISREG(st.st_mode))
        return tess_fail(TESS_E_DATA, "%s: not a file, expected text", path);
    out->bytes = (size_t)st.st_size;
    out->text = malloc(out->bytes + 1);
    if (!out->text)
        return no_memory(path);
    if (fread(out->text, 1, out->bytes, f) == out->bytes)
        return TESS_OK;
    free(out->text);
    out->text = NULL;
    return tess_fail(TESS_E_DATA, "%s: cannot be read: %s", path, ferror(f) ? strerror(errno) : "it became shorter");
}

/* A line that has "text" also comes here if the text contains \u0000, because texts end with a null byte. */
static tess_status bad_line(const documents *d, const char *path, const json_fields *f) {
    if (f->expected)
        return tess_fail(TESS_E_DATA, "%s: line %zu: offset %zu: expected %s", path, d->line, f->wrong_at, f->expected);
    return tess_fail(TESS_E_DATA, "%s: line %zu: expected an object with a \"text\"%s", path, d->line,
                     d->samples ? ", or with a \"prompt\" and a \"completion\"" : "");
}

/* One buffer is enough because prompt and completion are together shorter than their line. */
static int read_sample(const json_fields *f, document *out, size_t room) {
    out->is_sample = json_fields_text(f, "prompt", out->text, room);
    out->prompt_bytes = out->is_sample ? strlen(out->text) : 0;
    return out->is_sample && json_fields_text(f, "completion", out->text + out->prompt_bytes, room - out->prompt_bytes);
}

static tess_status read_line(const documents *d, const char *path, size_t n, document *out) {
    json_fields *f = malloc(sizeof *f);
    out->text = malloc(n + 1);
    tess_status status = f && out->text ? TESS_OK : no_memory(path);
    if (status == TESS_OK && !json_fields_read(f, d->text, n))
        status = bad_line(d, path, f);
    else if (status == TESS_OK && !json_fields_text(f, "text", out->text, n + 1) &&
             !(d->samples && read_sample(f, out, n + 1)))
        status = bad_line(d, path, f);
    free(f);
    if (status == TESS_OK) {
        out->bytes = strlen(out->text);
        return TESS_OK;
    }
    free(out->text);
    out->text = NULL;
    return status;
}

static tess_status next_line(documents *d, const char *path, document *out) {
    errno = 0;
    ssize_t n = getline(&d->text, &d->text_room, d->lines);
    if (n < 0 && !feof(d->lines))
        return tess_fail(errno == ENOMEM ? TESS_E_NOMEM : TESS_E_DATA, "%s: cannot be read: %s", path, strerror(errno));
    if (n < 0) {
        fclose(d->lines);
        d->lines = NULL;
        d->next++;
        return TESS_OK;
    }
    d->line++;
    if (strspn(d->text, " \t\r\n") == (size_t)n)
        return TESS_OK;
    return read_line(d, path, (size_t)n, out);
}

static tess_status open_next(documents *d, document *out) {
    const char *path = d->files[d->next], *dot = strrchr(path, '.');
    FILE *f = fopen(path, "re");
    if (!f)
        return tess_fail(TESS_E_DATA, "%s: %s", path, strerror(errno));
    if (dot && strcmp(dot, ".jsonl") == 0) {
        d->lines = f;
        d->line = 0;
        return TESS_OK;
    }
    tess_status status = read_whole(f, path, out);
    fclose(f);
    d->next++;
    return status;
}

tess_status documents_next(documents *d, document *out) {
    *out = (document){ .text = NULL };
    while (d->next < d->n && !out->text)
        TRY(d->lines ? next_line(d, d->files[d->next], out) : open_next(d, out));
    return TESS_OK;
}
