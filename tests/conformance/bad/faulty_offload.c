/* SPDX-License-Identifier: BSD-3-Clause */
/* An offload plugin that keeps all regions itself, in memory from the host table. */
#include <stdatomic.h>
#include <stdlib.h>

#include "core/kernels/kernels.h"
#include "faulty.h"

FAULTY_NOTE(TESS_KIND_OFFLOAD);

typedef struct kept {
    struct kept *next;
    const tess_region *region;
    unsigned char *bytes;
} kept;
struct tess_offload {
    const tess_host *host;
    kept *first;
    atomic_int aborted;
};
struct tess_request {
    tess_status status;
};

static tess_status place(void *ctx, const tess_plan_env *env, const tess_region *regions, uint32_t n,
                         tess_placement *out, tess_error *e) {
    uint32_t step = n ? regions->struct_size : 0, size = n ? out->struct_size : 0;
    (void)ctx, (void)env, (void)e;
    for (uint32_t i = 0; i < n; i++) {
        const tess_region *r = (const void *)((const char *)regions + (size_t)i * step);
        tess_placement p = { .rest = TESS_REST_PLUGIN, .align = 64, .host_bytes = r->bytes };
#ifdef FAULT_STATES_HALF
        p.host_bytes /= 2;
#endif
#ifdef FAULT_PLACE_IMPURE
        static uint64_t calls;
        p.storage_bytes += calls++ % 100;
#endif
#ifdef FAULT_PLACE_CHANGES_LATER
        static uint64_t later;
        p.storage_bytes += later++ > 3 * n;
#endif
        if (r->region == TESS_REGION_ACTIVATION)
            p = (tess_placement){ .rest = TESS_REST_HOST, .align = 64, .host_bytes = r->bytes };
#ifdef FAULT_TOO_SMALL
        p.host_bytes /= 2;
#endif
        give((char *)out + (size_t)i * size, size, &p, sizeof p);
    }
    return TESS_OK;
}

static tess_status create(void *ctx, const tess_plan_env *env, int32_t rank, int32_t numa, const tess_buffer *arena,
                          tess_offload **out, tess_error *e) {
    tess_offload *o = calloc(1, sizeof *o);
    (void)env, (void)rank, (void)numa, (void)arena;
    if (!o)
        return failed(e, TESS_E_NOMEM, "no memory");
    o->host = ctx;
    *out = o;
    return TESS_OK;
}

static void destroy(tess_offload *o) {
    while (o && o->first) {
        kept *k = o->first;
        o->first = k->next;
#ifndef FAULT_FORGETS_HOST_MEMORY
        o->host->mem_free(o->host->host, k->bytes);
#endif
        free(k);
    }
    free(o);
}

static tess_status keep(tess_offload *o, const tess_region *r, kept **out, tess_error *e) {
    for (kept *k = o->first; k; k = k->next)
        if (k->region == r) {
            *out = k;
            return TESS_OK;
        }
    void *bytes = NULL;
    kept *k = calloc(1, sizeof *k);
    tess_status s = TESS_E_NOMEM;
    if (k)
        s = o->host->mem_alloc(o->host->host, TESS_DOMAIN_HOST, TESS_CAT_SHARD_PARAM, r->bytes, 64, &bytes);
#ifndef FAULT_IGNORES_NO_SPACE
    if (s < 0) {
        free(k);
        return failed(e, TESS_E_NOMEM, "offload faulty: no memory for %llu bytes", (unsigned long long)r->bytes);
    }
#endif
    *k = (kept){ o->first, r, bytes };
    o->first = k;
    *out = k;
    return TESS_OK;
}

static tess_status one(tess_offload *o, const tess_transfer *t, tess_error *e) {
    kept *k = NULL;
#ifndef FAULT_NO_LIMITS
    if (t->offset_bytes > t->region->bytes || t->bytes > t->region->bytes - t->offset_bytes)
        return failed(e, TESS_E_INVALID, "offload faulty: %llu bytes at %llu of a region of %llu",
                      (unsigned long long)t->bytes, (unsigned long long)t->offset_bytes,
                      (unsigned long long)t->region->bytes);
#endif
    tess_status s = keep(o, t->region, &k, e);
    if (s < 0 || !k->bytes)
        return s;
#ifdef FAULT_NO_LIMITS
    if (t->offset_bytes + t->bytes > t->region->bytes)
        return TESS_OK;
#endif
    uint64_t at = t->offset_bytes;
#ifdef FAULT_IGNORES_OFFSET
    at = 0;
#endif
    if (t->flags & 1)
        memcpy(k->bytes + at, t->ptr, t->bytes);
    else
        memcpy(t->ptr, k->bytes + at, t->bytes);
#ifdef FAULT_CORRUPTS_ODD_BYTE
    if (!(t->flags & 1) && t->bytes % 2)
        ((unsigned char *)t->ptr)[t->bytes - 1] ^= 1;
#endif
    return TESS_OK;
}

