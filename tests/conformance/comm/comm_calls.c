/* How calls may be made: many at once, in batches, on subgroups, from two threads; and what is refused. */
#include "comm_suite.h"
#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define LONG_NS INT64_C(20000000000)

static tess_collective gather_of(const int32_t *send, int32_t *recv, uint64_t count, uint64_t tag) {
    return (tess_collective){ .struct_size = sizeof(tess_collective),
                              .op = TESS_ALL_GATHER,
                              .send_dtype = TESS_I32,
                              .recv_dtype = TESS_I32,
                              .send_mem = TESS_MEM_HOST,
                              .recv_mem = TESS_MEM_HOST,
                              .send = send,
                              .recv = recv,
                              .count = count,
                              .tag = tag };
}

static tess_request *posted(struct comm_rank *r, tess_comm *comm, const tess_collective *c, uint32_t n) {
    tess_request *request = NULL;
    tess_error e = { .struct_size = sizeof e };
    tess_status s = r->ops->post(comm, c, n, &request, &e);
    COMM_CHECK(r, s == TESS_OK, "post gave %d: %s", s, e.message);
    return request;
}

static void ended(struct comm_rank *r, tess_request *request) {
    tess_error e = { .struct_size = sizeof e };
    tess_status s = r->ops->wait(request, LONG_NS, &e);
    COMM_CHECK(r, s == TESS_OK, "wait gave %d: %s", s, e.message);
    s = r->ops->test(request, &e);
    COMM_CHECK(r, s == TESS_OK, "test after the end gave %d", s);
    r->ops->request_free(request);
}

/* Gathers one number from each rank of `comm` and compares: rank i of it said base + step * i. */
static void check_gather(struct comm_rank *r, tess_comm *comm, int n, int self, int base, int step, uint64_t tag) {
    int32_t all[16], mine = base + step * self;
    tess_collective c = gather_of(&mine, all, 1, tag);
    ended(r, posted(r, comm, &c, 1));
    for (int i = 0; i < n; i++)
        COMM_CHECK(r, all[i] == base + step * i, "rank %d of %d said %d, expected %d", i, n, all[i], base + step * i);
}

static void describes_itself(struct comm_rank *r) {
    COMM_CHECK(r, r->ops->struct_size >= sizeof(tess_comm_ops), "table of %u bytes", r->ops->struct_size);
    COMM_CHECK(r, r->caps.wire_id[0] && memchr(r->caps.wire_id, 0, sizeof r->caps.wire_id), "no wire id");
    COMM_CHECK(r, r->caps.op_mask && r->caps.dtype_mask && r->caps.mem_mask, "claims nothing");
    /* A shorter out struct is written no further than its size. */
    tess_comm_caps cut;
    memset(&cut, 0x5a, sizeof cut);
    cut.struct_size = 12;
    COMM_CHECK(r, r->ops->query(r->ctx, NULL, &cut) == TESS_OK, "query failed");
    COMM_CHECK(r, cut.struct_size == 12 && cut.op_mask == r->caps.op_mask, "short caps differ");
    COMM_CHECK(r, cut.redop_mask == 0x5a5a5a5au, "query wrote past struct_size");
    const tess_option *list;
    uint32_t n;
    COMM_CHECK(r, r->ops->options(r->ctx, &list, &n) == TESS_OK, "options failed");
    for (uint32_t i = 0; i < n; i++)
        COMM_CHECK(r, list[i].struct_size >= sizeof *list && list[i].key && list[i].help, "option %u incomplete", i);
}

/* More requests than any pool holds, waited for last first. */
static void many_outstanding(struct comm_rank *r) {
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
            COMM_CHECK(r, recv[i][k] == 1000 * i + 10 * (k / 3) + k % 3, "request %d element %d is %d", i, k,
                       recv[i][k]);
    }
    comm_leave(r);
}

/* One request for several collectives; the array is walked by the first element's struct_size. */
static void batch(struct comm_rank *r) {
    if (!(r->caps.caps & TESS_COMM_BATCH))
        return;
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
            COMM_CHECK(r, recv[i][k] == 100 * i + k, "collective %d element %d is %d", i, k, recv[i][k]);
    comm_leave(r);
}

