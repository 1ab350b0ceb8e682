/* SPDX-License-Identifier: BSD-3-Clause */
/* The table of services that one plugin receives. */
#ifndef TESS_PLUGIN_HOST_H
#define TESS_PLUGIN_HOST_H
#include <tessera/tessera.h>

/** A copy of `services` (null: none) with `args`, which must outlive it. What it lacks gets a default: log and option
 * of the core, plain memory, no key-value store (TESS_E_UNSUPPORTED), never aborting, the profiler's library; but
 * nothing that opens plugins, which tess__plugin_services (open.h) adds. Null without memory; free() it.
 */
tess_host *tess__plugin_host_new(const tess_host *services, const char *args);

/** The library of a profiler that takes NVTX ranges; null: none listens. */
const char *tess__plugin_host_profiler(void);
/** The default of a missing slot. */
extern const tess_host tess__host_defaults;
#endif
