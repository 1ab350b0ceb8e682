/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks of ranks that disagree, abort, come late, or die. Every rank must get an error soon. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm.h"
#include "suites.h"

static int32_t big_send[1 << 20], big_recv[8 << 20];

static tess_collective call_of(uint32_t op, uint64_t count, uint64_t tag) {
    return (tess_collective){ .struct_size = sizeof(tess_collective),
                              .op = op,
                              .redop = TESS_SUM,
                              .send_dtype = comm_word(),
                              .recv_dtype = comm_word(),
                              .send_mem = TESS_MEM_HOST,
                              .recv_mem = TESS_MEM_HOST,
                              .send = big_send,
                              .recv = big_recv,
                              .count = count,
                              .scale = 1,
                              .tag = tag };
}

/* Returns 4 MiB for each rank, or the most that the plugin takes at once. */
static uint64_t large_count(const comm_rank *r) {
    uint64_t most = r->caps.max_bytes / sizeof(int32_t) / (uint64_t)r->nranks;
    return r->caps.max_bytes && most < 1 << 20 ? most : 1 << 20;
}

/* Posts and waits. Returns the first failure of the two. */
static tess_status one(comm_rank *r, const tess_collective *c, tess_error *e) {
    tess_request *request;
    e->struct_size = sizeof *e;
    e->message[0] = 0;
    e->rank = -1;
    check_doing(r->c, "post");
    tess_status s = r->ops->post(r->comm, c, 1, &request, e);
    if (s == TESS_OK) {
        check_doing(r->c, "wait");
        s = r->ops->wait(request, CHECK_LONG_NS, e);
        r->ops->request_free(request);
    }
    check_doing(r->c, "");
    return s;
}

static void init_group(comm_rank *r) {
    static int round;
    char group[16] = "disagree0";
    group[8] = (char)('a' + round++);
    tess_error e = { .struct_size = sizeof e };
    tess_status s = comm_init(r, group, CHECK_LONG_NS, &r->comm, &e);
    check_that(r->c, s == TESS_OK, "init gave %s: %s", check_status(s), e.message);
}

/* Skips the check if the backend does not compare the ranks' calls, because it would then move wrong bytes silently.
 * The ranks differ here in the tag alone, which is harmless. */
static void must_compare(comm_rank *r) {
    tess_error e = { .struct_size = sizeof e };
    tess_collective c = call_of(TESS_ALL_GATHER, 10, r->rank == r->nranks - 1 ? 6 : 5);
    comm_must_offer(r, TESS_ALL_GATHER, comm_word());
    init_group(r);
    tess_status s = one(r, &c, &e);
    if (s == TESS_OK)
        check_skip(r->c, "does not compare what ranks post");
    r->ops->destroy(r->comm);
}

/* The last rank deviates from the others in one thing. All ranks must detect it and name a rank that differs from
 * them. */
static void disagree(comm_rank *r, const char *what, tess_collective usual, tess_collective odd) {
    tess_error e = { .struct_size = sizeof e };
    int odd_one = r->rank == r->nranks - 1;
    if (!comm_offers(r, usual.op, comm_word()) || !comm_offers(r, odd.op, comm_word()))
        return;
    init_group(r);
    tess_status s = one(r, odd_one ? &odd : &usual, &e);
    check_that(r->c, s == TESS_E_MISMATCH, "ranks differ in %s: the call gave %s, expected TESS_E_MISMATCH: %s", what,
               check_status(s), e.message);
    check_that(r->c, odd_one ? e.rank >= 0 && e.rank < r->rank : e.rank == r->nranks - 1, "blames rank %d: %s", e.rank,
               e.message);
    char here[16], there[16];
    snprintf(here, sizeof here, "rank %d", r->rank);
    snprintf(there, sizeof there, "rank %d", e.rank);
    check_that(r->c, strstr(e.message, here) && strstr(e.message, there), "does not name both sides: %s", e.message);
    s = one(r, &usual, &e);
    check_that(r->c, s == TESS_E_MISMATCH, "the next post gave %s", check_status(s));
    check_that(r->c, !TESS_CAN(tess_comm_ops, r->ops, health) || comm_health(r, &e) == TESS_E_MISMATCH,
               "health does not say so");
    r->ops->destroy(r->comm);
}

