/* SPDX-License-Identifier: BSD-3-Clause */
/* Work beside the engine's thread: lanes of the host, and what is in flight for each group and block. */
#ifndef TESS_TRANSFERS_H
#define TESS_TRANSFERS_H
#include "base/pool.h"
#include "runtime/lane.h"

typedef struct { /* what is in flight, per group; offload and reload per block */
    tess_request *gather, *reduce;
    uint64_t gather_seq, reduce_seq;
    int64_t gather_ns, reduce_ns;       /* with a trace: when it was posted */
    uint64_t fetched, on_host;          /* tickets of the lanes (or streams) up and down; 0: none */
    uint64_t stepped;                   /* with streams: ticket of the lane, which steps on the host */
    uint64_t offloaded[2], reloaded[2]; /* 0: the saved buffer, 1: the output */
} tess__in_flight;

typedef struct {
    tess__lane *up, *down;      /* null when nothing ever moves; with streams, `down` steps on the host only */
    tess__pool *host_pool;      /* of the work on the lane down */
    tess__in_flight *in_flight; /* by group or block */
} tess__transfers;
#endif
