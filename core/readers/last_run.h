/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory that no plan has: a run leaves how much it held at most, and a plan of the same parameters says so. In
 * $XDG_CACHE_HOME/tessera, or ~/.cache/tessera, one small file for each program, by the names and shapes it declares.
 */
#ifndef TESS_LAST_RUN_H
#define TESS_LAST_RUN_H
#include "plan/plan.h"

typedef struct {
    uint64_t held_bytes; /* by rank 0, at most */
    int32_t ranks;       /* 0: no run is known */
} tess__last_run;

/** Keeps it. A folder that cannot be written is no error: the next plan then knows of no run. */
void tess__last_run_keep(const tess__model *, const tess__last_run *);
tess__last_run tess__last_run_find(const tess__model *);
#endif
