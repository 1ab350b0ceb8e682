/* SPDX-License-Identifier: BSD-3-Clause */
/* A run settles in a directory: from then on only its own past and its own steps are there. So whoever goes on from
 * the directory goes on with this run. */
#ifndef TESS_SETTLE_H
#define TESS_SETTLE_H
#include "store.h"

typedef struct {
    tess__lineage
        of; /* n 0: a run from its beginning; until it settles, the last run ends at the step that was loaded */
    uint64_t passed; /* a newer step of it that did not load; 0: none */
    int settled;
} tess__past;

/** [leader] TESS_E_DATA, and nothing is changed, when checkpoints are there that this run does not go on from: steps
 * newer than its beginning, or of another run. With `aside` they are moved to a folder in it. */
tess_status tess__store_settle(const tess__store *, tess__past *, int aside);
#endif
