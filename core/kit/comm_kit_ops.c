/* The collectives over exchange, and the checks before them. */
#include "comm_kit_internal.h"
#include "formulas.h"

enum { ADD = 1, BLOCK = 256, LEVELS = 32, CHUNK_BYTES = 512 << 10, ALIGN = 64 };

static int reduces(const tess_collective *c) {
    return c->op == TESS_REDUCE_SCATTER || c->op == TESS_ALL_REDUCE;
}
static uint32_t out_dtype(const tess_collective *c) {
    return c->recv_dtype ? c->recv_dtype : c->send_dtype;
}
static int is_whole(uint32_t dtype) {
    return dtype == TESS_U8 || dtype == TESS_I8 || dtype == TESS_I32 || dtype == TESS_I64;
}
static int is_16_bits(uint32_t dtype) {
    return dtype == TESS_F16 || dtype == TESS_BF16;
}
static char *at(const void *base, uint64_t bytes) {
    return (char *)(uintptr_t)base + bytes;
}

/* ---- what a call may look like ----------------------------------------------------------------- */

static tess_status check_dtypes(const kit_link_ops *l, const tess_collective *c, tess_error *e) {
    uint32_t in = c->send_dtype, out = out_dtype(c);
    if (!in || in > TESS_F64 || !out || out > TESS_F64)
        return tess_plugin_fail(e, TESS_E_UNSUPPORTED, "%s: dtype %u to %u", l->name, in, out);
    if (in != out && !(reduces(c) && (is_16_bits(in) || in == TESS_F32) && (is_16_bits(out) || out == TESS_F32)))
        return tess_plugin_fail(e, TESS_E_UNSUPPORTED, "%s: operation %u from %s to %s", l->name, c->op,
                                tess_dtype_name(in), tess_dtype_name(out));
    if (!reduces(c))
        return TESS_OK;
    if (c->redop < TESS_SUM || c->redop > TESS_MAX)
        return tess_plugin_fail(e, TESS_E_UNSUPPORTED, "%s: reduction %u", l->name, c->redop);
    if ((c->flags & ADD) && c->redop != TESS_SUM)
        return tess_plugin_fail(e, TESS_E_UNSUPPORTED, "%s: only a sum adds to what recv holds", l->name);
    if (is_whole(in) && c->scale != 0 && c->scale != 1)
        return tess_plugin_fail(e, TESS_E_INVALID, "%s: scale %g on integers, expected 1", l->name, c->scale);
    return TESS_OK;
}

static int overlap(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes) {
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return a_bytes && b_bytes && x < y + b_bytes && y < x + a_bytes;
}

/* In place is one address only; anything else that overlaps would be read after it was written. */
static int overlaps_badly(const tess_collective *c, int32_t rank, int32_t nranks) {
    uint64_t in = c->count * tess_dtype_bytes(c->send_dtype), out = c->count * tess_dtype_bytes(out_dtype(c));
    uint64_t all = (uint64_t)nranks, self = (uint64_t)rank;
    int same = c->send == c->recv && in == out;
    switch (c->op) {
    case TESS_ALL_GATHER: return c->send != at(c->recv, self * in) && overlap(c->send, in, c->recv, all * in);
    case TESS_ALL_TO_ALL: return !(nranks == 1 && same) && overlap(c->send, all * in, c->recv, all * in);
    case TESS_REDUCE_SCATTER:
        return !(c->recv == at(c->send, self * in) && in == out) && overlap(c->send, all * in, c->recv, out);
    case TESS_ALL_REDUCE: return !(same && !(c->flags & ADD)) && overlap(c->send, in, c->recv, out);
    default: return rank == c->root && !same && c->recv && overlap(c->send, in, c->recv, in);
    }
}

static tess_status check_memory(const kit_link_ops *l, const tess_collective *c, const kit_world *w, tess_error *e) {
    int sends = c->op != TESS_BROADCAST || w->rank == c->root;
    int receives = c->op != TESS_BROADCAST || w->rank != c->root;
    uint64_t need = kit_scratch_bytes(c, w->nranks);
    if (c->send_mem > 31 || c->recv_mem > 31 || !(l->mem_mask >> c->send_mem & l->mem_mask >> c->recv_mem & 1u))
        return tess_plugin_fail(e, TESS_E_UNSUPPORTED, "%s: cannot reach memory kinds %u and %u", l->name, c->send_mem,
                                c->recv_mem);
    if ((sends && !c->send) || (receives && !c->recv))
        return tess_plugin_fail(e, TESS_E_INVALID, "%s: %s is null, count is %llu", l->name,
                                sends && !c->send ? "send" : "recv", (unsigned long long)c->count);
    if (need && (c->scratch_bytes < need || !c->scratch))
        return tess_plugin_fail(e, TESS_E_INVALID, "%s: %llu bytes of scratch, expected %llu", l->name,
                                (unsigned long long)c->scratch_bytes, (unsigned long long)need);
    if (overlaps_badly(c, w->rank, w->nranks))
        return tess_plugin_fail(e, TESS_E_INVALID, "%s: send and recv overlap other than in place", l->name);
    return TESS_OK;
}

