/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks a call, and chooses the way it is done and its scratch. Every rank chooses the same. */
#include "operations.h"

enum { SCRATCH_BYTES = 16 << 20, WIDE_BYTES = 32 << 20, SMALL_BYTES = 256 << 10, LEAST_AT_ONCE = 4096 };

/* ---- the way ------------------------------------------------------------------------------------ */

static int is_half(uint32_t dtype) {
    return dtype == TESS_F16 || dtype == TESS_BF16;
}

/* NCCL sums in an order of its own, which for integers does not show, and passes over NaN in minimum and maximum. f64
 * is for losses, a few numbers, and always in the engine's order. */
static int sums_natively(const tess_collective *c, int sums) {
    if (kit_is_whole(c->send_dtype))
        return 1;
    if (c->redop != TESS_SUM || sums == NCCL_SUMS_TREE)
        return 0;
    return (c->send_dtype == TESS_F32 && c->recv_dtype == TESS_F32) ||
           (is_half(c->send_dtype) && sums == NCCL_SUMS_NATIVE);
}

/* Rings of NCCL's round a 16-bit sum in each rank, and nothing in its interface promises another algorithm. */
static int sums_widened(const tess_collective *c, int sums) {
    return c->redop == TESS_SUM && sums == NCCL_SUMS_FP32 && is_half(c->send_dtype);
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

/* The same for contributions in fp32, of which one is widened while NCCL sums the last. This rank's own is among them.
 */
static void in_wide_pieces(struct nccl_way *way, uint64_t elems, uint64_t blocks) {
    uint64_t most = WIDE_BYTES / (blocks * sizeof(float)) / 256 * 256;
    most = most < LEAST_AT_ONCE ? LEAST_AT_ONCE : most;
    way->block = elems;
    way->piece = elems <= most ? elems : most / 2;
    way->scratch_bytes = round_up((elems <= most ? elems : most) * blocks * sizeof(float), 256);
}

/* Where the sum waits for our kernel. */
static int lands_apart(const tess_collective *c) {
    return c->flags & KIT_ADD || c->send_dtype != c->recv_dtype;
}

struct nccl_way nccl_way_of(const tess_collective *c, int size, int sums) {
    struct nccl_way way = { .how = NCCL_PLAIN };
    uint64_t w = (uint64_t)size, bytes = tess_dtype_bytes(c->send_dtype);
    if (c->count == 0 || c->op == TESS_BARRIER) {
        way.how = NCCL_NOTHING;
    } else if (c->op == TESS_ALL_TO_ALL || c->op == TESS_ALL_TO_ALL_V) {
        way.how = NCCL_PAIRS;
    } else if (kit_reduces(c) && size == 1) {
        way.how = NCCL_ALONE;
    } else if (kit_reduces(c) && sums_natively(c, sums)) {
        way.how = lands_apart(c) || c->scale != 1 ? NCCL_THEN_FINISHED : NCCL_PLAIN;
        way.scratch_bytes = lands_apart(c) ? c->count * bytes : 0;
    } else if (kit_reduces(c) && sums_widened(c, sums)) {
        way.how = NCCL_WIDENED;
        in_wide_pieces(&way, c->count, c->op == TESS_REDUCE_SCATTER ? w : 1);
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

tess_status nccl_check(const tess_collective *c, int rank, int size, int sums, tess_error *e) {
    static const kit_reach reach = { "nccl", 1u << TESS_MEM_CUDA, "a GPU's memory (TESSERA_DEVICE=cuda)" };
    tess_status s = kit_check_call(&reach, c, -1, size, 0, e);
    if (s == TESS_OK && rank < 0 && c->op != TESS_BARRIER &&
        (c->send_mem != TESS_MEM_CUDA || c->recv_mem != TESS_MEM_CUDA))
        return tess_plugin_fail(e, TESS_E_UNSUPPORTED, "nccl: memory kinds %u and %u, expected %s", c->send_mem,
                                c->recv_mem, reach.mem_names);
    if (s < 0 || rank < 0)
        return s;
    return kit_check_call(&reach, c, rank, size, nccl_way_of(c, size, sums).scratch_bytes, e);
}
