/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads labelled images from IDX files such as MNIST's: DIR/PREFIX-images-idx3-ubyte and DIR/PREFIX-labels-idx1-ubyte.
 * With zlib, each may be gzipped (.gz). */
#ifndef TOOL_IDX_H
#define TOOL_IDX_H
#include <tessera/tessera.h>

enum { TOOL_IDX_SIDE = 28, TOOL_IDX_PIXELS = 28 * 28, TOOL_IDX_CLASSES = 10 };

typedef struct {
    uint64_t count;
    unsigned char *pixels; /* count x 28 x 28 */
    unsigned char *labels; /* count, each 0 … 9 */
} tool_idx;

/** Reads both files of `prefix` ("train", "t10k"). Other content gives TESS_E_DATA, with the file, the offset and the
 * expected content in the message. */
tess_status tool_idx_load(const char *dir, const char *prefix, tool_idx *out);
void tool_idx_free(tool_idx *);
#endif
