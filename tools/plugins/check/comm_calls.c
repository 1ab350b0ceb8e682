/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks ways to call: many at once, in batches, on subgroups, from two threads; and calls that must be refused. */
#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "comm.h"
#include "suites.h"

static tess_collective gather_of(const int32_t *send, int32_t *recv, uint64_t count, uint64_t tag) {
    return (tess_collective){ .struct_size = sizeof(tess_collective),
                              .op = TESS_ALL_GATHER,
                              .send_dtype = comm_word(),
                              .recv_dtype = comm_word(),
                              .send_mem = TESS_MEM_HOST,
                              .recv_mem = TESS_MEM_HOST,
                              .send = send,
                              .recv = recv,
                              .count = count,
                              .tag = tag };
}

static tess_request *posted(comm_rank *r, tess_comm *comm, const tess_collective *c, uint32_t n) {
    tess_request *request = NULL;
    tess_error e = { .struct_size = sizeof e };
    check_doing(r->c, "post");
    tess_status s = r->ops->post(comm, c, n, &request, &e);
    check_doing(r->c, "");
    check_that(r->c, s == TESS_OK, "post gave %s: %s", check_status(s), e.message);
    return request;
}

static void ended(comm_rank *r, tess_request *request) {
    tess_error e = { .struct_size = sizeof e };
    check_doing(r->c, "wait");
    tess_status s = r->ops->wait(request, CHECK_LONG_NS, &e);
    check_doing(r->c, "");
    check_that(r->c, s == TESS_OK, "wait gave %s: %s", check_status(s), e.message);
    s = r->ops->test(request, &e);
    check_that(r->c, s == TESS_OK, "test after the end gave %s", check_status(s));
    r->ops->request_free(request);
}

/* Gathers one number from each rank of `comm`. Rank i must have sent base + step * i. */
static void check_gather(comm_rank *r, tess_comm *comm, int n, int self, int base, int step, uint64_t tag) {
    int32_t all[16], mine = base + step * self;
    tess_collective c = gather_of(&mine, all, 1, tag);
    ended(r, posted(r, comm, &c, 1));
    for (int i = 0; i < n; i++)
        check_that(r->c, all[i] == base + step * i, "rank %d of %d said %d, expected %d", i, n, all[i],
                   base + step * i);
}

static void describes_itself(check *self) {
    comm_rank *r = comm_open(self);
    check_that(r->c, r->caps.wire_id[0] && memchr(r->caps.wire_id, 0, sizeof r->caps.wire_id), "no wire id");
    check_that(r->c, r->caps.op_mask && r->caps.dtype_mask && r->caps.mem_mask, "claims nothing");
    /* The plugin must not write past the size of a shorter out struct. */
    tess_comm_caps cut;
    memset(&cut, 0x5a, sizeof cut);
    cut.struct_size = 12;
    check_that(r->c, r->ops->query(r->ctx, NULL, &cut) == TESS_OK, "query failed");
    check_that(r->c, cut.struct_size == 12 && cut.op_mask == r->caps.op_mask, "short caps differ");
    check_that(r->c, cut.redop_mask == 0x5a5a5a5au, "query wrote past struct_size");
    tess_comm_caps again;
    memset(&again, 0xa5, sizeof again);
    again.struct_size = sizeof again;
    check_that(r->c, r->ops->query(r->ctx, NULL, &again) == TESS_OK && memcmp(&again, &r->caps, sizeof again) == 0,
               "query says something else the second time");
    struct {
        tess_comm_caps caps;
        uint64_t later[4];
    } longer;
    memset(&longer, 0x5a, sizeof longer);
    longer.caps.struct_size = sizeof longer;
    check_that(r->c, r->ops->query(r->ctx, NULL, &longer.caps) == TESS_OK, "query of longer caps failed");
    for (int i = 0; i < 4; i++)
        check_that(r->c, longer.later[i] == 0, "query leaves what it does not know in longer caps, instead of zero");
    check_note(r->c, "caps 0x%x, operations 0x%x, dtypes 0x%x, memory 0x%x", r->caps.caps, r->caps.op_mask,
               r->caps.dtype_mask, r->caps.mem_mask);
}