static void mismatches(check *self) {
    comm_rank *r = comm_open(self);
    const tess_collective usual = call_of(TESS_ALL_GATHER, 1000, 5), large = call_of(TESS_ALL_GATHER, 100000, 5);
    tess_collective odd = call_of(TESS_ALL_TO_ALL, 1000, 5);
    must_compare(r);
    disagree(r, "the operation", usual, odd);
    odd = usual, odd.count = 1001;
    disagree(r, "the count", usual, odd);
    odd = usual, odd.count = 100001; /* takes another path of sending */
    disagree(r, "the count", usual, odd);
    odd = large, odd.count = 99999;
    disagree(r, "the count", large, odd);
    odd = usual, odd.tag = 6;
    disagree(r, "the tag", usual, odd);
    odd = usual, odd.send_dtype = odd.recv_dtype = comm_word() == TESS_F32 ? TESS_F64 : TESS_F32;
    if (comm_offers(r, TESS_ALL_GATHER, odd.send_dtype))
        disagree(r, "the dtype", usual, odd);
    odd = call_of(TESS_BARRIER, 0, 5);
    disagree(r, "the operation, a barrier", large, odd);
    odd = call_of(TESS_ALL_REDUCE, 1000, 5), odd.redop = TESS_MAX;
    if (r->caps.redop_mask >> TESS_MAX & 1)
        disagree(r, "the reduction", call_of(TESS_ALL_REDUCE, 1000, 5), odd);
    odd = call_of(TESS_BROADCAST, 1000, 5), odd.root = 1;
    disagree(r, "the root", call_of(TESS_BROADCAST, 1000, 5), odd);
}

/* Ranks 0 and 2 differ and have long posted when rank 1 comes. Nobody leaves before it has heard of it too. */
static void mismatch_hears_late_rank(check *self) {
    comm_rank *r = comm_open(self);
    must_compare(r);
    init_group(r);
    tess_error e = { .struct_size = sizeof e };
    tess_collective c = call_of(TESS_ALL_GATHER, 10, r->rank == 2 ? 6 : 5);
    if (r->rank == 1)
        check_sleep_ms(200);
    tess_status s = one(r, &c, &e);
    check_that(r->c, s == TESS_E_MISMATCH, "gave %s, expected TESS_E_MISMATCH: %s", check_status(s), e.message);
    check_that(r->c, r->rank == 2 ? e.rank == 0 || e.rank == 1 : e.rank == 2, "blames rank %d: %s", e.rank, e.message);
    r->ops->destroy(r->comm);
}

/* One rank calls finalize while the others still communicate. */
static void finalize_against_post(check *self) {
    comm_rank *r = comm_open(self);
    if (!TESS_CAN(tess_comm_ops, r->ops, finalize))
        check_skip(self, "has no slot finalize");
    must_compare(r);
    comm_join(r);
    tess_error e = { .struct_size = sizeof e };
    tess_collective c = call_of(TESS_ALL_GATHER, 10, 1);
    tess_status s = r->rank == 0 ? comm_finalize(r, r->comm, &e) : one(r, &c, &e);
    check_that(r->c, s == TESS_E_MISMATCH, "gave %s, expected TESS_E_MISMATCH: %s", check_status(s), e.message);
    r->ops->destroy(r->comm);
}

struct timer {
    comm_rank *r;
    int after_ms;
    int64_t at_ns;
};

static void *abort_later(void *arg) {
    struct timer *t = arg;
    check_sleep_ms(t->after_ms);
    t->at_ns = check_now_ns();
    t->r->ops->abort(t->r->comm, TESS_E_ABORTED);
    t->r->ops->abort(t->r->comm, TESS_E_PEER); /* may be repeated; the first reason stays */
    check_doing(t->r->c, "wait, after abort");
    check_flag_set(t->r->c, 1, 1);
    return NULL;
}

