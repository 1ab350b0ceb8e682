/* SPDX-License-Identifier: BSD-3-Clause */
/* Which plugin comm=auto means. */
#ifndef TESS_COMM_CHOICE_H
#define TESS_COMM_CHOICE_H
#include "open.h"

/** Opens the usable comm plugin that serves these ranks and this device's memory and gathers 16 MiB in the least
 * time. A plugin names its own `cost`; one that names none counts as over a network of 1 GB/s per host. Equal ones go
 * by name. `services` as in tess__plugin_open. TESS_E_INVALID: there is none. */
tess_status tess__comm_choose(const tess_host *services, const tess_plan_env *, tess__plugin **out);
#endif
