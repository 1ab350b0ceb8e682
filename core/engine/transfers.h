/* SPDX-License-Identifier: BSD-3-Clause */
/* Work beside the compute stream: its executors, and what is in flight for each group and block. */
#ifndef TESS_TRANSFERS_H
#define TESS_TRANSFERS_H
#include "runtime/executor.h"

typedef struct { /* what is in flight, per group; offload and reload per block */
    tess_request *gather, *reduce;
    uint64_t gather_seq, reduce_seq;
    int64_t gather_ns, reduce_ns;               /* with a trace: when it was posted */
    uint64_t fetched, on_host;                  /* tickets of up and down; 0: none */
    uint64_t stepped;                           /* of host */
    uint64_t offloaded[2], reloaded[2];         /* 0: the saved buffer, 1: the output */
    tess_request *staged[TESS__MAX_STATES + 1]; /* states, and the parameters, on their way from the store, or to it */
    tess_request *sums[TESS__SUM_LAST - TESS__SUM0 + 1]; /* its gradient, and partial sums of it, the same */
    int64_t staged_ns, sums_ns;                          /* with a trace: when they began */
    uint64_t stored; /* ticket of down, where a lane hands them to the store; 0: none */
} tess__in_flight;

typedef struct {
    tess__executor compute;
    tess__executor up, down;    /* to the device and from it: streams, or lanes of a device that is the host */
    tess__executor host;        /* with streams: a lane that steps the optimizer on the host, behind `down` */
    tess__pool *host_pool;      /* of the work on the host, but not of `up`: one thread copies as fast */
    tess__in_flight *in_flight; /* by group or block */
    const void **arrived;       /* by rank of a group: room for where its blocks came */
    tess_place *runs;        /* by tess__layout.order: each parameter's elements; null: no group is rounded by draws */
    tess_stream step_stream; /* the compute stream, as the optimizer plugin knows it */
    void *steps;             /* what that plugin has opened for steps there; null: it has none */
} tess__transfers;
#endif
