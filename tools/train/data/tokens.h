/* SPDX-License-Identifier: BSD-3-Clause */
/* Tokens to train language models on, mapped from files: llm.c's .bin (GPT-2's of 16 bits, Llama 3's of 32), a .bin of
 * bare numbers, nanoGPT's of 16 bits or others' of 32, or text and lines of JSON, by a tokenizer or with a text's bytes
 * as the tokens. A path is a file or a folder of one kind. Files with "val" in their names are held out; without such a
 * file a share of each file is, the last tenth unless it is set.
 */
#ifndef TOOL_TOKENS_H
#define TOOL_TOKENS_H
#include <tessera/tessera.h>

#include "tools/tokenizer/tokenizer.h"

typedef struct {
    const char *path, *valid; /* valid: a file or folder that is held out; null: none */
    double share;             /* 0: a tenth */
    int64_t context;          /* each part must have a window of that many tokens and its successor */
    int64_t vocabulary;
    const tokenizer *words; /* the tokenizer, which must outlive these; null: none */
    int packs;              /* documents that share a window neither see nor predict each other */
} tool_tokens_options;

typedef struct tool_tokens tool_tokens;
/** Maps the files. Bare numbers have the bits that --token-bits says. Unless it does they have 16, and a file of which
 * both readings are tokens below the vocabulary is refused. TESS_E_DATA. */
tess_status tool_tokens_open(const tool_tokens_options *, tool_tokens **out);
/** Judges by the first file's name: 1 if it is text, 0 if it holds tokens or cannot be read. */
int tool_tokens_are_text_at(const char *path);
void tool_tokens_close(tool_tokens *);         /* null is fine */
int tool_tokens_are_text(const tool_tokens *); /* bytes are the tokens */
/** The first file that is lines of JSON, or null. */
const char *tool_tokens_lines(const tool_tokens *);
/** Samples, and how many of them are left out, as no token of the completion has a place in a window. */
uint64_t tool_tokens_samples(const tool_tokens *, uint64_t *left_out);
/** Every token of this rank's share of the files is below `vocabulary`; TESS_E_DATA names file and offset. */
tess_status tool_tokens_check(const tool_tokens *, int64_t vocabulary, int32_t rank, int32_t ranks);

/** Windows of context + 1 tokens that overlap by one: each predicts `context` tokens, and none spans two files. Those
 * of samples do not overlap, and are filled up with what is no target. */
uint64_t tool_tokens_windows(const tool_tokens *, int valid);
/** Whether each token of a window but the first is a target. */
int tool_tokens_all_count(const tool_tokens *);
/** Counts the targets of a window. */
uint64_t tool_tokens_targets(const tool_tokens *, int valid, uint64_t window);
/** The tokens of a window, marked as in a batch: tools/models/model.h. */
void tool_tokens_window(const tool_tokens *, int valid, uint64_t window, int32_t *out);
#endif
