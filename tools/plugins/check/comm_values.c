/* SPDX-License-Identifier: BSD-3-Clause */
/* Compares every operation, dtype and reduction bit by bit with the reference. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm.h"
#include "comm_reference.h"
#include "suites.h"

enum { GUARD = 64, FILL = 0xa5, EARLIER = 99 }; /* EARLIER: the rank number whose values recv holds before */

/* A call and its memory. The buffers start `skew` bytes after an aligned address. The bytes around them must stay
 * unchanged. */
struct call {
    tess_collective c;
    unsigned char *send_block, *recv_block, *scratch;
    uint64_t send_bytes, recv_bytes;
    unsigned skew;
    int in_place, exact, shape; /* shape: PARTS_…, of an all_to_all_v */
};

static uint64_t send_parts[CHECK_RANKS], recv_parts[CHECK_RANKS]; /* of the running call, as it lasts */

/* Fills in the parts; returns the elements that this rank sends, and with `in` those that it gets. */
static uint64_t make_parts(comm_rank *r, struct call *x, int in) {
    uint64_t n = 0;
    for (int p = 0; p < r->nranks; p++) {
        send_parts[p] = ref_part(x->shape, x->c.count, r->nranks, r->rank, p);
        recv_parts[p] = ref_part(x->shape, x->c.count, r->nranks, p, r->rank);
        n += in ? recv_parts[p] : send_parts[p];
    }
    x->c.send_parts = send_parts;
    x->c.recv_parts = recv_parts;
    return n;
}

static int shared_root(const struct call *x, int nranks) {
    return (int)(x->c.count % (uint64_t)nranks);
}

static uint64_t blocks_in(uint32_t op, int nranks) {
    return op == TESS_REDUCE_SCATTER || op == TESS_ALL_TO_ALL ? (uint64_t)nranks : 1;
}
static uint64_t blocks_out(uint32_t op, int nranks) {
    return op == TESS_ALL_GATHER || op == TESS_ALL_TO_ALL ? (uint64_t)nranks : 1;
}

/* Buffers come from malloc, or from memory that the plugin allocated or registered. */
static struct {
    uint32_t mem; /* 0: malloc */
    tess_buffer buffer[2];
    int taken;
} arena;
enum { ARENA_BYTES = 1 << 20, PAGE = 4096 };
static int n_calls, n_left_out;

/* Returns `bytes` bytes at a page boundary, with GUARD bytes before and more behind. */
static unsigned char *guarded_block(comm_rank *r, uint64_t bytes, int in_arena) {
    uint64_t all = bytes + 2 * GUARD + 64;
    void *p;
    if (in_arena && arena.mem) {
        p = arena.buffer[arena.taken++ % 2].ptr;
        check_that(r->c, all + PAGE <= ARENA_BYTES, "no memory for the check");
    } else {
        check_that(r->c, posix_memalign(&p, PAGE, all + PAGE) == 0, "no memory for the check");
    }
    memset(p, FILL, all + PAGE - GUARD);
    return (unsigned char *)p + PAGE - GUARD;
}

static void guarded_free(unsigned char *block, int in_arena) {
    if (!in_arena || !arena.mem)
        free(block - (PAGE - GUARD));
}

static const char *redop_name(const tess_collective *c) {
    static const char *const names[] = { "", "sum ", "min ", "max " };
    int reduces = c->op == TESS_REDUCE_SCATTER || c->op == TESS_ALL_REDUCE;
    return reduces && c->redop < 4 ? names[c->redop] : "";
}

static void check_guards(comm_rank *r, const unsigned char *block, uint64_t bytes, unsigned skew, const char *what) {
    for (uint64_t i = 0; i < bytes + 2 * GUARD; i = i + 1 == GUARD + skew ? i + 1 + bytes : i + 1)
        check_that(r->c, block[i] == FILL, "wrote beside %s, at %lld of %llu", what, (long long)i - GUARD - skew,
                   (unsigned long long)bytes);
}

/* Writes element i of the block that rank `from` sends to rank `to`. */
static void sent(const struct call *x, int from, int to, uint64_t i, void *out) {
    uint64_t base = blocks_in(x->c.op, 2) > 1 ? (uint64_t)to * x->c.count : 0;
    ref_value(x->c.send_dtype, from, base + i, x->exact, out);
}

