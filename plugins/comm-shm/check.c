#include "check.h"

#include "reduce.h"

#include <inttypes.h>

#define KINDS (1u << TESS_MEM_HOST | 1u << TESS_MEM_PINNED | 1u << TESS_MEM_SHM)

tess_collective shm_take_call(const tess_collective *call, uint32_t struct_size) {
    tess_collective c = { 0 };
    memcpy(&c, call, struct_size < sizeof c ? struct_size : sizeof c);
    if (c.recv_dtype == 0)
        c.recv_dtype = c.send_dtype;
    if (c.scale == 0)
        c.scale = 1;
    return c;
}

uint64_t shm_bytes(const tess_collective *c) {
    return c->op == TESS_BARRIER ? 0 : c->count * shm_dtype_bytes(c->send_dtype);
}

uint64_t shm_shard_elems(const tess_collective *c, int size) {
    uint64_t n = (uint64_t)size, shard = ((c->count + n - 1) / n + 63) / 64 * 64;
    return c->op == TESS_REDUCE_SCATTER || shard > c->count ? c->count : shard;
}

static tess_status check_types(const tess_collective *c, struct shm_failure *f) {
    if (c->op == TESS_BARRIER)
        return TESS_OK;
    if (shm_dtype_bytes(c->send_dtype) == 0)
        return shm_fail(f, TESS_E_UNSUPPORTED, -1, "shm: dtype %u", c->send_dtype);
    if (!shm_reduces(c))
        return c->recv_dtype == c->send_dtype ? TESS_OK
                                              : shm_fail(f, TESS_E_UNSUPPORTED, -1, "shm: op %u from dtype %u to %u",
                                                         c->op, c->send_dtype, c->recv_dtype);
    if (!shm_reduce_offered(c->send_dtype, c->recv_dtype, c->redop))
        return shm_fail(f, TESS_E_UNSUPPORTED, -1, "shm: reduction %u from dtype %u to %u", c->redop, c->send_dtype,
                        c->recv_dtype);
    int whole = c->send_dtype < TESS_F16;
    if (whole && c->scale != 1)
        return shm_fail(f, TESS_E_INVALID, -1, "shm: scale %g on integers, expected 1", c->scale);
    if ((c->flags & SHM_ADD) && c->redop != TESS_SUM)
        return shm_fail(f, TESS_E_UNSUPPORTED, -1, "shm: only a sum adds to what recv holds");
    return TESS_OK;
}

static int overlap(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes) {
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return a_bytes > 0 && b_bytes > 0 && x < y + b_bytes && y < x + a_bytes;
}

/* Whether send and recv are apart, or in place as the operation allows. */
static int lies_well(const tess_collective *c, int rank, int size) {
    const char *send = c->send, *recv = c->recv;
    uint64_t w = (uint64_t)size, r = (uint64_t)rank;
    uint64_t in = shm_bytes(c), out = c->count * shm_dtype_bytes(c->recv_dtype);
    switch (c->op) {
    case TESS_ALL_GATHER: return send == recv + r * in || !overlap(send, in, recv, w * in);
    case TESS_ALL_TO_ALL: return (size == 1 && send == recv) || !overlap(send, w * in, recv, w * in);
    case TESS_REDUCE_SCATTER: return (recv == send + r * in && in == out) || !overlap(send, w * in, recv, out);
    case TESS_ALL_REDUCE: return (send == recv && in == out && !(c->flags & SHM_ADD)) || !overlap(send, in, recv, out);
    default: return rank != c->root || !recv || send == recv || !overlap(send, in, recv, in);
    }
}

static tess_status check_memory(const tess_collective *c, int rank, int size, struct shm_failure *f) {
    if (c->count == 0 || c->op == TESS_BARRIER)
        return TESS_OK;
    if (c->send_mem > 31 || c->recv_mem > 31 || !(KINDS >> c->send_mem & KINDS >> c->recv_mem & 1))
        return shm_fail(f, TESS_E_UNSUPPORTED, -1, "shm: memory kinds %u and %u, expected host memory", c->send_mem,
                        c->recv_mem);
    int sends = c->op != TESS_BROADCAST || rank == c->root, receives = c->op != TESS_BROADCAST || rank != c->root;
    if ((sends && !c->send) || (receives && !c->recv))
        return shm_fail(f, TESS_E_INVALID, -1, "shm: %s is null with count %" PRIu64,
                        sends && !c->send ? "send" : "recv", c->count);
    return lies_well(c, rank, size) ? TESS_OK
                                    : shm_fail(f, TESS_E_INVALID, -1, "shm: send and recv overlap other than in place");
}

tess_status shm_check(const tess_collective *c, int rank, int size, struct shm_failure *f) {
    if (c->op < TESS_ALL_GATHER || c->op > TESS_BARRIER)
        return shm_fail(f, TESS_E_UNSUPPORTED, -1, "shm: operation %u", c->op);
    tess_status s = check_types(c, f);
    if (s)
        return s;
    if (c->count > UINT64_C(1) << 48)
        return shm_fail(f, TESS_E_INVALID, -1, "shm: count %" PRIu64, c->count);
    if (c->op == TESS_BROADCAST && (c->root < 0 || c->root >= size))
        return shm_fail(f, TESS_E_INVALID, -1, "shm: root %d of %d ranks", c->root, size);
    return rank < 0 ? TESS_OK : check_memory(c, rank, size, f);
}