static tess_status ended(tess_offload *o, tess_request **out, tess_error *e) {
    *out = calloc(1, sizeof **out);
    if (!*out)
        return failed(e, TESS_E_NOMEM, "no memory");
    (*out)->status = atomic_load(&o->aborted);
    return TESS_OK;
}

static tess_status post(tess_offload *o, const tess_transfer *t, uint32_t n, tess_request **out, tess_error *e) {
    for (uint32_t i = 0; i < n && !atomic_load(&o->aborted); i++) {
        tess_status s = one(o, (const void *)((const char *)t + (size_t)i * t->struct_size), e);
        if (s < 0)
            return s;
    }
    return ended(o, out, e);
}

static tess_status abort_all(tess_offload *o, tess_status why) {
    int none = 0;
#ifdef FAULT_ABORT_NOTHING
    why = 0;
#endif
#ifdef FAULT_ABORT_LAST_WINS
    atomic_store(&o->aborted, 0);
#endif
    atomic_compare_exchange_strong(&o->aborted, &none, why);
    return TESS_OK;
}

/* Every transfer is over when post returns. */
static tess_status progress(tess_offload *o) {
    (void)o;
#ifdef FAULT_PROGRESS_FAILS
    return TESS_E_INVALID;
#endif
    return TESS_PENDING;
}

static tess_status step(tess_offload *instance, const tess_region *r, uint32_t n, const tess_optimizer *opt,
                        tess_request **out, tess_error *e) {
    kept *k[4] = { NULL };
    for (uint32_t i = 0; i < n && i < 4; i++) {
        tess_status s = keep(instance, (const void *)((const char *)r + (size_t)i * r->struct_size), &k[i], e);
        if (s < 0)
            return s;
    }
    tess_optimizer o = *opt;
    const void *gradient[1] = { k[1]->bytes };
    tess_kernel kernel = { .struct_size = sizeof kernel,
                           .kernel = TESS_K_OPTIMIZER,
                           .in_dtype = TESS_F32,
                           .out_dtype = TESS_F32,
                           .n_in = 1,
                           .in = gradient,
                           .out = k[0]->bytes,
                           .elems = r->elems,
                           .optimizer = &o };
    for (uint32_t i = 2; i < n && i < 4; i++)
        kernel.state[i - 2] = k[i]->bytes;
#ifdef FAULT_STEP_UNSCALED
    o.grad_scale = 1;
#endif
    tess_status s = tess__kernel_run(&kernel, NULL, e);
    return s < 0 ? s : ended(instance, out, e);
}

static tess_status test(tess_request *q, tess_error *e) {
    (void)e;
    return q->status;
}
static tess_status wait(tess_request *q, int64_t timeout_ns, tess_error *e) {
    (void)timeout_ns, (void)e;
    return q->status;
}
static tess_status wait_stream(tess_request *q, const tess_stream *stream, tess_error *e) {
    (void)stream;
#ifdef FAULT_WAIT_STREAM_FAILS
    return failed(e, TESS_E_DEVICE, "offload faulty has no streams");
#endif
    return wait(q, -1, e);
}
static void request_free(tess_request *q) {
    free(q);
}

static const tess_offload_ops ops = {
    .struct_size = sizeof ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .place = place,
    .create = create,
    .destroy = destroy,
    .abort = abort_all,
    .post = post,
    .step = step,
    .progress = progress,
    .test = test,
    .wait = wait,
    .wait_stream = wait_stream,
    .request_free = request_free,
};

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *e) {
    if (kind != TESS_KIND_OFFLOAD)
        return failed(e, TESS_E_UNSUPPORTED, "faulty offers offload only");
    take_at_open(host);
    *out = &ops;
    *ctx = (void *)host;
    return TESS_OK;
}
