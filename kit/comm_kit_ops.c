/* SPDX-License-Identifier: BSD-3-Clause */
/* The collectives, made of exchanges. */
#include "comm_kit_internal.h"
#include "tree_sum.h"

enum { CHUNK_BYTES = 512 << 10, ALIGN = 64 };

static char *byte_at(const void *base, uint64_t bytes) {
    return (char *)(uintptr_t)base + bytes;
}

static uint64_t chunk_elems(const tess_collective *c) {
    uint64_t most = CHUNK_BYTES / tess_dtype_bytes(c->send_dtype);
    return c->count < most ? c->count : most;
}
static uint64_t slot_bytes(const tess_collective *c) {
    return (chunk_elems(c) * tess_dtype_bytes(c->send_dtype) + ALIGN - 1) / ALIGN * ALIGN;
}

uint64_t kit_scratch_bytes(const tess_collective *c, int32_t nranks) {
    if (!kit_reduces(c) || nranks < 2 || slot_bytes(c) <= KIT_SMALL_BYTES)
        return 0;
    return (uint64_t)(nranks - 1) * slot_bytes(c);
}

static void nothing_yet(kit_world *w) {
    for (int32_t p = 0; p < w->nranks; p++) {
        w->out[p] = w->in[p] = NULL;
        w->came[p] = 0;
    }
}

static tess_status exchange_chunk(kit_world *w, uint64_t bytes, tess_error *e) {
    if (w->nranks == 1 || !bytes)
        return TESS_OK;
    w->out[w->rank] = w->in[w->rank] = NULL;
    return w->link->exchange(w->at, w->out, w->in, bytes, w->came, e);
}

tess_status kit_agree(kit_world *w, const kit_announcement *mine, tess_error *e) {
    nothing_yet(w);
    for (int32_t p = 0; p < w->nranks; p++) {
        w->out[p] = mine;
        w->in[p] = &w->announced[p];
    }
    tess_status s = exchange_chunk(w, sizeof *mine, e);
    /* A rank that found a mismatch may be gone by now. Its announcement explains more than that it left. */
    for (int32_t p = 0; p < w->nranks; p++) {
        tess_status differs = p == w->rank || w->came[p] < sizeof *mine
                                  ? TESS_OK
                                  : kit_compare(w->link->name, mine, w->rank, &w->announced[p], p, e);
        if (differs < 0)
            return differs;
    }
    return s;
}

static void copy_bytes(void *to, const void *from, uint64_t bytes) {
    if (bytes && to && to != from)
        memcpy(to, from, bytes);
}

static tess_status run_gather(kit_world *w, const tess_collective *c, tess_error *e) {
    const uint64_t bytes = c->count * tess_dtype_bytes(c->send_dtype);
    const uint64_t apart = c->op == TESS_ALL_TO_ALL ? bytes : 0; /* a block of its own for every rank */
    for (int32_t p = 0; p < w->nranks; p++) {
        w->out[p] = byte_at(c->send, (uint64_t)p * apart);
        w->in[p] = byte_at(c->recv, (uint64_t)p * bytes);
    }
    copy_bytes(w->in[w->rank], w->out[w->rank], bytes);
    return exchange_chunk(w, bytes, e);
}

static tess_status run_broadcast(kit_world *w, const tess_collective *c, tess_error *e) {
    const uint64_t bytes = c->count * tess_dtype_bytes(c->send_dtype);
    for (int32_t p = 0; p < w->nranks && w->rank == c->root; p++)
        w->out[p] = c->send;
    if (w->rank == c->root)
        copy_bytes(c->recv, c->send, bytes);
    else
        w->in[c->root] = c->recv;
    return exchange_chunk(w, bytes, e);
}

/* Every rank gets all contributions to what it needs, a chunk at a time, and sums them itself. */
static tess_status run_reduce(kit_world *w, const tess_collective *c, tess_error *e) {
    const kit_reduction r = { c->redop, c->send_dtype, c->recv_dtype, (c->flags & KIT_ADD) != 0, 0, c->scale };
    const uint32_t in = tess_dtype_bytes(c->send_dtype), out = tess_dtype_bytes(c->recv_dtype);
    const uint64_t most = chunk_elems(c), apart = c->op == TESS_REDUCE_SCATTER ? c->count * in : 0;
    void *theirs = slot_bytes(c) <= KIT_SMALL_BYTES ? w->small : c->scratch;
    for (uint64_t first = 0; first < c->count; first += most) {
        const uint64_t n = c->count - first < most ? c->count - first : most;
        for (int32_t p = 0, slot = 0; p < w->nranks; p++) {
            w->out[p] = byte_at(c->send, (uint64_t)p * apart + first * in);
            w->in[p] = p == w->rank ? NULL : byte_at(theirs, (uint64_t)slot++ * slot_bytes(c));
        }
        const void *own = w->out[w->rank];
        tess_status s = exchange_chunk(w, n * in, e);
        if (s < 0)
            return s;
        for (int32_t p = 0; p < w->nranks; p++)
            w->out[p] = p == w->rank ? own : w->in[p];
        kit_tree_sum(&r, w->out, w->nranks, byte_at(c->recv, first * out), n);
    }
    return TESS_OK;
}

tess_status kit_run(kit_world *w, const tess_collective *c, tess_error *e) {
    nothing_yet(w);
    if (c->op == TESS_BARRIER || !c->count)
        return TESS_OK;
    if (kit_reduces(c))
        return run_reduce(w, c, e);
    return c->op == TESS_BROADCAST ? run_broadcast(w, c, e) : run_gather(w, c, e);
}
