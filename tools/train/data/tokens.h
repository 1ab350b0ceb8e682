/* SPDX-License-Identifier: BSD-3-Clause */
/* Tokens to train language models on, mapped from files: llm.c's .bin (GPT-2's of 16 bits, Llama 3's of 32), a .bin of
 * bare numbers, nanoGPT's of 16 bits or others' of 32, or text, by a tokenizer or with its bytes as the tokens. A path
 * is a file or a folder of one kind. Files with "val" in their names are held out; without such a file the last tenth
 * of each file is.
 */
#ifndef TOOL_TOKENS_H
#define TOOL_TOKENS_H
#include <tessera/tessera.h>

#include "tools/tokenizer/tokenizer.h"

typedef struct tool_tokens tool_tokens;
/** Maps the files. `context`: each part must have a window of that many tokens and its successor. Bare numbers have the
 * bits that --token-bits says. Unless it does they have 16, and a file of which both readings are tokens below
 * `vocabulary` is refused. `or_null`: what makes tokens of text; it must outlive them. TESS_E_DATA. */
tess_status tool_tokens_open(const char *path, int64_t context, int64_t vocabulary, const tokenizer *or_null,
                             tool_tokens **out);
void tool_tokens_close(tool_tokens *); /* null is fine */
int tool_tokens_are_text(const tool_tokens *);
/** Every token of this rank's share of the files is below `vocabulary`; TESS_E_DATA names file and offset. */
tess_status tool_tokens_check(const tool_tokens *, int64_t vocabulary, int32_t rank, int32_t ranks);

/** Windows of context + 1 tokens that overlap by one: each predicts `context` tokens, and none spans two files. */
uint64_t tool_tokens_windows(const tool_tokens *, int valid);
/** The tokens of a window. */
void tool_tokens_window(const tool_tokens *, int valid, uint64_t window, int32_t *out);
#endif
