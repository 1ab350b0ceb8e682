/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks a call, and chooses the way it is done and its scratch. Every rank chooses the same. */
#include "operations.h"

enum { SCRATCH_BYTES = 16 << 20, SMALL_BYTES = 256 << 10, LEAST_AT_ONCE = 4096 };

/* ---- the way ------------------------------------------------------------------------------------ */

/* NCCL sums in an order of its own, which for integers does not show, and passes over NaN in minimum and maximum. f64
 * is for losses, a few numbers, and always in the engine's order. */
static int sums_natively(const tess_collective *c, int deterministic) {
    return kit_is_whole(c->send_dtype) ||
           (c->redop == TESS_SUM && !deterministic && c->send_dtype == TESS_F32 && c->recv_dtype == TESS_F32);
}

static uint64_t round_up(uint64_t x, uint64_t to) {
    return (x + to - 1) / to * to;
}

/* Lays out blocks of `elems` per rank in a bounded scratch for the other ranks' contributions. A block that does not
 * fit travels in pieces of half the scratch: one is summed while the next arrives. */
static void in_pieces(struct nccl_way *way, uint64_t elems, uint64_t others, uint64_t dtype_bytes) {
    uint64_t most = SCRATCH_BYTES / (others * dtype_bytes) / 64 * 64;
    most = most < LEAST_AT_ONCE ? LEAST_AT_ONCE : most;
    way->block = round_up(elems, 64);
    way->piece = way->block <= most ? way->block : most / 256 * 128;
    way->stride_bytes = round_up(way->piece * dtype_bytes, 256);
    way->scratch_bytes = others * round_up((way->block <= most ? way->block : most) * dtype_bytes, 256);
}

struct nccl_way nccl_way_of(const tess_collective *c, int size, int deterministic) {
    struct nccl_way way = { .how = NCCL_PLAIN };
    uint64_t w = (uint64_t)size, bytes = tess_dtype_bytes(c->send_dtype);
    if (c->count == 0 || c->op == TESS_BARRIER) {
        way.how = NCCL_NOTHING;
    } else if (c->op == TESS_ALL_TO_ALL) {
        way.how = NCCL_PAIRS;
    } else if (kit_reduces(c) && size == 1) {
        way.how = NCCL_ALONE;
    } else if (kit_reduces(c) && sums_natively(c, deterministic)) {
        way.how = c->flags & KIT_ADD || c->scale != 1 ? NCCL_THEN_FINISHED : NCCL_PLAIN;
        way.scratch_bytes = c->flags & KIT_ADD ? c->count * bytes : 0;
    } else if (c->op == TESS_REDUCE_SCATTER) {
        way.how = NCCL_SCATTERED;
        in_pieces(&way, c->count, w - 1, bytes);
    } else if (kit_reduces(c) && w * c->count * bytes <= SMALL_BYTES) {
        way.how = NCCL_ALL_EVERYWHERE;
        way.stride_bytes = c->count * bytes;
        way.scratch_bytes = w * way.stride_bytes;
    } else if (kit_reduces(c)) {
        way.how = NCCL_SCATTERED_AND_GATHERED;
        in_pieces(&way, (c->count + w - 1) / w, w - 1, bytes);
    }
    return way;
}

/* ---- what is wrong ------------------------------------------------------------------------------ */

tess_status nccl_check(const tess_collective *c, int rank, int size, int deterministic, tess_error *e) {
    static const kit_reach reach = { "nccl", 1u << TESS_MEM_CUDA, "a GPU's memory (TESSERA_DEVICE=cuda)" };
    tess_status s = kit_check_call(&reach, c, -1, size, 0, e);
    if (s == TESS_OK && rank < 0 && c->op != TESS_BARRIER &&
        (c->send_mem != TESS_MEM_CUDA || c->recv_mem != TESS_MEM_CUDA))
        return tess_plugin_fail(e, TESS_E_UNSUPPORTED, "nccl: memory kinds %u and %u, expected %s", c->send_mem,
                                c->recv_mem, reach.mem_names);
    if (s < 0 || rank < 0)
        return s;
    return kit_check_call(&reach, c, rank, size, nccl_way_of(c, size, deterministic).scratch_bytes, e);
}
