/* What the kit's two files share. */
#ifndef TESS_COMM_KIT_INTERNAL_H
#define TESS_COMM_KIT_INTERNAL_H
#include "comm_kit.h"

/* What every rank tells every other before a collective: equal on all of them, or it is an error of all. */
typedef struct {
    uint32_t op, redop, send_dtype, recv_dtype, flags;
    int32_t root;
    uint64_t count, tag, seq;
    double scale;
} kit_header;
enum { KIT_FINALIZE = 100, KIT_SPLIT = 101 }; /* operations of the kit's own */
enum { KIT_SMALL_BYTES = 4096 };              /* a contribution up to this needs no scratch */

typedef struct { /* the ranks of one communicator, as the worker sees them */
    const kit_link_ops *link;
    kit_link *at;
    int32_t rank, nranks;
    kit_header *headers; /* [nranks], what the others said */
    const void **out;    /* [nranks] each, for exchange and the sums */
    void **in;
    uint64_t *came;
    void *small; /* [nranks] contributions of KIT_SMALL_BYTES */
} kit_world;

/** Whether the collective can be done: null `world` asks only what does not depend on pointers (need). */
tess_status kit_check(const kit_link_ops *, const tess_collective *, const kit_world *world, int32_t nranks,
                      tess_error *);
/** Scratch that the collective needs on `nranks` ranks. */
uint64_t kit_scratch_bytes(const tess_collective *, int32_t nranks);
/** Compares `mine` with what all ranks say: TESS_E_MISMATCH names the first that differs. Blocking. */
tess_status kit_agree(kit_world *, const kit_header *mine, tess_error *);
/** One collective that kit_check accepted. Blocking. */
tess_status kit_run(kit_world *, const tess_collective *, tess_error *);
#endif