static uint64_t elems_out(comm_rank *r, struct call *x) {
    return x->c.op == TESS_ALL_TO_ALL_V ? make_parts(r, x, 1) : blocks_out(x->c.op, r->nranks) * x->c.count;
}

static void fill_parts(comm_rank *r, const struct call *x, unsigned char *send) {
    const uint64_t bytes = ref_dtype_bytes(x->c.send_dtype);
    for (int p = 0; p < r->nranks; p++)
        for (uint64_t i = 0; i < send_parts[p]; i++, send += bytes)
            ref_value(x->c.send_dtype, r->rank, (uint64_t)p * x->c.count + i, x->exact, send);
}

static void lay_out(comm_rank *r, struct call *x) {
    uint64_t in = ref_dtype_bytes(x->c.send_dtype), out = ref_dtype_bytes(x->c.recv_dtype);
    const int parts = x->c.op == TESS_ALL_TO_ALL_V;
    x->send_bytes = (parts ? make_parts(r, x, 0) : blocks_in(x->c.op, r->nranks) * x->c.count) * in;
    x->recv_bytes = elems_out(r, x) * out;
    x->recv_block = guarded_block(r, x->recv_bytes, 1);
    x->send_block = guarded_block(r, x->send_bytes, 1);
    unsigned char *recv = x->recv_block + GUARD + x->skew, *send = x->send_block + GUARD + x->skew;
    if (x->in_place && x->c.op == TESS_ALL_GATHER)
        send = recv + (uint64_t)r->rank * x->c.count * in;
    else if (x->in_place)
        send = recv;
    x->c.send = send;
    x->c.recv = recv;
    if (parts)
        fill_parts(r, x, send);
    for (uint64_t b = 0; !parts && b < blocks_in(x->c.op, r->nranks); b++)
        for (uint64_t i = 0; i < x->c.count; i++)
            sent(x, r->rank, (int)b, i, send + (b * x->c.count + i) * in);
    for (uint64_t i = 0; x->c.flags & 1 && i < x->c.count; i++)
        ref_value(x->c.recv_dtype, EARLIER, i, x->exact, recv + i * out);
    x->scratch = guarded_block(r, x->c.scratch_bytes, 0);
    x->c.scratch = x->scratch + GUARD;
}

/* Returns 1 if the plugin supports the call, and notes the scratch bytes that it needs. */
static int is_offered(comm_rank *r, struct call *x) {
    tess_plan_env env = { .struct_size = sizeof env, .mem = TESS_MEM_HOST, .nranks = r->nranks, .in_flight = 1 };
    tess_need need = { .struct_size = sizeof need };
    check_doing(r->c, "need");
    tess_status s = r->ops->need(r->ctx, &env, &x->c, &need);
    check_doing(r->c, "");
    uint64_t blocks = blocks_in(x->c.op, r->nranks) > blocks_out(x->c.op, r->nranks) ? blocks_in(x->c.op, r->nranks)
                                                                                     : blocks_out(x->c.op, r->nranks);
    if (r->caps.max_bytes && blocks * x->c.count * ref_dtype_bytes(x->c.send_dtype) > r->caps.max_bytes)
        s = TESS_E_UNSUPPORTED;
    check_that(r->c, s == TESS_OK || s == TESS_E_UNSUPPORTED, "need gave %s for %s of %s", check_status(s),
               comm_op_name(x->c.op), ref_dtype_name(x->c.send_dtype));
    x->c.scratch_bytes = need.device_bytes;
    n_calls += s == TESS_OK;
    n_left_out += s != TESS_OK;
    return s == TESS_OK;
}

static void expected_part(comm_rank *r, const struct call *x, uint64_t i, void *out) {
    int from = 0;
    while (i >= recv_parts[from])
        i -= recv_parts[from++];
    ref_value(x->c.send_dtype, from, (uint64_t)r->rank * x->c.count + i, x->exact, out);
}

