/* SPDX-License-Identifier: BSD-3-Clause */
/* This rank's share of a checkpoint: the pieces of parameters, states and buffers that it saves, and where they
 * lie. Replicas of a shard divide it between them. */
#ifndef TESS_SHARD_PIECES_H
#define TESS_SHARD_PIECES_H
#include "checkpoint/safetensors.h"
#include "engine/state.h"

typedef struct {
    const char *at;
    uint64_t bytes;
    uint32_t mem;
    int stays; /* nothing writes it while training goes on, and the host can read it there */
} tess__shard_piece;

typedef struct {
    tess__tensor *tensors; /* in the file's order */
    tess__shard_piece *pieces;
    uint64_t n, capacity, bytes; /* bytes: of all data */
} tess__shard_pieces;

/** With `base_apart` without frozen parameters. The program's bytes are copied before the pieces are used, and then lie
 * in host memory. */
tess_status tess__shard_pieces_find(const tess *, int base_apart, const void *common, uint64_t common_bytes,
                                    const void *own, uint64_t own_bytes, tess__shard_pieces *out);
/** Whether a parameter is left out then. */
int tess__is_of_base(const tess *, int32_t param);
void tess__shard_pieces_free(tess__shard_pieces *);
#endif
