/* SPDX-License-Identifier: BSD-3-Clause */
#include "text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "random.h"
#include <tessera/tessera.h>

#define MOST_BYTES (UINT64_C(4) << 30)

/* The build writes this in embedded_docs.c. */
extern const unsigned char tool_embedded_docs[];
extern const uint64_t tool_embedded_docs_bytes;

static tess_status append(tool_text *text, const char *path, int fd, uint64_t bytes) {
    if (text->n_bytes + bytes > MOST_BYTES)
        return tess_fail(TESS_E_DATA, "%s: more than %llu bytes of text in all", path, (unsigned long long)MOST_BYTES);
    unsigned char *grown = realloc(text->bytes, text->n_bytes + bytes + 1);
    if (!grown)
        return tess_fail(TESS_E_NOMEM, "%s: no memory for %llu bytes of text", path, (unsigned long long)bytes);
    text->bytes = grown;
    for (uint64_t done = 0; done < bytes;) {
        ssize_t n = read(fd, text->bytes + text->n_bytes, bytes - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return tess_fail(TESS_E_DATA, "%s: offset %llu: %s, expected %llu bytes", path, (unsigned long long)done,
                             n < 0 ? strerror(errno) : "the file ends here", (unsigned long long)bytes);
        done += (uint64_t)n;
        text->n_bytes += (uint64_t)n;
    }
    return TESS_OK;
}

static tess_status append_file(tool_text *text, const char *path) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return tess_fail(TESS_E_DATA, "%s: %s", path, strerror(errno));
    tess_status status = TESS_OK;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        status = tess_fail(TESS_E_DATA, "%s: not a file, expected text", path);
    else
        status = append(text, path, fd, (uint64_t)st.st_size);
    close(fd);
    return status;
}

static int visible(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

/* The order must not depend on the locale: ranks may have different ones. */
static int by_bytes(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static tess_status append_dir(tool_text *text, const char *dir) {
    struct dirent **entries;
    int n = scandir(dir, &entries, visible, by_bytes);
    if (n < 0)
        return tess_fail(TESS_E_DATA, "%s: %s", dir, strerror(errno));
    tess_status status = TESS_OK;
    for (int i = 0; i < n; i++) {
        char path[PATH_MAX];
        struct stat st;
        int length = snprintf(path, sizeof path, "%s/%s", dir, entries[i]->d_name);
        if (status == TESS_OK && length >= 0 && (size_t)length < sizeof path &&
            !(stat(path, &st) == 0 && S_ISDIR(st.st_mode)))
            status = append_file(text, path);
        free(entries[i]);
    }
    free(entries);
    return status;
}

static tess_status append_docs(tool_text *text) {
    text->bytes = malloc(tool_embedded_docs_bytes + 1);
    if (!text->bytes)
        return tess_fail(TESS_E_NOMEM, "no memory for the documentation");
    memcpy(text->bytes, tool_embedded_docs, tool_embedded_docs_bytes);
    text->n_bytes = tool_embedded_docs_bytes;
    return TESS_OK;
}

static tess_status check_length(const char *name, int64_t context, tool_text *text) {
    if (text->n_bytes == 0)
        return tess_fail(TESS_E_DATA, "%s: no text: 0 bytes", name);
    text->n_train = text->n_bytes - text->n_bytes / 10;
    uint64_t held_out = text->n_bytes - text->n_train, window = (uint64_t)context + 1;
    if (held_out < window || text->n_train < window)
        return tess_fail(TESS_E_DATA, "%s: %llu bytes of text, expected at least %llu for a context of %lld", name,
                         (unsigned long long)text->n_bytes, (unsigned long long)(10 * window), (long long)context);
    return TESS_OK;
}

tess_status tool_text_load(const char *path, int64_t context, tool_text *out) {
    tool_text text = { .bytes = NULL };
    struct stat st;
    tess_status status;
    if (!path)
        status = append_docs(&text);
    else if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        status = append_dir(&text, path);
    else
        status = append_file(&text, path);
    if (status == TESS_OK)
        status = check_length(path ? path : "the documentation", context, &text);
    if (status != TESS_OK)
        tool_text_free(&text);
    else
        *out = text;
    return status;
}

void tool_text_free(tool_text *text) {
    free(text->bytes);
    *text = (tool_text){ .bytes = NULL };
}

const unsigned char *tool_text_train_window(const tool_text *text, uint64_t seed, uint64_t sample, int64_t context) {
    philox_block bits = philox(seed, (uint32_t)sample, (uint32_t)(sample >> 32), 0x54455854u, 0);
    uint64_t places = text->n_train - (uint64_t)context;
    uint64_t random = (uint64_t)bits.v[1] << 32 | bits.v[0];
    return text->bytes + (uint64_t)(((unsigned __int128)random * places) >> 64);
}

uint64_t tool_text_valid_windows(const tool_text *text, int64_t context) {
    uint64_t predictions = text->n_bytes - text->n_train - 1;
    return (predictions + (uint64_t)context - 1) / (uint64_t)context;
}

const unsigned char *tool_text_valid_window(const tool_text *text, uint64_t window, int64_t context,
                                            int64_t *predictions) {
    uint64_t first = text->n_train + window * (uint64_t)context;
    uint64_t left = text->n_bytes - 1 - first;
    *predictions = left < (uint64_t)context ? (int64_t)left : context;
    return text->bytes + first;
}