/* Posts more requests than a backend's pool may hold, and waits for the last one first. */
static void many_outstanding(check *self) {
    comm_rank *r = comm_open(self);
    enum { MANY = 200 };
    static int32_t send[MANY][3], recv[MANY][3 * 16];
    static tess_request *requests[MANY];
    comm_join(r);
    for (int i = 0; i < MANY; i++) {
        for (int k = 0; k < 3; k++)
            send[i][k] = 1000 * i + 10 * r->rank + k;
        tess_collective c = gather_of(send[i], recv[i], 3, (uint64_t)i);
        requests[i] = posted(r, r->comm, &c, 1);
    }
    for (int i = MANY - 1; i >= 0; i--) {
        ended(r, requests[i]);
        for (int k = 0; k < 3 * r->nranks; k++)
            check_that(r->c, recv[i][k] == 1000 * i + 10 * (k / 3) + k % 3, "request %d element %d is %d", i, k,
                       recv[i][k]);
    }
    comm_leave(r);
}

/* A batch gives one request for several collectives. A newer core's array has longer elements, so struct_size gives the
 * step. */
static void batch(check *self) {
    comm_rank *r = comm_open(self);
    comm_must_claim(r, TESS_COMM_BATCH, "TESS_COMM_BATCH");
    comm_join(r);
    struct {
        tess_collective c;
        uint64_t later_field;
    } calls[7];
    int32_t send[7], recv[7][16];
    for (int i = 0; i < 7; i++) {
        send[i] = 100 * i + r->rank;
        calls[i].c = gather_of(&send[i], recv[i], 1, (uint64_t)i);
        calls[i].c.struct_size = sizeof calls[0];
        calls[i].later_field = UINT64_MAX;
    }
    ended(r, posted(r, r->comm, &calls[0].c, 7));
    for (int i = 0; i < 7; i++)
        for (int k = 0; k < r->nranks; k++)
            check_that(r->c, recv[i][k] == 100 * i + k, "collective %d element %d is %d", i, k, recv[i][k]);
    comm_leave(r);
}

/* A collective of a batch sends the result of an earlier one: first the end of a block, then a whole block. */
static void batch_in_order(check *self) {
    enum { RANKS = 3, ELEMS = 16 << 10, FEW = 3 };
    static int32_t own[ELEMS], all[RANKS * ELEMS], few[RANKS * FEW], again[RANKS * ELEMS];
    comm_rank *r = comm_open(self);
    comm_must_claim(r, TESS_COMM_BATCH, "TESS_COMM_BATCH");
    comm_join(r);
    const int32_t *next = all + (r->rank + 1) % RANKS * ELEMS;
    for (int i = 0; i < ELEMS; i++)
        own[i] = (r->rank + 1) * 2 * ELEMS + i;
    tess_collective calls[] = { gather_of(own, all, ELEMS, 1), gather_of(next + ELEMS - FEW, few, FEW, 2),
                                gather_of(next, again, ELEMS, 3) };
    ended(r, posted(r, r->comm, calls, 3));
    for (int k = 0; k < RANKS; k++) {
        const int32_t first = ((k + 1) % RANKS + 1) * 2 * ELEMS;
        for (int i = 0; i < FEW; i++)
            check_that(r->c, few[k * FEW + i] == first + ELEMS - FEW + i,
                       "rank %d sent element %d of what it receives in the same batch as %d, expected %d", k, i,
                       few[k * FEW + i], first + ELEMS - FEW + i);
        for (int i = 0; i < ELEMS; i++)
            check_that(r->c, again[k * ELEMS + i] == first + i,
                       "rank %d sent element %d of a block that it receives in the same batch as %d, expected %d", k, i,
                       again[k * ELEMS + i], first + i);
    }
    comm_leave(r);
}

static tess_comm *part(comm_rank *r, tess_comm *of, int color, int key, const char *group) {
    tess_comm_config cfg = { .struct_size = sizeof cfg, .group = group, .timeout_ns = CHECK_LONG_NS };
    tess_error e = { .struct_size = sizeof e };
    tess_comm *child = (tess_comm *)1;
    check_doing(r->c, "split");
    tess_status s = r->ops->split(of, color, key, &cfg, &child, &e);
    r->c->communicators += s == TESS_OK && child;
    check_doing(r->c, "");
    check_that(r->c, s == TESS_OK, "split gave %s: %s", check_status(s), e.message);
    return child;
}

static void leave(comm_rank *r, tess_comm *comm) {
    tess_error e = { .struct_size = sizeof e };
    if (TESS_CAN(tess_comm_ops, r->ops, finalize)) { /* finalize's substitute waits for all ranks */
        tess_status s = comm_finalize(r, comm, &e);
        check_that(r->c, s == TESS_OK, "finalize gave %s: %s", check_status(s), e.message);
    }
    r->ops->destroy(comm);
}