/* Writes element i of this rank's result. */
static void expected(comm_rank *r, const struct call *x, uint64_t i, const void *old, void *out) {
    const tess_collective *c = &x->c;
    switch (c->op) {
    case TESS_ALL_GATHER: sent(x, (int)(i / c->count), 0, i % c->count, out); break;
    case TESS_ALL_TO_ALL_V: expected_part(r, x, i, out); break;
    case TESS_ALL_TO_ALL: sent(x, (int)(i / c->count), r->rank, i % c->count, out); break;
    case TESS_BROADCAST: sent(x, c->root, 0, i, out); break;
    default:
        ref_reduce(c->send_dtype, c->recv_dtype, c->redop, r->nranks,
                   c->op == TESS_REDUCE_SCATTER ? (uint64_t)r->rank * c->count + i : i, x->exact, c->scale,
                   c->flags & 1 ? old : NULL, out);
    }
}

static void check_result(comm_rank *r, struct call *x) {
    uint64_t bytes = ref_dtype_bytes(x->c.recv_dtype), n = elems_out(r, x);
    unsigned char old[8] = { 0 }, want[8];
    if (x->c.op == TESS_BROADCAST && r->rank == x->c.root && !x->in_place)
        return; /* the other ranks' recv is unused */
    for (uint64_t i = 0; i < n; i++) {
        /* A long result is compared in its first and last thousand elements and some between. */
        if (n > 100000 && i > 1000 && i < n - 1000 && i % 61 != 0)
            continue;
        if (x->c.flags & 1)
            ref_value(x->c.recv_dtype, EARLIER, i, x->exact, old);
        expected(r, x, i, old, want);
        const unsigned char *got = (const unsigned char *)x->c.recv + i * bytes;
        uint64_t is = 0, should = 0;
        memcpy(&is, got, bytes);
        memcpy(&should, want, bytes);
        check_that(r->c, is == should, "%s %s>%s %scount %llu%s%s: element %llu is %#llx, not %#llx",
                   comm_op_name(x->c.op), ref_dtype_name(x->c.send_dtype), ref_dtype_name(x->c.recv_dtype),
                   redop_name(&x->c), (unsigned long long)x->c.count, x->in_place ? " in place" : "",
                   x->c.flags ? " added" : "", (unsigned long long)i, (unsigned long long)is,
                   (unsigned long long)should);
    }
}

static void post_and_wait(comm_rank *r, const struct call *x) {
    tess_request *request = NULL;
    tess_error e = { .struct_size = sizeof e };
    check_doing(r->c, "post");
    tess_status s = r->ops->post(r->comm, &x->c, 1, &request, &e);
    check_that(r->c, s == TESS_OK, "post of %s gave %s: %s", comm_op_name(x->c.op), check_status(s), e.message);
    check_doing(r->c, "wait");
    s = r->ops->wait(request, CHECK_LONG_NS, &e);
    check_that(r->c, s == TESS_OK, "%s of %s, count %llu, ended with %s: %s", comm_op_name(x->c.op),
               ref_dtype_name(x->c.send_dtype), (unsigned long long)x->c.count, check_status(s), e.message);
    check_doing(r->c, "request_free");
    r->ops->request_free(request);
    check_doing(r->c, "");
}

/* Lays out a call's memory, runs the call and checks its result. */
static void try(comm_rank *r, struct call x) {
    static uint64_t tag;
    x.c.struct_size = sizeof x.c;
    x.c.send_mem = x.c.recv_mem = arena.mem ? arena.mem : TESS_MEM_HOST;
    x.c.seq = x.c.tag = ++tag;
    x.c.root = shared_root(&x, r->nranks);
    x.exact = !(r->caps.caps & TESS_COMM_TREE_ORDER);
    x.skew = r->caps.align <= 1 ? x.skew : 0;
    if (!is_offered(r, &x))
        return;
    arena.taken = 0;
    lay_out(r, &x);
    if (arena.mem) {
        x.c.recv_reg = arena.buffer[0].reg;
        x.c.send_reg = x.in_place ? arena.buffer[0].reg : arena.buffer[1].reg;
    }
    post_and_wait(r, &x);
    check_result(r, &x);
    check_guards(r, x.recv_block, x.recv_bytes, x.skew, "recv");
    check_guards(r, x.send_block, x.send_bytes, x.skew, "send");
    check_guards(r, x.scratch, x.c.scratch_bytes, 0, "scratch");
    guarded_free(x.send_block, 1);
    guarded_free(x.recv_block, 1);
    guarded_free(x.scratch, 0);
}

