/* SPDX-License-Identifier: BSD-3-Clause */
/* Byte pair encoding of one word: its bytes become tokens, and the pair with the least merge becomes one until none has
 * any. Sennrich et al. 2016, on bytes as GPT-2 does it, or on characters, of which those without a token become bytes.
 */
#ifndef TOOL_BPE_H
#define TOOL_BPE_H
#include "vocabulary.h"

typedef struct {
    int32_t *ids;
    size_t n, room;
} token_list; /* zeroed at first; token_list_free */
/** TESS_E_NOMEM. */
tess_status token_list_add(token_list *, const int32_t *ids, size_t n);
void token_list_free(token_list *);

/** One thread's encoder: words that it has seen, and room to work in. */
typedef struct bpe bpe;
/** `whole_words`: a word that is a token is that token, merges or not ("ignore_merges"). `characters`: of whole UTF-8.
 * Null without memory. */
bpe *bpe_create(const vocabulary *, int whole_words, int characters);
void bpe_free(bpe *);
/** Adds the word's tokens. TESS_E_NOMEM. */
tess_status bpe_encode(bpe *, const char *word, size_t bytes, token_list *out);
#endif
