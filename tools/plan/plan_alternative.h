/* SPDX-License-Identifier: BSD-3-Clause */
/* Planning with other options than the command's, for advice where the model has to be made anew: its scratch depends
 * on precision and threads. */
#ifndef TOOL_TRY_CHANGE_H
#define TOOL_TRY_CHANGE_H
#include <tessera/inspect.h>

/** A caller's way to plan: `open` puts an engine that was planned with plan_only into *t and returns TESS_OK or
 * TESS_E_BUDGET. `close` frees it. */
typedef struct {
    tess_status (*open)(void *user, int32_t ranks, tess **t, void **state);
    void (*close)(tess *t, void *state);
    void *user;
    int32_t ranks;    /* used if the change does not set ranks */
    uint32_t of;      /* the meaning of one step for its time: TESS_LEDGER_STEP… */
    int32_t is_model; /* `state` is a model of ours, which counts its own work */
} tool_planner;

/** A tess_plan_fn; `user` is a tool_planner. *seconds is set where a machine is described (plan_time_use). */
tess_status tool_plan_alternative(void *user, const tess_setting *, uint32_t n, uint64_t bytes[3], double *seconds);
#endif
