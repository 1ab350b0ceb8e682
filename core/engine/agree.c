/* SPDX-License-Identifier: BSD-3-Clause */
/* tess_agree: every rank learns of one rank's error, over the control plane, so that no communicator is needed. */
#include "state.h"

#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    tess_status status;
    char message[508];
} verdict;

/* Finds the first rank with an error. The message names it, unless this rank is alone. */
static tess_status worst_of(const tess *t, verdict *all) {
    for (int32_t r = 0; r < t->comms.world.nranks; r++) {
        if (!all[r].status)
            continue;
        all[r].message[sizeof all[r].message - 1] = 0;
        if (t->comms.world.nranks == 1)
            return tess__fail(all[r].status, "%s", all[r].message);
        return tess__fail(all[r].status, "rank %d: %s", tess__comms_rank(&t->comms, r), all[r].message);
    }
    return TESS_OK;
}

tess_status tess_agree(tess *t, tess_status mine) {
    verdict own = { .status = mine };
    if (mine) /* kept before another call sets a message */
        snprintf(own.message, sizeof own.message, "%s", tess_last_error());
    tess_status s = tess__engine_check(t);
    if (s)
        return s;
    verdict *all = calloc((size_t)t->comms.world.nranks, sizeof *all);
    if (!all)
        return tess__engine_fail(t, tess__fail(TESS_E_NOMEM, "no memory to compare %d ranks", t->comms.world.nranks));
    s = tess__comms_exchange(&t->comms, "tess_agree", &own, sizeof own, all);
    s = s ? tess__engine_fail(t, s) : worst_of(t, all);
    free(all);
    return s;
}
