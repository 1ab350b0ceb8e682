/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks read each other's data directly from mapped memory, or in rounds over stages. */
#ifndef SHM_STAGED_READ_H
#define SHM_STAGED_READ_H
#include "table.h"

/* Data that ranks read from each other, block by block. Each rank's comes directly from its memory or, where that is no
 * arena, in rounds of `chunk` bytes per block over its stage. */
struct shm_read {
    const unsigned char *at[SHM_RANKS_MAX]; /* each rank's mapped memory; null: it stages or has no data */
    const unsigned char *own;               /* this rank's data */
    uint64_t bytes, stride; /* the longest block's size; distance between readers' blocks, 0: all read one block */
    uint64_t total;         /* bytes at `own`: blocks may end there */
    /* These are of an all_to_all_v, else null: bytes before each reader's block at `own`, with their sum; and before
     * this rank's block in each other rank's data, which is known when all have announced the call. */
    const uint64_t *before, *theirs;
    uint64_t chunk, rounds, first_round;
    int only;    /* the one rank that has data, or -1 */
    int staging; /* this rank stages */
    int any;     /* some rank does */
};

/* One collective on its way. */
struct shm_run {
    struct shm_table *table;
    tess_collective c;
    uint64_t number;                                           /* the call's sequence number */
    struct shm_read in, out;                                   /* out: the shards of an all_reduce's result */
    int stream;                                                /* the result is far larger than the caches */
    unsigned char read[SHM_RANKS_MAX];                         /* 1: this rank's memory was read, by rank */
    uint64_t before[SHM_RANKS_MAX + 1], theirs[SHM_RANKS_MAX]; /* of an all_to_all_v: as in shm_read */
    tess_error *error;
};

void shm_read_plan(struct shm_read *, int size);
/* Puts this rank's part of round k on its stage; the first round may be put there before the others know of the call.
 */
tess_status shm_read_stage(struct shm_run *, struct shm_read *, uint64_t k);
/* Waits until round k of `peer`'s block for this rank is readable, and returns its address. */
tess_status shm_read_source(struct shm_run *, struct shm_read *, int peer, uint64_t k, const unsigned char **out);
/* Every round: staged here if need be, from round `staged` on; used by `round`; given back. */
tess_status shm_read_rounds(struct shm_run *, struct shm_read *, uint64_t staged,
                            tess_status (*round)(struct shm_run *, uint64_t k));
static inline uint64_t shm_read_length(const struct shm_read *f, int owner_of_block, uint64_t k) {
    uint64_t from = f->stride * (uint64_t)owner_of_block, left = f->total > from ? f->total - from : 0;
    uint64_t block = left < f->bytes ? left : f->bytes, done = k * f->chunk;
    if (f->before)
        block = f->before[owner_of_block + 1] - f->before[owner_of_block];
    return done >= block ? 0 : block - done < f->chunk ? block - done : f->chunk;
}
#endif