/* Rank 1 never joins the collective. The others wait for it with more requests queued, until another thread aborts. */
static void abort_while_waiting(check *self) {
    comm_rank *r = comm_open(self);
    comm_must_claim(r, TESS_COMM_ABORT, "TESS_COMM_ABORT");
    comm_join(r);
    if (r->rank == 1) {
        check_flag_wait(r->c, 0, r->nranks - 1);
        r->ops->abort(r->comm, TESS_E_PEER); /* the core too calls abort on every rank */
        r->ops->destroy(r->comm);
        return;
    }
    tess_request *requests[5];
    tess_error e = { .struct_size = sizeof e };
    tess_collective c = call_of(TESS_ALL_GATHER, large_count(r), 1);
    for (int i = 0; i < 5; i++)
        check_that(r->c, r->ops->post(r->comm, &c, 1, &requests[i], &e) == TESS_OK, "post: %s", e.message);
    /* A peer's abort reaches this rank as a lost peer. All ranks abort at about the same time, so either status may
     * come first. */
    struct timer timer = { .r = r, .after_ms = 200 };
    pthread_t thread;
    check_that(r->c, pthread_create(&thread, NULL, abort_later, &timer) == 0, "no thread");
    for (int i = 0; i < 5; i++) {
        tess_status s = r->ops->wait(requests[i], CHECK_LONG_NS, &e);
        check_that(r->c, s == TESS_E_ABORTED || s == TESS_E_PEER, "request %d ended with %s: %s", i, check_status(s),
                   e.message);
        r->ops->request_free(requests[i]);
    }
    int64_t ended_ns = check_now_ns();
    pthread_join(thread, NULL);
    check_that(r->c, ended_ns - timer.at_ns < CHECK_SECOND_NS, "%lld ms after the abort",
               (long long)(ended_ns - timer.at_ns) / 1000000);
    memset(big_recv, 1, sizeof big_recv); /* the abort has returned the buffer to the caller */
    check_that(r->c, one(r, &c, &e) < 0, "a post after the abort succeeded");
    check_that(r->c, !TESS_CAN(tess_comm_ops, r->ops, health) || (comm_health(r, &e) < 0 && e.message[0]),
               "health says nothing");
    check_flag_set(r->c, 0, r->nranks - 1);
    r->ops->destroy(r->comm);
}

/* Reports a lost peer to the plugin a moment after flag 1, as the core does. */
static void *watch_killed(void *arg) {
    struct timer *t = arg;
    check_flag_wait(t->r->c, 1, 1); /* set right before the kill, or after the abort */
    check_sleep_ms(t->after_ms);
    t->at_ns = check_now_ns();
    t->r->ops->abort(t->r->comm, TESS_E_PEER);
    return NULL;
}

/* Both ranks move large transfers when rank 0 aborts from another thread. Rank 1 is told a moment later if it has not
 * noticed. */
static void abort_while_moving(check *self) {
    comm_rank *r = comm_open(self);
    comm_must_claim(r, TESS_COMM_ABORT, "TESS_COMM_ABORT");
    comm_join(r);
    struct timer timer = { .r = r, .after_ms = r->rank == 0 ? 150 : 300 };
    pthread_t thread;
    check_that(r->c, pthread_create(&thread, NULL, r->rank == 0 ? abort_later : watch_killed, &timer) == 0,
               "no thread");
    tess_error e;
    tess_collective c = call_of(TESS_ALL_GATHER, large_count(r), 1);
    tess_status s;
    while ((s = one(r, &c, &e)) == TESS_OK)
        ;
    int64_t ended_ns = check_now_ns();
    memset(big_recv, 1, sizeof big_recv);
    memset(big_send, 1, sizeof big_send);
    check_that(r->c, s == (r->rank == 0 ? TESS_E_ABORTED : TESS_E_PEER), "ended with %s: %s", check_status(s),
               e.message);
    check_that(r->c, r->rank == 0 || e.rank <= 0, "blames rank %d: %s", e.rank, e.message);
    pthread_join(thread, NULL);
    check_that(r->c, ended_ns - timer.at_ns < CHECK_SECOND_NS, "%lld ms after the abort",
               (long long)(ended_ns - timer.at_ns) / 1000000);
    r->ops->destroy(r->comm);
}

