/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory for arenas, registered where NCCL can: its transports then read and write it in place. */
#include "communicator.h"

#include <stdlib.h>

struct registration {
    void *handle;        /* NCCL's; null: it could not, and copies */
    void *by;            /* the NCCL communicator that registered it */
    ncclWindow_t window; /* of the same communicator; null: none */
    int from_nccl;       /* the memory is of ncclMemAlloc */
};

/* Call it in the GPU's context, with the lock. */
static ncclResult_t register_with_nccl(tess_comm *c, void *at, uint64_t bytes, struct registration *reg) {
    if (!nccl_use_begin(&c->use, &c->stop))
        return ncclInvalidUsage;
    ncclComm_t comm = atomic_load(&c->comm);
    reg->by = comm;
    nccl_use_blocks(&c->use);
    ncclResult_t r = comm ? c->gpu.lib->ncclCommRegister(comm, at, bytes, &reg->handle) : ncclInvalidUsage;
    nccl_use_end(&c->use);
    return r;
}

/* If GPUs support multicast, older NCCL versions round up to the granularity that the driver recommends for it. The
 * plan does not count that, so a warning reports it. */
static ncclResult_t take_from_nccl(tess_comm *c, uint64_t bytes, void **out) {
    const uint64_t much = UINT64_C(16) << 20; /* ignores small differences such as page tables */
    size_t before = 0, after = 0, total;
    int knows = c->gpu.cu->cuMemGetInfo(&before, &total) == CUDA_SUCCESS;
    ncclResult_t r = c->gpu.lib->ncclMemAlloc(out, bytes);
    knows = knows && r == ncclSuccess && c->gpu.cu->cuMemGetInfo(&after, &total) == CUDA_SUCCESS;
    if (knows && before > after && before - after > bytes + much)
        kit_log(
            c->settings->host, 1, "nccl",
            "ncclMemAlloc took %llu bytes of the GPU for %llu, as this NCCL rounds up where GPUs have multicast; the "
            "rest is in no plan",
            (unsigned long long)(before - after), (unsigned long long)bytes);
    return r;
}

static tess_status allocate_memory(tess_comm *c, uint64_t bytes, void **out, struct registration *reg, tess_error *f) {
    if (c->gpu.lib->ncclMemAlloc) {
        ncclResult_t r = take_from_nccl(c, bytes, out);
        if (r == ncclUnhandledCudaError || r == ncclSystemError)
            return tess_plugin_fail(f, TESS_E_NOMEM, "nccl: the GPU has no %llu bytes more (ncclMemAlloc gave %d: %s)",
                                    (unsigned long long)bytes, (int)r, c->gpu.lib->ncclGetErrorString(r));
        reg->from_nccl = 1;
        return r == ncclSuccess ? TESS_OK : nccl_failed(f, c->gpu.lib, r, "ncclMemAlloc");
    }
    CUdeviceptr at;
    CUresult r = c->gpu.cu->cuMemAlloc(&at, bytes);
    if (r == CUDA_ERROR_OUT_OF_MEMORY)
        return tess_plugin_fail(f, TESS_E_NOMEM, "nccl: the GPU has no %llu bytes more", (unsigned long long)bytes);
    if (r == CUDA_SUCCESS)
        *out = (void *)at;
    return nccl_cuda_ok(r, "cuMemAlloc", f);
}

tess_status nccl_memory_obtain(tess_comm *c, uint64_t bytes, tess_buffer *out, tess_error *f) {
    const uint64_t granule = UINT64_C(2) << 20; /* the driver's allocation granularity */
    struct registration *reg = calloc(1, sizeof *reg);
    if (!reg)
        return tess_plugin_fail(f, TESS_E_NOMEM, "nccl: no memory");
    bytes = (bytes + granule - 1) / granule * granule;
    pthread_mutex_lock(&c->lock);
    tess_status s = nccl_enter(&c->gpu, f);
    if (s == TESS_OK) {
        s = allocate_memory(c, bytes, &out->ptr, reg, f);
        if (s == TESS_OK && c->gpu.lib->ncclCommRegister && register_with_nccl(c, out->ptr, bytes, reg) != ncclSuccess)
            kit_log(c->settings->host, 1, "nccl",
                    "%llu bytes could not be registered with NCCL and are used as they are", (unsigned long long)bytes);
        nccl_leave(&c->gpu);
    }
    pthread_mutex_unlock(&c->lock);
    if (s) {
        free(reg);
        return s;
    }
    out->bytes = bytes;
    out->reg = reg;
    return TESS_OK;
}

tess_status nccl_memory_register(tess_comm *c, void *at, uint64_t bytes, void **out, tess_error *f) {
    struct registration *reg = calloc(1, sizeof *reg);
    ncclResult_t r = ncclSuccess;
    if (!reg)
        return tess_plugin_fail(f, TESS_E_NOMEM, "nccl: no memory");
    pthread_mutex_lock(&c->lock);
    tess_status s = c->gpu.lib->ncclCommRegister
                        ? nccl_enter(&c->gpu, f)
                        : tess_plugin_fail(f, TESS_E_UNSUPPORTED, "nccl: this NCCL registers nothing");
    if (s == TESS_OK) {
        r = register_with_nccl(c, at, bytes, reg);
        nccl_leave(&c->gpu);
    }
    pthread_mutex_unlock(&c->lock);
    if (r != ncclSuccess) /* the caller uses the memory unregistered, so this is no failure */
        s = tess_plugin_fail(f, TESS_E_UNSUPPORTED, "nccl: ncclCommRegister gave %d: %s", (int)r,
                             c->gpu.lib->ncclGetErrorString(r));
    if (s) {
        free(reg);
        return s;
    }
    *out = reg;
    return TESS_OK;
}

