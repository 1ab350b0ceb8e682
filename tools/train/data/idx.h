/* SPDX-License-Identifier: BSD-3-Clause */
/* Labelled images in IDX files, as MNIST comes: DIR/PREFIX-images-idx3-ubyte and DIR/PREFIX-labels-idx1-ubyte, each
 * plain or, with zlib, gzipped (.gz). */
#ifndef TOOL_IDX_H
#define TOOL_IDX_H
#include <tessera/tessera.h>

enum { TOOL_IDX_SIDE = 28, TOOL_IDX_PIXELS = 28 * 28, TOOL_IDX_CLASSES = 10 };

typedef struct {
    uint64_t count;
    unsigned char *pixels; /* count x 28 x 28 */
    unsigned char *labels; /* count, each 0 … 9 */
} tool_idx;

/** Reads both files of `prefix` ("train", "t10k"). TESS_E_DATA for anything but exactly such files; the message has the
 * file, the offset and what was expected there. */
tess_status tool_idx_load(const char *dir, const char *prefix, tool_idx *out);
void tool_idx_free(tool_idx *);
#endif
