/* SPDX-License-Identifier: BSD-3-Clause */
/* Tokens to train language models on. It maps llm.c's .bin (GPT-2's of 16 bits, Llama 3's of 32) or a .bin of bare
 * numbers (nanoGPT's of 16 bits, or 32). It also reads text and JSON lines, with a tokenizer or as bytes. A path is a
 * file or a folder of files of one kind. Files with "val" in their names are held out. Without such a file, the last
 * tenth of each file is held out, unless `share` is set. */
#ifndef TOOL_TOKENS_H
#define TOOL_TOKENS_H
#include <tessera/tessera.h>

#include "tools/tokenizer/tokenizer.h"

typedef struct {
    const char *path, *valid; /* valid: held-out file or folder, or null */
    double share;             /* 0: a tenth */
    int64_t context;          /* each part must have a window of `context` tokens and the next token */
    int64_t vocabulary;
    const tokenizer *words; /* the tokenizer, which must outlive the tokens; may be null */
    int packs;              /* documents that share a window neither see nor predict each other */
} tool_tokens_options;

typedef struct tool_tokens tool_tokens;
/** Maps the files. Bare numbers have the bits of --token-bits, else 16. Without that option it refuses a file whose
 * tokens are below the vocabulary in both readings. A bad file gives TESS_E_DATA. */
tess_status tool_tokens_open(const tool_tokens_options *, tool_tokens **out);
/** Judges by the first file's name: 1 if it is text, 0 if it holds tokens or cannot be read. */
int tool_tokens_are_text_at(const char *path);
void tool_tokens_close(tool_tokens *);         /* null is fine */
int tool_tokens_are_text(const tool_tokens *); /* bytes are the tokens */
/** Returns the first file of JSON lines, or null. */
const char *tool_tokens_lines(const tool_tokens *);
/** Returns the number of samples. *left_out counts those without a token of the completion within a window. */
uint64_t tool_tokens_samples(const tool_tokens *, uint64_t *left_out);
/** Checks that every token in this rank's share of the files is below `vocabulary`. TESS_E_DATA names file and
 * offset. */
tess_status tool_tokens_check(const tool_tokens *, int64_t vocabulary, int32_t rank, int32_t ranks);

/** Calls `fn` with the training part of each file, as it is held. */
void tool_tokens_each(const tool_tokens *, void (*fn)(void *user, const void *data, uint64_t bytes), void *user);

/** Returns the number of windows. Each has context + 1 tokens of one file, predicts `context`, and overlaps the next by
 * one. Windows of samples do not overlap, and their rest is filled with tokens that are no targets. */
uint64_t tool_tokens_windows(const tool_tokens *, int valid);
/** Returns 1 if each token of a window but the first is a target. */
int tool_tokens_all_count(const tool_tokens *);
/** Counts the targets of a window. */
uint64_t tool_tokens_targets(const tool_tokens *, int valid, uint64_t window);
/** Returns the tokens of a window with the marks of a batch (tools/models/model.h). */
void tool_tokens_window(const tool_tokens *, int valid, uint64_t window, int32_t *out);
#endif