/* ---- windows ------------------------------------------------------------------------------------ */

int nccl_memory_shares(const tess_comm *c) {
    return c->settings->windows && c->gpu.lib->ncclCommWindowRegister;
}

/* Call it in the GPU's context, with the lock. If GPUs have no peer access, NCCL returns null without an error. */
static tess_status make_window(tess_comm *c, const tess_buffer *b, struct registration *reg, tess_error *f) {
    tess_status s = nccl_gate_enter(c, "ncclCommWindowRegister", kit_until_ns(c->timeout_ns), f);
    if (s)
        return s;
    if (nccl_use_begin(&c->use, &c->stop)) { /* if not, nccl_gate_leave says why it must stop */
        ncclComm_t comm = atomic_load(&c->comm);
        nccl_use_blocks(&c->use);
        ncclResult_t r =
            c->gpu.lib->ncclCommWindowRegister(comm, b->ptr, b->bytes, &reg->window, NCCL_WIN_COLL_SYMMETRIC);
        nccl_use_end(&c->use);
        reg->by = comm;
        s = r == ncclSuccess ? TESS_OK : nccl_failed(f, c->gpu.lib, r, "ncclCommWindowRegister");
    }
    return nccl_gate_leave(c, s, f);
}

tess_status nccl_memory_share(tess_comm *c, const tess_buffer *b, tess_error *f) {
    struct registration *reg = b->reg;
    if (!nccl_memory_shares(c))
        return tess_plugin_fail(f, TESS_E_UNSUPPORTED, "nccl: windows are off, or this NCCL has none");
    if (!reg)
        return tess_plugin_fail(f, TESS_E_INVALID, "nccl: mem_share of memory that is not registered");
    if (reg->window)
        return TESS_OK;
    pthread_mutex_lock(&c->lock);
    tess_status s = nccl_failure(c, f);
    if (s == TESS_OK)
        s = nccl_enter(&c->gpu, f);
    if (s == TESS_OK) {
        s = make_window(c, b, reg, f);
        if (s) /* the others wait for this rank: they must learn of it */
            nccl_fail_locked(c, f);
        else if (!reg->window)
            kit_log(c->settings->host, 2, "nccl", "NCCL makes no window of %llu bytes in group '%.100s'",
                    (unsigned long long)b->bytes, c->prefix);
        nccl_leave(&c->gpu);
    }
    pthread_mutex_unlock(&c->lock);
    return s;
}

/* ---- given back --------------------------------------------------------------------------------- */

/* NCCL drops registrations and windows of a communicator that was aborted. */
static void let_go(tess_comm *c, const struct registration *reg) {
    if (!nccl_use_begin(&c->use, &c->stop))
        return;
    ncclComm_t comm = atomic_load(&c->comm);
    nccl_use_blocks(&c->use);
    if (reg->window && comm && reg->by == comm)
        c->gpu.lib->ncclCommWindowDeregister(comm, reg->window);
    if (reg->handle && comm && reg->by == comm)
        c->gpu.lib->ncclCommDeregister(comm, reg->handle);
    nccl_use_end(&c->use);
}

/* Aborts end the work that uses memory, and let go of it, in threads of their own. Freeing beside them takes it from
 * under both; memory that is not freed harms less. Nothing else in a failed engine uses the communicator any more. */
static int may_free(tess_comm *c, const void *ptr) {
    if (nccl_wait_until_aborted(c, kit_now_ns() + NCCL_PATIENCE_NS) || !ptr)
        return 1;
    kit_log(c->settings->host, 1, "nccl", "an abort did not end: the memory of group '%.100s' is not freed", c->prefix);
    return 0;
}

/* The registration, and with `ptr` the memory. */
static void drop_registration(tess_comm *c, struct registration *reg, void *ptr) {
    tess_error ignored = { .struct_size = sizeof ignored };
    int frees = 0;
    if (nccl_enter(&c->gpu, &ignored) == TESS_OK || nccl_enter(&c->gpu, &ignored) == TESS_OK) {
        frees = may_free(c, ptr);
        nccl_leave(&c->gpu);
    }
    ptr = frees ? ptr : NULL;
    pthread_mutex_lock(&c->lock);
    if (nccl_enter(&c->gpu, &ignored) == TESS_OK || nccl_enter(&c->gpu, &ignored) == TESS_OK) {
        let_go(c, reg);
        if (ptr && reg->from_nccl)
            c->gpu.lib->ncclMemFree(ptr);
        else if (ptr)
            c->gpu.cu->cuMemFree((CUdeviceptr)ptr);
        nccl_leave(&c->gpu);
    }
    pthread_mutex_unlock(&c->lock);
    free(reg);
}

void nccl_memory_deregister(tess_comm *c, void *which) {
    drop_registration(c, which, NULL);
}

void nccl_memory_release(tess_comm *c, tess_buffer *buffer) {
    drop_registration(c, buffer->reg, buffer->ptr);
    buffer->ptr = buffer->reg = NULL;
}
