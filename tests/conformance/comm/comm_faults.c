/* Ranks that disagree, abort, come late, or die. In every case every rank gets an error, soon. */
#include "comm_suite.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LONG_NS INT64_C(20000000000)
#define SECOND_NS INT64_C(1000000000)

static int32_t big_send[1 << 20], big_recv[8 << 20];

static tess_collective call_of(uint32_t op, uint64_t count, uint64_t tag) {
    return (tess_collective){ .struct_size = sizeof(tess_collective),
                              .op = op,
                              .redop = TESS_SUM,
                              .send_dtype = TESS_I32,
                              .recv_dtype = TESS_I32,
                              .send_mem = TESS_MEM_HOST,
                              .recv_mem = TESS_MEM_HOST,
                              .send = big_send,
                              .recv = big_recv,
                              .count = count,
                              .scale = 1,
                              .tag = tag };
}

/* Posts and waits; the status of whichever fails first. */
static tess_status one(struct comm_rank *r, const tess_collective *c, tess_error *e) {
    tess_request *request;
    e->struct_size = sizeof *e;
    e->message[0] = 0;
    e->rank = -1;
    tess_status s = r->ops->post(r->comm, c, 1, &request, e);
    if (s < 0)
        return s;
    s = r->ops->wait(request, LONG_NS, e);
    r->ops->request_free(request);
    return s;
}

/* Rank nranks-1 departs from the others in one thing. All must see it, and name a rank that is not theirs. */
static void disagree(struct comm_rank *r, tess_collective usual, tess_collective odd) {
    static int round;
    char group[16] = "disagree0";
    group[8] = (char)('a' + round++);
    tess_error e = { .struct_size = sizeof e };
    tess_status s = comm_init(r, group, LONG_NS, &r->comm, &e);
    COMM_CHECK(r, s == TESS_OK, "init gave %d: %s", s, e.message);
    int odd_one = r->rank == r->nranks - 1;
    s = one(r, odd_one ? &odd : &usual, &e);
    COMM_CHECK(r, s == TESS_E_MISMATCH, "round %s gave %d: %s", group, s, e.message);
    COMM_CHECK(r, odd_one ? e.rank >= 0 && e.rank < r->rank : e.rank == r->nranks - 1, "blames rank %d: %s", e.rank,
               e.message);
    char here[16], there[16];
    snprintf(here, sizeof here, "rank %d", r->rank);
    snprintf(there, sizeof there, "rank %d", e.rank);
    COMM_CHECK(r, strstr(e.message, here) && strstr(e.message, there), "does not name both sides: %s", e.message);
    s = one(r, &usual, &e);
    COMM_CHECK(r, s == TESS_E_MISMATCH, "the next post gave %d", s);
    COMM_CHECK(r, r->ops->health(r->comm, &e) == TESS_E_MISMATCH, "health does not say so");
    r->ops->destroy(r->comm);
}

static void mismatches(struct comm_rank *r) {
    const tess_collective usual = call_of(TESS_ALL_GATHER, 1000, 5), large = call_of(TESS_ALL_GATHER, 100000, 5);
    tess_collective odd = call_of(TESS_ALL_TO_ALL, 1000, 5);
    disagree(r, usual, odd);
    odd = usual, odd.count = 1001;
    disagree(r, usual, odd);
    odd = usual, odd.count = 100001; /* another way of sending */
    disagree(r, usual, odd);
    odd = large, odd.count = 99999;
    disagree(r, large, odd);
    odd = usual, odd.tag = 6;
    disagree(r, usual, odd);
    odd = usual, odd.send_dtype = odd.recv_dtype = TESS_F32;
    disagree(r, usual, odd);
    odd = call_of(TESS_BARRIER, 0, 5);
    disagree(r, large, odd);
    odd = call_of(TESS_ALL_REDUCE, 1000, 5), odd.redop = TESS_MAX;
    disagree(r, call_of(TESS_ALL_REDUCE, 1000, 5), odd);
    odd = call_of(TESS_BROADCAST, 1000, 5), odd.root = 1;
    disagree(r, call_of(TESS_BROADCAST, 1000, 5), odd);
}

