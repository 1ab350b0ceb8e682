/* SPDX-License-Identifier: BSD-3-Clause */
/* The tokenizer of a Hugging Face folder: tokenizer.json with BPE, of bytes (GPT-2, Llama 3, Qwen) or of characters
 * (Llama 2, Mistral, Gemma), or tokenizer.model of sentencepiece. Text to the numbers that the model was trained on,
 * and back. Another kind is refused by its name. */
#ifndef TOOL_TOKENIZER_H
#define TOOL_TOKENIZER_H
#include "bpe.h"

typedef struct tokenizer tokenizer;
/** Reads a tokenizer.json or *.model, or a folder's, the first of the two. TESS_E_DATA names file and offset, or what
 * of it is not read here. */
tess_status tokenizer_open(const char *path, tokenizer **out);
/** Whether a file of that name is one that is read here. */
int tokenizer_reads(const char *path);
void tokenizer_close(tokenizer *); /* null is fine */
/** Greatest token + 1. */
int32_t tokenizer_size(const tokenizer *);
/** The token that ends a document, by tokenizer_config.json or config.json; -1: neither names one. */
int32_t tokenizer_end(const tokenizer *);

/** One thread's state of encoding. Null without memory. */
typedef struct tokenizer_encoder tokenizer_encoder;
tokenizer_encoder *tokenizer_encoder_create(const tokenizer *);
void tokenizer_encoder_free(tokenizer_encoder *);
/** Adds the text's tokens. Special tokens are recognised by their names, as transformers does. A fault in the UTF-8 is
 * U+FFFD. `whole`: with what the tokenizer puts before and behind a whole text (<|begin_of_text|>), else bare. */
tess_status tokenizer_encode(tokenizer_encoder *, const char *text, size_t bytes, int whole, token_list *out);
/** A document, alone in `out`: the whole text, and `end` (-1: nothing) behind it unless it ends so. */
tess_status tokenizer_encode_document(tokenizer_encoder *, const char *text, size_t bytes, int32_t end,
                                      token_list *out);
/** The bytes of a token; "" for an unknown one. Not ended by a null byte. Special ones have their names. */
const char *tokenizer_text(const tokenizer *, int32_t id, size_t *bytes);
#endif
