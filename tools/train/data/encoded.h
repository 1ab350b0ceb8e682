/* SPDX-License-Identifier: BSD-3-Clause */
/* A file of text as tokens in memory. Documents follow one another, each with the token that ends it. Samples are lines
 * of JSON with a "prompt" and a "completion": only the completion's tokens are targets. */
#ifndef TOOL_ENCODED_H
#define TOOL_ENCODED_H
#include <tessera/tessera.h>

#include "tools/tokenizer/tokenizer.h"

typedef struct {
    int32_t *ids; /* marked as a batch's: tools/models/model.h */
    uint64_t n;
    uint64_t *starts; /* samples: of each window, and behind the last one; else null */
    uint64_t windows;
    uint64_t samples, left_out; /* left_out: samples whose completion does not fit a window */
} tool_encoded;

/** `context`: a window has one token more. `packs`: several documents, or samples, share one, and each has its first
 * token marked. TESS_E_DATA names file and line. */
tess_status tool_encode_file(const tokenizer *, const char *path, int64_t context, int packs, tool_encoded *out);
void tool_encoded_free(tool_encoded *);
#endif