/* One rank leaves while the others still communicate. */
static void finalize_against_post(struct comm_rank *r) {
    comm_join(r);
    tess_error e = { .struct_size = sizeof e };
    tess_collective c = call_of(TESS_ALL_GATHER, 10, 1);
    tess_status s = r->rank == 0 ? r->ops->finalize(r->comm, LONG_NS, &e) : one(r, &c, &e);
    COMM_CHECK(r, s == TESS_E_MISMATCH, "gave %d: %s", s, e.message);
    r->ops->destroy(r->comm);
}

struct timer {
    struct comm_rank *r;
    int after_ms;
    int64_t at_ns;
};

static void *abort_later(void *arg) {
    struct timer *t = arg;
    comm_sleep_ms(t->after_ms);
    t->at_ns = comm_now_ns();
    t->r->ops->abort(t->r->comm, TESS_E_ABORTED);
    t->r->ops->abort(t->r->comm, TESS_E_PEER); /* repeatable; the first reason stays */
    return NULL;
}

/* Rank 1 never joins the collective: the others wait in it with more requests behind, until another thread aborts. */
static void abort_while_waiting(struct comm_rank *r) {
    comm_join(r);
    if (r->rank == 1) {
        comm_flag_wait(r, 0, r->nranks - 1);
        r->ops->destroy(r->comm);
        return;
    }
    tess_request *requests[5];
    tess_error e = { .struct_size = sizeof e };
    tess_collective c = call_of(TESS_ALL_GATHER, 1 << 20, 1);
    for (int i = 0; i < 5; i++)
        COMM_CHECK(r, r->ops->post(r->comm, &c, 1, &requests[i], &e) == TESS_OK, "post: %s", e.message);
    /* A peer's abort reaches this rank as a lost peer; ranks abort at the same time here so that both may be seen. */
    struct timer timer = { .r = r, .after_ms = 200 };
    pthread_t thread;
    COMM_CHECK(r, pthread_create(&thread, NULL, abort_later, &timer) == 0, "no thread");
    for (int i = 0; i < 5; i++) {
        tess_status s = r->ops->wait(requests[i], LONG_NS, &e);
        COMM_CHECK(r, s == TESS_E_ABORTED || s == TESS_E_PEER, "request %d ended with %d: %s", i, s, e.message);
        r->ops->request_free(requests[i]);
    }
    int64_t ended_ns = comm_now_ns();
    pthread_join(thread, NULL);
    COMM_CHECK(r, ended_ns - timer.at_ns < SECOND_NS, "%lld ms after the abort",
               (long long)(ended_ns - timer.at_ns) / 1000000);
    memset(big_recv, 1, sizeof big_recv); /* ours again */
    COMM_CHECK(r, one(r, &c, &e) < 0, "a post after the abort succeeded");
    COMM_CHECK(r, r->ops->health(r->comm, &e) < 0 && e.message[0], "health says nothing");
    comm_flag_set(r, 0, r->nranks - 1);
    r->ops->destroy(r->comm);
}

/* Both ranks are busy with large transfers when one aborts from another thread. */
static void abort_while_moving(struct comm_rank *r) {
    comm_join(r);
    struct timer timer = { .r = r, .after_ms = 150 };
    pthread_t thread;
    if (r->rank == 0)
        COMM_CHECK(r, pthread_create(&thread, NULL, abort_later, &timer) == 0, "no thread");
    tess_error e;
    tess_collective c = call_of(TESS_ALL_GATHER, 1 << 20, 1);
    tess_status s;
    while ((s = one(r, &c, &e)) == TESS_OK)
        ;
    int64_t ended_ns = comm_now_ns();
    memset(big_recv, 1, sizeof big_recv);
    memset(big_send, 1, sizeof big_send);
    COMM_CHECK(r, s == (r->rank == 0 ? TESS_E_ABORTED : TESS_E_PEER), "ended with %d: %s", s, e.message);
    if (r->rank == 0) {
        pthread_join(thread, NULL);
        COMM_CHECK(r, ended_ns - timer.at_ns < SECOND_NS, "%lld ms after the abort",
                   (long long)(ended_ns - timer.at_ns) / 1000000);
    } else {
        COMM_CHECK(r, e.rank == 0, "blames rank %d: %s", e.rank, e.message);
    }
    r->ops->destroy(r->comm);
}

