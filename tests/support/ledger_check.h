/* SPDX-License-Identifier: BSD-3-Clause */
/* Holds the measured ledger against the planned one, at every point of a step: by domain, by category, of the whole and
 * of the point's unit. All memory is taken in ledger_check_open, so that a step that is watched allocates nothing. */
#ifndef LEDGER_CHECK_H
#define LEDGER_CHECK_H
#include <stddef.h>
#include <tessera/inspect.h>

typedef struct {
    tess *t;
    tess_ledger_point *planned; /* the last is the peak */
    size_t n_planned, at;
    uint64_t points;               /* compared so far, peaks included */
    uint64_t outside;              /* `allocations` when the step began */
    uint64_t (*allocations)(void); /* how often Tessera's own code allocated; null: not known */
    int differ;
    uint64_t measured_peak[3];
    char first[512]; /* the first difference in words */
} ledger_check;

/** `of`: TESS_LEDGER_STEP and so on; after tess_shard. */
tess_status ledger_check_open(ledger_check *, tess *, uint32_t of, uint64_t (*allocations)(void));
void ledger_check_start(ledger_check *); /* a step, or whatever `of` is, begins now */
void ledger_check_stop(ledger_check *);  /* and has ended */
void ledger_check_close(ledger_check *);
#endif
