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
/* Exchanges announcements of KIT_OP_… alone; returns when every rank has called it. */
tess_status shm_run_meeting(struct shm_operations *, uint32_t op, tess_error *);
#endif
