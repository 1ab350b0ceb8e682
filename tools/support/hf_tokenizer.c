/* SPDX-License-Identifier: BSD-3-Clause */
#include "hf_tokenizer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The first VOCABULARIES names are files that define tokens. */
enum { VOCABULARIES = 5 };
static const char *const names[] = { "tokenizer.json",      "tokenizer.model",
                                     "vocab.json",          "vocab.txt",
                                     "merges.txt",          "tokenizer_config.json",
                                     "added_tokens.json",   "special_tokens_map.json",
                                     "chat_template.jinja", "generation_config.json" };

int hf_tokenizer_find(const char *path, char out[PATH_MAX]) {
    const char *slash = strrchr(path, '/');
    struct stat st;
    int is_folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode), n = slash ? (int)(slash - path) : 1;
    for (int i = 0; i < VOCABULARIES; i++) {
        int length = is_folder ? snprintf(out, PATH_MAX, "%s/%s", path, names[i])
                               : snprintf(out, PATH_MAX, "%.*s/%s", n, slash ? path : ".", names[i]);
        if (length < PATH_MAX && access(out, F_OK) == 0)
            return 1;
    }
    return 0;
}

static tess_status failed(const char *path) {
    return tess_fail(TESS_E_DATA, "%s: cannot be copied: %s", path, strerror(errno));
}

static int copy_bytes(FILE *from, FILE *to) {
    char room[1 << 16];
    size_t n;
    while ((n = fread(room, 1, sizeof room, from)) > 0)
        if (fwrite(room, 1, n, to) != n)
            return -1;
    return ferror(from) || fflush(to) != 0 || fsync(fileno(to)) != 0 ? -1 : 0;
}

/* Writes under a temporary name first, so that the file is complete or absent. */
static tess_status copy(FILE *from, const char *path) {
    char temporary[PATH_MAX + 8];
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    FILE *to = fopen(temporary, "we");
    if (!to)
        return failed(path);
    int bad = copy_bytes(from, to);
    bad = fclose(to) != 0 || bad;
    if (!bad && rename(temporary, path) == 0)
        return TESS_OK;
    tess_status status = failed(path);
    unlink(temporary);
    return status;
}

tess_status hf_tokenizer_copy(const char *from, const char *to) {
    tess_status status = TESS_OK;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && status == TESS_OK; i++) {
        char source[PATH_MAX], path[PATH_MAX];
        if ((size_t)snprintf(source, sizeof source, "%s/%s", from, names[i]) >= sizeof source ||
            (size_t)snprintf(path, sizeof path, "%s/%s", to, names[i]) >= sizeof path)
            return tess_fail(TESS_E_DATA, "%.60s…: the path is too long", to);
        FILE *f = fopen(source, "re");
        if (!f && errno != ENOENT)
            return failed(source);
        status = f ? copy(f, path) : TESS_OK;
        if (f)
            fclose(f);
    }
    return status;
}