static void told(comm_rank *r) {
    if (!n_calls)
        check_skip(r->c, "offers none of these");
    check_note(r->c, n_left_out ? "%d calls, %d not offered" : "%d calls", n_calls, n_left_out);
}

static const uint32_t dtypes[] = { TESS_U8, TESS_I8, TESS_I32, TESS_I64, TESS_F16, TESS_BF16, TESS_F32, TESS_F64 };
enum { DTYPES = sizeof dtypes / sizeof *dtypes };
static const uint64_t counts[] = { 0, 1, 3, 64, 1023, 1025, 4099 };
enum { COUNTS = sizeof counts / sizeof *counts };

static int claims(const comm_rank *r, uint32_t op, uint32_t dtype) {
    return r->caps.op_mask >> op & 1 && r->caps.dtype_mask >> dtype & 1;
}

static void moves(comm_rank *r, uint64_t count, unsigned skew) {
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

static void parts(comm_rank *r, uint64_t count, unsigned skew) {
    for (unsigned d = 0; d < DTYPES; d++)
        for (int shape = 0; shape < PARTS_SHAPES; shape++)
            if (claims(r, TESS_ALL_TO_ALL_V, dtypes[d]))
                try(r, (struct call){ .c = { .op = TESS_ALL_TO_ALL_V,
                                             .send_dtype = dtypes[d],
                                             .recv_dtype = dtypes[d],
                                             .count = count },
                                      .skew = skew,
                                      .shape = shape });
}

/* Parts of their own lengths: none, a few elements, and more than any chunk or message. */
static void in_parts(check *self) {
    comm_rank *r = comm_open(self);
    if (!(r->caps.op_mask >> TESS_ALL_TO_ALL_V & 1))
        check_skip(self, "does not offer all_to_all_v");
    comm_join(r);
    for (unsigned i = 0; i < COUNTS; i++)
        parts(r, counts[i], i % 4);
    for (int shape = 0; shape < PARTS_SHAPES; shape++)
        if (claims(r, TESS_ALL_TO_ALL_V, TESS_F32))
            try(r, (struct call){ .c = { .op = TESS_ALL_TO_ALL_V,
                                         .send_dtype = TESS_F32,
                                         .recv_dtype = TESS_F32,
                                         .count = r->nranks > 4 ? 300007 : 1200011 },
                                  .skew = 1,
                                  .shape = shape });
    told(r);
    comm_leave(r);
}

static void reductions(comm_rank *r, uint32_t op, uint64_t count, unsigned skew) {
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
            x.in_place = op == TESS_ALL_REDUCE;
            if (x.in_place)
                try(r, x);
            x.in_place = 0;
            x.c.scale = 1.0;
            x.c.recv_dtype = dtypes[d] == TESS_F16 || dtypes[d] == TESS_BF16 ? TESS_F32 : dtypes[d];
            x.c.flags = redop == TESS_SUM; /* TESS_SUM also adds to what recv holds */
            if (real && x.c.flags)
                x.c.scale = 0.7;
            try(r, x);
            x.c.recv_dtype = TESS_BF16; /* a narrower result is rounded once, after the sum */
            if (dtypes[d] == TESS_F32)
                try(r, x);
        }
    }
}

static void all_counts(check *self) {
    comm_rank *r = comm_open(self);
    comm_join(r);
    for (unsigned i = 0; i < COUNTS; i++) {
        moves(r, counts[i], i % 4);
        reductions(r, TESS_REDUCE_SCATTER, counts[i], (i + 1) % 4);
        reductions(r, TESS_ALL_REDUCE, counts[i], i % 3);
    }
    told(r);
    comm_leave(r);
}

/* More than 1 MiB for each block exceeds any implementation's chunk, message or window. The sizes are odd and
 * misaligned. */
