/* SPDX-License-Identifier: BSD-3-Clause */
#include "binding.h"

#include <string.h>

/* ---- with hwloc --------------------------------------------------------------------------------- */

#ifdef TESSERA_HAVE_HWLOC
#include <hwloc.h>

typedef struct {
    hwloc_topology_t topology;
    hwloc_bitmap_t allowed;
    int real;
} machine;

static int open_machine(machine *m) {
    if (hwloc_topology_init(&m->topology) != 0)
        return -1;
    m->allowed = hwloc_bitmap_alloc();
    hwloc_bitmap_t bound = hwloc_bitmap_alloc();
    int failed = !m->allowed || !bound || hwloc_topology_load(m->topology) != 0;
    if (!failed) {
        m->real = hwloc_topology_is_thissystem(m->topology);
        hwloc_bitmap_copy(m->allowed, hwloc_topology_get_allowed_cpuset(m->topology));
        if (m->real && hwloc_get_cpubind(m->topology, bound, HWLOC_CPUBIND_PROCESS) == 0)
            hwloc_bitmap_and(m->allowed, m->allowed, bound);
    }
    hwloc_bitmap_free(bound);
    if (!failed)
        return 0;
    hwloc_bitmap_free(m->allowed);
    hwloc_topology_destroy(m->topology);
    return -1;
}

static void close_machine(machine *m) {
    hwloc_bitmap_free(m->allowed);
    hwloc_topology_destroy(m->topology);
}

/* Cores are counted along the topology, so neighbours share caches and memory. */
static hwloc_obj_t next_core(const machine *m, hwloc_obj_t core) {
    do
        core = hwloc_get_next_obj_by_type(m->topology, HWLOC_OBJ_CORE, core);
    while (core && !hwloc_bitmap_intersects(core->cpuset, m->allowed));
    return core;
}

static int32_t count_cores(const machine *m) {
    int32_t n = 0;
    for (hwloc_obj_t core = next_core(m, NULL); core; core = next_core(m, core))
        n++;
    return n;
}

int32_t launch_binding_cores(void) {
    machine m;
    if (open_machine(&m) != 0)
        return 1;
    int32_t n = count_cores(&m);
    close_machine(&m);
    return n > 0 ? n : 1;
}

/* 0, or -1 when a CPU's number is beyond what sched_setaffinity's set holds. */
static int write_binding(hwloc_const_bitmap_t cpus, launch_binding *out) {
    CPU_ZERO(&out->set);
    if (hwloc_bitmap_list_snprintf(out->list, sizeof out->list, cpus) >= (int)sizeof out->list)
        return -1;
    unsigned cpu;
    hwloc_bitmap_foreach_begin(cpu, cpus) {
        if (cpu >= CPU_SETSIZE)
            return -1;
        CPU_SET(cpu, &out->set);
    }
    hwloc_bitmap_foreach_end();
    return 0;
}

static int32_t split(const machine *m, int32_t ranks, launch_binding *out) {
    int32_t each = count_cores(m) / ranks;
    hwloc_obj_t core = NULL;
    hwloc_bitmap_t cpus = hwloc_bitmap_alloc();
    for (int32_t r = 0; r < ranks && each > 0 && cpus; r++) {
        hwloc_bitmap_zero(cpus);
        for (int32_t i = 0; i < each; i++) {
            core = next_core(m, core);
            hwloc_bitmap_or(cpus, cpus, core->cpuset);
        }
        hwloc_bitmap_and(cpus, cpus, m->allowed);
        if (write_binding(cpus, &out[r]) != 0)
            each = 0;
    }
    each = cpus ? each : 0;
    hwloc_bitmap_free(cpus);
    return each;
}

int32_t launch_binding_split(int32_t ranks, launch_binding *out, int *real) {
    machine m;
    if (ranks < 1 || open_machine(&m) != 0)
        return 0;
    int32_t each = split(&m, ranks, out);
    *real = m.real;
    close_machine(&m);
    return each;
}

/* ---- without ------------------------------------------------------------------------------------ */
#else

int32_t launch_binding_cores(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    return CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
}

int32_t launch_binding_split(int32_t ranks, launch_binding *out, int *real) {
    (void)ranks;
    (void)out;
    (void)real;
    return 0; /* the system does not tell which CPUs share a core */
}
#endif
