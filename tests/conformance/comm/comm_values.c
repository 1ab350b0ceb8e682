/* Every operation, dtype and reduction against the reference, bit by bit. */
#include "comm_reference.h"
#include "comm_suite.h"
#include <stdlib.h>
#include <string.h>

enum { GUARD = 64, FILL = 0xa5, EARLIER = 99 }; /* EARLIER: stands for a rank, in what recv held before */

/* A call and its memory. The buffers start `skew` bytes after an aligned address; what lies around them is filled and
 * must stay as it is. */
struct call {
    tess_collective c;
    unsigned char *send_block, *recv_block, *scratch;
    uint64_t send_bytes, recv_bytes;
    unsigned skew;
    int in_place, exact;
};

static int shared_root(const struct call *x, int nranks) {
    return (int)(x->c.count % (uint64_t)nranks);
}

static uint64_t blocks_in(uint32_t op, int nranks) {
    return op == TESS_REDUCE_SCATTER || op == TESS_ALL_TO_ALL ? (uint64_t)nranks : 1;
}
static uint64_t blocks_out(uint32_t op, int nranks) {
    return op == TESS_ALL_GATHER || op == TESS_ALL_TO_ALL ? (uint64_t)nranks : 1;
}

static unsigned char *guarded_block(struct comm_rank *r, uint64_t bytes) {
    unsigned char *p = malloc(bytes + 2 * GUARD + 64);
    COMM_CHECK(r, p, "no memory");
    memset(p, FILL, bytes + 2 * GUARD + 64);
    return p;
}

static void check_guards(struct comm_rank *r, const unsigned char *block, uint64_t bytes, unsigned skew,
                         const char *what) {
    for (uint64_t i = 0; i < bytes + 2 * GUARD; i++)
        if (i < GUARD + skew || i >= GUARD + skew + bytes)
            COMM_CHECK(r, block[i] == FILL, "wrote beside %s, at %lld of %llu", what, (long long)i - GUARD - skew,
                       (unsigned long long)bytes);
}

/* What rank `from` sends to rank `to`, element i of the block. */
static void sent(const struct call *x, int from, int to, uint64_t i, void *out) {
    uint64_t base = blocks_in(x->c.op, 2) > 1 ? (uint64_t)to * x->c.count : 0;
    ref_value(x->c.send_dtype, from, base + i, x->exact, out);
}

static void lay_out(struct comm_rank *r, struct call *x) {
    uint64_t in = ref_dtype_bytes(x->c.send_dtype), out = ref_dtype_bytes(x->c.recv_dtype);
    x->send_bytes = blocks_in(x->c.op, r->nranks) * x->c.count * in;
    x->recv_bytes = blocks_out(x->c.op, r->nranks) * x->c.count * out;
    x->recv_block = guarded_block(r, x->recv_bytes);
    x->send_block = guarded_block(r, x->send_bytes);
    unsigned char *recv = x->recv_block + GUARD + x->skew, *send = x->send_block + GUARD + x->skew;
    if (x->in_place && x->c.op == TESS_ALL_GATHER)
        send = recv + (uint64_t)r->rank * x->c.count * in;
    else if (x->in_place && x->c.op == TESS_REDUCE_SCATTER)
        recv = send + (uint64_t)r->rank * x->c.count * in;
    else if (x->in_place)
        send = recv;
    x->c.send = send;
    x->c.recv = recv;
    for (uint64_t b = 0; b < blocks_in(x->c.op, r->nranks); b++)
        for (uint64_t i = 0; i < x->c.count; i++)
            sent(x, r->rank, (int)b, i, send + (b * x->c.count + i) * in);
    for (uint64_t i = 0; x->c.flags & 1 && i < x->c.count; i++)
        ref_value(x->c.recv_dtype, EARLIER, i, x->exact, recv + i * out);
    tess_plan_env env = { .struct_size = sizeof env, .mem = TESS_MEM_HOST, .nranks = r->nranks };
    tess_need need = { .struct_size = sizeof need };
    tess_status s = r->ops->need(r->ctx, &env, &x->c, &need);
    COMM_CHECK(r, s == TESS_OK, "need gave %d for op %u dtype %s", s, x->c.op, ref_dtype_name(x->c.send_dtype));
    x->scratch = guarded_block(r, need.device_bytes);
    x->c.scratch = x->scratch + GUARD;
    x->c.scratch_bytes = need.device_bytes;
}

