/* SPDX-License-Identifier: BSD-3-Clause */
#include "communicator.h"

#include <stdlib.h>

enum { CHUNK = 128 }; /* a stream may have 64 still to wait for, beside those in flight */

/* ---- the pool ----------------------------------------------------------------------------------- */

static void free_chunk(tess_comm *c, struct nccl_chunk *chunk) {
    const tess_cuda *cu = c->gpu.cu;
    for (int i = 0; chunk->requests && i < CHUNK; i++) {
        if (chunk->requests[i].begun)
            cu->cuEventDestroy(chunk->requests[i].begun);
        if (chunk->requests[i].ended)
            cu->cuEventDestroy(chunk->requests[i].ended);
    }
    if (chunk->announcements)
        cu->cuMemFree(chunk->announcements);
    if (chunk->pinned)
        cu->cuMemFreeHost(chunk->pinned);
    free(chunk->requests);
    free(chunk);
}

void nccl_free_chunks(tess_comm *c) {
    while (c->chunks) {
        struct nccl_chunk *chunk = c->chunks;
        c->chunks = chunk->next;
        free_chunk(c, chunk);
    }
}

static tess_status fill_chunk(tess_comm *c, struct nccl_chunk *chunk, tess_error *f) {
    const tess_cuda *cu = c->gpu.cu;
    uint64_t entries = 1 + (uint64_t)c->size, each = entries * sizeof(kit_announcement);
    tess_status s = nccl_cuda_ok(cu->cuMemHostAlloc(&chunk->pinned, CHUNK * each, 0), "cuMemHostAlloc", f);
    if (s == TESS_OK)
        s = nccl_cuda_ok(cu->cuMemAlloc(&chunk->announcements, CHUNK * each), "cuMemAlloc", f);
    for (int i = 0; s == TESS_OK && i < CHUNK; i++) {
        tess_request *r = &chunk->requests[i];
        r->comm = c;
        r->own = (kit_announcement *)chunk->pinned + (uint64_t)i * entries;
        r->all = r->own + 1;
        r->own_there = chunk->announcements + (uint64_t)i * each;
        r->all_there = r->own_there + sizeof(kit_announcement);
        s = nccl_cuda_ok(cu->cuEventCreate(&r->begun, CU_EVENT_DISABLE_TIMING), "cuEventCreate", f);
        if (s == TESS_OK)
            s = nccl_cuda_ok(cu->cuEventCreate(&r->ended, CU_EVENT_DISABLE_TIMING), "cuEventCreate", f);
    }
    return s;
}

static tess_status add_chunk(tess_comm *c, tess_error *f) {
    struct nccl_chunk *chunk = calloc(1, sizeof *chunk);
    if (chunk)
        chunk->requests = calloc(CHUNK, sizeof *chunk->requests);
    if (!chunk || !chunk->requests) {
        free(chunk);
        return tess_plugin_fail(f, TESS_E_NOMEM, "nccl: no memory for requests");
    }
    tess_status s = fill_chunk(c, chunk, f);
    if (s) {
        free_chunk(c, chunk);
        return s;
    }
    chunk->next = c->chunks;
    c->chunks = chunk;
    for (int i = 0; i < CHUNK; i++)
        nccl_request_give(&chunk->requests[i]);
    return TESS_OK;
}

void nccl_request_give(tess_request *r) {
    r->next = r->comm->free;
    r->comm->free = r;
}

tess_status nccl_request_take(tess_comm *c, tess_request **out, tess_error *f) {
    if (!c->free) {
        tess_status s = add_chunk(c, f);
        if (s)
            return s;
    }
    tess_request *r = c->free;
    c->free = r->next;
    r->next = NULL;
    r->compares = r->recorded = 0;
    r->failure.code = TESS_OK;
    atomic_store_explicit(&r->status, TESS_PENDING, memory_order_relaxed);
    *out = r;
    return TESS_OK;
}

/* ---- their ends --------------------------------------------------------------------------------- */

/* The oldest. */
static void end_first(tess_comm *c, const tess_error *f) {
    tess_request *r = c->head;
    c->head = r->next;
    if (!c->head)
        c->tail = NULL;
    nccl_said_ended(c, r->seq);
    if (f)
        r->failure = *f;
    atomic_store_explicit(&r->status, f ? f->code : TESS_OK, memory_order_release);
}

/* Whether the event has passed; a device that fails has passed everything. */
static int event_passed(tess_comm *c, CUevent event) {
    tess_error f = { .struct_size = sizeof f };
    CUresult r = c->gpu.cu->cuEventQuery(event);
    if (r == CUDA_SUCCESS || r == CUDA_ERROR_NOT_READY)
        return r == CUDA_SUCCESS;
    nccl_cuda_ok(r, "the GPU's work", &f);
    nccl_fail_locked(c, &f);
    return c->gpu.cu->cuEventQuery(event) != CUDA_ERROR_NOT_READY;
}

/* Compares the announcements of all ranks, once they are there. */
static void compare_request(tess_comm *c, tess_request *r) {
    tess_error f = { .struct_size = sizeof f, .rank = -1 };
    if (!r->compares || nccl_failure(c, &f) != TESS_OK)
        return;
    r->compares = 0;
    if (nccl_compare(c, r, &f) != TESS_OK)
        nccl_fail_locked(c, &f);
}

void nccl_sweep(tess_comm *c) {
    while (c->head) {
        tess_request *r = c->head;
        tess_error f = { .struct_size = sizeof f, .rank = -1 };
        if (!event_passed(c, r->ended))
            break;
        compare_request(c, r);
        end_first(c, nccl_failure(c, &f) != TESS_OK ? &f : NULL);
    }
}
