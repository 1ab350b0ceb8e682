/* SPDX-License-Identifier: BSD-3-Clause */
/* The checks of a comm plugin share these functions. */
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

/** Returns a dtype of four bytes that the plugin can gather: i32, else f32. */
uint32_t comm_word(void);
/** Opens the plugin and queries its capabilities. */
comm_rank *comm_open(check *);
void comm_must_claim(comm_rank *, uint32_t cap, const char *name); /* skips the check if the plugin does not claim it */
const char *comm_op_name(uint32_t op);
int comm_offers(comm_rank *, uint32_t op, uint32_t dtype);
void comm_must_offer(comm_rank *, uint32_t op, uint32_t dtype);
/** Calls init for a communicator of all ranks. */
tess_status comm_init(comm_rank *, const char *group, int64_t timeout_ns, tess_comm **out, tess_error *);
/** Skips the check if the plugin offers nothing for this number of ranks. */
void comm_must_serve(comm_rank *);
void comm_join(comm_rank *);  /* sets r->comm and returns when all ranks have theirs */
void comm_leave(comm_rank *); /* calls finalize and destroy */
/** Calls finalize. Without that slot, all ranks meet instead. */
tess_status comm_finalize(comm_rank *, tess_comm *, tess_error *);
tess_status comm_health(comm_rank *, tess_error *);

/* ---- comm_staged.c: for a backend that reaches a device's memory only ---- */

/** Returns the table for the checks to use: `real`, or a table in front of it that copies between host and device. */
const tess_comm_ops *comm_staged(check *, const tess_comm_ops *real, const tess_comm_caps *);
uint32_t comm_staged_mem(void);          /* the device's kind of memory; 0: nothing is staged */
void comm_staged_memory_of(tess_comm *); /* copies then lie in that communicator's memory; null: in the device's */
void comm_staged_registered_with(tess_comm *); /* that communicator registers the copies from now on; null: none does */
const tess_comm_ops *comm_staged_real(void);   /* the plugin's own table */
tess_buffer comm_staged_obtain(uint64_t bytes);
void comm_staged_release(tess_buffer *);
void comm_staged_down(void *host, const char *there, uint64_t bytes); /* queues a copy on the device's stream */
#endif