static void *set_aborting_later(void *arg) {
    struct timer *t = arg;
    comm_sleep_ms(t->after_ms);
    t->at_ns = comm_now_ns();
    comm_set_aborting(t->r);
    return NULL;
}

/* Rank 1 never comes: init ends when the host says so. */
static void abort_while_joining(struct comm_rank *r) {
    if (r->rank == 1)
        return;
    struct timer timer = { .r = r, .after_ms = 100 };
    pthread_t thread;
    COMM_CHECK(r, pthread_create(&thread, NULL, set_aborting_later, &timer) == 0, "no thread");
    tess_error e = { .struct_size = sizeof e };
    tess_status s = comm_init(r, "world", LONG_NS, &r->comm, &e);
    int64_t ended_ns = comm_now_ns();
    pthread_join(thread, NULL);
    COMM_CHECK(r, s == TESS_E_ABORTED, "init gave %d: %s", s, e.message);
    COMM_CHECK(r, ended_ns - timer.at_ns < SECOND_NS, "%lld ms after the abort",
               (long long)(ended_ns - timer.at_ns) / 1000000);
}

/* Rank 1 gives its addresses and stays away from connecting: its own init is stopped before the others publish. */
static void abort_while_connecting(struct comm_rank *r) {
    tess_error e = { .struct_size = sizeof e };
    struct timer timer = { .r = r, .after_ms = r->rank == 1 ? 100 : 400 };
    if (r->rank != 1)
        comm_flag_wait(r, 0, 1);
    pthread_t thread;
    COMM_CHECK(r, pthread_create(&thread, NULL, set_aborting_later, &timer) == 0, "no thread");
    tess_status s = comm_init(r, "world", LONG_NS, &r->comm, &e);
    int64_t ended_ns = comm_now_ns();
    if (r->rank == 1)
        comm_flag_set(r, 0, 1);
    pthread_join(thread, NULL);
    COMM_CHECK(r, s == TESS_E_ABORTED || (r->rank != 1 && s == TESS_E_PEER), "init gave %d: %s", s, e.message);
    COMM_CHECK(r, ended_ns - timer.at_ns < SECOND_NS, "%lld ms after the abort",
               (long long)(ended_ns - timer.at_ns) / 1000000);
}

static void join_timeout(struct comm_rank *r) {
    if (r->rank == 1)
        return;
    tess_error e = { .struct_size = sizeof e };
    int64_t begin = comm_now_ns();
    tess_status s = comm_init(r, "world", 300 * 1000000, &r->comm, &e);
    COMM_CHECK(r, s == TESS_E_TIMEOUT, "init gave %d: %s", s, e.message);
    COMM_CHECK(r, e.rank == 1, "blames rank %d: %s", e.rank, e.message);
    COMM_CHECK(r, comm_now_ns() - begin < 300 * 1000000 + SECOND_NS, "took too long");
}

static void *watch_killed(void *arg) {
    struct timer *t = arg;
    comm_flag_wait(t->r, 1, 1); /* set right before the kill */
    comm_sleep_ms(t->after_ms);
    t->at_ns = comm_now_ns();
    t->r->ops->abort(t->r->comm, TESS_E_PEER);
    return NULL;
}

