/* SPDX-License-Identifier: BSD-3-Clause */
/* Rows that a block keeps in shared memory while it works on them. They are read from memory once, 16 bytes per
 * load, and summed in the order of kernel_body.h's lanes. A wide kernel's room starts with three numbers per lane;
 * the rows follow. */
#ifndef TESS_MODELS_CUDA_KERNELS_TILE_H
#define TESS_MODELS_CUDA_KERNELS_TILE_H
#include "kernels_layer.h"

enum { OPS_TILE_AT = 3 * OPS_BLOCK /* doubles */, OPS_TILE_BYTES = (OPS_WIDE - OPS_TILE_AT) * (int)sizeof(double) };
/* OPS_TILE_PAD elements follow each row, so that the two rows of a warp lie in different banks. */
enum { OPS_TILE_PAD = 16 };

TESS_FN uint64_t ops_tile_pitch(uint64_t width) {
    return (width + 7) / 8 * 8 + OPS_TILE_PAD;
}
/* Returns how many rows of `bytes` per element a block can keep: a power of two, or 0. */
TESS_FN uint32_t ops_tile_rows(uint64_t width, uint64_t bytes) {
    uint32_t rows = OPS_ROWS_PER_BLOCK;
    while (rows && rows * ops_tile_pitch(width) * bytes > OPS_TILE_BYTES)
        rows /= 2;
    return rows;
}
TESS_FN void *ops_tile(double *room) {
    return room + OPS_TILE_AT;
}
/* Iterates over groups of eight elements of a block's rows; i / eights is the row in the block. */
#define OPS_TILE_EACH(i, rows_, eights) for (uint32_t i = thread; i < (rows_) * (uint32_t)(eights); i += OPS_BLOCK)
#endif
