/* SPDX-License-Identifier: BSD-3-Clause */
/* Text for byte-level models: a file, a directory of files, or the project's documentation. The last tenth is held out
 * for validation. */
#ifndef TOOL_TEXT_H
#define TOOL_TEXT_H
#include <tessera/tessera.h>

typedef struct {
    unsigned char *bytes;
    uint64_t n_bytes, n_train; /* bytes[n_train … n_bytes) is held out */
} tool_text;

/** Reads a file, or the files directly in a directory in order of their names, without hidden ones. A null `path` reads
 * the built-in documentation. Both parts must hold a window of `context` bytes and the next byte. Otherwise, and for an
 * empty text, it returns TESS_E_DATA. */
tess_status tool_text_load(const char *path, int64_t context, tool_text *out);
void tool_text_free(tool_text *);

/** Returns training window number `sample`: context + 1 bytes at a random place of the training part. It is a pure
 * function. */
const unsigned char *tool_text_train_window(const tool_text *, uint64_t seed, uint64_t sample, int64_t context);

/** Returns the number of windows in the held-out part, which do not overlap. Window i predicts bytes i*context + 1 … of
 * it. The last may be shorter: *predictions is the number of bytes that it predicts. */
uint64_t tool_text_valid_windows(const tool_text *, int64_t context);
const unsigned char *tool_text_valid_window(const tool_text *, uint64_t window, int64_t context, int64_t *predictions);
#endif
