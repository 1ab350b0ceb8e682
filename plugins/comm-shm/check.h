/* What a call may look like, and the sizes that every rank computes alike. */
#ifndef SHM_CHECK_H
#define SHM_CHECK_H
#include "failure.h"

enum { SHM_ADD = 1 /* tess_collective.flags: add to recv */ };

/* TESS_OK, or what is wrong with the call on `rank` of `size`; rank -1 when planning: pointers are not looked at. */
tess_status shm_check(const tess_collective *, int rank, int size, struct shm_failure *);

/* The call as far as its struct_size goes, recv_dtype and scale filled in where they may be left out. */
tess_collective shm_take_call(const tess_collective *, uint32_t struct_size);

static inline int shm_reduces(const tess_collective *c) {
    return c->op == TESS_REDUCE_SCATTER || c->op == TESS_ALL_REDUCE;
}
/* Bytes of one rank's block, or of the whole for broadcast and all_reduce. */
uint64_t shm_bytes(const tess_collective *);
/* Elements of the largest shard of a reduction; all_reduce cuts its buffer on 64-element boundaries. */
uint64_t shm_shard_elems(const tess_collective *, int size);
#endif
