/* SPDX-License-Identifier: BSD-3-Clause */
#include "operations.h"

static ncclDataType_t dtype_of(uint32_t dtype) {
    static const ncclDataType_t list[] = { ncclUint8,   ncclUint8,    ncclInt8,    ncclInt32,  ncclInt64,
                                           ncclFloat16, ncclBfloat16, ncclFloat32, ncclFloat64 };
    return list[dtype];
}

static ncclRedOp_t redop_of(uint32_t redop) {
    return redop == TESS_MIN ? ncclMin : redop == TESS_MAX ? ncclMax : ncclSum;
}

/* ---- our kernel --------------------------------------------------------------------------------- */

static tess_status launch_reduction(const struct nccl_launch *l, CUstream stream, tess_nccl_reduce_args *args,
                                    tess_error *f) {
    return nccl_kernel(l, l->kernels->reduce, stream, args, args->elems, f);
}

static tess_nccl_reduce_args reduction_args(const tess_collective *c, uint32_t n) {
    return (tess_nccl_reduce_args){ .n = n,
                                    .scale = c->scale,
                                    .in_dtype = c->send_dtype,
                                    .out_dtype = c->recv_dtype,
                                    .redop = c->redop,
                                    .add = c->flags & KIT_ADD };
}

/* ---- reductions in pairs ------------------------------------------------------------------------ */

/* Elements of rank p's block that lie in the piece from `at`, of `total` elements in blocks. */
static uint64_t part_of(const struct nccl_way *way, uint64_t total, int p, uint64_t at) {
    uint64_t first = (uint64_t)p * way->block + at, block_end = ((uint64_t)p + 1) * way->block;
    uint64_t end = first + way->piece < block_end ? first + way->piece : block_end;
    end = end < total ? end : total;
    return end > first ? end - first : 0;
}

struct piece {
    uint64_t number, at;      /* at: offset in each block */
    const char *own, *others; /* this rank's contribution; the half of the scratch that receives the others' */
    char *out;
};

/* Every rank sends each other rank that one's part of the piece, and gets its own part from all. */
static tess_status trade_piece(const struct nccl_launch *l, const tess_collective *c, const struct nccl_way *way,
                               uint64_t total, const struct piece *p, tess_error *f) {
    ncclDataType_t dtype = dtype_of(c->send_dtype);
    uint64_t bytes = tess_dtype_bytes(c->send_dtype), mine = part_of(way, total, l->rank, p->at);
    TRY(nccl_group_begin(l, f));
    for (int i = 1; i < l->size; i++) {
        int to = (l->rank + i) % l->size, from = (l->rank + l->size - i) % l->size;
        uint64_t theirs = part_of(way, total, to, p->at), slot = (uint64_t)(from < l->rank ? from : from - 1);
        if (theirs)
            nccl_group_note(l,
                            l->lib->ncclSend((const char *)c->send + ((uint64_t)to * way->block + p->at) * bytes,
                                             theirs, dtype, to, l->comm, l->stream),
                            "ncclSend", f);
        if (mine)
            nccl_group_note(l,
                            l->lib->ncclRecv((void *)(uintptr_t)(p->others + slot * way->stride_bytes), mine, dtype,
                                             from, l->comm, l->stream),
                            "ncclRecv", f);
    }
    return nccl_group_end(l, f);
}

/* The last piece's sum has nothing to hide behind. */
static tess_status sum_piece(const struct nccl_launch *l, const tess_collective *c, const struct nccl_way *way,
                             const struct piece *p, uint64_t elems, int last, tess_error *f) {
    tess_nccl_reduce_args args = reduction_args(c, (uint32_t)l->size);
    args.others = p->others;
    args.own = p->own;
    args.own_rank = (uint32_t)l->rank;
    args.stride_bytes = way->stride_bytes;
    args.out = p->out;
    args.elems = elems;
    if (last)
        return launch_reduction(l, l->stream, &args, f);
    TRY(nccl_record(l, l->sums->came, l->stream, f));
    TRY(nccl_await(l, l->sums->stream, l->sums->came, f));
    TRY(launch_reduction(l, l->sums->stream, &args, f));
    return nccl_record(l, l->sums->summed[p->number % 2], l->sums->stream, f);
}

/* Sums this rank's block of `total` elements into `out`, a piece while the next one comes into the other half of the
 * scratch. A piece that comes where another was waits for that one's sum. */
