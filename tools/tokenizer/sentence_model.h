/* SPDX-License-Identifier: BSD-3-Clause */
/* A C interface to models of the sentencepiece library (tokenizer.model). */
#ifndef TOOL_SENTENCE_MODEL_H
#define TOOL_SENTENCE_MODEL_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sentence_model sentence_model;
/** Makes a model from a file's bytes. On failure it returns null and `why` holds the library's message. */
sentence_model *sentence_model_create(const char *data, size_t bytes, char *why, size_t room);
void sentence_model_destroy(sentence_model *); /* null is fine */
int32_t sentence_model_size(const sentence_model *);
int32_t sentence_model_begin(const sentence_model *); /* bos_id, or -1 if there is none */
int32_t sentence_model_end(const sentence_model *);   /* eos_id, or -1 if there is none */
/** Copies a piece's name with a null byte and returns its length. Sets *is_name if no text is encoded as this piece. */
size_t sentence_model_piece(const sentence_model *, int32_t id, char *out, size_t room, int *is_name);
/** Passes the text's pieces to `fn`, from any thread. Returns 0 without memory, or when `fn` returns 0. */
typedef int (*sentence_model_fn)(void *user, const int32_t *ids, size_t n);
int sentence_model_encode(const sentence_model *, const char *text, size_t bytes, sentence_model_fn fn, void *user);

#ifdef __cplusplus
}
#endif
#endif
