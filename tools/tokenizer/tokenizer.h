/* SPDX-License-Identifier: BSD-3-Clause */
/* The tokenizer of a Hugging Face folder converts text to tokens and back. It reads tokenizer.json with BPE on bytes
 * (GPT-2, Llama 3, Qwen) or characters (Llama 2, Mistral, Gemma). It also reads sentencepiece's tokenizer.model. It
 * refuses other kinds and names them. */
#ifndef TOOL_TOKENIZER_H
#define TOOL_TOKENIZER_H
#include "bpe.h"

typedef struct tokenizer tokenizer;
/** Reads a tokenizer.json or *.model. In a folder it takes the first of the two that exists. TESS_E_DATA names the file
 * and the offset, or the part that is not supported. */
tess_status tokenizer_open(const char *path, tokenizer **out);
/** Returns 1 if a file of that name is one that tokenizer_open reads. */
int tokenizer_reads(const char *path);
void tokenizer_close(tokenizer *); /* null is fine */
/** Returns the greatest token + 1. */
int32_t tokenizer_size(const tokenizer *);
/** Returns the token that ends a document, from the folder's configs or the model, or -1 if none names one. */
int32_t tokenizer_end(const tokenizer *);

/** One thread's state of encoding. Null without memory. */
typedef struct tokenizer_encoder tokenizer_encoder;
tokenizer_encoder *tokenizer_encoder_create(const tokenizer *);
void tokenizer_encoder_free(tokenizer_encoder *);
/** Appends the text's tokens. It recognises special tokens by their names, as transformers does. Invalid UTF-8 becomes
 * U+FFFD. With `whole`, it adds the tokens that the tokenizer puts before and behind a text, such as
 * <|begin_of_text|>. */
tess_status tokenizer_encode(tokenizer_encoder *, const char *text, size_t bytes, int whole, token_list *out);
/** Encodes a document as a whole text. It adds `end` unless `end` is -1 or the tokens already end with it. */
tess_status tokenizer_encode_document(tokenizer_encoder *, const char *text, size_t bytes, int32_t end,
                                      token_list *out);
/** Returns the bytes of a token, or "" for an unknown one. They have no null byte. Special tokens give their names. */
const char *tokenizer_text(const tokenizer *, int32_t id, size_t *bytes);
#endif
