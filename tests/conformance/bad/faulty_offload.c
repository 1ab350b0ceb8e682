/* SPDX-License-Identifier: BSD-3-Clause */
/* An offload plugin that rests all regions on the host, but the states, which rest in a store that is memory, too. */
#include "faulty.h"
#include <stdlib.h>
#include <unistd.h>

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
    p.rest = r->region == TESS_REGION_STATE && p.rest == TESS_REST_HOST ? TESS_REST_STORE : p.rest;
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

/* Requests are done by who waits for them. */
enum { MOST = 64 };
struct tess_request {
    int taken;
    tess_store_io io;
};
struct tess_store {
    char *bytes, *known;
    uint64_t known_bytes;
    tess_store_io last;
    tess_request request[MOST];
};

static tess_status store_open(void *ctx, const tess_store_config *config, tess_store **out, uint64_t *obtained,
                              tess_error *e) {
    tess_store *x = calloc(1, sizeof *x);
    (void)ctx;
    if (!x || !(x->bytes = calloc(1, config->bytes + 64))) {
        free(x);
        return failed(e, TESS_E_NOMEM, "no memory for a store");
    }
#ifdef FAULT_STORE_NOT_ZERO
    x->bytes[4711] = 1;
#endif
    *obtained = config->bytes;
    *out = x;
    return TESS_OK;
}

static tess_status store_post(tess_store *x, const tess_store_io *io, tess_request **out, tess_error *e) {
    tess_store_io now = *io;
#ifdef FAULT_STORE_OF_ONE_THREAD
    x->last = *io;
    usleep(500);
    now = x->last;
#endif
#ifdef FAULT_STORE_KNOWS_NO_OTHER
    char *memory = io->memory;
    if (x->known && (memory < x->known || memory + io->bytes > x->known + x->known_bytes))
        now.memory = x->known;
#endif
#ifdef FAULT_STORE_IN_WORDS
    now.bytes = now.bytes / 8 * 8;
#endif
    for (int i = 0; i < MOST; i++)
        if (!__atomic_exchange_n(&x->request[i].taken, 1, __ATOMIC_ACQ_REL)) {
            x->request[i].io = now;
            *out = &x->request[i];
            return TESS_OK;
        }
    return failed(e, TESS_E_NOMEM, "more than %d requests", MOST);
}

static tess_status store_wait(tess_store *x, tess_request *r, tess_error *e) {
    (void)e;
    char *at = x->bytes + r->io.at;
#ifdef FAULT_STORE_FORGETS_OFFSET
    at = x->bytes + r->io.at % (4 << 20);
#endif
    if (r->io.op == TESS_STORE_READ)
        memcpy(r->io.memory, at, r->io.bytes);
    else
        memcpy(at, r->io.memory, r->io.bytes);
    __atomic_store_n(&r->taken, 0, __ATOMIC_RELEASE);
    return TESS_OK;
}

static void store_close(tess_store *x) {
    free(x->bytes);
    free(x);
}

static tess_status store_register(tess_store *x, void *memory, uint64_t bytes, tess_error *e) {
    (void)e;
    x->known = memory, x->known_bytes = bytes;
    return TESS_OK;
}

static void store_deregister(tess_store *x) {
    x->known = NULL;
}

static const tess_offload_ops ops = { .struct_size = sizeof ops,
                                      .abi_major = TESS_ABI_MAJOR,
                                      .abi_minor = TESS_ABI_MINOR,
#ifndef FAULT_RESTS_IN_NO_STORE
                                      .store_open = store_open,
                                      .store_post = store_post,
                                      .store_wait = store_wait,
                                      .store_close = store_close,
                                      .store_register = store_register,
                                      .store_deregister = store_deregister,
#endif
                                      .place = place };

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *e) {
    if (kind != TESS_KIND_OFFLOAD)
        return failed(e, TESS_E_UNSUPPORTED, "faulty offers offload only");
    take_at_open(host);
    *out = &ops;
    *ctx = (void *)host;
    return TESS_OK;
}
