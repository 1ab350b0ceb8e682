/* SPDX-License-Identifier: BSD-3-Clause */
/* Records of a running engine: spans for tess_trace, points for the ledger. */
#ifndef TESS_RECORDER_H
#define TESS_RECORDER_H
#include "runtime/timeline.h"
#include <tessera/inspect.h>

typedef struct { /* where a span begins */
    int64_t ns;
    tess__timed *timed; /* null: by the host's clock */
} tess__mark;

typedef struct {
    tess__trace *trace;      /* null: not recorded */
    tess__timeline timeline; /* of a device with streams */
    tess__mark *entered;     /* with a trace: by scope, forward at 2 * scope, backward at 2 * scope + 1 */
    int64_t comm_end_ns;     /* of the collective that ended last */
    int32_t next_point;      /* in the running program */
    tess_ledger_fn ledger_hook;
    void *ledger_user;
} tess__recorder;

typedef struct { /* saved observers: trace, timeline, ledger hook */
    tess__trace *trace, *timeline_trace;
    tess_ledger_fn ledger_hook;
} tess__watchers;
#endif