static tess_status sum_block(const struct nccl_launch *l, const tess_collective *c, const struct nccl_way *way,
                             uint64_t total, char *out, tess_error *f) {
    uint64_t in_bytes = tess_dtype_bytes(c->send_dtype), out_bytes = tess_dtype_bytes(c->recv_dtype);
    uint64_t pieces = (way->block + way->piece - 1) / way->piece;
    const char *own = (const char *)c->send + (uint64_t)l->rank * way->block * in_bytes;
    for (uint64_t k = 0; k < pieces; k++) {
        uint64_t at = k * way->piece;
        struct piece p = { k, at, own + at * in_bytes, c->scratch, out + at * out_bytes };
        p.others += k % 2 * (uint64_t)(l->size - 1) * way->stride_bytes;
        if (k >= 2)
            TRY(nccl_await(l, l->stream, l->sums->summed[k % 2], f));
        TRY(trade_piece(l, c, way, total, &p, f));
        TRY(sum_piece(l, c, way, &p, part_of(way, total, l->rank, at), k + 1 == pieces, f));
    }
    return pieces > 1 ? nccl_await(l, l->stream, l->sums->summed[pieces % 2], f) : TESS_OK;
}

static tess_status reduce_scatter(const struct nccl_launch *l, const tess_collective *c, const struct nccl_way *way,
                                  tess_error *f) {
    struct nccl_way same = *way; /* every block has `count` elements, whatever the rounding */
    same.block = c->count;
    return sum_block(l, c, &same, c->count * (uint64_t)l->size, c->recv, f);
}

/* Each rank sends the block of recv that it has summed to all others. */
static tess_status share_blocks(const struct nccl_launch *l, const tess_collective *c, const struct nccl_way *way,
                                tess_error *f) {
    struct nccl_way whole = *way;
    ncclDataType_t dtype = dtype_of(c->recv_dtype);
    uint64_t bytes = tess_dtype_bytes(c->recv_dtype);
    char *recv = c->recv;
    whole.piece = way->block;
    uint64_t mine = part_of(&whole, c->count, l->rank, 0);
    TRY(nccl_group_begin(l, f));
    for (int i = 1; i < l->size; i++) {
        int to = (l->rank + i) % l->size, from = (l->rank + l->size - i) % l->size;
        uint64_t theirs = part_of(&whole, c->count, from, 0);
        if (mine)
            nccl_group_note(
                l, l->lib->ncclSend(recv + (uint64_t)l->rank * way->block * bytes, mine, dtype, to, l->comm, l->stream),
                "ncclSend", f);
        if (theirs)
            nccl_group_note(
                l,
                l->lib->ncclRecv(recv + (uint64_t)from * way->block * bytes, theirs, dtype, from, l->comm, l->stream),
                "ncclRecv", f);
    }
    return nccl_group_end(l, f);
}

static tess_status all_reduce_in_pairs(const struct nccl_launch *l, const tess_collective *c,
                                       const struct nccl_way *way, tess_error *f) {
    uint64_t first = (uint64_t)l->rank * way->block * tess_dtype_bytes(c->recv_dtype);
    TRY(sum_block(l, c, way, c->count, (char *)c->recv + first, f));
    return share_blocks(l, c, way, f);
}

static tess_status all_reduce_everywhere(const struct nccl_launch *l, const tess_collective *c,
                                         const struct nccl_way *way, tess_error *f) {
    TRY(nccl_group_begin(l, f));
    nccl_group_note(l, l->lib->ncclAllGather(c->send, c->scratch, way->stride_bytes, ncclUint8, l->comm, l->stream),
                    "ncclAllGather", f);
    TRY(nccl_group_end(l, f));
    tess_nccl_reduce_args args = reduction_args(c, (uint32_t)l->size);
    args.others = c->scratch;
    args.stride_bytes = way->stride_bytes;
    args.out = c->recv;
    args.elems = c->count;
    return launch_reduction(l, l->stream, &args, f);
}

/* ---- NCCL's own --------------------------------------------------------------------------------- */

