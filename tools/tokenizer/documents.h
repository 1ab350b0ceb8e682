/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads documents one after the other. A file is one document, but each line of a .jsonl file is one, its "text". A
 * folder's files come in order of their names. A line may also be a sample with a "prompt" and a "completion". */
#ifndef TOOL_DOCUMENTS_H
#define TOOL_DOCUMENTS_H
#include <stddef.h>
#include <tessera/tessera.h>

typedef struct {
    char *text; /* null after the last document */
    size_t bytes, prompt_bytes;
    int is_sample; /* text is a prompt of prompt_bytes, then its completion */
} document;

typedef struct documents documents;
/** The paths must outlive it. documents_next refuses samples unless `samples` is set. TESS_E_DATA names the path that
 * cannot be read. */
tess_status documents_open(const char *const *paths, size_t n, int samples, documents **out);
void documents_close(documents *); /* null is fine */
/** Reads the next document. The caller frees its text. TESS_E_DATA names file and line. */
tess_status documents_next(documents *, document *out);
#endif