tess_status kit_check(const kit_link_ops *l, const tess_collective *c, const kit_world *world, int32_t nranks,
                      tess_error *e) {
    if (c->op < TESS_ALL_GATHER || c->op > TESS_BARRIER)
        return tess_plugin_fail(e, TESS_E_UNSUPPORTED, "%s: operation %u", l->name, c->op);
    tess_status s = c->op == TESS_BARRIER ? TESS_OK : check_dtypes(l, c, e);
    if (s < 0)
        return s;
    if (c->count > UINT64_C(1) << 48)
        return tess_plugin_fail(e, TESS_E_INVALID, "%s: count %llu", l->name, (unsigned long long)c->count);
    if (c->op == TESS_BROADCAST && (c->root < 0 || c->root >= nranks))
        return tess_plugin_fail(e, TESS_E_INVALID, "%s: root %d of %d ranks", l->name, (int)c->root, (int)nranks);
    return !world || c->op == TESS_BARRIER || !c->count ? TESS_OK : check_memory(l, c, world, e);
}

/* ---- sums --------------------------------------------------------------------------------------- */

/* Contributions are combined in rank order on a binary counter, which is the engine's tree: partials of 1, 2, 4 …
 * neighbours. f16, bf16 and f32 add up in f32. One block of elements at a time, so that memory may be misaligned. */
static void load_f32(uint32_t dtype, const void *from, uint64_t n, float *out) {
    uint16_t half[BLOCK];
    if (dtype == TESS_F32) {
        memcpy(out, from, n * 4);
        return;
    }
    memcpy(half, from, n * 2);
    for (uint64_t i = 0; i < n; i++)
        out[i] = dtype == TESS_BF16 ? tess_f32_of_bf16(half[i]) : tess_f32_of_f16(half[i]);
}
static void store_f32(uint32_t dtype, const float *from, uint64_t n, void *out) {
    uint16_t half[BLOCK];
    if (dtype == TESS_F32) {
        memcpy(out, from, n * 4);
        return;
    }
    for (uint64_t i = 0; i < n; i++)
        half[i] = dtype == TESS_BF16 ? tess_bf16_of_f32(from[i]) : tess_f16_of_f32(from[i]);
    memcpy(out, half, n * 2);
}
static void load_f64(uint32_t dtype, const void *from, uint64_t n, double *out) {
    (void)dtype;
    memcpy(out, from, n * 8);
}
static void store_f64(uint32_t dtype, const double *from, uint64_t n, void *out) {
    (void)dtype;
    memcpy(out, from, n * 8);
}
/* Integers add up modulo 2^64, of which the low bits are the result in any width. */
static void load_i64(uint32_t dtype, const void *from, uint64_t n, int64_t *out) {
    const uint32_t bytes = tess_dtype_bytes(dtype);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t raw = 0;
        memcpy(&raw, at(from, i * bytes), bytes);
        out[i] = dtype == TESS_U8 ? (int64_t)raw : (int64_t)(raw << (64 - 8 * bytes)) >> (64 - 8 * bytes);
    }
}
static void store_i64(uint32_t dtype, const int64_t *from, uint64_t n, void *out) {
    const uint32_t bytes = tess_dtype_bytes(dtype);
    for (uint64_t i = 0; i < n; i++)
        memcpy(at(out, i * bytes), &from[i], bytes);
}

