/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks of comm-nccl as processes with a host of the test's own: test_nccl_faults_doubles. */
#ifndef TESSERA_FAULT_RANKS_H
#define TESSERA_FAULT_RANKS_H
#include <stdatomic.h>
#include <stdint.h>

enum { RANKS = 3, DONE = 0, TOLD = 5, LEFT_BEHIND = 55 };
#define A_SECOND INT64_C(1000000000)
#define LONG_NS (30 * A_SECOND) /* what a rank waits at most; a run takes some hundredths of a second */

struct fault_shared {
    char said[RANKS][400];
    struct {
        atomic_int steps;          /* that have ended */
        _Atomic(const char *) now; /* the slot that was called last */
    } at[RANKS];
};
extern struct fault_shared *shared;
extern int nranks;

/* Before all else; 0 when there is no memory to share. */
int fault_ranks_open(void);
/* In this process, as rank 0: DONE, TOLD or something worse. PLUGIN names comm-nccl. */
int be_a_rank(void);
/* Every rank ends by itself, soon, with one of the codes that a rank may have; else the test fails and says of each
 * rank what became of it. */
void run_ranks(const char *what, int codes[RANKS]);
#endif
