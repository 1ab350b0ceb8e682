/* SPDX-License-Identifier: BSD-3-Clause */
/* The tokenizer after its file is read. Any number of threads may read it. */
#ifndef TOOL_TOKENIZER_STATE_H
#define TOOL_TOKENIZER_STATE_H
#include "split.h"
#include "tokenizer.h"

typedef struct {
    char *name;
    size_t bytes;
    int32_t id;
    int takes_left, takes_right; /* it absorbs white space beside it */
    int is_normalized;           /* it is searched for in the normalized text */
} added_token;

enum { BLANKS_NONE, BLANKS_NORMALIZER, BLANKS_METASPACE };
/* PUTS_ALWAYS puts a blank before every text, PUTS_MISSING only if the text begins without one. PUTS_FIRST is
 * PUTS_MISSING for the first piece of a text only. */
enum { PUTS_NEVER, PUTS_ALWAYS, PUTS_MISSING, PUTS_FIRST };

struct tokenizer {
    vocabulary v;
    int whole_words;              /* a word that is a token becomes that token without merges */
    struct sentence_model *model; /* set for tokenizer.model, null for tokenizer.json */
    int composes;                 /* the text is composed (NFC) first */
    splitter words;
    int characters; /* words are characters, as in Llama 2, Mistral and Gemma, not bytes; U+2581 stands for a blank */
    int blanks;     /* which step replaces blanks: BLANKS_NORMALIZER, … */
    int puts_blank; /* when a blank is put before a text: PUTS_ALWAYS, … */
    int splits_at_blanks; /* each blank begins a word; else only a blank that follows another character may */
    int crosses_words;    /* some merge joins two such words, so the text is not cut there */
    added_token *added;   /* in order of first byte, longest first */
    int32_t n_added;
    int32_t added_from[257];  /* first entry of `added` for each first byte */
    token_list before, after; /* tokens put around a whole text */
    int32_t end;
};

/** Fills `t` from the file. tokenizer_close frees what it made, also after a failure. */
tess_status tokenizer_read(const char *path, tokenizer *t);
/** Converts a token of characters in place, "<0x0A>" to its byte. Returns its kind, VOCABULARY_WORD, …. */
int tokenizer_to_characters(char *text, size_t *bytes);
/* tokenizer_model.c; it returns TESS_E_UNSUPPORTED if the build lacks sentencepiece. */
tess_status tokenizer_read_model(const char *path, tokenizer *t); /* works as tokenizer_read */
int32_t tokenizer_model_end(const tokenizer *);                   /* -1: none */
tess_status tokenizer_model_encode(const tokenizer *, const char *text, size_t bytes, token_list *out);
void tokenizer_model_close(tokenizer *);
/** Copies the text. If `normalized`, the copy is composed or has its blanks replaced as the file says. The caller frees
 * *out, which ends with a null byte. */
tess_status tokenizer_normalize(const tokenizer *, int normalized, const char *text, size_t bytes, char **out,
                                size_t *n);
/** Copies the text with a blank for each U+2581 and returns the bytes written. `out` may be `text`. */
size_t tokenizer_blanks(const char *text, size_t bytes, char *out);
/** Returns the added token of that name, or -1. */
int32_t tokenizer_added(const tokenizer *, const char *name);
#endif