static void large(check *self) {
    comm_rank *r = comm_open(self);
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
            x.in_place = in_place && op != TESS_REDUCE_SCATTER;
            if (claims(r, op, TESS_F32))
                try(r, x);
        }
    }
    const tess_collective more[] = {
        { .op = TESS_ALL_TO_ALL, .send_dtype = TESS_I32, .recv_dtype = TESS_I32, .count = n },
        { .op = TESS_REDUCE_SCATTER,
          .redop = TESS_SUM,
          .send_dtype = TESS_BF16,
          .recv_dtype = TESS_F32,
          .count = n,
          .scale = 1,
          .flags = 1 },
        { .op = TESS_ALL_REDUCE,
          .redop = TESS_SUM,
          .send_dtype = TESS_I64,
          .recv_dtype = TESS_I64,
          .count = n,
          .scale = 1 },
        /* too few to share evenly among the ranks, too many for one small message */
        { .op = TESS_ALL_REDUCE,
          .redop = TESS_SUM,
          .send_dtype = TESS_F64,
          .recv_dtype = TESS_F64,
          .count = 513,
          .scale = 1 },
    };
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        if (claims(r, more[i].op, more[i].send_dtype) && (r->caps.dtype_mask >> more[i].recv_dtype & 1))
            try(r, (struct call){ .c = more[i], .skew = i ? 1 : 2 });
    told(r);
    comm_leave(r);
}

/* The order in which ranks arrive must not change the tree's bits. */
static void repeatable(check *self) {
    comm_rank *r = comm_open(self);
    comm_must_claim(r, TESS_COMM_TREE_ORDER, "TESS_COMM_TREE_ORDER");
    comm_join(r);
    for (int round = 0; round < 12; round++)
        for (uint32_t op = TESS_REDUCE_SCATTER; op <= TESS_ALL_REDUCE; op++) {
            check_sleep_ms((r->rank * 5 + round * 3) % 7);
            if (claims(r, op, TESS_F32))
                try(r, (struct call){ .c = { .op = op,
                                             .redop = TESS_SUM,
                                             .send_dtype = TESS_F32,
                                             .recv_dtype = TESS_F32,
                                             .count = round % 2 ? 2049 : 33333,
                                             .scale = 1 } });
        }
    told(r);
    comm_leave(r);
}

/* NaN in MIN, MAX or SUM gives NaN. */
static void not_a_number(check *self) {
    comm_rank *r = comm_open(self);
    comm_must_offer(r, TESS_ALL_REDUCE, TESS_F32);
    comm_join(r);
    for (uint32_t redop = TESS_SUM; redop <= TESS_MAX; redop++) {
        if (!(r->caps.redop_mask >> redop & 1))
            continue;
        float send[4] = { (float)r->rank, (float)-r->rank, NAN, 2 }, recv[4] = { 0 };
        send[3] = r->rank == r->nranks - 1 ? NAN : INFINITY;
        send[0] = r->rank == 0 ? NAN : send[0];
        struct call x = { .c = { .struct_size = sizeof x.c,
                                 .op = TESS_ALL_REDUCE,
                                 .redop = redop,
                                 .send_dtype = TESS_F32,
                                 .recv_dtype = TESS_F32,
                                 .send_mem = TESS_MEM_HOST,
                                 .recv_mem = TESS_MEM_HOST,
                                 .send = send,
                                 .recv = recv,
                                 .count = 4,
                                 .scale = 1,
                                 .tag = redop } };
        if (!is_offered(r, &x))
            continue;
        x.scratch = guarded_block(r, x.c.scratch_bytes, 0);
        x.c.scratch = x.scratch + GUARD;
        post_and_wait(r, &x);
        check_that(r->c, isnan(recv[0]) && isnan(recv[2]) && isnan(recv[3]) && !isnan(recv[1]),
                   "all_reduce %sof NaN on one rank gives %g %g %g %g, expected nan, a number, nan, nan",
                   redop_name(&x.c), (double)recv[0], (double)recv[1], (double)recv[2], (double)recv[3]);
        guarded_free(x.scratch, 0);
    }
    told(r);
    comm_leave(r);
}

