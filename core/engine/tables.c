/* SPDX-License-Identifier: BSD-3-Clause */
/* Tables by scope, parameter and group, which are made for a plan and freed with it. */
#include "state.h"

#include "base/status.h"

tess_status tess__tables_create(tess *t) {
    t->masters_changed = 1; /* they are filled for the first time */
    t->streams.late = t->plan.layout.passes > 1;
    t->graphs.on = t->streams.on && t->plan.layout.prepared_bytes > 0;
    TRY(tess__transfers_create(t));
    TRY(tess__pass_create(t));
    return tess__memory_create(&t->memory);
}

void tess__tables_destroy(tess *t) {
    tess__transfers_destroy(t);
    tess__pass_destroy(t);
    tess__segments_free(&t->step);
}
