/* SPDX-License-Identifier: BSD-3-Clause */
/* The life of a unit in a pass: its parameters are gathered and released, its gradient is begun and reduced, and its
 * optimizer step follows. */
#ifndef TESS_COMPILE_UNITS_H
#define TESS_COMPILE_UNITS_H
#include "compile.h"

tess_status tess__unit_gather(tess__compiler *, int32_t unit);
/** Gathers a unit for a scope that is yet to come. Does nothing when a gather takes as long now as then. */
tess_status tess__unit_gather_ahead(tess__compiler *, int32_t unit);
/** Brings the unit's shard up from host memory, ahead of its gather. */
tess_status tess__unit_fetch(tess__compiler *, int32_t unit);
/** Releases a shard that was brought up and not gathered. */
tess_status tess__unit_drop(tess__compiler *, int32_t unit);
tess_status tess__unit_wait(tess__compiler *, int32_t unit);
tess_status tess__unit_release(tess__compiler *, int32_t unit);

tess_status tess__unit_begin_grad(tess__compiler *, int32_t unit, int is_untouched);
/** Where the unit is stepped within the pass: its states begin to come, beside the last backward that it has. */
tess_status tess__unit_states_ahead(tess__compiler *, int32_t unit);
/** Posts the reduction of the unit's gradient; that of the unit before it ends first. */
tess_status tess__unit_reduce(tess__compiler *, int32_t unit);
/** Waits for the reduction on its way, and for host work that the last gradient began. A shard that has replicas
 * then begins its sum among these, and the one before it ends. */
tess_status tess__unit_end_reduce(tess__compiler *);
tess_status tess__unit_end_replicate(tess__compiler *);
tess_status tess__unit_end_host_work(tess__compiler *);
/** Waits until what that work left has reached its store. */
tess_status tess__unit_end_stores(tess__compiler *);
tess_status tess__group_optimize(tess__compiler *, int32_t group);
#endif