static void split(check *self) {
    comm_rank *r = comm_open(self);
    comm_must_claim(r, TESS_COMM_SPLIT, "TESS_COMM_SPLIT");
    comm_join(r);
    /* Rank 4 stays out. The even and the odd ranks form one part each, in descending order. */
    int color = r->rank == 4 ? -1 : r->rank % 2;
    tess_comm *child = part(r, r->comm, color, -r->rank, "halves");
    check_that(r->c, (child == NULL) == (color < 0), "colour %d gave %p", color, (void *)child);
    if (child) {
        check_gather(r, child, 2, r->rank < 2 ? 1 : 0, 2 + color, -2, 7);
        /* The parent and the part are used in turn, and the part is split again. */
        tess_comm *alone = part(r, child, r->rank, 0, "single");
        check_gather(r, alone, 1, 0, r->rank, 0, 8);
        leave(r, alone);
    }
    check_gather(r, r->comm, r->nranks, r->rank, 50, 3, 9);
    if (child)
        leave(r, child);
    comm_leave(r);
}

struct lane {
    comm_rank *r;
    tess_comm *comm;
    int base;
};

static void *gather_often(void *arg) {
    struct lane *x = arg;
    for (int i = 0; i < 100; i++)
        check_gather(x->r, x->comm, x->r->nranks, x->r->rank, x->base + i, 1000, (uint64_t)i);
    return NULL;
}

/* Two threads use two communicators of the same ranks at once. */
static void two_threads(check *self) {
    comm_rank *r = comm_open(self);
    comm_must_claim(r, TESS_COMM_THREAD_MULTIPLE, "TESS_COMM_THREAD_MULTIPLE");
    comm_join(r);
    tess_error e = { .struct_size = sizeof e };
    tess_comm *second;
    tess_status s = comm_init(r, "second", CHECK_LONG_NS, &second, &e);
    check_that(r->c, s == TESS_OK, "second init gave %s: %s", check_status(s), e.message);
    struct lane lanes[2] = { { r, r->comm, 0 }, { r, second, 500 } };
    pthread_t thread;
    check_that(r->c, pthread_create(&thread, NULL, gather_often, &lanes[1]) == 0, "no thread");
    gather_often(&lanes[0]);
    pthread_join(thread, NULL);
    leave(r, second);
    comm_leave(r);
}

/* A wait that times out cancels nothing. */
static void timeout_then_result(check *self) {
    comm_rank *r = comm_open(self);
    comm_join(r);
    int32_t all[16], mine = 40 + r->rank;
    tess_collective c = gather_of(&mine, all, 1, 1);
    if (r->rank == 1)
        check_flag_wait(r->c, 0, 1);
    tess_request *request = posted(r, r->comm, &c, 1);
    if (r->rank == 0) {
        tess_error e = { .struct_size = sizeof e };
        check_that(r->c, r->ops->test(request, &e) == TESS_PENDING, "not pending while a rank is missing");
        int64_t begin = check_now_ns();
        tess_status s = r->ops->wait(request, 50 * 1000000, &e);
        check_that(r->c, s == TESS_E_TIMEOUT, "wait gave %s", check_status(s));
        check_that(r->c, check_now_ns() - begin >= 50 * 1000000, "gave up before its time");
        check_that(r->c, comm_health(r, &e) == TESS_OK, "a timeout of wait is no error of the communicator");
        check_flag_set(r->c, 0, 1);
    }
    ended(r, request);
    check_that(r->c, all[0] == 40 && all[1] == 41, "%d %d", all[0], all[1]);
    comm_leave(r);
}

static void must_refuse(comm_rank *r, const char *what, tess_collective c, tess_status status) {
    tess_request *request = NULL;
    tess_error e = { .struct_size = sizeof e };
    tess_status s = r->ops->post(r->comm, &c, 1, &request, &e);
    check_that(r->c, s == status, "%s gave %s, expected %s", what, check_status(s), check_status(status));
    check_that(r->c, !request && e.code == s && e.message[0], "%s: no message, or a request", what);
}

