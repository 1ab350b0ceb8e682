/* SPDX-License-Identifier: BSD-3-Clause */
/* Documents of text, one after the other: a file is one, in a .jsonl each line's "text" is one, and a folder is its
 * files in the order of their names. A line may also be a sample: a "prompt" and a "completion". */
#ifndef TOOL_DOCUMENTS_H
#define TOOL_DOCUMENTS_H
#include <stddef.h>
#include <tessera/tessera.h>

typedef struct {
    char *text; /* null: there was none left */
    size_t bytes, prompt_bytes;
    int is_sample; /* the text is a prompt of prompt_bytes and its completion */
} document;

typedef struct documents documents;
/** The paths must outlive it. `samples`: they may be there. TESS_E_DATA names what cannot be read. */
tess_status documents_open(const char *const *paths, size_t n, int samples, documents **out);
void documents_close(documents *); /* null is fine */
/** The next one; its text is the caller's to free. TESS_E_DATA names file and line. */
tess_status documents_next(documents *, document *out);
#endif