#define SUM_I64(a, b) ((int64_t)((uint64_t)(a) + (uint64_t)(b)))
#define SUM_REAL(a, b) ((a) + (b))
#define SCALE_I64(a, scale) (a)
#define SCALE_REAL(a, scale) ((a) * (scale))
/* a is left of b. A NaN on either side is the result. */
#define LEAST(a, b) ((a) != (a) || (a) < (b) ? (a) : (b))
#define MOST(a, b) ((a) != (a) || (a) > (b) ? (a) : (b))
#define DEFINE_COMBINE(real, suffix, sum, scaled)                                                                      \
    static void join_##suffix(uint32_t redop, const real *a, real *b, uint64_t n) {                                    \
        for (uint64_t i = 0; i < n && redop == TESS_SUM; i++)                                                          \
            b[i] = sum(a[i], b[i]);                                                                                    \
        for (uint64_t i = 0; i < n && redop == TESS_MIN; i++)                                                          \
            b[i] = LEAST(a[i], b[i]);                                                                                  \
        for (uint64_t i = 0; i < n && redop == TESS_MAX; i++)                                                          \
            b[i] = MOST(a[i], b[i]);                                                                                   \
    }                                                                                                                  \
    static void combine_##suffix(const tess_collective *c, const void *const *leaves, int32_t nranks, void *out,       \
                                 uint64_t n) {                                                                         \
        real level[LEVELS][BLOCK], x[BLOCK];                                                                           \
        const uint32_t in_bytes = tess_dtype_bytes(c->send_dtype), out_bytes = tess_dtype_bytes(out_dtype(c));         \
        const real scale = (real)(c->scale != 0 ? c->scale : 1);                                                       \
        for (uint64_t done = 0; done < n; done += BLOCK) {                                                             \
            const uint64_t block = n - done < BLOCK ? n - done : BLOCK;                                                \
            int i = 0;                                                                                                 \
            for (int32_t rank = 0; rank < nranks; rank++) {                                                            \
                load_##suffix(c->send_dtype, at(leaves[rank], done *in_bytes), block, x);                              \
                for (i = 0; rank >> i & 1; i++)                                                                        \
                    join_##suffix(c->redop, level[i], x, block);                                                       \
                memcpy(level[i], x, block * sizeof x[0]);                                                              \
            }                                                                                                          \
            for (i++; i < LEVELS && nranks >> i; i++)                                                                  \
                if (nranks >> i & 1)                                                                                   \
                    join_##suffix(c->redop, level[i], x, block);                                                       \
            if (c->flags & ADD) {                                                                                      \
                load_##suffix(out_dtype(c), at(out, done *out_bytes), block, level[0]);                                \
                join_##suffix(TESS_SUM, level[0], x, block);                                                           \
            }                                                                                                          \
            for (uint64_t k = 0; k < block && scale != 1; k++)                                                         \
                x[k] = scaled(x[k], scale);                                                                            \
            store_##suffix(out_dtype(c), x, block, at(out, done *out_bytes));                                          \
        }                                                                                                              \
    }
DEFINE_COMBINE(float, f32, SUM_REAL, SCALE_REAL)
DEFINE_COMBINE(double, f64, SUM_REAL, SCALE_REAL)
DEFINE_COMBINE(int64_t, i64, SUM_I64, SCALE_I64)

static void combine(const tess_collective *c, const void *const *leaves, int32_t nranks, void *out, uint64_t n) {
    if (is_whole(c->send_dtype))
        combine_i64(c, leaves, nranks, out, n);
    else if (c->send_dtype == TESS_F64)
        combine_f64(c, leaves, nranks, out, n);
    else
        combine_f32(c, leaves, nranks, out, n);
}

/* ---- moving ------------------------------------------------------------------------------------- */

static uint64_t chunk_elems(const tess_collective *c) {
    uint64_t most = CHUNK_BYTES / tess_dtype_bytes(c->send_dtype);
    return c->count < most ? c->count : most;
}
static uint64_t slot_bytes(const tess_collective *c) {
    return (chunk_elems(c) * tess_dtype_bytes(c->send_dtype) + ALIGN - 1) / ALIGN * ALIGN;
}

uint64_t kit_scratch_bytes(const tess_collective *c, int32_t nranks) {
    if (!reduces(c) || nranks < 2 || slot_bytes(c) <= KIT_SMALL_BYTES)
        return 0;
    return (uint64_t)(nranks - 1) * slot_bytes(c);
}

static void nothing_yet(kit_world *w) {
    for (int32_t p = 0; p < w->nranks; p++) {
        w->out[p] = w->in[p] = NULL;
        w->came[p] = 0;
    }
}

static tess_status exchange(kit_world *w, uint64_t bytes, tess_error *e) {
    if (w->nranks == 1 || !bytes)
        return TESS_OK;
    w->out[w->rank] = w->in[w->rank] = NULL;
    return w->link->exchange(w->at, w->out, w->in, bytes, w->came, e);
}

