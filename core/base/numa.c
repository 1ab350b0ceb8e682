/* SPDX-License-Identifier: BSD-3-Clause */
#include "numa.h"

#ifdef TESSERA_HAVE_HWLOC
#include <hwloc.h>

/* Opens the topology, with PCI devices only when one is looked for: their discovery is slow and opens libraries of
 * its own. */
static int open_topology(hwloc_topology_t *out, int with_pci) {
    if (hwloc_topology_init(out) != 0)
        return -1;
    if (with_pci)
        hwloc_topology_set_type_filter(*out, HWLOC_OBJ_PCI_DEVICE, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (hwloc_topology_load(*out) == 0)
        return 0;
    hwloc_topology_destroy(*out);
    return -1;
}

/* Finds the CPUs that matter: near the device, or named, or those we may run on. */
static int find_cpus(hwloc_topology_t t, const char *id, const char *cpus, hwloc_bitmap_t out) {
    hwloc_obj_t device = id && *id ? hwloc_get_pcidev_by_busidstring(t, id) : NULL;
    hwloc_obj_t near = device ? hwloc_get_non_io_ancestor_obj(t, device) : NULL;
    if (near)
        return hwloc_bitmap_copy(out, near->cpuset);
    if (cpus && *cpus)
        return hwloc_bitmap_list_sscanf(out, cpus);
    if (hwloc_topology_is_thissystem(t) && hwloc_get_cpubind(t, out, HWLOC_CPUBIND_PROCESS) == 0)
        return 0;
    return hwloc_bitmap_copy(out, hwloc_topology_get_allowed_cpuset(t));
}

/* Finds the one node whose CPUs hold all of `cpus`; none when they lie on several. */
static int32_t node_of(hwloc_topology_t t, hwloc_const_bitmap_t cpus) {
    hwloc_obj_t node = NULL;
    if (hwloc_bitmap_iszero(cpus))
        return -1;
    while ((node = hwloc_get_next_obj_by_type(t, HWLOC_OBJ_NUMANODE, node)))
        if (hwloc_bitmap_isincluded(cpus, node->cpuset))
            return (int32_t)node->os_index;
    return -1;
}

int32_t tess__numa_nearest(const char *id, const char *cpus) {
    hwloc_topology_t t;
    int32_t node = -1;
    if (open_topology(&t, id && *id) != 0)
        return -1;
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    if (set && hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_NUMANODE) > 1 && find_cpus(t, id, cpus, set) == 0)
        node = node_of(t, set);
    hwloc_bitmap_free(set);
    hwloc_topology_destroy(t);
    return node;
}

int tess__numa_bind(void *ptr, uint64_t bytes, int32_t node) {
    hwloc_topology_t t;
    int result = -1;
    if (node < 0 || open_topology(&t, 0) != 0)
        return -1;
    hwloc_obj_t object = hwloc_get_numanode_obj_by_os_index(t, (unsigned)node);
    if (object && hwloc_topology_is_thissystem(t))
        result = hwloc_set_area_membind(t, ptr, bytes, object->nodeset, HWLOC_MEMBIND_BIND,
                                        HWLOC_MEMBIND_BYNODESET | HWLOC_MEMBIND_NOCPUBIND);
    hwloc_topology_destroy(t);
    return result == 0 ? 0 : -1;
}

#else

int32_t tess__numa_nearest(const char *id, const char *cpus) {
    (void)id, (void)cpus;
    return -1;
}

int tess__numa_bind(void *ptr, uint64_t bytes, int32_t node) {
    (void)ptr, (void)bytes, (void)node;
    return -1;
}
#endif
