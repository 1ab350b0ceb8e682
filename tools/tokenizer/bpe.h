/* SPDX-License-Identifier: BSD-3-Clause */
/* Byte pair encoding of one word (Sennrich et al. 2016). It merges the adjacent pair of lowest merge rank until no pair
 * has a merge. Words begin as bytes, as in GPT-2, or as characters. A character without a token becomes its bytes. */
#ifndef TOOL_BPE_H
#define TOOL_BPE_H
#include "vocabulary.h"

typedef struct {
    int32_t *ids;
    size_t n, room;
} token_list; /* zero it first; token_list_free frees it */
/** Appends `n` tokens. Returns TESS_E_NOMEM without memory. */
tess_status token_list_add(token_list *, const int32_t *ids, size_t n);
void token_list_free(token_list *);

/** One thread's encoder. It caches the tokens of short words. */
typedef struct bpe bpe;
/** With `whole_words`, a word that is a token becomes that token without any merges ("ignore_merges"). With
 * `characters`, words begin as UTF-8 characters, else as bytes. Returns null without memory. */
bpe *bpe_create(const vocabulary *, int whole_words, int characters);
void bpe_free(bpe *);
/** Appends the word's tokens. Returns TESS_E_NOMEM without memory. */
tess_status bpe_encode(bpe *, const char *word, size_t bytes, token_list *out);
#endif
