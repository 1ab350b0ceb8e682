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

enum { BLANKS_NONE, BLANKS_NORMALIZER, BLANKS_METASPACE };
/* Before every text; before one without; before one without that begins the whole. */
enum { PUTS_NEVER, PUTS_ALWAYS, PUTS_MISSING, PUTS_FIRST };

struct tokenizer {
    vocabulary v;
    int whole_words;              /* a word that is a token is not put together by merges */
    struct sentence_model *model; /* of tokenizer.model; null: of tokenizer.json, which the rest but `added` is of */
    int composes;                 /* the text becomes NFC first */
    splitter words;
    int characters;       /* not bytes: as Llama 2, Mistral and Gemma have it, where U+2581 stands for a blank */
    int blanks;           /* who puts that in: BLANKS_NORMALIZER, … */
    int puts_blank;       /* one more before a text: PUTS_ALWAYS, … */
    int splits_at_blanks; /* each begins a word; else no word ends but before one behind something else */
    int crosses_words;    /* a merge would join two such words, so that there are none */
    added_token *added;   /* by first byte, then the longest first */
    int32_t n_added;
    int32_t added_from[257];  /* by first byte */
    token_list before, after; /* a whole text */
    int32_t end;
};

/** Fills `t` from the file. What it has made is freed by tokenizer_close, after a failure too. */
tess_status tokenizer_read(const char *path, tokenizer *t);
/** A token of characters in place, "<0x0A>" as its byte; returns its kind, VOCABULARY_WORD, …. */
int tokenizer_to_characters(char *text, size_t *bytes);
/* tokenizer_model.c; TESS_E_UNSUPPORTED where the build is without sentencepiece. */
tess_status tokenizer_read_model(const char *path, tokenizer *t); /* as tokenizer_read */
int32_t tokenizer_model_end(const tokenizer *);                   /* -1: none */
tess_status tokenizer_model_encode(const tokenizer *, const char *text, size_t bytes, token_list *out);
void tokenizer_model_close(tokenizer *);
/** A copy of the text, when `normalized` composed or with its blanks as the file says; *out is ended by a null byte,
 * the caller's. */
tess_status tokenizer_normalize(const tokenizer *, int normalized, const char *text, size_t bytes, char **out,
                                size_t *n);
/** Copies the text with a blank for each U+2581, and returns how many bytes it wrote; they may be the same memory. */
size_t tokenizer_blanks(const char *text, size_t bytes, char *out);
/** The token of that name among the added ones, or -1. */
int32_t tokenizer_added(const tokenizer *, const char *name);
#endif
