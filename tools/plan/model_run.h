/* SPDX-License-Identifier: BSD-3-Clause */
/* A reference model and the engine that runs it, by the settings of the command: for a run, and for a plan of one. */
#ifndef TOOL_MODEL_RUN_H
#define TOOL_MODEL_RUN_H
#include "model_settings.h"
#include "plan_alternative.h"
#include "tools/models/model.h"

/** Makes the model. Its threads are this rank's share of the cores when `local` ranks are on this host; 0: as many as
 * the environment says. *how: the options that made it. */
tess_status model_run_make(const train_settings *, int32_t local, model_options *how, model **m);
/** Opens the engine, and makes the model anew when the engine's precision or device asks for it. `plan_ranks`: 0, or
 * for how many ranks to plan only. `planner` lives as long as the engine. */
tess_status model_run_open(const train_settings *, int32_t plan_ranks, tool_planner *planner, model_options *how,
                           model **m, tess **t);
/** Plans the run for `ranks` ranks: an engine to read, with the model it was made for. TESS_E_BUDGET leaves both too.
 */
tess_status model_run_plan(const train_settings *, int32_t ranks, tess **, model **);
#endif