/* Operations that are never in place must refuse overlapping buffers. */
static void never_in_place(comm_rank *r, int32_t *send) {
    static const uint32_t ops[] = { TESS_REDUCE_SCATTER, TESS_ALL_TO_ALL };
    for (int i = 0; i < 2; i++) {
        tess_collective c = gather_of(send, &send[4 * r->rank], 4, 1);
        c.op = ops[i], c.redop = TESS_SUM, c.scale = 1;
        c.scratch = &send[4096], c.scratch_bytes = 4096 * sizeof *send;
        if (!(r->caps.op_mask >> c.op & 1) || (r->nranks == 1 && c.op == TESS_ALL_TO_ALL))
            continue;
        must_refuse(r, i ? "an all_to_all in place" : "a reduce_scatter in place", c, TESS_E_INVALID);
    }
}

/* Parts that are missing, that are longer than count, or of which a rank expects others from itself than it sends. */
static void bad_parts(comm_rank *r, int32_t *send, int32_t *recv) {
    uint64_t parts[CHECK_RANKS] = { 0 }, others[CHECK_RANKS] = { 0 };
    tess_collective c = gather_of(send, recv, 4, 1);
    c.op = TESS_ALL_TO_ALL_V, c.send_parts = parts;
    c.scratch = &send[4096], c.scratch_bytes = 4096 * sizeof *send;
    if (!(r->caps.op_mask >> c.op & 1))
        return;
    must_refuse(r, "an all_to_all_v without recv_parts", c, TESS_E_INVALID);
    c.recv_parts = others;
    parts[r->rank] = 5, others[r->rank] = 5;
    must_refuse(r, "parts longer than count", c, TESS_E_INVALID);
    parts[r->rank] = others[r->rank] = 2, others[r->rank] = 3;
    must_refuse(r, "another part from itself than to itself", c, TESS_E_INVALID);
    parts[r->rank] = others[r->rank] = 4, c.recv = send + 3;
    must_refuse(r, "an all_to_all_v whose buffers overlap", c, TESS_E_INVALID);
}

static void short_error(comm_rank *r, tess_collective c) {
    tess_request *request = NULL;
    tess_error *e = check_short_error(r->c);
    c.op = 77;
    check_doing(r->c, "post with a short tess_error");
    tess_status s = r->ops->post(r->comm, &c, 1, &request, e);
    check_doing(r->c, "");
    check_short_error_filled(r->c, e, s, "post");
}

static void bad_scratch(comm_rank *r, int32_t *send, int32_t *recv) {
    tess_plan_env env = { .struct_size = sizeof env, .mem = TESS_MEM_HOST, .nranks = r->nranks };
    tess_need need = { .struct_size = sizeof need };
    tess_collective c = gather_of(send, recv, 2000, 1);
    c.op = TESS_REDUCE_SCATTER, c.redop = TESS_SUM, c.scale = 1;
    tess_status s = r->ops->need(r->ctx, &env, &c, &need);
    check_that(r->c, s == TESS_OK || s == TESS_E_UNSUPPORTED, "need gave %s", check_status(s));
    if (s == TESS_OK && need.device_bytes > 0) {
        c.scratch = recv, c.scratch_bytes = need.device_bytes - 1;
        must_refuse(r, "too little scratch", c, TESS_E_INVALID);
    }
}

static void bad_calls(check *self) {
    comm_rank *r = comm_open(self);
    comm_join(r);
    int32_t send[8192] = { 0 }, recv[16];
    tess_collective good = gather_of(send, recv, 1, 1), c = good;
    c.op = 77;
    must_refuse(r, "an unknown operation", c, TESS_E_UNSUPPORTED);
    c = good, c.send_dtype = c.recv_dtype = 99;
    must_refuse(r, "an unknown dtype", c, TESS_E_UNSUPPORTED);
    c = good, c.recv_dtype = TESS_F64;
    must_refuse(r, "a gather that converts", c, TESS_E_UNSUPPORTED);
    c = good, c.send = NULL;
    must_refuse(r, "no send", c, TESS_E_INVALID);
    c = good, c.recv = NULL;
    must_refuse(r, "no recv", c, TESS_E_INVALID);
    c = good, c.count = UINT64_MAX / 8;
    must_refuse(r, "an absurd count", c, TESS_E_INVALID);
    c = good, c.recv_mem = TESS_MEM_CUDA;
    if (!(r->caps.mem_mask >> TESS_MEM_CUDA & 1))
        must_refuse(r, "memory it cannot reach", c, TESS_E_UNSUPPORTED);
    c = good, c.recv = &send[0], c.send = &send[1], c.count = 2;
    must_refuse(r, "overlapping buffers", c, TESS_E_INVALID);
    never_in_place(r, send);
    bad_parts(r, send, recv);
    short_error(r, good);
    c = good, c.op = TESS_BROADCAST, c.root = r->nranks;
    if (r->caps.op_mask >> TESS_BROADCAST & 1)
        must_refuse(r, "a root outside", c, TESS_E_INVALID);
    c = good, c.op = TESS_ALL_REDUCE, c.redop = 9;
    if (r->caps.op_mask >> TESS_ALL_REDUCE & 1)
        must_refuse(r, "an unknown reduction", c, TESS_E_UNSUPPORTED);
    c = good, c.op = TESS_ALL_REDUCE, c.redop = TESS_SUM, c.scale = 0.5;
    if ((r->caps.op_mask >> TESS_ALL_REDUCE & 1) && comm_word() == TESS_I32)
        must_refuse(r, "a scale on integers", c, TESS_E_INVALID);
    bad_scratch(r, send, recv);
    check_gather(r, r->comm, r->nranks, r->rank, 5, 1, 2); /* the refused calls have not disturbed the order */
    comm_leave(r);
}

