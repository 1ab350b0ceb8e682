/* SPDX-License-Identifier: BSD-3-Clause */
#include "world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/control/control.h"
#include "say.h"

tess_status tool_world_read(tool_world *out) {
    tess__world world;
    TRY(tess__world_from_env(&world));
    *out = (tool_world){ world.rank, world.nranks, world.local_nranks };
    return TESS_OK;
}

struct tool_meeting {
    tess__control *control;
    char *all; /* one byte for each rank; null if there is one rank */
    int32_t n;
};

tess_status tool_meeting_open(tool_meeting **out) {
    tess__world world;
    tess_status status = tess__world_from_env(&world);
    if (status != TESS_OK)
        return status;
    tool_meeting *m = calloc(1, sizeof *m);
    if (m && world.nranks > 1)
        m->all = calloc((size_t)world.nranks, 1);
    if (!m || (world.nranks > 1 && !m->all))
        status = tess_fail(TESS_E_NOMEM, "no memory to meet %d ranks", (int)world.nranks);
    else if (m->all)
        status = tess__control_open(&world, &m->control);
    if (status == TESS_OK)
        *out = m;
    else
        tool_meeting_close(m, 0);
    return status;
}

tess_status tool_meeting_wait(tool_meeting *m) {
    char key[32], mine = 0;
    if (!m->all)
        return TESS_OK;
    snprintf(key, sizeof key, "meeting/%d", (int)m->n++);
    return tess__control_exchange(m->control, key, &mine, 1, m->all);
}

void tool_meeting_close(tool_meeting *m, int orderly) {
    if (!m)
        return;
    tess__control_close(m->control, orderly);
    free(m->all);
    free(m);
}

int tool_serves_ranks(const char *thread) {
    return strcmp(thread, TESS__KV_SERVER_THREAD) == 0;
}