static const char *op_name(uint32_t op) {
    static const char *const names[] = { "?",         "all_gather", "reduce_scatter", "all_reduce",
                                         "broadcast", "all_to_all", "barrier" };
    return op == KIT_FINALIZE ? "finalize" : op == KIT_SPLIT ? "split" : names[op <= TESS_BARRIER ? op : 0];
}

static void describe(const kit_header *h, char *out, size_t size) {
    snprintf(out, size, "%s count %llu dtype %u>%u redop %u root %d tag %llx seq %llu", op_name(h->op),
             (unsigned long long)h->count, h->send_dtype, h->recv_dtype, h->redop, (int)h->root,
             (unsigned long long)h->tag, (unsigned long long)h->seq);
}

tess_status kit_agree(kit_world *w, const kit_header *mine, tess_error *e) {
    char here[112], there[112];
    nothing_yet(w);
    for (int32_t p = 0; p < w->nranks; p++) {
        w->out[p] = mine;
        w->in[p] = &w->headers[p];
    }
    tess_status s = exchange(w, sizeof *mine, e);
    /* A rank that found a mismatch may be gone by now: what it said is the better answer than that it left. */
    for (int32_t p = 0; p < w->nranks; p++) {
        if (p == w->rank || w->came[p] < sizeof *mine || memcmp(&w->headers[p], mine, sizeof *mine) == 0)
            continue;
        describe(mine, here, sizeof here);
        describe(&w->headers[p], there, sizeof there);
        return tess_plugin_fail_of(e, TESS_E_MISMATCH, p, "rank %d: %s; rank %d: %s", (int)w->rank, here, (int)p,
                                   there);
    }
    return s;
}

static void copy(void *to, const void *from, uint64_t bytes) {
    if (bytes && to && to != from)
        memcpy(to, from, bytes);
}

static tess_status gather(kit_world *w, const tess_collective *c, tess_error *e) {
    const uint64_t bytes = c->count * tess_dtype_bytes(c->send_dtype);
    const uint64_t apart = c->op == TESS_ALL_TO_ALL ? bytes : 0; /* a block of its own for every rank */
    for (int32_t p = 0; p < w->nranks; p++) {
        w->out[p] = at(c->send, (uint64_t)p * apart);
        w->in[p] = at(c->recv, (uint64_t)p * bytes);
    }
    copy(w->in[w->rank], w->out[w->rank], bytes);
    return exchange(w, bytes, e);
}

static tess_status broadcast(kit_world *w, const tess_collective *c, tess_error *e) {
    const uint64_t bytes = c->count * tess_dtype_bytes(c->send_dtype);
    for (int32_t p = 0; p < w->nranks && w->rank == c->root; p++)
        w->out[p] = c->send;
    if (w->rank == c->root)
        copy(c->recv, c->send, bytes);
    else
        w->in[c->root] = c->recv;
    return exchange(w, bytes, e);
}

/* Every rank gets all contributions to what it needs, a chunk at a time, and sums them itself. */
static tess_status reduce(kit_world *w, const tess_collective *c, tess_error *e) {
    const uint32_t in = tess_dtype_bytes(c->send_dtype), out = tess_dtype_bytes(out_dtype(c));
    const uint64_t most = chunk_elems(c), apart = c->op == TESS_REDUCE_SCATTER ? c->count * in : 0;
    void *theirs = slot_bytes(c) <= KIT_SMALL_BYTES ? w->small : c->scratch;
    for (uint64_t first = 0; first < c->count; first += most) {
        const uint64_t n = c->count - first < most ? c->count - first : most;
        for (int32_t p = 0, slot = 0; p < w->nranks; p++) {
            w->out[p] = at(c->send, (uint64_t)p * apart + first * in);
            w->in[p] = p == w->rank ? NULL : at(theirs, (uint64_t)slot++ * slot_bytes(c));
        }
        const void *own = w->out[w->rank];
        tess_status s = exchange(w, n * in, e);
        if (s < 0)
            return s;
        for (int32_t p = 0; p < w->nranks; p++)
            w->out[p] = p == w->rank ? own : w->in[p];
        combine(c, w->out, w->nranks, at(c->recv, first * out), n);
    }
    return TESS_OK;
}

tess_status kit_run(kit_world *w, const tess_collective *c, tess_error *e) {
    nothing_yet(w);
    if (c->op == TESS_BARRIER || !c->count)
        return TESS_OK;
    if (reduces(c))
        return reduce(w, c, e);
    return c->op == TESS_BROADCAST ? broadcast(w, c, e) : gather(w, c, e);
}