/* No slot may change the thread's signal mask or floating-point mode, and no signal may reach the process. */
static void thread_untouched(check *self) {
    comm_rank *r = comm_open(self);
    sigset_t before = { 0 }, after = { 0 };
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    comm_must_offer(r, TESS_ALL_REDUCE, TESS_F32);
    fesetround(FE_TOWARDZERO);
    comm_join(r);
    check_gather(r, r->comm, r->nranks, r->rank, 5, 1, 2);
    float a = 1.0f + (float)r->rank * 0x1p-24f, sum = 0;
    tess_collective c = { .struct_size = sizeof c,
                          .op = TESS_ALL_REDUCE,
                          .redop = TESS_SUM,
                          .send_dtype = TESS_F32,
                          .recv_dtype = TESS_F32 };
    c.send_mem = c.recv_mem = TESS_MEM_HOST;
    c.send = &a, c.recv = &sum, c.count = 1, c.scale = 0x1.000002p0;
    tess_plan_env env = { .struct_size = sizeof env, .mem = TESS_MEM_HOST, .nranks = r->nranks };
    tess_need need = { .struct_size = sizeof need };
    check_that(r->c, r->ops->need(r->ctx, &env, &c, &need) == TESS_OK && need.device_bytes < 4096, "need has failed");
    char scratch[4096];
    c.scratch = scratch, c.scratch_bytes = need.device_bytes;
    ended(r, posted(r, r->comm, &c, 1));
    comm_leave(r);
    check_that(r->c, fegetround() == FE_TOWARDZERO, "rounding mode changed");
    fesetround(FE_TONEAREST);
    /* (1 + 1) * (1 + 2^-23) is exact. The default rounding mode, which sums use, rounds 1 + 1 + 2^-24 to 2. */
    check_that(r->c, sum == 0x1.000002p1f, "the sum is %a", (double)sum);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    check_that(r->c, memcmp(&before, &after, sizeof before) == 0, "signal mask changed");
}

/* Ranks arrive at finalize and leave at different times. No message may be lost, and no leaving rank may count as
 * lost. */
static void uneven_leaving(check *self) {
    comm_rank *r = comm_open(self);
    comm_must_offer(r, TESS_ALL_GATHER, comm_word());
    for (int round = 0; round < 5; round++) {
        tess_error e = { .struct_size = sizeof e };
        char group[] = "round0";
        group[5] = (char)('0' + round);
        tess_status s = comm_init(r, group, CHECK_LONG_NS, &r->comm, &e);
        check_that(r->c, s == TESS_OK, "init gave %s: %s", check_status(s), e.message);
        check_gather(r, r->comm, r->nranks, r->rank, 5, 1, 2);
        check_sleep_ms((r->rank * 7 + round * 3) % 11);
        comm_leave(r);
    }
}

/* `need` must give the same answer for any pointers, however often it is asked. It must not write past the size of an
 * out struct. */
