/* SPDX-License-Identifier: BSD-3-Clause */
/* Divides the cores of this host among its ranks. */
#ifndef TESS_BINDING_H
#define TESS_BINDING_H
#include <sched.h>
#include <stdint.h>

enum { TESS__BINDING_TEXT = 256 };
typedef struct {
    char list[TESS__BINDING_TEXT]; /* "0-1,8-9" */
    cpu_set_t set;
} launch_binding;

/** The cores this process may run on; 1 when that cannot be found out. */
int32_t launch_binding_cores(void);
/** Splits those cores, neighbours together, into `ranks` disjoint sets of the same number of cores (all their hardware
 * threads). Returns the cores per rank, or 0 and nothing written: more ranks than cores, or no hwloc. *real is 0 when
 * the topology is made up (HWLOC_SYNTHETIC) and must not be bound to. */
int32_t launch_binding_split(int32_t ranks, launch_binding *out, int *real);
#endif