static ncclResult_t call_plainly(const struct nccl_launch *l, const tess_collective *c, void *recv, const char **name) {
    ncclDataType_t dtype = dtype_of(c->send_dtype);
    switch (c->op) {
    case TESS_ALL_GATHER:
        *name = "ncclAllGather";
        return l->lib->ncclAllGather(c->send, recv, c->count, dtype, l->comm, l->stream);
    case TESS_REDUCE_SCATTER:
        *name = "ncclReduceScatter";
        return l->lib->ncclReduceScatter(c->send, recv, c->count, dtype, redop_of(c->redop), l->comm, l->stream);
    case TESS_ALL_REDUCE:
        *name = "ncclAllReduce";
        return l->lib->ncclAllReduce(c->send, recv, c->count, dtype, redop_of(c->redop), l->comm, l->stream);
    default:
        *name = "ncclBroadcast"; /* the root does not use recv, which may have any value */
        return l->lib->ncclBroadcast(c->send, l->rank == c->root ? (void *)(uintptr_t)c->send : recv, c->count, dtype,
                                     c->root, l->comm, l->stream);
    }
}

struct block { /* of an all_to_all: what one rank sends or gets */
    uint64_t at, elems;
};

static struct block block_of(const tess_collective *c, const uint64_t *parts, int rank) {
    uint64_t bytes = tess_dtype_bytes(c->send_dtype);
    if (c->op != TESS_ALL_TO_ALL_V)
        return (struct block){ (uint64_t)rank * c->count * bytes, c->count };
    return (struct block){ kit_parts_before(parts, rank) * bytes, parts[rank] };
}

/* Posts sends and receives within a group. copy_own_block copies this rank's own block in the same stream. */
static void call_in_pairs(const struct nccl_launch *l, const tess_collective *c, tess_error *f) {
    ncclDataType_t dtype = dtype_of(c->send_dtype);
    const char *send = c->send;
    char *recv = c->recv;
    for (int i = 1; i < l->size; i++) {
        int to = (l->rank + i) % l->size, from = (l->rank + l->size - i) % l->size;
        struct block out = block_of(c, c->send_parts, to), in = block_of(c, c->recv_parts, from);
        if (out.elems)
            nccl_group_note(l, l->lib->ncclSend(send + out.at, out.elems, dtype, to, l->comm, l->stream), "ncclSend",
                            f);
        if (in.elems)
            nccl_group_note(l, l->lib->ncclRecv(recv + in.at, in.elems, dtype, from, l->comm, l->stream), "ncclRecv",
                            f);
    }
}

static tess_status copy_own_block(const struct nccl_launch *l, const tess_collective *c, tess_error *f) {
    struct block from = block_of(c, c->send_parts, l->rank), to = block_of(c, c->recv_parts, l->rank);
    if (!from.elems || (const char *)c->send + from.at == (char *)c->recv + to.at)
        return TESS_OK;
    CUresult r = l->cu->cuMemcpyDtoDAsync((CUdeviceptr)c->recv + to.at, (CUdeviceptr)c->send + from.at,
                                          from.elems * tess_dtype_bytes(c->send_dtype), l->stream);
    return nccl_cuda_ok(r, "cuMemcpyDtoDAsync", f);
}

/* Integers and f64 as one contribution of a tree. */
static tess_status finish_whole(const struct nccl_launch *l, const tess_collective *c, const void *from,
                                tess_error *f) {
    tess_nccl_reduce_args args = reduction_args(c, 1);
    args.others = from;
    args.out = c->recv;
    args.elems = c->count;
    return launch_reduction(l, l->stream, &args, f);
}

static tess_status finish_result(const struct nccl_launch *l, const tess_collective *c, const void *from,
                                 tess_error *f) {
    return kit_is_whole(c->send_dtype) || c->send_dtype == TESS_F64
               ? finish_whole(l, c, from, f)
               : nccl_finish(l, c, from, c->send_dtype, 0, c->count, f);
}

static tess_status then_finished(const struct nccl_launch *l, const tess_collective *c, const struct nccl_way *way,
                                 tess_error *f) {
    const char *name;
    void *to = way->scratch_bytes ? c->scratch : c->recv;
    TRY(nccl_group_begin(l, f));
    ncclResult_t r = call_plainly(l, c, to, &name);
    nccl_group_note(l, r, name, f);
    TRY(nccl_group_end(l, f));
    return finish_result(l, c, to, f);
}

/* ---- several calls ------------------------------------------------------------------------------ */

struct span {
    uintptr_t from, to;
};

