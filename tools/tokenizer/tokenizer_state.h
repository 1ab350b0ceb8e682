/* SPDX-License-Identifier: BSD-3-Clause */
/* A tokenizer.json is read once into this, and any number of threads look at it. */
#ifndef TOOL_TOKENIZER_STATE_H
#define TOOL_TOKENIZER_STATE_H
#include "split.h"
#include "tokenizer.h"

typedef struct {
    char *name;
    size_t bytes;
    int32_t id;
    int takes_left, takes_right; /* white space beside it belongs to it */
    int is_normalized;           /* looked for in the text as it is after normalization */
} added_token;

struct tokenizer {
    vocabulary v;
    int whole_words; /* a word that is a token is not put together by merges */
    int composes;    /* the text becomes NFC first */
    splitter words;
    added_token *added; /* by first byte, then the longest first */
    int32_t n_added;
    int32_t added_from[257];  /* by first byte */
    token_list before, after; /* a whole text */
    int32_t end;
};

/** Fills `t` from the file. What it has made is freed by tokenizer_close, after a failure too. */
tess_status tokenizer_read(const char *path, tokenizer *t);
/** A copy of the text, composed when `normalized` and the file says so; *out is ended by a null byte, the caller's. */
tess_status tokenizer_normalize(const tokenizer *, int normalized, const char *text, size_t bytes, char **out,
                                size_t *n);
/** The token of that name among the added ones, or -1. */
int32_t tokenizer_added(const tokenizer *, const char *name);
#endif