static void *set_aborting_later(void *arg) {
    struct timer *t = arg;
    check_sleep_ms(t->after_ms);
    t->at_ns = check_now_ns();
    check_set_aborting(t->r->c);
    return NULL;
}

/* Rank 1 never comes, so init must end when the host aborts. */
static void join_until_aborted(comm_rank *r) {
    struct timer timer = { .r = r, .after_ms = 100 };
    pthread_t thread;
    check_that(r->c, pthread_create(&thread, NULL, set_aborting_later, &timer) == 0, "no thread");
    tess_error e = { .struct_size = sizeof e };
    tess_status s = comm_init(r, "world", CHECK_LONG_NS, &r->comm, &e);
    int64_t ended_ns = check_now_ns();
    pthread_join(thread, NULL);
    check_that(r->c, s == TESS_E_ABORTED, "init gave %s: %s", check_status(s), e.message);
    check_that(r->c, ended_ns - timer.at_ns < CHECK_SECOND_NS, "%lld ms after the abort",
               (long long)(ended_ns - timer.at_ns) / 1000000);
}

static void abort_while_joining(check *self) {
    comm_rank *r = comm_open(self);
    comm_must_offer(r, TESS_ALL_GATHER, comm_word());
    if (r->rank == 0)
        join_until_aborted(r);
}

/* Rank 1 publishes its addresses but never connects, because its own init is stopped before the others publish. */
static void abort_while_connecting(check *self) {
    comm_rank *r = comm_open(self);
    comm_must_offer(r, TESS_ALL_GATHER, comm_word());
    tess_error e = { .struct_size = sizeof e };
    struct timer timer = { .r = r, .after_ms = r->rank == 1 ? 100 : 400 };
    if (r->rank != 1)
        check_flag_wait(r->c, 0, 1);
    pthread_t thread;
    check_that(r->c, pthread_create(&thread, NULL, set_aborting_later, &timer) == 0, "no thread");
    tess_status s = comm_init(r, "world", CHECK_LONG_NS, &r->comm, &e);
    int64_t ended_ns = check_now_ns();
    if (r->rank == 1)
        check_flag_set(r->c, 0, 1);
    pthread_join(thread, NULL);
    check_that(r->c, s == TESS_E_ABORTED || (r->rank != 1 && s == TESS_E_PEER), "init gave %s: %s", check_status(s),
               e.message);
    check_that(r->c, ended_ns - timer.at_ns < CHECK_SECOND_NS, "%lld ms after the abort",
               (long long)(ended_ns - timer.at_ns) / 1000000);
}

static void join_timeout(check *self) {
    comm_rank *r = comm_open(self);
    comm_must_offer(r, TESS_ALL_GATHER, comm_word());
    if (r->rank == 1)
        return;
    tess_error e = { .struct_size = sizeof e };
    int64_t begin = check_now_ns();
    tess_status s = comm_init(r, "world", 300 * 1000000, &r->comm, &e);
    check_that(r->c, s == TESS_E_TIMEOUT, "init gave %s: %s", check_status(s), e.message);
    check_that(r->c, e.rank == 1, "blames rank %d: %s", e.rank, e.message);
    check_that(r->c, check_now_ns() - begin < 300 * 1000000 + CHECK_SECOND_NS, "took too long");
}

/* Posts five requests at once and returns the first error. A request behind a failed one must fail too. */
static tess_status five_at_once(comm_rank *r, const tess_collective *c, int die, tess_error *e) {
    tess_request *requests[5];
    tess_status first = TESS_OK;
    int n = 0;
    while (n < 5 && (first = r->ops->post(r->comm, c, 1, &requests[n], e)) == TESS_OK)
        n++;
    if (die) {
        r->ops->wait(requests[0], CHECK_LONG_NS, e);
        check_flag_set(r->c, 1, 1);
        kill(getpid(), SIGKILL);
    }
    int failed = 0;
    for (int i = 0; i < n; i++) {
        tess_error own = { .struct_size = sizeof own };
        tess_status s = r->ops->wait(requests[i], CHECK_LONG_NS, &own);
        check_that(r->c, s < 0 || !failed, "request %d of %d succeeded behind a failed one", i, n);
        if (s < 0 && !failed) {
            failed = 1;
            first = s;
            *e = own;
        }
        r->ops->request_free(requests[i]);
    }
    return first;
}

