/* What a call may look like, and the way it is done with the scratch that takes: the same on every rank. */
#include "operations.h"

#include <inttypes.h>

enum { PIECE_BYTES = 16 << 20, SMALL_BYTES = 256 << 10, LEAST_PIECE = 4096 };

tess_collective nccl_take_call(const tess_collective *call, uint32_t struct_size) {
    tess_collective c = { 0 };
    memcpy(&c, call, struct_size < sizeof c ? struct_size : sizeof c);
    if (c.recv_dtype == 0)
        c.recv_dtype = c.send_dtype;
    if (c.scale == 0)
        c.scale = 1;
    return c;
}

uint64_t nccl_dtype_bytes(uint32_t dtype) {
    static const uint8_t bytes[] = { 0, 1, 1, 4, 8, 2, 2, 4, 8 };
    return dtype < sizeof bytes ? bytes[dtype] : 0;
}

uint64_t nccl_bytes(const tess_collective *c) {
    return c->op == TESS_BARRIER ? 0 : c->count * nccl_dtype_bytes(c->send_dtype);
}

static int reduces(const tess_collective *c) {
    return c->op == TESS_REDUCE_SCATTER || c->op == TESS_ALL_REDUCE;
}

static int is_whole(uint32_t dtype) {
    return dtype < TESS_F16;
}

/* ---- the way -------------------------------------------------------------------------------------------------------
 */

/* NCCL sums in an order of its own, which for integers does not show, and passes over NaN in minimum and maximum. f64
 * is for losses, a few numbers, and always in the engine's order. */
static int sums_natively(const tess_collective *c, int deterministic) {
    return is_whole(c->send_dtype) || (c->redop == TESS_SUM && !deterministic && c->send_dtype == TESS_F32);
}

static uint64_t round_up(uint64_t x, uint64_t to) {
    return (x + to - 1) / to * to;
}

/* Blocks of `elems` per rank go in pieces, so that what came of all fits in a bounded room. */
static void in_pieces(struct nccl_way *way, uint64_t elems, uint64_t others, uint64_t dtype_bytes) {
    uint64_t most = PIECE_BYTES / (others * dtype_bytes) / 64 * 64;
    way->block = round_up(elems, 64);
    way->piece = most < LEAST_PIECE ? LEAST_PIECE : most;
    if (way->piece > way->block)
        way->piece = way->block;
    way->stride_bytes = round_up(way->piece * dtype_bytes, 256);
    way->scratch_bytes = others * way->stride_bytes;
}

struct nccl_way nccl_way_of(const tess_collective *c, int size, int deterministic) {
    struct nccl_way way = { .how = NCCL_PLAIN };
    uint64_t w = (uint64_t)size, bytes = nccl_dtype_bytes(c->send_dtype);
    if (c->count == 0 || c->op == TESS_BARRIER) {
        way.how = NCCL_NOTHING;
    } else if (c->op == TESS_ALL_TO_ALL) {
        way.how = NCCL_PAIRS;
    } else if (reduces(c) && size == 1) {
        way.how = NCCL_ALONE;
    } else if (reduces(c) && sums_natively(c, deterministic)) {
        way.how = c->flags & NCCL_ADD || c->scale != 1 ? NCCL_THEN_FINISHED : NCCL_PLAIN;
        way.scratch_bytes = c->flags & NCCL_ADD ? c->count * bytes : 0;
    } else if (c->op == TESS_REDUCE_SCATTER) {
        way.how = NCCL_SCATTERED;
        in_pieces(&way, c->count, w - 1, bytes);
    } else if (reduces(c) && w * c->count * bytes <= SMALL_BYTES) {
        way.how = NCCL_ALL_EVERYWHERE;
        way.stride_bytes = c->count * bytes;
        way.scratch_bytes = w * way.stride_bytes;
    } else if (reduces(c)) {
        way.how = NCCL_SCATTERED_AND_GATHERED;
        in_pieces(&way, (c->count + w - 1) / w, w - 1, bytes);
    }
    return way;
}

/* ---- what is wrong --------------------------------------------------------------------------------------------------
 */

static int may_become(uint32_t from, uint32_t to) {
    return from == to || ((from == TESS_F16 || from == TESS_BF16) && to == TESS_F32);
}