static tess_comm *part(struct comm_rank *r, tess_comm *of, int color, int key, const char *group) {
    tess_comm_config cfg = { .struct_size = sizeof cfg, .group = group, .timeout_ns = LONG_NS };
    tess_error e = { .struct_size = sizeof e };
    tess_comm *child = (tess_comm *)1;
    tess_status s = r->ops->split(of, color, key, &cfg, &child, &e);
    COMM_CHECK(r, s == TESS_OK, "split gave %d: %s", s, e.message);
    return child;
}

static void leave(struct comm_rank *r, tess_comm *comm) {
    tess_error e = { .struct_size = sizeof e };
    tess_status s = r->ops->finalize(comm, LONG_NS, &e);
    COMM_CHECK(r, s == TESS_OK, "finalize gave %d: %s", s, e.message);
    r->ops->destroy(comm);
}

static void split(struct comm_rank *r) {
    if (!(r->caps.caps & TESS_COMM_SPLIT))
        return;
    comm_join(r);
    /* Rank 4 stays out; the others form even and odd, in descending order of their rank. */
    int color = r->rank == 4 ? -1 : r->rank % 2;
    tess_comm *child = part(r, r->comm, color, -r->rank, "halves");
    COMM_CHECK(r, (child == NULL) == (color < 0), "colour %d gave %p", color, (void *)child);
    if (child) {
        check_gather(r, child, 2, r->rank < 2 ? 1 : 0, 2 + color, -2, 7);
        /* The whole and the part run side by side, and a part is split again. */
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
    struct comm_rank *r;
    tess_comm *comm;
    int base;
};

static void *gather_often(void *arg) {
    struct lane *x = arg;
    for (int i = 0; i < 100; i++)
        check_gather(x->r, x->comm, x->r->nranks, x->r->rank, x->base + i, 1000, (uint64_t)i);
    return NULL;
}

/* Two communicators of the same ranks, each from a thread of its own. */
static void two_threads(struct comm_rank *r) {
    if (!(r->caps.caps & TESS_COMM_THREAD_MULTIPLE))
        return;
    comm_join(r);
    tess_error e = { .struct_size = sizeof e };
    tess_comm *second;
    tess_status s = comm_init(r, "second", LONG_NS, &second, &e);
    COMM_CHECK(r, s == TESS_OK, "second init gave %d: %s", s, e.message);
    struct lane lanes[2] = { { r, r->comm, 0 }, { r, second, 500 } };
    pthread_t thread;
    COMM_CHECK(r, pthread_create(&thread, NULL, gather_often, &lanes[1]) == 0, "no thread");
    gather_often(&lanes[0]);
    pthread_join(thread, NULL);
    leave(r, second);
    comm_leave(r);
}

/* A wait that times out cancels nothing. */
static void timeout_then_result(struct comm_rank *r) {
    comm_join(r);
    int32_t all[16], mine = 40 + r->rank;
    tess_collective c = gather_of(&mine, all, 1, 1);
    if (r->rank == 1)
        comm_flag_wait(r, 0, 1);
    tess_request *request = posted(r, r->comm, &c, 1);
    if (r->rank == 0) {
        tess_error e = { .struct_size = sizeof e };
        COMM_CHECK(r, r->ops->test(request, &e) == TESS_PENDING, "not pending while a rank is missing");
        int64_t begin = comm_now_ns();
        tess_status s = r->ops->wait(request, 50 * 1000000, &e);
        COMM_CHECK(r, s == TESS_E_TIMEOUT, "wait gave %d", s);
        COMM_CHECK(r, comm_now_ns() - begin >= 50 * 1000000, "gave up before its time");
        COMM_CHECK(r, r->ops->health(r->comm, &e) == TESS_OK, "a timeout of wait is no error of the communicator");
        comm_flag_set(r, 0, 1);
    }
    ended(r, request);
    COMM_CHECK(r, all[0] == 40 && all[1] == 41, "%d %d", all[0], all[1]);
    comm_leave(r);
}

static void must_refuse(struct comm_rank *r, const char *what, tess_collective c, tess_status status) {
    tess_request *request = NULL;
    tess_error e = { .struct_size = sizeof e };
    tess_status s = r->ops->post(r->comm, &c, 1, &request, &e);
    COMM_CHECK(r, s == status, "%s gave %d, expected %d", what, s, status);
    COMM_CHECK(r, !request && e.code == s && e.message[0], "%s: no message, or a request", what);
}

static void bad_calls(struct comm_rank *r) {
    comm_join(r);
    int32_t send[8192] = { 0 }, recv[16];
    tess_collective good = gather_of(send, recv, 1, 1), c = good;
    c.op = 77;
    must_refuse(r, "an unknown operation", c, TESS_E_UNSUPPORTED);
    c = good, c.send_dtype = c.recv_dtype = 99;
    must_refuse(r, "an unknown dtype", c, TESS_E_UNSUPPORTED);
    c = good, c.recv_dtype = TESS_F32;
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
    c = good, c.op = TESS_BROADCAST, c.root = r->nranks;
    must_refuse(r, "a root outside", c, TESS_E_INVALID);
    c = good, c.op = TESS_ALL_REDUCE, c.redop = 9;
    must_refuse(r, "an unknown reduction", c, TESS_E_UNSUPPORTED);
    c = good, c.op = TESS_ALL_REDUCE, c.redop = TESS_SUM, c.scale = 0.5;
    must_refuse(r, "a scale on integers", c, TESS_E_INVALID);
    c = good, c.op = TESS_REDUCE_SCATTER, c.redop = TESS_SUM, c.count = 2000, c.scale = 1;
    tess_plan_env env = { .struct_size = sizeof env, .mem = TESS_MEM_HOST, .nranks = r->nranks };
    tess_need need = { .struct_size = sizeof need };
    COMM_CHECK(r, r->ops->need(r->ctx, &env, &c, &need) == TESS_OK, "need failed");
    if (need.device_bytes > 0) {
        c.scratch = recv, c.scratch_bytes = need.device_bytes - 1;
        must_refuse(r, "too little scratch", c, TESS_E_INVALID);
    }
    check_gather(r, r->comm, r->nranks, r->rank, 5, 1, 2); /* still in order */
    comm_leave(r);
}

/* No slot leaves the thread's signal mask or floating-point mode changed, and no signal reaches the process. */
static void thread_untouched(struct comm_rank *r) {
    sigset_t before = { 0 }, after = { 0 };
    pthread_sigmask(SIG_SETMASK, NULL, &before);
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
    ended(r, posted(r, r->comm, &c, 1));
    comm_leave(r);
    COMM_CHECK(r, fegetround() == FE_TOWARDZERO, "rounding mode changed");
    /* (1 + 1) * (1 + 2^-23) is exact; 1 + 1 + 2^-24 rounds to 2 in the default mode that sums are made in. */
    COMM_CHECK(r, sum == 0x1.000002p1f, "the sum is %a", (double)sum);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    COMM_CHECK(r, memcmp(&before, &after, sizeof before) == 0, "signal mask changed");
}

/* Ranks arrive at finalize and leave at different times; nobody loses a message or takes a leaving rank for a lost one.
 */
static void uneven_leaving(struct comm_rank *r) {
    for (int round = 0; round < 5; round++) {
        tess_error e = { .struct_size = sizeof e };
        char group[] = "round0";
        group[5] = (char)('0' + round);
        tess_status s = comm_init(r, group, LONG_NS, &r->comm, &e);
        COMM_CHECK(r, s == TESS_OK, "init gave %d: %s", s, e.message);
        check_gather(r, r->comm, r->nranks, r->rank, 5, 1, 2);
        comm_sleep_ms((r->rank * 7 + round * 3) % 11);
        comm_leave(r);
    }
}

const struct comm_case comm_cases_calls[] = {
    { "describes_itself", 1, describes_itself, 0 },
    { "many_outstanding", 3, many_outstanding, 0 },
    { "batch", 2, batch, 0 },
    { "split", 5, split, 0 },
    { "two_threads", 3, two_threads, 0 },
    { "timeout_then_result", 2, timeout_then_result, 0 },
    { "bad_calls", 2, bad_calls, 0 },
    { "thread_untouched", 2, thread_untouched, 0 },
    { "uneven_leaving", 4, uneven_leaving, 0 },
    { 0 },
};
