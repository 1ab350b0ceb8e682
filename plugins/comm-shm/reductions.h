/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHM_REDUCTIONS_H
#define SHM_REDUCTIONS_H
#include "staged_read.h"

int shm_is_small(const tess_collective *); /* all_reduce: every rank sums everything, which saves a step */
tess_status shm_run_reduction(struct shm_run *);
#endif
