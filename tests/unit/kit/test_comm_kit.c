/* SPDX-License-Identifier: BSD-3-Clause */
/* A comm plugin that the kit makes of a link. The link joins threads of this process, and checks what the kit asks of
 * it. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kit/collective.h"
#include "kit/comm_kit.h"

enum { RANKS = 3, GROUPS = 2, GUARD = 16, MOST = 300000 };

/* ---- a link between threads ----------------------------------------------------------------------------------------
 */

typedef struct {
    char name[64];
    int32_t nranks;
    int arrived, turns;
    const void *const *out[RANKS];
    uint64_t bytes[RANKS];
} meeting;
struct kit_link {
    meeting *of;
    int32_t rank;
    int interrupted;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static meeting meetings[GROUPS];
static int joined, left, closed, exchanges, refuse_join; /* behind the lock */
static uint64_t came_before_failing;                     /* bytes of an exchange that then fails; 0: none fails */
static int wrong_line;                                   /* of the first check on a rank's thread that did not hold */

#define HOLDS(what)                                                                                                    \
    do {                                                                                                               \
        int line = 0;                                                                                                  \
        if (!(what))                                                                                                   \
            __atomic_compare_exchange_n(&wrong_line, &line, __LINE__, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);          \
    } while (0)

static tess_status join(const tess_host *host, const tess_comm_config *config, kit_link **out, tess_error *e) {
    (void)host;
    if (refuse_join)
        return tess_plugin_fail(e, TESS_E_SYSTEM, "no cable");
    kit_link *link = calloc(1, sizeof *link);
    pthread_mutex_lock(&lock);
    int m = 0;
    while (*meetings[m].name && strcmp(meetings[m].name, config->group) != 0)
        m++;
    snprintf(meetings[m].name, sizeof meetings[m].name, "%s", config->group);
    meetings[m].nranks = config->nranks;
    *link = (kit_link){ .of = &meetings[m], .rank = config->rank };
    joined++;
    pthread_mutex_unlock(&lock);
    *out = link;
    return TESS_OK;
}

/* Waits for all ranks of the link; 0: interrupted. The lock is held. */
static int meet(kit_link *link) {
    meeting *m = link->of;
    const int turn = m->turns;
    if (++m->arrived == m->nranks) {
        m->arrived = 0;
        m->turns++;
        pthread_cond_broadcast(&changed);
    }
    while (m->turns == turn && !link->interrupted)
        pthread_cond_wait(&changed, &lock);
    return m->turns != turn;
}

static void copy_from_all(kit_link *link, void *const *in, uint64_t bytes, uint64_t *came) {
    const meeting *m = link->of;
    for (int32_t p = 0; p < m->nranks; p++) {
        const void *from = m->out[p][link->rank];
        HOLDS(p == link->rank ? !from && !in[p] : m->bytes[p] == bytes && !from == !in[p]);
        came[p] = in[p] ? bytes : 0;
        if (in[p])
            memcpy(in[p], from, bytes);
    }
}

static tess_status exchange(kit_link *link, const void *const *out, void *const *in, uint64_t bytes, uint64_t *came,
                            tess_error *e) {
    HOLDS(link->of->nranks > 1); /* a rank alone has nobody to exchange with */
    pthread_mutex_lock(&lock);
    exchanges++;
    link->of->out[link->rank] = out;
    link->of->bytes[link->rank] = bytes;
    int met = meet(link);
    if (met)
        copy_from_all(link, in, bytes, came);
    met = met && meet(link); /* before anybody's buffers change */
    for (int32_t p = 0; met && came_before_failing && p < link->of->nranks; p++)
        came[p] = came[p] < came_before_failing ? came[p] : came_before_failing;
    pthread_mutex_unlock(&lock);
    if (!met)
        return tess_plugin_fail(e, TESS_E_ABORTED, "interrupted");
    return came_before_failing ? tess_plugin_fail_of(e, TESS_E_PEER, 1, "rank 1 hung up") : TESS_OK;
}

static void interrupt(kit_link *link) {
    pthread_mutex_lock(&lock);
    link->interrupted = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}
static void leave(kit_link *link) {
    pthread_mutex_lock(&lock);
    left++;
    pthread_mutex_unlock(&lock);
    free(link);
}
static void note_closed(void) {
    closed++;
}

static const kit_link_ops links = { "net",     "threads-1", 1u << TESS_MEM_HOST, join, exchange,
                                    interrupt, leave,       note_closed };
static const kit_link_ops quiet = { "net", "threads-1", 1u << TESS_MEM_HOST, join, exchange, interrupt, leave, NULL };

/* ---- ranks ---------------------------------------------------------------------------------------------------------
 */

static int32_t never_aborting(void *host) {
    (void)host;
    return 0;
}
static const tess_host host = { .struct_size = sizeof host, .aborting = never_aborting, .helper_cpus = "" };
static const tess_comm_ops *ops;
static void *opened;

typedef struct {
    int32_t rank, nranks;
    tess_comm *comm;
    const void *arg;
    void (*work)(const void *self);
    pthread_t thread;
} place;

static int begin(void **state) {
    (void)state;
    const void *table;
    memset(meetings, 0, sizeof meetings);
    joined = left = closed = exchanges = refuse_join = 0;
    came_before_failing = 0;
    tess_status s = kit_open(&links, &host, &table, &opened, NULL);
    ops = table;
    return s;
}
static int end(void **state) {
    (void)state;
    ops->close(opened);
    assert_int_equal(closed, 1);
    assert_int_equal(left, joined);
    return 0;
}

static void *run_rank(void *arg) {
    place *p = arg;
    const tess_comm_config config = {
        .struct_size = sizeof config, .rank = p->rank, .nranks = p->nranks, .group = "world", .timeout_ns = -1
    };
    HOLDS(ops->init(opened, &config, &p->comm, NULL) == TESS_OK);
    p->work(p);
    ops->destroy(p->comm);
    return NULL;
}

static void on_ranks(int32_t n, void (*work)(const void *), const void *arg) {
    place places[RANKS];
    wrong_line = 0;
    memset(meetings, 0, sizeof meetings);
    for (int32_t r = 0; r < n; r++) {
        places[r] = (place){ .rank = r, .nranks = n, .arg = arg, .work = work };
        assert_int_equal(pthread_create(&places[r].thread, NULL, run_rank, &places[r]), 0);
    }
    for (int32_t r = 0; r < n; r++)
        pthread_join(places[r].thread, NULL);
    assert_int_equal(wrong_line, 0);
}

/* Posts, waits, frees. */
static tess_status done(tess_comm *comm, const tess_collective *calls, uint32_t n, tess_error *e) {
    tess_request *r = NULL;
    tess_status s = ops->post(comm, calls, n, &r, e);
    if (s == TESS_OK)
        s = ops->wait(r, -1, e);
    ops->request_free(r);
    return s;
}

static tess_collective call_of(uint32_t op, const void *send, void *recv, uint64_t count) {
    return (tess_collective){ .struct_size = sizeof(tess_collective),
                              .op = op,
                              .redop = op == TESS_REDUCE_SCATTER || op == TESS_ALL_REDUCE ? TESS_SUM : 0,
                              .send_dtype = op == TESS_BARRIER ? 0 : TESS_F32,
                              .send_mem = TESS_MEM_HOST,
                              .recv_mem = TESS_MEM_HOST,
                              .send = send,
                              .recv = recv,
                              .count = count };
}

/* ---- values --------------------------------------------------------------------------------------------------------
 */

typedef struct {
    uint64_t count;
    uint64_t scratch_of_two; /* bytes of a reduction of so many f32 on two ranks */
} size;

static uint64_t needs(const tess_collective *c, int32_t nranks) {
    const tess_plan_env env = { .struct_size = sizeof env, .nranks = nranks };
    tess_need need = { .struct_size = sizeof need };
    HOLDS(ops->need(opened, &env, c, &need) == TESS_OK);
    HOLDS(need.align == 64 && !need.pinned_bytes && !need.host_bytes && !need.backend_bytes);
    return need.device_bytes;
}

/* Small integers, whose sums are exact in any order: of what rank `from` has for block `block` at i. */
static float value(int32_t from, int32_t block, uint64_t i) {
    return (float)((uint64_t)from * 37 + (uint64_t)block * 11 + i % 1009);
}
static float sum_of(int32_t n, int32_t block, uint64_t i) {
    float sum = 0;
    for (int32_t p = 0; p < n; p++)
        sum += value(p, block, i);
    return sum;
}

static float expected(const place *p, const tess_collective *c, uint64_t at) {
    const int32_t block = (int32_t)(at / c->count);
    const uint64_t i = at % c->count;
    switch (c->op) {
    case TESS_ALL_GATHER: return value(block, 0, i);
    case TESS_ALL_TO_ALL: return value(block, p->rank, i);
    case TESS_REDUCE_SCATTER: return 0.5f * (5 + sum_of(p->nranks, p->rank, i)); /* recv held 5 */
    case TESS_ALL_REDUCE: return value(p->nranks - 1, 0, i);                     /* the largest */
    default: return value(c->root, 0, i);
    }
}

/* One collective among buffers of exactly its size, and a guard behind each. */
static void check_values(const place *p, uint32_t op, const size *s) {
    const int sends_all = op == TESS_ALL_TO_ALL || op == TESS_REDUCE_SCATTER;
    const int receives_all = op == TESS_ALL_TO_ALL || op == TESS_ALL_GATHER;
    const uint64_t sent = s->count * (sends_all ? (uint64_t)p->nranks : 1);
    const uint64_t received = s->count * (receives_all ? (uint64_t)p->nranks : 1);
    float *send = malloc(sent * 4 + 1), *recv = malloc((received + GUARD) * 4);
    tess_collective c = call_of(op, send, recv, s->count);
    c.root = p->nranks - 1;
    if (op == TESS_ALL_REDUCE)
        c.redop = TESS_MAX;
    if (op == TESS_REDUCE_SCATTER)
        c.flags = KIT_ADD, c.scale = 0.5;
    c.scratch_bytes = needs(&c, p->nranks);
    c.scratch = malloc(c.scratch_bytes + GUARD);
    HOLDS(c.scratch_bytes == (kit_reduces(&c) ? (uint64_t)(p->nranks - 1) * s->scratch_of_two : 0));
    memset((char *)c.scratch + c.scratch_bytes, 7, GUARD);
    for (uint64_t i = 0; i < sent; i++)
        send[i] = value(p->rank, (int32_t)(i / s->count), i % s->count);
    for (uint64_t i = 0; i < received + GUARD; i++)
        recv[i] = 5;
    HOLDS(done(p->comm, &c, 1, NULL) == TESS_OK);
    for (uint64_t i = 0; i < received; i++)
        HOLDS(recv[i] == expected(p, &c, i));
    for (int i = 0; i < GUARD; i++)
        HOLDS(recv[received + (uint64_t)i] == 5 && ((char *)c.scratch)[c.scratch_bytes + (uint64_t)i] == 7);
    free(c.scratch);
    free(send);
    free(recv);
}

static void all_values(const void *self) {
    const place *p = self;
    for (uint32_t op = TESS_ALL_GATHER; op < TESS_BARRIER; op++)
        check_values(p, op, p->arg);
}

static void test_comm_kit__every_collective_at_every_size(void **state) {
    (void)state;
    static const size sizes[] = { { 1, 0 }, { 1024, 0 }, { 1025, 4160 }, { 131072, 524288 }, { MOST, 524288 } };
    for (int32_t n = 1; n <= RANKS; n++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            on_ranks(n, all_values, &sizes[i]);
}

/* In place, of nothing, a batch of which one sends what the one before receives, and how often ranks exchange. */
static void other_forms(const void *self) {
    const place *p = self;
    float all[RANKS] = { 0 }, sum[RANKS] = { 0 }, none = 3;
    all[p->rank] = (float)(p->rank + 1);
    const tess_collective batch[] = { call_of(TESS_ALL_GATHER, &all[p->rank], all, 1),
                                      call_of(TESS_ALL_REDUCE, all, sum, RANKS), call_of(TESS_BARRIER, NULL, NULL, 0),
                                      call_of(TESS_ALL_REDUCE, &none, &none, 0) };
    HOLDS(done(p->comm, batch, 4, NULL) == TESS_OK);
    for (int r = 0; r < RANKS; r++)
        HOLDS(all[r] == (float)(r + 1) && sum[r] == (float)(RANKS * (r + 1)));
    HOLDS(none == 3);
}

static void test_comm_kit__batches_are_agreed_call_by_call(void **state) {
    (void)state;
    on_ranks(RANKS, other_forms, NULL);
    assert_int_equal(exchanges, RANKS * (4 + 2)); /* what they do, four times; data twice */
}

static void refused_calls(const void *self) {
    const place *p = self;
    float memory[4096];
    tess_error e = { .struct_size = sizeof e };
    tess_collective c = call_of(TESS_ALL_REDUCE, memory, memory, 2048);
    c.scratch = memory, c.scratch_bytes = needs(&c, 2) - 1;
    HOLDS(done(p->comm, &c, 1, &e) == TESS_E_INVALID);
    HOLDS(strcmp(e.message, "net: 8191 bytes of scratch, expected 8192") == 0);
    c = call_of(TESS_ALL_GATHER, memory, memory + 8, 1);
    c.recv_mem = TESS_MEM_CUDA;
    HOLDS(done(p->comm, &c, 1, &e) == TESS_E_UNSUPPORTED);
    c = call_of(TESS_BROADCAST, memory, memory, 1);
    c.root = 2;
    HOLDS(done(p->comm, &c, 1, &e) == TESS_E_INVALID);
}

static void test_comm_kit__what_cannot_be_done_is_refused_alone(void **state) {
    (void)state;
    on_ranks(2, refused_calls, NULL);
    assert_int_equal(exchanges, 0);
}

/* ---- failures ------------------------------------------------------------------------------------------------------
 */

static void disagree(const void *self) {
    const place *p = self;
    float memory[8] = { 0 };
    tess_error e = { .struct_size = sizeof e };
    const tess_collective c = call_of(TESS_BROADCAST, memory, memory, p->rank == 1 ? 4 : 3);
    HOLDS(done(p->comm, &c, 1, &e) == TESS_E_MISMATCH);
    HOLDS(e.rank == (p->rank == 1 ? 0 : 1));
    HOLDS(strstr(e.message, "rank 1 does broadcast of 4"));
    HOLDS(ops->health(p->comm, NULL) == TESS_E_MISMATCH);
}

static void test_comm_kit__ranks_that_disagree_are_named(void **state) {
    (void)state;
    on_ranks(RANKS, disagree, NULL);
    came_before_failing = 4096; /* the mismatch explains more than that a rank hung up */
    on_ranks(RANKS, disagree, NULL);
}

static void hear_hanging_up(const void *self) {
    const place *p = self;
    tess_error e = { .struct_size = sizeof e };
    const tess_collective c = call_of(TESS_BARRIER, NULL, NULL, 0);
    HOLDS(done(p->comm, &c, 1, &e) == TESS_E_PEER);
    HOLDS(e.rank == 1 && strcmp(e.message, "rank 1 hung up") == 0);
    HOLDS(ops->finalize(p->comm, -1, NULL) == TESS_E_PEER);
}
static void differ_unheard(const void *self) {
    const place *p = self;
    float memory[8] = { 0 };
    const tess_collective c = call_of(TESS_BROADCAST, memory, memory, p->rank == 1 ? 4 : 3);
    HOLDS(done(p->comm, &c, 1, NULL) == TESS_E_PEER);
}

static void test_comm_kit__a_failed_exchange_is_the_links_error(void **state) {
    (void)state;
    came_before_failing = 4096;
    on_ranks(RANKS, hear_hanging_up, NULL);
    came_before_failing = 8; /* half an announcement says nothing */
    on_ranks(RANKS, differ_unheard, NULL);
}

static void finalize_or_not(const void *self) {
    const place *p = self;
    const tess_collective c = call_of(TESS_BARRIER, NULL, NULL, 0);
    tess_error e = { .struct_size = sizeof e };
    tess_status s = p->rank ? done(p->comm, &c, 1, &e) : ops->finalize(p->comm, -1, &e);
    HOLDS(s == TESS_E_MISMATCH && strstr(e.message, "rank 0 does finalize"));
}
static void finalize(const void *self) {
    const place *p = self;
    const tess_collective c = call_of(TESS_BARRIER, NULL, NULL, 0);
    HOLDS(done(p->comm, &c, 1, NULL) == TESS_OK);
    HOLDS(ops->finalize(p->comm, -1, NULL) == TESS_OK);
    HOLDS(done(p->comm, &c, 1, NULL) == TESS_E_INVALID);
}

static void test_comm_kit__finalize_meets_all(void **state) {
    (void)state;
    on_ranks(RANKS, finalize, NULL);
    on_ranks(2, finalize_or_not, NULL);
}

static void abort_alone(const void *self) {
    const place *p = self;
    tess_request *r = NULL;
    tess_error e = { .struct_size = sizeof e };
    const tess_collective c = call_of(TESS_BARRIER, NULL, NULL, 0);
    if (p->rank)
        return;
    HOLDS(ops->post(p->comm, &c, 1, &r, NULL) == TESS_OK);
    HOLDS(ops->wait(r, 1000000, &e) == TESS_E_TIMEOUT && ops->test(r, NULL) == TESS_PENDING);
    HOLDS(ops->abort(p->comm, TESS_E_TIMEOUT) == TESS_OK);
    HOLDS(ops->wait(r, -1, &e) == TESS_E_TIMEOUT);
    HOLDS(strcmp(e.message, "net: the communicator was aborted") == 0);
    ops->request_free(r);
}

static void test_comm_kit__abort_interrupts_the_link(void **state) {
    (void)state;
    on_ranks(2, abort_alone, NULL);
}

/* ---- split, and what needs no communicator -------------------------------------------------------------------------
 */

static void split(const void *self) {
    place *p = (place *)(uintptr_t)self;
    tess_comm_config config = { .struct_size = sizeof config, .nranks = 99, .group = "world/s", .timeout_ns = -1 };
    tess_comm *part = p->comm;
    float mine = (float)p->rank, all[RANKS] = { 9, 9, 9 };
    HOLDS(ops->split(p->comm, p->rank == 1 ? -1 : 4, -p->rank, &config, &part, NULL) == TESS_OK);
    HOLDS((part == NULL) == (p->rank == 1));
    if (!part)
        return;
    ops->destroy(p->comm); /* the new one outlives it */
    p->comm = part;
    const tess_collective c = call_of(TESS_ALL_GATHER, &mine, all, 1);
    HOLDS(done(part, &c, 1, NULL) == TESS_OK);
    HOLDS(all[0] == 2 && all[1] == 0 && all[2] == 9);
}

static void test_comm_kit__split_makes_groups_by_key(void **state) {
    (void)state;
    on_ranks(RANKS, split, NULL);
    assert_int_equal(joined, 5);
    assert_string_equal(meetings[1].name, "world/s.4");
    assert_int_equal(meetings[1].nranks, 2);
}

static void test_comm_kit__place_and_link_are_checked(void **state) {
    (void)state;
    tess_error e = { .struct_size = sizeof e };
    tess_comm *comm = NULL;
    tess_comm_config config = { .struct_size = sizeof config, .rank = 2, .nranks = 2, .group = "world" };
    assert_int_equal(ops->init(opened, &config, &comm, &e), TESS_E_INVALID);
    config.rank = 1, refuse_join = 1;
    assert_int_equal(ops->init(opened, &config, &comm, &e), TESS_E_SYSTEM);
    assert_string_equal(e.message, "no cable");
    assert_null(comm);
    ops->destroy(NULL);
}

static void test_comm_kit__query_tells_what_the_link_reaches(void **state) {
    (void)state;
    tess_comm_caps caps = { .struct_size = sizeof caps };
    assert_int_equal(ops->query(opened, NULL, &caps), TESS_OK);
    assert_int_equal(caps.struct_size, sizeof caps);
    assert_int_equal(caps.caps, TESS_COMM_THREAD_MULTIPLE | TESS_COMM_ABORT | TESS_COMM_SPLIT | TESS_COMM_BATCH |
                                    TESS_COMM_TREE_ORDER);
    assert_int_equal(caps.op_mask, 1u << TESS_ALL_GATHER | 1u << TESS_REDUCE_SCATTER | 1u << TESS_ALL_REDUCE |
                                       1u << TESS_BROADCAST | 1u << TESS_ALL_TO_ALL | 1u << TESS_BARRIER);
    assert_int_equal(caps.redop_mask, 1u << TESS_SUM | 1u << TESS_MIN | 1u << TESS_MAX);
    assert_int_equal(caps.dtype_mask, (2u << TESS_F64) - (1u << TESS_U8));
    assert_int_equal(caps.mem_mask, 1u << TESS_MEM_HOST);
    assert_int_equal(caps.align, 1);
    assert_int_equal(caps.max_bytes, UINT64_C(1) << 48);
    assert_string_equal(caps.wire_id, "threads-1");
    const tess_collective odd = call_of(7, NULL, NULL, 1);
    const tess_plan_env env = { .struct_size = sizeof env, .nranks = 2 };
    tess_need need = { .struct_size = sizeof need, .device_bytes = 5 };
    assert_int_equal(ops->need(opened, &env, &odd, &need), TESS_E_UNSUPPORTED);
    assert_int_equal(need.device_bytes, 5);
}

static void test_comm_kit__a_link_may_have_nothing_to_close(void **state) {
    (void)state;
    const void *table;
    void *ctx;
    assert_int_equal(kit_open(&quiet, &host, &table, &ctx, NULL), TESS_OK);
    ops->close(ctx);
    assert_int_equal(closed, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_comm_kit__every_collective_at_every_size, begin, end),
        cmocka_unit_test_setup_teardown(test_comm_kit__batches_are_agreed_call_by_call, begin, end),
        cmocka_unit_test_setup_teardown(test_comm_kit__what_cannot_be_done_is_refused_alone, begin, end),
        cmocka_unit_test_setup_teardown(test_comm_kit__ranks_that_disagree_are_named, begin, end),
        cmocka_unit_test_setup_teardown(test_comm_kit__a_failed_exchange_is_the_links_error, begin, end),
        cmocka_unit_test_setup_teardown(test_comm_kit__finalize_meets_all, begin, end),
        cmocka_unit_test_setup_teardown(test_comm_kit__abort_interrupts_the_link, begin, end),
        cmocka_unit_test_setup_teardown(test_comm_kit__split_makes_groups_by_key, begin, end),
        cmocka_unit_test_setup_teardown(test_comm_kit__place_and_link_are_checked, begin, end),
        cmocka_unit_test_setup_teardown(test_comm_kit__query_tells_what_the_link_reaches, begin, end),
        cmocka_unit_test_setup_teardown(test_comm_kit__a_link_may_have_nothing_to_close, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
