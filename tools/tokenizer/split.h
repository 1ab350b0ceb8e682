/* SPDX-License-Identifier: BSD-3-Clause */
/* Where words begin and end before byte pair encoding: regular expressions, one after the other on what the earlier one
 * left, each match and each rest a piece. With PCRE2, whose Unicode classes are made those of the Hugging Face
 * tokenizers. */
#ifndef TOOL_SPLIT_H
#define TOOL_SPLIT_H
#include <stddef.h>
#include <tessera/tessera.h>

enum { SPLIT_MOST = 8 };

/** A stage keeps matches and the gaps between them, keeps matches alone, or puts a blank before a piece. */
enum { SPLIT_ISOLATED, SPLIT_MATCHES_ONLY, SPLIT_PREFIX_SPACE };

typedef struct {
    struct {
        uint32_t kind;
        void *pattern; /* of PCRE2 */
    } stages[SPLIT_MOST];
    int n;
} splitter; /* zeroed at first */

/** Adds a stage. SPLIT_PREFIX_SPACE takes no pattern: a blank before a piece that has none at its beginning.
 * TESS_E_DATA names what PCRE2 does not take, TESS_E_UNSUPPORTED that this build has no PCRE2. */
tess_status splitter_add(splitter *, uint32_t kind, const char *pattern);
void splitter_free(splitter *);

/** One thread's matching. */
typedef struct split_state split_state;
split_state *split_state_create(void); /* null without memory */
void split_state_free(split_state *);

typedef tess_status (*split_fn)(const char *word, size_t bytes, void *user);
/** Calls `fn` with each word of `text`, which is whole UTF-8, in its order. Stops at the first failure. */
tess_status split_words(const splitter *, split_state *, const char *text, size_t bytes, split_fn fn, void *user);

/** GPT-2 splits by it, and so does every ByteLevel that is told to. */
extern const char split_gpt2[];
#endif