static tess_status check_types(const tess_collective *c, struct nccl_failure *f) {
    if (c->op == TESS_BARRIER)
        return TESS_OK;
    if (nccl_dtype_bytes(c->send_dtype) == 0)
        return nccl_fail(f, TESS_E_UNSUPPORTED, -1, "nccl: dtype %u", c->send_dtype);
    if (!reduces(c))
        return c->recv_dtype == c->send_dtype ? TESS_OK
                                              : nccl_fail(f, TESS_E_UNSUPPORTED, -1, "nccl: op %u from dtype %u to %u",
                                                          c->op, c->send_dtype, c->recv_dtype);
    if (c->redop < TESS_SUM || c->redop > TESS_MAX || !may_become(c->send_dtype, c->recv_dtype))
        return nccl_fail(f, TESS_E_UNSUPPORTED, -1, "nccl: reduction %u from dtype %u to %u", c->redop, c->send_dtype,
                         c->recv_dtype);
    if (is_whole(c->send_dtype) && c->scale != 1)
        return nccl_fail(f, TESS_E_INVALID, -1, "nccl: scale %g on integers, expected 1", c->scale);
    if ((c->flags & NCCL_ADD) && c->redop != TESS_SUM)
        return nccl_fail(f, TESS_E_UNSUPPORTED, -1, "nccl: only a sum adds to what recv holds");
    return TESS_OK;
}

static tess_status check_kinds(const tess_collective *c, struct nccl_failure *f) {
    if (c->op == TESS_BARRIER || (c->send_mem == TESS_MEM_CUDA && c->recv_mem == TESS_MEM_CUDA))
        return TESS_OK;
    return nccl_fail(f, TESS_E_UNSUPPORTED, -1,
                     "nccl: memory kinds %u and %u, reaches a GPU's memory only (TESSERA_DEVICE=cuda)", c->send_mem,
                     c->recv_mem);
}

static int overlap(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes) {
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return a_bytes > 0 && b_bytes > 0 && x < y + b_bytes && y < x + a_bytes;
}

/* Whether send and recv are apart, or in place as the operation allows. */
static int lies_well(const tess_collective *c, int rank, int size) {
    const char *send = c->send, *recv = c->recv;
    uint64_t w = (uint64_t)size, r = (uint64_t)rank;
    uint64_t in = nccl_bytes(c), out = c->count * nccl_dtype_bytes(c->recv_dtype);
    switch (c->op) {
    case TESS_ALL_GATHER: return send == recv + r * in || !overlap(send, in, recv, w * in);
    case TESS_ALL_TO_ALL: return (size == 1 && send == recv) || !overlap(send, w * in, recv, w * in);
    case TESS_REDUCE_SCATTER: return !overlap(send, w * in, recv, out);
    case TESS_ALL_REDUCE: return (send == recv && in == out && !(c->flags & NCCL_ADD)) || !overlap(send, in, recv, out);
    default: return rank != c->root || !recv || send == recv || !overlap(send, in, recv, in);
    }
}

static tess_status check_memory(const tess_collective *c, int rank, int size, int deterministic,
                                struct nccl_failure *f) {
    if (c->count == 0 || c->op == TESS_BARRIER)
        return TESS_OK;
    int sends = c->op != TESS_BROADCAST || rank == c->root, receives = c->op != TESS_BROADCAST || rank != c->root;
    if ((sends && !c->send) || (receives && !c->recv))
        return nccl_fail(f, TESS_E_INVALID, -1, "nccl: %s is null with count %" PRIu64,
                         sends && !c->send ? "send" : "recv", c->count);
    if (!lies_well(c, rank, size))
        return nccl_fail(f, TESS_E_INVALID, -1, "nccl: send and recv overlap other than in place");
    uint64_t need = nccl_way_of(c, size, deterministic).scratch_bytes;
    if (need && (!c->scratch || c->scratch_bytes < need))
        return nccl_fail(f, TESS_E_INVALID, -1, "nccl: %" PRIu64 " bytes of scratch, %" PRIu64 " needed",
                         c->scratch ? c->scratch_bytes : 0, need);
    return TESS_OK;
}

tess_status nccl_check(const tess_collective *c, int rank, int size, int deterministic, struct nccl_failure *f) {
    if (c->op < TESS_ALL_GATHER || c->op > TESS_BARRIER)
        return nccl_fail(f, TESS_E_UNSUPPORTED, -1, "nccl: operation %u", c->op);
    tess_status s = check_types(c, f);
    if (s == TESS_OK && (rank < 0 || c->count > 0))
        s = check_kinds(c, f);
    if (s)
        return s;
    if (c->count > UINT64_C(1) << 48)
        return nccl_fail(f, TESS_E_INVALID, -1, "nccl: count %" PRIu64, c->count);
    if (c->op == TESS_BROADCAST && (c->root < 0 || c->root >= size))
        return nccl_fail(f, TESS_E_INVALID, -1, "nccl: root %d of %d ranks", c->root, size);
    return rank < 0 ? TESS_OK : check_memory(c, rank, size, deterministic, f);
}
