/* SPDX-License-Identifier: BSD-3-Clause */
/* comm=auto: which plugin it is. */
#ifndef TESS_COMM_CHOICE_H
#define TESS_COMM_CHOICE_H
#include "open.h"

/** The usable comm plugin that serves these ranks and this device's memory with the least time for gathering 16 MiB, by
 * its own `cost` or, without one, as over a network of 1 GB/s per host; the first by name when equal. `services` as in
 * tess__plugin_open. TESS_E_INVALID: there is none. */
tess_status tess__comm_choose(const tess_host *services, const tess_plan_env *, tess__plugin **out);
#endif