static void purity(check *self) {
    comm_rank *r = comm_open(self);
    for (uint32_t op = TESS_ALL_GATHER; op <= TESS_ALL_TO_ALL_V; op++)
        for (uint32_t dtype = TESS_U8; dtype <= TESS_F64; dtype++)
            for (int32_t n = 1; n <= 8; n++) {
                tess_plan_env env = { .struct_size = sizeof env, .mem = TESS_MEM_HOST, .nranks = n, .in_flight = 2 };
                tess_collective c = gather_of((void *)16, (void *)16, 1000, 1), d = gather_of(NULL, NULL, 1000, 1);
                struct {
                    tess_need need;
                    uint64_t later[2];
                } a, b;
                c.op = d.op = op, c.redop = d.redop = TESS_SUM, c.scale = d.scale = 1;
                c.send_dtype = c.recv_dtype = d.send_dtype = d.recv_dtype = dtype;
                memset(&a, 0x5a, sizeof a);
                memset(&b, 0xa5, sizeof b);
                a.need.struct_size = b.need.struct_size = sizeof a;
                check_doing(self, "need");
                tess_status s = r->ops->need(r->ctx, &env, &c, &a.need), t = r->ops->need(r->ctx, &env, &d, &b.need);
                check_doing(self, "");
                check_that(self, s == t && (s == TESS_OK || s == TESS_E_UNSUPPORTED),
                           "need of operation %u with dtype %u on %d ranks gives %s, then %s", op, dtype, n,
                           check_status(s), check_status(t));
                check_that(self, s != TESS_OK || memcmp(&a, &b, sizeof a) == 0,
                           "need of operation %u with dtype %u depends on pointers, or leaves a part unwritten", op,
                           dtype);
                check_that(self, s != TESS_OK || (a.need.align & (a.need.align - 1)) == 0,
                           "need asks for an alignment of %u", a.need.align);
            }
}

/* A newer core passes a longer config. */
static void longer_config(check *self) {
    comm_rank *r = comm_open(self);
    struct {
        tess_comm_config config;
        uint64_t later[8];
    } longer;
    tess_error e = { .struct_size = sizeof e };
    memset(&longer, 0x5a, sizeof longer);
    longer.config = (tess_comm_config){ .struct_size = sizeof longer,
                                        .rank = r->rank,
                                        .nranks = r->nranks,
                                        .local_rank = r->rank,
                                        .device = -1,
                                        .group = "longer",
                                        .timeout_ns = CHECK_LONG_NS };
    comm_must_offer(r, TESS_ALL_GATHER, comm_word());
    check_doing(self, "init");
    tess_status s = r->ops->init(r->ctx, &longer.config, &r->comm, &e);
    check_that(self, s == TESS_OK, "init with a longer config gave %s: %s", check_status(s), e.message);
    check_gather(r, r->comm, r->nranks, r->rank, 3, 1, 1);
    comm_leave(r);
}

/* After destroy no thread or file of a communicator may remain. */
static void nothing_left_behind(check *self) {
    comm_rank *r = comm_open(self);
    int threads = 0, files = 0;
    comm_must_serve(r);
    for (int round = 0; round < 8; round++) {
        tess_error e = { .struct_size = sizeof e };
        char group[] = "left0";
        group[4] = (char)('0' + round);
        tess_status s = comm_init(r, group, CHECK_LONG_NS, &r->comm, &e);
        check_that(self, s == TESS_OK, "init gave %s: %s", check_status(s), e.message);
        if (r->nranks > 1) /* ranks have connections to close only after they have used them */
            check_gather(r, r->comm, r->nranks, r->rank, 5, 1, 2);
        comm_leave(r);
        for (int tries = 0; tries < 1000 && round && (check_threads() > threads || check_files() > files); tries++)
            check_sleep_ms(10);
        check_that(self, !round || check_threads() <= threads, "destroy leaves a thread running: %d, then %d of them",
                   threads, check_threads());
        check_that(self, !round || check_files() <= files, "destroy leaves a file open: %d, then %d of them", files,
                   check_files());
        threads = check_threads();
        files = check_files();
    }
}

const check_case check_cases_comm_calls[] = {
    { "describes_itself", 1, describes_itself, 0, 0 },
    { "many_outstanding", 3, many_outstanding, 0, 0 },
    { "batch", 2, batch, 0, 0 },
    { "batch_in_order", 3, batch_in_order, 0, 0 },
    { "split", 5, split, 0, 0 },
    { "two_threads", 3, two_threads, 0, 0 },
    { "timeout_then_result", 2, timeout_then_result, 0, 0 },
    { "bad_calls", 2, bad_calls, 0, 0 },
    { "thread_untouched", 2, thread_untouched, 0, 0 },
    { "uneven_leaving", 4, uneven_leaving, 0, 0 },
    { "purity", 1, purity, 0, 0 },
    { "longer_config", 2, longer_config, 0, 0 },
    { "nothing_left_behind", 1, nothing_left_behind, 0, 0 },
    { "nothing_left_behind_two_ranks", 2, nothing_left_behind, 0, 0 },
    { 0 },
};
