/* SPDX-License-Identifier: BSD-3-Clause */
#include "plan_alternative.h"

#include <stdlib.h>
#include <string.h>

#include "plan_time.h"
#include "tools/support/settings.h"

/* A time that cannot be told is none, not a failure. */
static void predict(const tool_planner *p, tess *t, void *state, double *seconds) {
    const machine_desc *machine = plan_time_in_use();
    plan_source source = { .t = t, .of = p->of, .is_model = p->is_model, .state = state };
    simulated_step line = { .seconds = -1 };
    if (!machine || plan_time(&source, machine, &line) != TESS_OK)
        return;
    *seconds = line.seconds;
    simulated_free(&line);
}

static tess_status measure(const tool_planner *p, int32_t ranks, uint64_t bytes[3], double *seconds) {
    tess *t = NULL;
    void *state = NULL;
    tess_stats stats = { .struct_size = sizeof stats };
    tess_status status = p->open(p->user, ranks, &t, &state);
    if (status != TESS_OK && status != TESS_E_BUDGET)
        return status;
    status = tess_stats_get(t, &stats);
    for (int d = 1; status == TESS_OK && d < 3; d++)
        bytes[d] = stats.planned_peak_bytes[d];
    bytes[0] = stats.planned_disk_peak_bytes;
    if (status == TESS_OK)
        predict(p, t, state, seconds);
    p->close(t, state);
    return status;
}

tess_status tool_plan_alternative(void *user, const tess_setting *change, uint32_t n, uint64_t bytes[3],
                                  double *seconds) {
    const tool_planner *p = user;
    int32_t ranks = p->ranks;
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(change[i].key, "ranks") == 0)
            ranks = (int32_t)strtol(change[i].value, NULL, 10);
    uint32_t mark = tool_settings_mark();
    tess_status status = TESS_OK;
    for (uint32_t i = 0; i < n && status == TESS_OK; i++)
        if (strcmp(change[i].key, "ranks") != 0)
            status = tool_settings_set(change[i].key, change[i].value);
    if (status == TESS_OK)
        status = measure(p, ranks, bytes, seconds);
    tool_settings_back(mark);
    return status;
}