/* Element i of this rank's result. */
static void expected(struct comm_rank *r, const struct call *x, uint64_t i, const void *old, void *out) {
    const tess_collective *c = &x->c;
    switch (c->op) {
    case TESS_ALL_GATHER: sent(x, (int)(i / c->count), 0, i % c->count, out); break;
    case TESS_ALL_TO_ALL: sent(x, (int)(i / c->count), r->rank, i % c->count, out); break;
    case TESS_BROADCAST: sent(x, c->root, 0, i, out); break;
    default:
        ref_reduce(c->send_dtype, c->recv_dtype, c->redop, r->nranks,
                   c->op == TESS_REDUCE_SCATTER ? (uint64_t)r->rank * c->count + i : i, x->exact, c->scale,
                   c->flags & 1 ? old : NULL, out);
    }
}

static void check_result(struct comm_rank *r, const struct call *x) {
    uint64_t bytes = ref_dtype_bytes(x->c.recv_dtype), n = blocks_out(x->c.op, r->nranks) * x->c.count;
    unsigned char old[8], want[8];
    for (uint64_t i = 0; i < n; i++) {
        /* Long ones: every element of the first and last thousand, and some between. */
        if (n > 100000 && i > 1000 && i < n - 1000 && i % 61 != 0)
            continue;
        ref_value(x->c.recv_dtype, EARLIER, i, x->exact, old);
        expected(r, x, i, old, want);
        const unsigned char *got = (const unsigned char *)x->c.recv + i * bytes;
        uint64_t is = 0, should = 0;
        memcpy(&is, got, bytes);
        memcpy(&should, want, bytes);
        COMM_CHECK(r, is == should,
                   "op %u %s>%s redop %u count %llu in place %d flags %u: element %llu is %#llx, not %#llx", x->c.op,
                   ref_dtype_name(x->c.send_dtype), ref_dtype_name(x->c.recv_dtype), x->c.redop,
                   (unsigned long long)x->c.count, x->in_place, x->c.flags, (unsigned long long)i,
                   (unsigned long long)is, (unsigned long long)should);
    }
}

/* Runs one call from laying out its memory to checking its result. */
static void try(struct comm_rank *r, struct call x) {
    static uint64_t tag;
    x.c.struct_size = sizeof x.c;
    x.c.send_mem = x.c.recv_mem = TESS_MEM_HOST;
    x.c.seq = x.c.tag = ++tag;
    x.c.root = shared_root(&x, r->nranks);
    x.exact = !(r->caps.caps & TESS_COMM_TREE_ORDER);
    x.skew = r->caps.align <= 1 ? x.skew : 0;
    lay_out(r, &x);
    tess_request *request;
    tess_error e = { .struct_size = sizeof e };
    tess_status s = r->ops->post(r->comm, &x.c, 1, &request, &e);
    COMM_CHECK(r, s == TESS_OK, "post of op %u gave %d: %s", x.c.op, s, e.message);
    s = r->ops->wait(request, INT64_C(20000000000), &e);
    COMM_CHECK(r, s == TESS_OK, "op %u ended with %d: %s", x.c.op, s, e.message);
    r->ops->request_free(request);
    check_result(r, &x);
    int in_send = x.in_place && x.c.op == TESS_REDUCE_SCATTER;
    if (!in_send)
        check_guards(r, x.recv_block, x.recv_bytes, x.skew, "recv");
    check_guards(r, x.send_block, x.send_bytes, x.skew, "send");
    check_guards(r, x.scratch, x.c.scratch_bytes, 0, "scratch");
    free(x.send_block);
    free(x.recv_block);
    free(x.scratch);
}

static const uint32_t dtypes[] = { TESS_U8, TESS_I8, TESS_I32, TESS_I64, TESS_F16, TESS_BF16, TESS_F32, TESS_F64 };
enum { DTYPES = sizeof dtypes / sizeof *dtypes };
static const uint64_t counts[] = { 0, 1, 3, 64, 1023, 1025, 4099 };
enum { COUNTS = sizeof counts / sizeof *counts };

static int claims(const struct comm_rank *r, uint32_t op, uint32_t dtype) {
    return r->caps.op_mask >> op & 1 && r->caps.dtype_mask >> dtype & 1;
}

static void moves(struct comm_rank *r, uint64_t count, unsigned skew) {
    static const uint32_t ops[] = { TESS_ALL_GATHER, TESS_BROADCAST, TESS_ALL_TO_ALL };
    for (unsigned o = 0; o < 3; o++)
        for (unsigned d = 0; d < DTYPES; d++)
            for (int in_place = 0; in_place < (ops[o] == TESS_ALL_TO_ALL ? 1 : 2); in_place++)
                if (claims(r, ops[o], dtypes[d]))
                    try(r, (struct call){
                               .c = { .op = ops[o], .send_dtype = dtypes[d], .recv_dtype = dtypes[d], .count = count },
                               .skew = skew,
                               .in_place = in_place });
}

