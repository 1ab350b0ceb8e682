/* SPDX-License-Identifier: BSD-3-Clause */
/* Sums of 16-bit contributions by NCCL in fp32. Our kernel widens them into the scratch, NCCL sums there in place, and
 * a second kernel casts, adds and scales. One piece is widened while NCCL sums the one before it. */
#include "operations.h"

struct piece {
    uint64_t number, at, elems; /* at: offset in each block; elems: of each block */
    float *wide;                /* its half of the scratch: the blocks behind each other */
};

static uint64_t blocks_of(const struct nccl_launch *l, const tess_collective *c) {
    return c->op == TESS_REDUCE_SCATTER ? (uint64_t)l->size : 1;
}

static struct piece piece_of(const struct nccl_launch *l, const tess_collective *c, const struct nccl_way *way,
                             uint64_t number) {
    uint64_t at = number * way->piece, left = way->block - at;
    float *half = (float *)c->scratch + number % 2 * blocks_of(l, c) * way->piece;
    return (struct piece){ number, at, left < way->piece ? left : way->piece, half };
}

/* Whole vectors are read and written where each block begins at a multiple of one. */
static tess_status widen(const struct nccl_launch *l, const tess_collective *c, const struct piece *p, CUstream stream,
                         tess_error *f) {
    const char *from = (const char *)c->send + p->at * tess_dtype_bytes(c->send_dtype);
    uint64_t blocks = blocks_of(l, c);
    tess_nccl_widen_args args = { .from = from,
                                  .to = p->wide,
                                  .items = (p->elems + TESS_NCCL_LANES - 1) / TESS_NCCL_LANES,
                                  .elems = p->elems,
                                  .stride = c->count,
                                  .blocks = (uint32_t)blocks,
                                  .in_dtype = c->send_dtype };
    args.vector = ((uintptr_t)from | (uintptr_t)p->wide) % 16 == 0 && (blocks == 1 || c->count % TESS_NCCL_LANES == 0);
    return nccl_kernel(l, l->kernels->widen, stream, &args, args.items, f);
}

/* In place: a reduce_scatter leaves the sum where this rank's own contribution was. */
static tess_status sum(const struct nccl_launch *l, const tess_collective *c, const struct piece *p, tess_error *f) {
    int scatters = c->op == TESS_REDUCE_SCATTER;
    float *own = p->wide + (scatters ? (uint64_t)l->rank * p->elems : 0);
    TRY(nccl_group_begin(l, f));
    ncclResult_t r = scatters
                         ? l->lib->ncclReduceScatter(p->wide, own, p->elems, ncclFloat32, ncclSum, l->comm, l->stream)
                         : l->lib->ncclAllReduce(p->wide, own, p->elems, ncclFloat32, ncclSum, l->comm, l->stream);
    nccl_group_note(l, r, scatters ? "ncclReduceScatter" : "ncclAllReduce", f);
    TRY(nccl_group_end(l, f));
    return nccl_finish(l, c, own, TESS_F32, p->at, p->elems, f);
}

/* In the second stream, when the piece that was there before has been summed. The first piece has nothing to hide
 * behind, and the second one waits for nothing but what the call waits for. */
static tess_status widen_next(const struct nccl_launch *l, const tess_collective *c, const struct piece *p,
                              tess_error *f) {
    const struct nccl_sums *s = l->sums;
    TRY(nccl_await(l, s->stream, p->number == 1 ? s->came : s->summed[p->number % 2], f));
    TRY(widen(l, c, p, s->stream, f));
    return nccl_record(l, s->came, s->stream, f);
}

tess_status nccl_sum_widened(const struct nccl_launch *l, const tess_collective *c, const struct nccl_way *way,
                             tess_error *f) {
    uint64_t pieces = (way->block + way->piece - 1) / way->piece;
    struct piece p = piece_of(l, c, way, 0);
    if (pieces > 1)
        TRY(nccl_record(l, l->sums->came, l->stream, f));
    TRY(widen(l, c, &p, l->stream, f));
    for (uint64_t k = 0; k < pieces; k++) {
        struct piece next = k + 1 < pieces ? piece_of(l, c, way, k + 1) : p;
        if (k + 1 < pieces)
            TRY(widen_next(l, c, &next, f));
        TRY(sum(l, c, &p, f));
        if (k + 2 < pieces)
            TRY(nccl_record(l, l->sums->summed[k % 2], l->stream, f));
        if (k + 1 < pieces)
            TRY(nccl_await(l, l->stream, l->sums->came, f));
        p = next;
    }
    return TESS_OK;
}
