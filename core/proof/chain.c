/* SPDX-License-Identifier: BSD-3-Clause */
#include "chain.h"

#include "base/hash.h"
#include "base/status.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint64_t tess__chain_start(void) {
    return TESS__HASH_START;
}

/* FNV-1a goes on from one state to another one to one, so a change of one byte is never hidden. */
size_t tess__chain_end(char *line, size_t bytes, uint64_t *chain) {
    *chain = tess__hash(*chain, line, bytes);
    return bytes + (size_t)snprintf(line + bytes, TESS__CHAIN_TAIL + 1, ",\"chain\":\"%016" PRIx64 "\"}\n", *chain);
}

static tess_status bad_line(const char *path, uint64_t number, const char *what) {
    return tess__fail(TESS_E_DATA, "%s: line %" PRIu64 " %s", path, number, what);
}

/* Checks one line, which ends with a line feed, and leaves it closed before its chain. */
static tess_status check_line(const char *path, char *line, size_t bytes, tess__chain_read_info *r) {
    char tail[TESS__CHAIN_TAIL + 1];
    if (bytes < TESS__CHAIN_TAIL || strlen(line) != bytes)
        return bad_line(path, r->lines + 1, "is none of a ledger of digests");
    size_t head = bytes - TESS__CHAIN_TAIL;
    memcpy(tail, line + head, sizeof tail);
    tess__chain_end(line, head, &r->chain);
    if (memcmp(tail, line + head, TESS__CHAIN_TAIL) != 0)
        return bad_line(path, r->lines + 1,
                        "is not as it was written: it, or a line before it, was changed or removed");
    if (!r->lines &&
        (strncmp(line, "{\"type\":\"begin\"", 15) != 0 || tess__chain_number(line, "format") != TESS__CHAIN_FORMAT))
        return bad_line(path, 1, "begins no ledger that this version reads");
    memcpy(line + head, "}", 2);
    r->lines++;
    r->bytes += bytes;
    return TESS_OK;
}

static tess_status read_lines(FILE *f, const char *path, tess__chain_fn fn, void *user, tess__chain_read_info *r) {
    char *line = NULL;
    size_t room = 0;
    ssize_t bytes;
    tess_status s = TESS_OK;
    while (!s && !r->cut && (bytes = getline(&line, &room, f)) > 0) {
        r->cut = line[bytes - 1] != '\n';
        if (!r->cut)
            s = check_line(path, line, (size_t)bytes, r);
        if (!s && !r->cut)
            s = fn(user, line, r->lines);
    }
    if (!s && ferror(f))
        s = tess__fail(TESS_E_DATA, "%s: %s", path, strerror(errno));
    free(line);
    return s;
}

tess_status tess__chain_read(int fd, const char *path, tess__chain_fn fn, void *user, tess__chain_read_info *out) {
    tess__chain_read_info r = { .chain = tess__chain_start() };
    int copy = dup(fd);
    FILE *f = copy < 0 ? NULL : fdopen(copy, "r");
    if (!f) {
        if (copy >= 0)
            close(copy);
        return tess__fail(TESS_E_DATA, "%s: %s", path, strerror(errno));
    }
    rewind(f);
    tess_status s = read_lines(f, path, fn, user, &r);
    fclose(f);
    if (!s)
        *out = r;
    return s;
}

/* ---- members --------------------------------------------------------------------------------------- */

/* Within a string a quote is escaped, so `"key":` is found as a member alone. */
static const char *find_member(const char *line, const char *key) {
    char word[64];
    snprintf(word, sizeof word, "\"%s\":", key);
    const char *at = strstr(line, word);
    return at ? at + strlen(word) : NULL;
}

long tess__chain_member(const char *line, const char *key, char *out, size_t n) {
    const char *at = find_member(line, key);
    size_t bytes = 0;
    if (!at)
        return -1;
    int is_text = *at == '"';
    for (at += is_text; *at && (is_text ? *at != '"' : *at != ',' && *at != '}'); at++) {
        at += is_text && *at == '\\' && at[1];
        if (bytes + 1 < n)
            out[bytes] = *at;
        bytes++;
    }
    if (n)
        out[bytes < n ? bytes : n - 1] = 0;
    return (long)bytes;
}

uint64_t tess__chain_number(const char *line, const char *key) {
    const char *at = find_member(line, key);
    return at ? strtoull(at, NULL, 10) : 0;
}

/* ---- words ----------------------------------------------------------------------------------------- */

/* Finds the word of the same key, and its length. */
static size_t same_key(const char *words, const char *word, const char **found) {
    size_t key = strcspn(word, "= ") + 1;
    for (const char *at = words; *at; at += strcspn(at, " "), at += *at == ' ')
        if (strncmp(at, word, key) == 0) {
            *found = at;
            return strcspn(at, " ");
        }
    return 0;
}

int tess__chain_differ(const char *a, const char *b, char *in_a, char *in_b, size_t n) {
    for (const char *at = a, *other; *at; at += strcspn(at, " "), at += *at == ' ') {
        size_t bytes = strcspn(at, " "), others = same_key(b, at, &other);
        if (!others || strncmp(at, "steps=", 6) == 0 || (others == bytes && memcmp(at, other, bytes) == 0))
            continue;
        snprintf(in_a, n, "%.*s", (int)bytes, at);
        snprintf(in_b, n, "%.*s", (int)others, other);
        return 1;
    }
    return 0;
}