/* Five requests out together; the first error. Requests behind a failed one must fail too. */
static tess_status five_at_once(struct comm_rank *r, const tess_collective *c, int die, tess_error *e) {
    tess_request *requests[5];
    tess_status first = TESS_OK;
    int n = 0;
    while (n < 5 && (first = r->ops->post(r->comm, c, 1, &requests[n], e)) == TESS_OK)
        n++;
    if (die) {
        r->ops->wait(requests[0], LONG_NS, e);
        comm_flag_set(r, 1, 1);
        kill(getpid(), SIGKILL);
    }
    int failed = 0;
    for (int i = 0; i < n; i++) {
        tess_error own = { .struct_size = sizeof own };
        tess_status s = r->ops->wait(requests[i], LONG_NS, &own);
        COMM_CHECK(r, s < 0 || !failed, "request %d of %d succeeded behind a failed one", i, n);
        if (s < 0 && !failed) {
            failed = 1;
            first = s;
            *e = own;
        }
        r->ops->request_free(requests[i]);
    }
    return first;
}

/* The last rank is killed in the middle of large transfers; the others are told from outside a moment later, as the
 * core does, and have five requests out. */
static void killed_peer(struct comm_rank *r) {
    comm_join(r);
    tess_error e = { .struct_size = sizeof e };
    tess_collective c = call_of(TESS_ALL_GATHER, 1 << 20, 1);
    int victim = r->rank == r->nranks - 1;
    struct timer timer = { .r = r, .after_ms = 100 };
    pthread_t thread;
    if (!victim)
        COMM_CHECK(r, pthread_create(&thread, NULL, watch_killed, &timer) == 0, "no thread");
    tess_status s = TESS_OK;
    for (int round = 0; s == TESS_OK; round++)
        s = five_at_once(r, &c, victim && round == 2, &e);
    int64_t ended_ns = comm_now_ns();
    memset(big_recv, 1, sizeof big_recv);
    COMM_CHECK(r, s == TESS_E_PEER, "ended with %d: %s", s, e.message);
    pthread_join(thread, NULL);
    COMM_CHECK(r, ended_ns - timer.at_ns < SECOND_NS, "%lld ms after the abort",
               (long long)(ended_ns - timer.at_ns) / 1000000);
    r->ops->destroy(r->comm);
}

static void killed_while_joining(struct comm_rank *r) {
    if (r->rank == 1) {
        comm_flag_set(r, 1, 1);
        kill(getpid(), SIGKILL);
    }
    abort_while_joining(r);
}

/* destroy never waits: not for the peers, not for requests. */
static void destroy_with_requests(struct comm_rank *r) {
    comm_join(r);
    if (r->rank == 0) {
        tess_error e = { .struct_size = sizeof e };
        tess_request *request;
        tess_collective c = call_of(TESS_ALL_GATHER, 1000, 1);
        for (int i = 0; i < 3; i++)
            COMM_CHECK(r, r->ops->post(r->comm, &c, 1, &request, &e) == TESS_OK, "post: %s", e.message);
        int64_t begin = comm_now_ns();
        r->ops->destroy(r->comm);
        COMM_CHECK(r, comm_now_ns() - begin < SECOND_NS, "took too long");
        comm_flag_set(r, 0, 1);
    } else {
        comm_flag_wait(r, 0, 1);
        r->ops->destroy(r->comm);
    }
    r->ops->destroy(NULL);
}

const struct comm_case comm_cases_faults[] = {
    { "mismatches_two_ranks", 2, mismatches, 0 },
    { "mismatches_four_ranks", 4, mismatches, 0 },
    { "finalize_against_post", 3, finalize_against_post, 0 },
    { "abort_while_waiting", 3, abort_while_waiting, 0 },
    { "abort_while_moving", 2, abort_while_moving, 0 },
    { "abort_while_joining", 2, abort_while_joining, 0 },
    { "abort_while_connecting", 3, abort_while_connecting, 0 },
    { "join_timeout", 2, join_timeout, 0 },
    { "killed_peer_two_ranks", 2, killed_peer, 1u << 1 },
    { "killed_peer_four_ranks", 4, killed_peer, 1u << 3 },
    { "killed_while_joining", 2, killed_while_joining, 1u << 1 },
    { "destroy_with_requests", 2, destroy_with_requests, 0 },
    { 0 },
};
