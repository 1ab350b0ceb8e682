/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared by the checks of a comm plugin. */
#ifndef TESSERA_CHECK_COMM_H
#define TESSERA_CHECK_COMM_H
#include "check.h"

typedef struct {
    check *c;
    int rank, nranks;
    const tess_comm_ops *ops;
    void *ctx;
    tess_comm *comm; /* communicator of all ranks; null until comm_join */
    tess_comm_caps caps;
} comm_rank;

/** A dtype of four bytes that can be gathered: i32, else f32. */
uint32_t comm_word(void);
/** Opens the plugin and queries its capabilities. */
comm_rank *comm_open(check *);
void comm_must_claim(comm_rank *, uint32_t cap, const char *name); /* if not, the check is skipped */
const char *comm_op_name(uint32_t op);
int comm_offers(comm_rank *, uint32_t op, uint32_t dtype);
void comm_must_offer(comm_rank *, uint32_t op, uint32_t dtype);
/** init of a communicator of all ranks. */
tess_status comm_init(comm_rank *, const char *group, int64_t timeout_ns, tess_comm **out, tess_error *);
/** Skips the case where the plugin offers nothing for this many ranks. */
void comm_must_serve(comm_rank *);
void comm_join(comm_rank *);  /* the same, into r->comm; returns when all have it */
void comm_leave(comm_rank *); /* finalize and destroy */
/** finalize, or what stands for it. */
tess_status comm_finalize(comm_rank *, tess_comm *, tess_error *);
tess_status comm_health(comm_rank *, tess_error *);

/* ---- comm_staged.c: a backend that reaches a device's memory only ---- */

/** The table to go on with: `real`, or one in front of it that copies between the host and the device of this rank. */
const tess_comm_ops *comm_staged(check *, const tess_comm_ops *real, const tess_comm_caps *);
uint32_t comm_staged_mem(void);          /* the device's kind; 0: nothing is staged */
void comm_staged_memory_of(tess_comm *); /* copies lie in memory of that communicator from now on; null: the device's */
void comm_staged_registered_with(tess_comm *); /* and are registered with it; null: not */
const tess_comm_ops *comm_staged_real(void);   /* the plugin's own table */
tess_buffer comm_staged_obtain(uint64_t bytes);
void comm_staged_release(tess_buffer *);
void comm_staged_down(void *host, const char *there, uint64_t bytes); /* enqueued on the device's stream */
#endif