static void reductions(struct comm_rank *r, uint32_t op, uint64_t count, unsigned skew) {
    for (unsigned d = 0; d < DTYPES; d++) {
        if (!claims(r, op, dtypes[d]))
            continue;
        int real = dtypes[d] >= TESS_F16;
        for (uint32_t redop = TESS_SUM; redop <= TESS_MAX; redop++) {
            if (!(r->caps.redop_mask >> redop & 1))
                continue;
            struct call x = { .c = { .op = op, .redop = redop, .send_dtype = dtypes[d], .recv_dtype = dtypes[d] },
                              .skew = skew };
            x.c.count = count;
            x.c.scale = real ? 1.0 / (3 * r->nranks) : 1.0;
            try(r, x);
            x.in_place = 1;
            try(r, x);
            x.in_place = 0;
            x.c.scale = 1.0;
            x.c.recv_dtype = dtypes[d] == TESS_F16 || dtypes[d] == TESS_BF16 ? TESS_F32 : dtypes[d];
            x.c.flags = redop == TESS_SUM; /* add to what is there */
            if (real && x.c.flags)
                x.c.scale = 0.7;
            try(r, x);
        }
    }
}

static void all_counts(struct comm_rank *r) {
    comm_join(r);
    for (unsigned i = 0; i < COUNTS; i++) {
        moves(r, counts[i], i % 4);
        reductions(r, TESS_REDUCE_SCATTER, counts[i], (i + 1) % 4);
        reductions(r, TESS_ALL_REDUCE, counts[i], i % 3);
    }
    comm_leave(r);
}

/* More than one chunk, message or window of any implementation: past 1 MiB per block, odd, misaligned. */
static void large(struct comm_rank *r) {
    comm_join(r);
    uint64_t n = r->nranks > 4 ? 150001 : 600011;
    for (int in_place = 0; in_place < 2; in_place++) {
        struct call x = {
            .c = { .op = TESS_ALL_GATHER, .send_dtype = TESS_F32, .recv_dtype = TESS_F32, .count = n, .scale = 0.3 },
            .skew = 1,
            .in_place = in_place
        };
        x.c.redop = TESS_SUM;
        for (uint32_t op = TESS_ALL_GATHER; op <= TESS_BROADCAST; op++) {
            x.c.op = op;
            try(r, x);
        }
    }
    struct call x = { .c = { .op = TESS_ALL_TO_ALL, .send_dtype = TESS_I32, .recv_dtype = TESS_I32, .count = n },
                      .skew = 2 };
    try(r, x);
    x.c = (tess_collective){ .op = TESS_REDUCE_SCATTER,
                             .redop = TESS_SUM,
                             .send_dtype = TESS_BF16,
                             .recv_dtype = TESS_F32,
                             .count = n,
                             .scale = 1,
                             .flags = 1 };
    try(r, x);
    x.c = (tess_collective){
        .op = TESS_ALL_REDUCE, .redop = TESS_SUM, .send_dtype = TESS_I64, .recv_dtype = TESS_I64, .count = n, .scale = 1
    };
    try(r, x);
    /* all_reduce of fewer elements than the ranks can share evenly, yet too many for one small message */
    x.c = (tess_collective){ .op = TESS_ALL_REDUCE,
                             .redop = TESS_SUM,
                             .send_dtype = TESS_F64,
                             .recv_dtype = TESS_F64,
                             .count = 513,
                             .scale = 1 };
    try(r, x);
    comm_leave(r);
}

const struct comm_case comm_cases_values[] = {
    { "values_one_rank", 1, all_counts, 0 },    { "values_two_ranks", 2, all_counts, 0 },
    { "values_three_ranks", 3, all_counts, 0 }, { "values_four_ranks", 4, all_counts, 0 },
    { "values_five_ranks", 5, all_counts, 0 },  { "values_eight_ranks", 8, all_counts, 0 },
    { "large_one_rank", 1, large, 0 },          { "large_two_ranks", 2, large, 0 },
    { "large_three_ranks", 3, large, 0 },       { "large_four_ranks", 4, large, 0 },
    { "large_five_ranks", 5, large, 0 },        { 0 },
};
