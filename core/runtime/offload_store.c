/* SPDX-License-Identifier: BSD-3-Clause */
#include "offload_store.h"

#include "base/status.h"

static tess_status failed(const tess__offload_store *x, tess_status s, const tess_error *e) {
    return tess__fail(s, "offload %s: %s", x->name,
                      *e->message ? e->message : "its store failed, and it does not say why");
}

/* Whether the rank can be trusted with its store from now on is the engine's question. */
static tess_status request_failed(tess__offload_store *x, tess_status s, const tess_error *e) {
    atomic_store(&x->failed, 1);
    return failed(x, s, e);
}

tess_status tess__offload_open(tess__offload_store *x, const tess__setup *s, const tess_store_config *config,
                               uint64_t *obtained) {
    tess_error e = { .struct_size = sizeof e, .rank = -1 };
    x->ops = s->offload;
    x->name = s->offload_name;
    x->registered = 0;
    atomic_store(&x->failed, 0);
    tess_status status = x->ops->store_open(s->offload_ctx, config, &x->handle, obtained, &e);
    if (!status)
        return TESS_OK;
    x->handle = NULL;
    return failed(x, status, &e);
}

void tess__offload_close(tess__offload_store *x) {
    if (x->handle)
        x->ops->store_close(x->handle);
    x->handle = NULL;
    x->registered = 0;
}

tess_status tess__offload_memory(tess__offload_store *x, void *memory, uint64_t bytes) {
    tess_error e = { .struct_size = sizeof e, .rank = -1 };
    if (x->registered)
        x->ops->store_deregister(x->handle);
    x->registered = 0;
    if (!x->handle || !bytes || !TESS_CAN(tess_offload_ops, x->ops, store_deregister))
        return TESS_OK;
    tess_status status = x->ops->store_register(x->handle, memory, bytes, &e);
    x->registered = status == TESS_OK;
    return status && status != TESS_E_UNSUPPORTED ? failed(x, status, &e) : TESS_OK;
}

tess_status tess__offload_post(tess__offload_store *x, uint32_t op, const void *at, void *memory, uint64_t bytes,
                               tess_request **out) {
    tess_error e = { .struct_size = sizeof e, .rank = -1 };
    tess_store_io io = { .struct_size = sizeof io,
                         .op = op,
                         .at = (uint64_t)(uintptr_t)at - TESS__STORE_BASE,
                         .bytes = bytes,
                         .memory = memory };
    tess_status status = x->ops->store_post(x->handle, &io, out, &e);
    return status ? request_failed(x, status, &e) : TESS_OK;
}

tess_status tess__offload_wait(tess__offload_store *x, tess_request **request) {
    tess_error e = { .struct_size = sizeof e, .rank = -1 };
    tess_request *waited = *request;
    *request = NULL;
    tess_status status = waited ? x->ops->store_wait(x->handle, waited, &e) : TESS_OK;
    return status ? request_failed(x, status, &e) : TESS_OK;
}

tess_status tess__offload_run(tess__offload_store *x, uint32_t op, const void *at, void *memory, uint64_t bytes) {
    tess_request *request = NULL;
    TRY(tess__offload_post(x, op, at, memory, bytes, &request));
    return tess__offload_wait(x, &request);
}
