/* SPDX-License-Identifier: BSD-3-Clause */
/* Documents of text, one after the other: a file is one, in a .jsonl each line's "text" is one, and a folder is its
 * files in the order of their names. */
#ifndef TOOL_DOCUMENTS_H
#define TOOL_DOCUMENTS_H
#include <stddef.h>
#include <tessera/tessera.h>

typedef struct documents documents;
/** The paths must outlive it. TESS_E_DATA names what cannot be read. */
tess_status documents_open(const char *const *paths, size_t n, documents **out);
void documents_close(documents *); /* null is fine */
/** The next one; *text is null after the last, else the caller's to free. TESS_E_DATA names file and line. */
tess_status documents_next(documents *, char **text, size_t *bytes);
#endif
