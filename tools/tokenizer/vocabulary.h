/* SPDX-License-Identifier: BSD-3-Clause */
/* The tokens of BPE, each a number and its bytes, and the merges that join two tokens to one. */
#ifndef TOOL_VOCABULARY_H
#define TOOL_VOCABULARY_H
#include <stddef.h>
#include <stdint.h>
#include <tessera/tessera.h>

enum { VOCABULARY_MOST = 1 << 22 };
/* A word may become a token of kind WORD, never one of kind NAME. BYTE tokens are byte_fallback's, which may equal a
 * character of one byte. */
enum { VOCABULARY_WORD, VOCABULARY_NAME, VOCABULARY_BYTE };

typedef struct {
    uint64_t pair; /* left << 32 | right */
    int32_t rank;  /* lower ranks merge first; -1: the entry is free */
    int32_t id;    /* the token that replaces the pair */
} vocabulary_merge;

typedef struct {
    char *pool; /* the bytes of all tokens */
    size_t used, room;
    struct {
        size_t at;
        uint32_t bytes;
        uint16_t is_known, kind; /* VOCABULARY_WORD, … */
    } * tokens;                  /* indexed by token */
    int32_t n;                   /* greatest token + 1 */
    int32_t tokens_room;
    int32_t *by_bytes; /* hash table of tokens; -1: the entry is free */
    uint64_t by_bytes_mask;
    vocabulary_merge *merges;
    uint64_t merges_mask;
    int32_t bytes[256]; /* the token of each single byte, or -1 */
} vocabulary;

/** Adds token `id` with a copy of these bytes. `id` is new and less than VOCABULARY_MOST. Returns TESS_E_NOMEM without
 * memory. */
tess_status vocabulary_add(vocabulary *, int32_t id, const char *text, size_t bytes, int kind);
int vocabulary_knows(const vocabulary *, int32_t id);
/** Builds the tables after the last token, with room for `n_merges` merges. Single bytes have kind `byte_kind`. Returns
 * TESS_E_DATA if two tokens are the same. */
tess_status vocabulary_index(vocabulary *, uint64_t n_merges, int byte_kind);
/** Returns the token of that kind with these bytes, or -1. */
int32_t vocabulary_find(const vocabulary *, const char *text, size_t bytes, int kind);
/** Adds the merge of tokens `left` and `right` to `id`. Of equal pairs the last counts. */
void vocabulary_add_merge(vocabulary *, int32_t rank, int32_t left, int32_t right, int32_t id);
/** Returns the merge of the two tokens, or null. */
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
