/* SPDX-License-Identifier: BSD-3-Clause */
/* The tokens of BPE: each is some bytes and a number; merges make one of two. */
#ifndef TOOL_VOCABULARY_H
#define TOOL_VOCABULARY_H
#include <stddef.h>
#include <stdint.h>
#include <tessera/tessera.h>

enum { VOCABULARY_MOST = 1 << 22 };
/* A word may become the first, no word the second; the third are byte_fallback's, beside characters of one byte. */
enum { VOCABULARY_WORD, VOCABULARY_NAME, VOCABULARY_BYTE };

typedef struct {
    uint64_t pair; /* left << 32 | right */
    int32_t rank;  /* the lesser merges first; -1: the place is free */
    int32_t id;    /* the token that replaces the pair */
} vocabulary_merge;

typedef struct {
    char *pool; /* the bytes of all tokens */
    size_t used, room;
    struct {
        size_t at;
        uint32_t bytes;
        uint16_t is_known, kind; /* VOCABULARY_WORD, … */
    } * tokens;                  /* index: token */
    int32_t n;                   /* greatest number + 1 */
    int32_t tokens_room;
    int32_t *by_bytes; /* hash table of numbers, -1: free */
    uint64_t by_bytes_mask;
    vocabulary_merge *merges;
    uint64_t merges_mask;
    int32_t bytes[256]; /* the tokens of single bytes, -1: none */
} vocabulary;

/** Token `id`, which is new and less than VOCABULARY_MOST, is these bytes. TESS_E_NOMEM. Copies. */
tess_status vocabulary_add(vocabulary *, int32_t id, const char *text, size_t bytes, int kind);
int vocabulary_knows(const vocabulary *, int32_t id);
/** After the last token: the tables, with room for `n` merges. Single bytes are of `byte_kind`. TESS_E_DATA when two
 * tokens are the same. */
tess_status vocabulary_index(vocabulary *, uint64_t n_merges, int byte_kind);
/** The number of these bytes, or of that name; -1: there is none. */
int32_t vocabulary_find(const vocabulary *, const char *text, size_t bytes, int kind);
/** Merge number `rank`: tokens left and right become `id`. The last of equal pairs counts. */
void vocabulary_add_merge(vocabulary *, int32_t rank, int32_t left, int32_t right, int32_t id);
/** The token that the two become, or null. */
const vocabulary_merge *vocabulary_merge_of(const vocabulary *, int32_t left, int32_t right);
void vocabulary_free(vocabulary *);

/** FNV-1a. */
static inline uint64_t vocabulary_hash(const char *text, size_t bytes) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ (unsigned char)text[i]) * 0x100000001b3u;
    return h ^ h >> 32;
}
#endif