/* The last rank is killed during large transfers. The others have five requests out and are told a moment later, as the
 * core does. */
static void killed_peer(check *self) {
    comm_rank *r = comm_open(self);
    comm_must_claim(r, TESS_COMM_ABORT, "TESS_COMM_ABORT");
    comm_join(r);
    tess_error e = { .struct_size = sizeof e };
    tess_collective c = call_of(TESS_ALL_GATHER, large_count(r), 1);
    int victim = r->rank == r->nranks - 1;
    struct timer timer = { .r = r, .after_ms = 100 };
    pthread_t thread;
    if (!victim)
        check_that(r->c, pthread_create(&thread, NULL, watch_killed, &timer) == 0, "no thread");
    tess_status s = TESS_OK;
    for (int round = 0; s == TESS_OK; round++)
        s = five_at_once(r, &c, victim && round == 2, &e);
    int64_t ended_ns = check_now_ns();
    memset(big_recv, 1, sizeof big_recv);
    check_that(r->c, s == TESS_E_PEER, "ended with %s: %s", check_status(s), e.message);
    pthread_join(thread, NULL);
    check_that(r->c, ended_ns - timer.at_ns < CHECK_SECOND_NS, "%lld ms after the abort",
               (long long)(ended_ns - timer.at_ns) / 1000000);
    r->ops->destroy(r->comm);
}

static void killed_while_joining(check *self) {
    comm_rank *r = comm_open(self);
    comm_must_offer(r, TESS_ALL_GATHER, comm_word());
    if (r->rank == 1) {
        check_flag_set(r->c, 1, 1);
        kill(getpid(), SIGKILL);
    }
    join_until_aborted(r);
}

/* Rank 1 is stopped during a transfer. wait must return at its timeout, and abort must end the transfer. */
static void stalled_peer(check *self) {
    comm_rank *r = comm_open(self);
    comm_must_claim(r, TESS_COMM_ABORT, "TESS_COMM_ABORT");
    comm_join(r);
    if (r->rank == 1) {
        check_flag_set(self, 2, getpid());
        kill(getpid(), SIGSTOP);
    }
    check_flag_wait(self, 2, 1);
    tess_collective c = call_of(TESS_ALL_GATHER, large_count(r), 1);
    tess_error e = { .struct_size = sizeof e };
    tess_request *request;
    check_that(self, r->ops->post(r->comm, &c, 1, &request, &e) == TESS_OK, "post: %s", e.message);
    int64_t begin = check_now_ns();
    check_doing(self, "wait with a timeout");
    tess_status s = r->ops->wait(request, 300 * 1000000, &e);
    check_that(self, s == TESS_E_TIMEOUT, "wait for a stopped rank gave %s, expected TESS_E_TIMEOUT", check_status(s));
    check_that(self, check_now_ns() - begin < 300 * 1000000 + CHECK_SECOND_NS, "wait of 300 ms took %lld ms",
               (long long)(check_now_ns() - begin) / 1000000);
    begin = check_now_ns();
    check_doing(self, "abort");
    r->ops->abort(r->comm, TESS_E_PEER);
    check_doing(self, "wait after abort");
    s = r->ops->wait(request, CHECK_LONG_NS, &e);
    check_that(self, s == TESS_E_PEER, "the request ended with %s, expected abort's TESS_E_PEER", check_status(s));
    r->ops->request_free(request);
    check_doing(self, "destroy");
    r->ops->destroy(r->comm);
    check_that(self, check_now_ns() - begin < CHECK_SECOND_NS, "abort and destroy took %lld ms",
               (long long)(check_now_ns() - begin) / 1000000);
    kill((pid_t)check_flag_get(self, 2), SIGKILL);
}

