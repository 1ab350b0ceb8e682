/* SPDX-License-Identifier: BSD-3-Clause */
/* Text for byte-level models: a file, a directory of files, or the project's own documentation. The last tenth is held
 * out for validation. */
#ifndef TOOL_TEXT_H
#define TOOL_TEXT_H
#include <tessera/tessera.h>

typedef struct {
    unsigned char *bytes;
    uint64_t n_bytes, n_train; /* bytes[n_train … n_bytes) is held out */
} tool_text;

/** Reads a file, or the files directly in a directory in the order of their names (hidden ones and folders are passed
 * over). `path` null: the documentation this build contains. `context`: the text must have a window of that many bytes
 * and its successor in both parts. TESS_E_DATA, also when the text is empty. */
tess_status tool_text_load(const char *path, int64_t context, tool_text *out);
void tool_text_free(tool_text *);

/** Training window number `sample`: context + 1 bytes at a random place of the training part. A pure function. */
const unsigned char *tool_text_train_window(const tool_text *, uint64_t seed, uint64_t sample, int64_t context);

/** The held-out part in windows that do not overlap: window i predicts bytes i*context + 1 … of it. The last one may be
 * shorter: *predictions is the number of bytes it predicts (context, or fewer). */
uint64_t tool_text_valid_windows(const tool_text *, int64_t context);
const unsigned char *tool_text_valid_window(const tool_text *, uint64_t window, int64_t context, int64_t *predictions);
#endif
