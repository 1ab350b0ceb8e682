/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared by the kit's two files. */
#ifndef TESS_COMM_KIT_INTERNAL_H
#define TESS_COMM_KIT_INTERNAL_H
#include "collective.h"
#include "comm_kit.h"

enum { KIT_SMALL_BYTES = 4096 }; /* a contribution up to this needs no scratch */

typedef struct { /* the ranks of one communicator, as the worker sees them */
    const kit_link_ops *link;
    kit_link *at;
    int32_t rank, nranks;
    kit_announcement *announced; /* [nranks], by the others */
    const void **out;            /* [nranks] each, for exchange and the sums */
    void **in;
    uint64_t *came;
    void *small; /* [nranks] contributions of KIT_SMALL_BYTES */
} kit_world;

/** Scratch that the collective needs on `nranks` ranks. */
uint64_t kit_scratch_bytes(const tess_collective *, int32_t nranks);
/** Compares `mine` with what all ranks announce: TESS_E_MISMATCH names the first that differs. Blocking. */
tess_status kit_agree(kit_world *, const kit_announcement *mine, tess_error *);
/** One collective that kit_check_call accepted. Blocking. */
tess_status kit_run(kit_world *, const tess_collective *, tess_error *);
#endif
