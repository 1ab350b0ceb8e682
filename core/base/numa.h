/* SPDX-License-Identifier: BSD-3-Clause */
/* Which NUMA node host memory should lie on. */
#ifndef TESS_NUMA_H
#define TESS_NUMA_H
#include <stdint.h>

/** The node nearest a device: that of the PCI address `id` ("0000:3b:00.0") where the topology knows it, else that of
 * the CPUs in `cpus` ("2,6-7"), or of those this process is bound to when `cpus` is "". -1: there is but one node, the
 * CPUs lie on several, or there is no hwloc. */
int32_t tess__numa_nearest(const char *id, const char *cpus);
/** Asks the system to take the pages of [ptr, ptr + bytes), not touched yet, from `node`. A wish: 0 when it was taken
 * up, -1 when not (no such node, no hwloc, a made-up topology). */
int tess__numa_bind(void *ptr, uint64_t bytes, int32_t node);
#endif
