/* SPDX-License-Identifier: BSD-3-Clause */
/* The collectives themselves, over a table; each runs on the worker from beginning to end. */
#ifndef SHM_OPERATIONS_H
#define SHM_OPERATIONS_H
#include "table.h"

struct shm_operations {
    struct shm_table *table;
    uint64_t calls, rounds; /* so far; the same on every rank */
};

tess_status shm_run_call(struct shm_operations *, const tess_collective *, tess_error *);
/* Only the announcements, of KIT_OP_…: returns when every rank has come here. */
tess_status shm_run_meeting(struct shm_operations *, uint32_t op, tess_error *);

/* Data that ranks read from each other, block by block. Each rank's comes directly from its memory or, where that is no
 * arena, in rounds of `chunk` bytes per block over its stage. */
struct shm_read {
    const unsigned char *at[SHM_RANKS_MAX]; /* each rank's memory; null: it stages, or has nothing */
    const unsigned char *own;               /* this rank's */
    uint64_t bytes, stride; /* of the longest block; from one reader's block to the next, 0: one block for all */
    uint64_t total;         /* bytes at `own`: blocks may end there */
    uint64_t chunk, rounds, first_round;
    int only;    /* the one rank that has data, or -1 */
    int staging; /* this rank stages */
    int any;     /* some rank does */
};

/* One collective on its way. */
struct shm_run {
    struct shm_operations *ops;
    struct shm_table *table;
    tess_collective c;
    uint64_t number;                   /* of the call */
    struct shm_read in, out;           /* out: the shards of an all_reduce's result */
    int stream;                        /* the result is far larger than the caches */
    unsigned char read[SHM_RANKS_MAX]; /* whose memory was read */
    tess_error *error;
};

/* staged_read.c */
void shm_read_plan(struct shm_read *, int size);
/* Puts this rank's part of round k on its stage; the first round may be put there before the others know of the call.
 */
tess_status shm_read_stage(struct shm_run *, struct shm_read *, uint64_t k);
/* Where bytes of round k of `peer`'s block for this rank are now, waiting for them if need be. */
tess_status shm_read_source(struct shm_run *, struct shm_read *, int peer, uint64_t k, const unsigned char **out);
/* Round k, or with k = rounds - 1 all of them, has been read here. */
void shm_read_taken(struct shm_run *, const struct shm_read *, uint64_t k);
static inline uint64_t shm_read_length(const struct shm_read *f, int owner_of_block, uint64_t k) {
    uint64_t from = f->stride * (uint64_t)owner_of_block, left = f->total > from ? f->total - from : 0;
    uint64_t block = left < f->bytes ? left : f->bytes, done = k * f->chunk;
    return done >= block ? 0 : block - done < f->chunk ? block - done : f->chunk;
}

/* reductions.c */
int shm_is_small(const tess_collective *); /* all_reduce: every rank sums everything, which saves a step */
tess_status shm_run_reduction(struct shm_run *);
#endif
