/* SPDX-License-Identifier: BSD-3-Clause */
#include "vocabulary.h"

#include <stdlib.h>
#include <string.h>

#include "tools/support/say.h"

static tess_status no_memory(void) {
    return tess_fail(TESS_E_NOMEM, "no memory for a tokenizer's vocabulary");
}

static tess_status make_room(vocabulary *v, int32_t id, size_t bytes) {
    if (v->used + bytes >= v->room) { /* one byte to spare, so that an empty token has an address too */
        size_t room = 2 * (v->used + bytes) + 4096;
        char *pool = realloc(v->pool, room);
        if (!pool)
            return no_memory();
        v->pool = pool, v->room = room;
    }
    if (id >= v->tokens_room) {
        int32_t room = 2 * id + 1024;
        void *tokens = realloc(v->tokens, (size_t)room * sizeof *v->tokens);
        if (!tokens)
            return no_memory();
        v->tokens = tokens;
        memset(v->tokens + v->tokens_room, 0, (size_t)(room - v->tokens_room) * sizeof *v->tokens);
        v->tokens_room = room;
    }
    return TESS_OK;
}

tess_status vocabulary_add(vocabulary *v, int32_t id, const char *text, size_t bytes, int kind) {
    TRY(make_room(v, id, bytes));
    memcpy(v->pool + v->used, text, bytes);
    v->tokens[id].at = v->used;
    v->tokens[id].bytes = (uint32_t)bytes;
    v->tokens[id].is_known = 1;
    v->tokens[id].kind = (uint16_t)kind;
    v->used += bytes;
    v->n = id >= v->n ? id + 1 : v->n;
    return TESS_OK;
}

int vocabulary_knows(const vocabulary *v, int32_t id) {
    return id >= 0 && id < v->n && v->tokens[id].is_known;
}

static uint64_t table_size(uint64_t n) {
    uint64_t size = 16;
    while (size < 2 * n)
        size *= 2;
    return size;
}

/* Returns the table entry of these bytes, or the free entry where they belong. */
static int32_t *place_of_bytes(const vocabulary *v, const char *text, size_t bytes, int kind) {
    uint64_t at = vocabulary_hash(text, bytes) & v->by_bytes_mask;
    for (;; at = (at + 1) & v->by_bytes_mask) {
        int32_t id = v->by_bytes[at];
        if (id < 0 || (v->tokens[id].bytes == bytes && v->tokens[id].kind == kind &&
                       memcmp(v->pool + v->tokens[id].at, text, bytes) == 0))
            return &v->by_bytes[at];
    }
}

static tess_status index_token(vocabulary *v, int32_t id) {
    int32_t *place = place_of_bytes(v, v->pool + v->tokens[id].at, v->tokens[id].bytes, v->tokens[id].kind);
    if (*place >= 0)
        return tess_fail(TESS_E_DATA, "a tokenizer's tokens %d and %d are the same", *place, id);
    *place = id;
    return TESS_OK;
}

tess_status vocabulary_index(vocabulary *v, uint64_t n_merges, int byte_kind) {
    uint64_t tokens = table_size((uint64_t)v->n), merges = table_size(n_merges);
    v->by_bytes = malloc(tokens * sizeof *v->by_bytes);
    v->merges = malloc(merges * sizeof *v->merges);
    if (!v->by_bytes || !v->merges)
        return no_memory();
    v->by_bytes_mask = tokens - 1, v->merges_mask = merges - 1;
    memset(v->by_bytes, 0xff, tokens * sizeof *v->by_bytes);
    memset(v->merges, 0xff, merges * sizeof *v->merges);
    for (int32_t id = 0; id < v->n; id++)
        if (v->tokens[id].is_known)
            TRY(index_token(v, id));
    for (int byte = 0; byte < 256; byte++)
        v->bytes[byte] = vocabulary_find(v, (char[]){ (char)byte }, 1, byte_kind);
    return TESS_OK;
}

int32_t vocabulary_find(const vocabulary *v, const char *text, size_t bytes, int kind) {
    return *place_of_bytes(v, text, bytes, kind);
}

static vocabulary_merge *place_of_pair(const vocabulary *v, uint64_t pair) {
    uint64_t h = pair * 0x9e3779b97f4a7c15u, at = (h ^ h >> 32) & v->merges_mask;
    while (v->merges[at].rank >= 0 && v->merges[at].pair != pair)
        at = (at + 1) & v->merges_mask;
    return &v->merges[at];
}

static uint64_t pair_of(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

void vocabulary_add_merge(vocabulary *v, int32_t rank, int32_t left, int32_t right, int32_t id) {
    *place_of_pair(v, pair_of(left, right)) =
        (vocabulary_merge){ .pair = pair_of(left, right), .rank = rank, .id = id };
}

const vocabulary_merge *vocabulary_merge_of(const vocabulary *v, int32_t left, int32_t right) {
    const vocabulary_merge *m = place_of_pair(v, pair_of(left, right));
    return m->rank < 0 ? NULL : m;
}

void vocabulary_free(vocabulary *v) {
    free(v->pool);
    free(v->tokens);
    free(v->by_bytes);
    free(v->merges);
}
