/* SPDX-License-Identifier: BSD-3-Clause */
/* What every rank measured, brought together: each rank's bytes against the plan, against the kernel's own figures, and
 * its parameters against rank 0's. */
#ifndef EVERY_RANK_H
#define EVERY_RANK_H
#include <stdint.h>
#include <tessera/tessera.h>

#include "tools/support/witness.h"

enum {
    EVERY_DIGEST,
    EVERY_PEAK,
    EVERY_PLANNED,
    EVERY_HOST_PEAK,
    EVERY_HOST_PLANNED,
    EVERY_MAPPED,        /* by Tessera's objects, at the system call; -1: not counted */
    EVERY_ALLOCATIONS,   /* in steps; -1: not counted */
    EVERY_BOOKS,         /* 1: categories, resting bytes and ledger are as planned */
    EVERY_SUMMONED,      /* 1: all of its own parameters are there when they are summoned */
    EVERY_MAPPED_GROWTH, /* by the kernel's figures, since before the engine was opened */
    EVERY_RESIDENT_GROWTH,
    EVERY_ANONYMOUS_GROWTH,
    EVERY_THREADS_GROWTH,
    EVERY_STATED, /* what the comm plugin says it takes of its own */
    N_EVERY
};
typedef struct {
    int64_t value[N_EVERY];
} every_rank;

/** Fills the kernel's figures: growth since `before`, which was read before tess_open. Knows nothing of the engine. */
void every_rank_witness(every_rank *mine, const tool_witness *before);
/** [C] Compares all ranks' figures; 1 when each is what it must be, else one line on stderr, from rank 0, for each that
 * is not. Mapped bytes are compared with the plan where `mapped_exact`, and growth is where `grown`. */
int every_rank_agree(tess *t, const every_rank *mine, int mapped_exact, int grown);
#endif