static tess_status lost_set(void *host, const char *key, const void *value, uint64_t bytes) {
    (void)host, (void)key, (void)value, (void)bytes;
    return TESS_E_PEER;
}
static tess_status lost_get(void *host, const char *key, void *value, uint64_t *bytes, int64_t timeout_ns) {
    (void)host, (void)key, (void)value, (void)bytes, (void)timeout_ns;
    return TESS_E_PEER;
}

/* The key-value store fails, as it does when a rank was lost. */
static void init_without_store(check *self) {
    self->host.kv_set = lost_set;
    self->host.kv_get = lost_get;
    comm_rank *r = comm_open(self);
    r->nranks = 2;
    comm_must_offer(r, TESS_ALL_GATHER, comm_word());
    for (int with_error = 1; with_error >= 0; with_error--) {
        tess_error e = { .struct_size = sizeof e };
        tess_comm *out = (tess_comm *)1;
        int64_t begin = check_now_ns();
        tess_status s = comm_init(r, "lost", CHECK_LONG_NS, &out, with_error ? &e : NULL);
        check_that(self, s < 0, "init gave %s although the store failed", check_status(s));
        check_that(self, out == (tess_comm *)1, "init failed and wrote its output");
        check_that(self, !with_error || *e.message, "init failed with %s and no message", check_status(s));
        check_that(self, check_now_ns() - begin < 5 * CHECK_SECOND_NS, "init took %lld ms after the store had failed",
                   (long long)(check_now_ns() - begin) / 1000000);
    }
}

/* destroy must wait neither for peers nor for requests. */
static void destroy_with_requests(check *self) {
    comm_rank *r = comm_open(self);
    comm_join(r);
    if (r->rank == 0) {
        tess_error e = { .struct_size = sizeof e };
        tess_request *request;
        tess_collective c = call_of(TESS_ALL_GATHER, 1000, 1);
        for (int i = 0; i < 3; i++)
            check_that(r->c, r->ops->post(r->comm, &c, 1, &request, &e) == TESS_OK, "post: %s", e.message);
        int64_t begin = check_now_ns();
        check_doing(r->c, "destroy");
        r->ops->destroy(r->comm);
        check_doing(r->c, "");
        check_that(r->c, check_now_ns() - begin < CHECK_SECOND_NS, "destroy waited for a peer: it took %lld ms",
                   (long long)(check_now_ns() - begin) / 1000000);
        check_flag_set(r->c, 0, 1);
    } else {
        check_flag_wait(r->c, 0, 1);
        r->ops->destroy(r->comm);
    }
    r->ops->destroy(NULL);
}

const check_case check_cases_comm_faults[] = {
    { "mismatches_two_ranks", 2, mismatches, 0, 0 },
    { "mismatches_four_ranks", 4, mismatches, 0, 0 },
    { "mismatch_hears_late_rank", 3, mismatch_hears_late_rank, 0, 0 },
    { "finalize_against_post", 3, finalize_against_post, 0, 0 },
    { "abort_while_waiting", 3, abort_while_waiting, 0, 0 },
    { "abort_while_moving", 2, abort_while_moving, 0, 0 },
    { "abort_while_joining", 2, abort_while_joining, CHECK_APART, 0 },
    { "abort_while_connecting", 3, abort_while_connecting, CHECK_APART, 0 },
    { "join_timeout", 2, join_timeout, CHECK_APART, 0 },
    { "killed_peer_two_ranks", 2, killed_peer, 1u << 1, 0 },
    { "killed_peer_four_ranks", 4, killed_peer, 1u << 3, 0 },
    { "killed_while_joining", 2, killed_while_joining, 1u << 1, 0 },
    { "stalled_peer", 2, stalled_peer, 1u << 1, 0 },
    { "init_without_store", 1, init_without_store, 0, 0 },
    { "destroy_with_requests", 2, destroy_with_requests, 0, 0 },
    { 0 },
};