static struct span span_of(const tess_collective *c, int size, int out) {
    uint64_t w = (uint64_t)size, bytes = kit_bytes(c);
    int whole = out ? c->op == TESS_ALL_GATHER || c->op == TESS_ALL_TO_ALL
                    : c->op == TESS_REDUCE_SCATTER || c->op == TESS_ALL_TO_ALL;
    uintptr_t at = (uintptr_t)(out ? c->recv : c->send);
    return (struct span){ at, at + (whole ? w : 1) * bytes };
}

static int spans_touch(struct span a, struct span b) {
    return a.from < b.to && b.from < a.to;
}

/* Whether `c` reads or writes what one of the calls before it writes, or writes what one reads. */
static int depends_on_earlier(const tess_collective *calls, uint32_t first, uint32_t i, int size) {
    struct span in = span_of(&calls[i], size, 0), out = span_of(&calls[i], size, 1);
    for (uint32_t k = first; k < i; k++) {
        struct span earlier_out = span_of(&calls[k], size, 1);
        if (spans_touch(earlier_out, in) || spans_touch(earlier_out, out) ||
            spans_touch(span_of(&calls[k], size, 0), out))
            return 1;
    }
    return 0;
}

static int may_be_grouped(int how) {
    return how == NCCL_NOTHING || how == NCCL_PLAIN || how == NCCL_PAIRS;
}

/* The calls from `first` that may go as one group: how many. */
static uint32_t group_at(const struct nccl_launch *l, const tess_collective *calls, uint32_t first, uint32_t n) {
    enum { MOST = 32 };
    uint32_t end = first;
    while (end < n && end - first < MOST && may_be_grouped(nccl_way_of(&calls[end], l->size, l->how_sums).how) &&
           !depends_on_earlier(calls, first, end, l->size))
        end++;
    return end - first;
}

static tess_status run_group(const struct nccl_launch *l, const tess_collective *calls, uint32_t n, tess_error *f) {
    TRY(nccl_group_begin(l, f));
    for (uint32_t i = 0; i < n; i++) {
        int how = nccl_way_of(&calls[i], l->size, l->how_sums).how;
        if (how == NCCL_PLAIN) {
            const char *name;
            ncclResult_t r = call_plainly(l, &calls[i], calls[i].recv, &name);
            nccl_group_note(l, r, name, f);
        } else if (how == NCCL_PAIRS) {
            call_in_pairs(l, &calls[i], f);
        }
    }
    TRY(nccl_group_end(l, f));
    for (uint32_t i = 0; i < n; i++)
        if (nccl_way_of(&calls[i], l->size, l->how_sums).how == NCCL_PAIRS)
            TRY(copy_own_block(l, &calls[i], f));
    return TESS_OK;
}

static tess_status run_one(const struct nccl_launch *l, const tess_collective *c, tess_error *f) {
    struct nccl_way way = nccl_way_of(c, l->size, l->how_sums);
    switch (way.how) {
    case NCCL_ALONE: return finish_result(l, c, c->send, f);
    case NCCL_THEN_FINISHED: return then_finished(l, c, &way, f);
    case NCCL_WIDENED: return nccl_sum_widened(l, c, &way, f);
    case NCCL_SCATTERED: return reduce_scatter(l, c, &way, f);
    case NCCL_ALL_EVERYWHERE: return all_reduce_everywhere(l, c, &way, f);
    default: return all_reduce_in_pairs(l, c, &way, f);
    }
}

static tess_status run_in_order(const struct nccl_launch *l, const tess_collective *calls, uint32_t n, tess_error *f) {
    for (uint32_t i = 0; i < n;) {
        uint32_t grouped = group_at(l, calls, i, n);
        if (grouped) {
            TRY(run_group(l, &calls[i], grouped, f));
            i += grouped;
        } else {
            TRY(run_one(l, &calls[i], f));
            i++;
        }
    }
    return TESS_OK;
}

tess_status nccl_run_calls(const struct nccl_launch *l, const tess_collective *calls, uint32_t n, tess_error *f) {
    TRY(run_in_order(l, calls, n, f));
    if (!l->words->own) /* a group has sent the announcements, unless all calls run without one (join, barrier) */
        return TESS_OK;
    TRY(nccl_group_begin(l, f));
    return nccl_group_end(l, f);
}
