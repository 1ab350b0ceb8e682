/* SPDX-License-Identifier: BSD-3-Clause */
/* An offload plugin that rests all regions on the host. */
#include "faulty.h"

FAULTY_NOTE(TESS_KIND_OFFLOAD);

static tess_placement place_of(const tess_region *r) {
    tess_placement p = { .rest = TESS_REST_HOST, .align = 64, .host_bytes = r->bytes };
#ifdef FAULT_PLACE_IMPURE
    static uint64_t calls;
    p.host_bytes += calls++ % 100;
#endif
#ifdef FAULT_PINS_MORE
    p.pinned_bytes = 2 * r->bytes;
#endif
#ifdef FAULT_RESTS_ELSEWHERE
    p.rest = TESS_REST_STORE + 1;
#endif
#ifdef FAULT_RESTS_IN_NO_STORE
    p.rest = r->region == TESS_REGION_STATE ? TESS_REST_STORE : p.rest;
#endif
#ifdef FAULT_TAKES_TWICE
    p.rest = TESS_REST_DEVICE;
#endif
#ifdef FAULT_TOO_SMALL
    p.host_bytes /= 2;
#endif
#ifdef FAULT_PARTS_STATES
    if (r->region == TESS_REGION_STATE && r->index)
        p = (tess_placement){ .rest = TESS_REST_DEVICE, .align = 64 };
#endif
#ifdef FAULT_PARTS_MASTERS
    if (r->region == TESS_REGION_MASTER && r->index)
        p = (tess_placement){ .rest = TESS_REST_DEVICE, .align = 64 };
#endif
    return p;
}

static tess_status place(void *ctx, const tess_plan_env *env, const tess_region *regions, uint32_t n,
                         tess_placement *out, tess_error *e) {
    uint32_t step = n ? regions->struct_size : 0, size = n ? out->struct_size : 0;
    (void)ctx, (void)env, (void)e;
#ifdef FAULT_WALKS_BY_SIZEOF
    step = sizeof *regions;
#endif
    for (uint32_t i = 0; i < n; i++) {
        tess_placement p = place_of((const void *)((const char *)regions + (size_t)i * step));
#ifdef FAULT_PLACE_CHANGES_LATER
        static uint64_t later;
        p.host_bytes += later++ > 3 * n;
#endif
        give((char *)out + (size_t)i * size, size, &p, sizeof p);
    }
    return TESS_OK;
}

static const tess_offload_ops ops = {
    .struct_size = sizeof ops, .abi_major = TESS_ABI_MAJOR, .abi_minor = TESS_ABI_MINOR, .place = place
};

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *e) {
    if (kind != TESS_KIND_OFFLOAD)
        return failed(e, TESS_E_UNSUPPORTED, "faulty offers offload only");
    take_at_open(host);
    *out = &ops;
    *ctx = (void *)host;
    return TESS_OK;
}