static void run_in_arena(comm_rank *r, uint32_t mem) {
    static const uint64_t some[] = { 0, 1, 1023, 4099 };
    arena.mem = mem;
    for (unsigned i = 0; i < sizeof some / sizeof *some; i++) {
        moves(r, some[i], i);
        parts(r, some[i], i % 2);
        reductions(r, TESS_REDUCE_SCATTER, some[i], i % 3);
        reductions(r, TESS_ALL_REDUCE, some[i], i % 2);
    }
    arena.mem = 0;
    check_meet(r->c);
}

static tess_alloc_request arena_request(uint32_t mem) {
    return (tess_alloc_request){ .struct_size = sizeof(tess_alloc_request),
                                 .mem = mem,
                                 .domain = TESS_DOMAIN_DEVICE,
                                 .category = TESS_CAT_COMM,
                                 .device = -1,
                                 .numa_node = -1,
                                 .bytes = ARENA_BYTES,
                                 .align = PAGE };
}

/* Allocates both buffers of one kind of memory. Returns 0 if the plugin has no such memory. */
static int arena_alloc(comm_rank *r, uint32_t mem) {
    tess_alloc_request request = arena_request(mem);
    for (int i = 0; i < 2; i++) {
        tess_error e = { .struct_size = sizeof e };
        arena.buffer[i] = (tess_buffer){ .struct_size = sizeof arena.buffer[i] };
        check_doing(r->c, "mem_alloc");
        tess_status s = r->ops->mem_alloc(r->comm, &request, &arena.buffer[i], &e);
        check_doing(r->c, "");
        if (s == TESS_E_UNSUPPORTED && i == 0)
            return 0;
        check_that(r->c, s == TESS_OK, "mem_alloc of memory kind %u gave %s: %s", mem, check_status(s), e.message);
        check_that(r->c, arena.buffer[i].ptr && (uintptr_t)arena.buffer[i].ptr % PAGE == 0,
                   "mem_alloc gave %p, which is not aligned to %d", arena.buffer[i].ptr, PAGE);
        check_that(r->c, arena.buffer[i].bytes >= ARENA_BYTES && arena.buffer[i].mem == mem,
                   "mem_alloc gave %llu bytes of kind %u, expected %d of kind %u",
                   (unsigned long long)arena.buffer[i].bytes, arena.buffer[i].mem, ARENA_BYTES, mem);
        memset(arena.buffer[i].ptr, FILL, ARENA_BYTES);
    }
    return 1;
}

static void own_memory(check *self) {
    comm_rank *r = comm_open(self);
    if (!TESS_CAN(tess_comm_ops, r->ops, mem_alloc))
        check_skip(self, "allocates no memory");
    comm_join(r);
    for (uint32_t mem = TESS_MEM_HOST; mem <= TESS_MEM_SHM; mem++) {
        if (mem == comm_staged_mem()) {
            comm_staged_memory_of(r->comm);
            run_in_arena(r, 0);
            comm_staged_memory_of(NULL);
        }
        if (mem == TESS_MEM_CUDA || !(r->caps.mem_mask >> mem & 1) || !arena_alloc(r, mem))
            continue;
        run_in_arena(r, mem);
        r->ops->mem_free(r->comm, &arena.buffer[1]);
        r->ops->mem_free(r->comm, &arena.buffer[0]);
    }
    told(r);
    comm_leave(r);
}

static void share_and_free(comm_rank *r, uint32_t mem) {
    tess_alloc_request request = arena_request(mem);
    tess_buffer buffer[2] = { { .struct_size = sizeof *buffer }, { .struct_size = sizeof *buffer } };
    tess_error e = { .struct_size = sizeof e };
    for (int i = 0; i < 2; i++) {
        tess_status s = r->ops->mem_alloc(r->comm, &request, &buffer[i], &e);
        check_that(r->c, s == TESS_OK, "mem_alloc of memory kind %u gave %s: %s", mem, check_status(s), e.message);
        check_doing(r->c, "mem_share");
        s = r->ops->mem_share(r->comm, &buffer[i], &e);
        check_doing(r->c, "");
        check_that(r->c, s == TESS_OK || s == TESS_E_UNSUPPORTED, "mem_share gave %s: %s", check_status(s), e.message);
    }
    check_meet(r->c);
    for (int i = 1; i >= 0; i--)
        r->ops->mem_free(r->comm, &buffer[i]);
}

