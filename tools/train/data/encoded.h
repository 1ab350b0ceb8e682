/* SPDX-License-Identifier: BSD-3-Clause */
/* A file of text as tokens in memory. Each document ends with the token for that. Samples are lines of JSON with a
 * "prompt" and a "completion", and only the completion's tokens are targets. */
#ifndef TOOL_ENCODED_H
#define TOOL_ENCODED_H
#include <tessera/tessera.h>

#include "tools/tokenizer/tokenizer.h"

typedef struct {
    int32_t *ids; /* with the marks of tools/models/model.h */
    uint64_t n;
    uint64_t *starts; /* for samples: where each window begins, and the end; else null */
    uint64_t windows;
    uint64_t samples, left_out; /* left_out: samples whose completion does not fit a window */
} tool_encoded;

/** Encodes a file. A window has `context` + 1 tokens. If `packs`, several documents or samples share a window, and the
 * first token of each is marked. TESS_E_DATA names file and line. */
tess_status tool_encode_file(const tokenizer *, const char *path, int64_t context, int packs, tool_encoded *out);
void tool_encoded_free(tool_encoded *);
#endif
