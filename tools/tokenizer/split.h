/* SPDX-License-Identifier: BSD-3-Clause */
/* Splits a text into words before byte pair encoding. Stages apply regular expressions one after the other, each to the
 * pieces of the stage before. PCRE2 matches them, with Unicode classes changed to those of the Hugging Face
 * tokenizers. */
#ifndef TOOL_SPLIT_H
#define TOOL_SPLIT_H
#include <stddef.h>
#include <tessera/tessera.h>

enum { SPLIT_MOST = 8 };

/** SPLIT_ISOLATED keeps matches and the gaps between them. SPLIT_MATCHES_ONLY keeps matches alone. SPLIT_PREFIX_SPACE
 * puts a blank before a piece. */
enum { SPLIT_ISOLATED, SPLIT_MATCHES_ONLY, SPLIT_PREFIX_SPACE };

typedef struct {
    struct {
        uint32_t kind;
        void *pattern; /* pcre2_code * */
    } stages[SPLIT_MOST];
    int n;
} splitter; /* zero it first */

/** Adds a stage. SPLIT_PREFIX_SPACE takes no pattern and skips pieces that begin with a blank. TESS_E_DATA names a
 * pattern that PCRE2 refuses. TESS_E_UNSUPPORTED says that this build has no PCRE2. */
tess_status splitter_add(splitter *, uint32_t kind, const char *pattern);
void splitter_free(splitter *);

/** One thread's buffers for matching. */
typedef struct split_state split_state;
split_state *split_state_create(void); /* null without memory */
void split_state_free(split_state *);

typedef tess_status (*split_fn)(const char *word, size_t bytes, void *user);
/** Calls `fn` with each word of `text` in order. `text` is valid UTF-8. Stops at the first failure. */
tess_status split_words(const splitter *, split_state *, const char *text, size_t bytes, split_fn fn, void *user);

/** GPT-2's pattern. A ByteLevel with use_regex also splits by it. */
extern const char split_gpt2[];
#endif