static void shared_memory(check *self) {
    comm_rank *r = comm_open(self);
    comm_must_claim(r, TESS_COMM_SHARES, "TESS_COMM_SHARES");
    check_that(self, TESS_CAN(tess_comm_ops, r->ops, mem_share) && TESS_CAN(tess_comm_ops, r->ops, mem_alloc),
               "claims TESS_COMM_SHARES without mem_share and mem_alloc");
    comm_join(r);
    for (uint32_t mem = TESS_MEM_HOST; mem <= TESS_MEM_SHM; mem++)
        if ((r->caps.mem_mask >> mem & 1) && (mem == comm_staged_mem() || mem != TESS_MEM_CUDA))
            share_and_free(r, mem);
    comm_leave(r);
}

static void registered_memory(check *self) {
    comm_rank *r = comm_open(self);
    if (!TESS_CAN(tess_comm_ops, r->ops, mem_register))
        check_skip(self, "registers no memory");
    comm_join(r);
    if (comm_staged_mem()) {
        comm_staged_registered_with(r->comm);
        run_in_arena(r, 0);
        comm_staged_registered_with(NULL);
        told(r);
        comm_leave(r);
        return;
    }
    for (int i = 0; i < 2; i++) {
        tess_error e = { .struct_size = sizeof e };
        arena.buffer[i] =
            (tess_buffer){ .struct_size = sizeof(tess_buffer), .mem = TESS_MEM_HOST, .bytes = ARENA_BYTES };
        check_that(self, posix_memalign(&arena.buffer[i].ptr, PAGE, ARENA_BYTES) == 0, "no memory for the check");
        tess_status s = r->ops->mem_register(r->comm, &arena.buffer[i], &e);
        check_that(self, s == TESS_OK || s == TESS_E_UNSUPPORTED, "mem_register gave %s: %s", check_status(s),
                   e.message);
        check_that(self, s == TESS_OK || !arena.buffer[i].reg, "mem_register failed and wrote reg");
    }
    run_in_arena(r, TESS_MEM_HOST);
    for (int i = 0; i < 2; i++) {
        r->ops->mem_deregister(r->comm, &arena.buffer[i]);
        free(arena.buffer[i].ptr);
    }
    told(r);
    comm_leave(r);
}

const check_case check_cases_comm_values[] = {
    { "values_one_rank", 1, all_counts, 0, 0 },
    { "values_two_ranks", 2, all_counts, 0, 0 },
    { "values_three_ranks", 3, all_counts, 0, 0 },
    { "values_four_ranks", 4, all_counts, 0, 0 },
    { "values_five_ranks", 5, all_counts, 0, 0 },
    { "values_eight_ranks", 8, all_counts, 0, 0 },
    { "parts_one_rank", 1, in_parts, 0, 0 },
    { "parts_two_ranks", 2, in_parts, 0, 0 },
    { "parts_three_ranks", 3, in_parts, 0, 0 },
    { "parts_four_ranks", 4, in_parts, 0, 0 },
    { "parts_eight_ranks", 8, in_parts, 0, 0 },
    { "large_one_rank", 1, large, 0, 0 },
    { "large_two_ranks", 2, large, 0, 0 },
    { "large_three_ranks", 3, large, 0, 0 },
    { "large_four_ranks", 4, large, 0, 0 },
    { "large_five_ranks", 5, large, 0, 0 },
    { "repeatable_two_ranks", 2, repeatable, 0, 0 },
    { "repeatable_five_ranks", 5, repeatable, 0, 0 },
    { "not_a_number", 3, not_a_number, 0, 0 },
    { "own_memory_two_ranks", 2, own_memory, 0, 0 },
    { "own_memory_four_ranks", 4, own_memory, 0, 0 },
    { "registered_memory", 3, registered_memory, 0, 0 },
    { "shared_memory", 3, shared_memory, 0, 0 },
    { 0 },
};
