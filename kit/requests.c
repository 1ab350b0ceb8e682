/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "requests.h"

#include <stdlib.h>

static tess_comm *comm_of(kit_requests *q) {
    return (tess_comm *)q; /* a communicator begins with its queue */
}
static kit_requests *queue_of(tess_comm *comm) {
    return (kit_requests *)comm;
}
static tess_status status_of(const tess_request *r) {
    return __atomic_load_n(&r->status, __ATOMIC_ACQUIRE);
}

/* ---- the pool and the queue; behind the lock ----------------------------------------------------- */

static void request_give(kit_requests *q, tess_request *r) {
    r->next = q->free;
    q->free = r;
}

static void request_make(kit_requests *q, tess_request *r) {
    r->queue = q;
    r->calls = r->inline_calls;
    r->room = KIT_INLINE_CALLS;
}

static tess_request *request_take(kit_requests *q, tess_error *e) {
    tess_request *r = q->free;
    if (r) {
        q->free = r->next;
        return r;
    }
    r = calloc(1, sizeof *r);
    if (!r) {
        tess_plugin_fail(e, TESS_E_NOMEM, "%s: no memory for a request", q->ops->plugin);
        return NULL;
    }
    request_make(q, r);
    r->sibling = q->more;
    q->more = r;
    return r;
}

static int request_reserve(tess_request *r, uint32_t n) {
    if (n <= r->room)
        return 1;
    tess_collective *calls = calloc(n, sizeof *calls);
    if (!calls)
        return 0;
    if (r->calls != r->inline_calls)
        free(r->calls);
    r->calls = calls;
    r->room = n;
    return 1;
}

static void enqueue_request(kit_requests *q, tess_request *r) {
    r->next = NULL;
    __atomic_store_n(&r->status, TESS_PENDING, __ATOMIC_RELAXED);
    if (q->tail)
        q->tail->next = r;
    else
        q->head = r;
    q->tail = r;
    pthread_cond_signal(&q->posted);
}

static tess_request *dequeue_request(kit_requests *q) {
    tess_request *r = q->head;
    q->head = r->next;
    if (!q->head)
        q->tail = NULL;
    return r;
}

/* Ends a request with the communicator's cause, or with success. */
static void request_end(kit_requests *q, tess_request *r, const tess_error *cause) {
    if (cause)
        r->error = *cause;
    __atomic_store_n(&r->status, cause ? cause->code : TESS_OK, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&q->ended);
}

static void note_failure(kit_requests *q, const tess_error *cause) {
    if (q->cause.code == TESS_OK)
        q->cause = *cause;
}

/* Returns TESS_OK, or why nothing can be posted any more. */
static tess_status refuse_post(kit_requests *q, tess_error *e) {
    if (q->cause.code != TESS_OK)
        return tess_plugin_copy_error(e, &q->cause);
    return q->finalized ? tess_plugin_fail(e, TESS_E_INVALID, "%s: post after finalize", q->ops->plugin) : TESS_OK;
}

/* ---- the worker ---------------------------------------------------------------------------------- */

/* Runs one request. The lock is held, and given back meanwhile. */
static void run_one(kit_requests *q) {
    tess_error e = { .struct_size = sizeof e, .rank = -1 };
    tess_request *r = q->running = dequeue_request(q);
    pthread_mutex_unlock(&q->lock);
    tess_status s = q->ops->run(comm_of(q), r->calls, r->n, r->own_op, &e);
    pthread_mutex_lock(&q->lock);
    if (q->suspicion.code != TESS_OK && (s >= 0 || s == TESS_E_ABORTED)) /* it was interrupted, and knows no more */
        note_failure(q, &q->suspicion);
    if (s < 0) {
        e.code = s;
        note_failure(q, &e);
        return;
    }
    q->running = NULL;
    request_end(q, r, NULL);
}

/* Everything in flight ends with the cause, once no buffer is touched any more. */
static void end_all(kit_requests *q) {
    if (q->ops->drain) {
        pthread_mutex_unlock(&q->lock);
        q->ops->drain(comm_of(q), &q->cause); /* the cause does not change any more */
        pthread_mutex_lock(&q->lock);
    }
    if (q->running)
        request_end(q, q->running, &q->cause);
    q->running = NULL;
    while (q->head)
        request_end(q, dequeue_request(q), &q->cause);
}

static void requests_work(void *arg) {
    kit_requests *q = arg;
    pthread_mutex_lock(&q->lock);
    while (q->cause.code == TESS_OK && !q->quit) {
        if (q->head)
            run_one(q);
        else
            pthread_cond_wait(&q->posted, &q->lock);
    }
    if (q->cause.code != TESS_OK) {
        end_all(q);
        while (!q->aborted && !q->quit)
            pthread_cond_wait(&q->posted, &q->lock);
        int aborted = q->aborted;
        pthread_mutex_unlock(&q->lock);
        if (q->ops->leave)
            q->ops->leave(comm_of(q), &q->cause, aborted);
        return;
    }
    pthread_mutex_unlock(&q->lock);
}

const tess_collective *kit_requests_next(kit_requests *q) {
    pthread_mutex_lock(&q->lock);
    const tess_request *r = q->head; /* only the worker takes requests off the queue, so it stays */
    pthread_mutex_unlock(&q->lock);
    return r && !r->own_op ? r->calls : NULL;
}

/* ---- beginning and ending ------------------------------------------------------------------------ */

void kit_requests_init(kit_requests *q, const kit_requests_ops *ops, const tess_host *host) {
    memset(q, 0, sizeof *q);
    q->ops = ops;
    q->host = host;
    q->cause.struct_size = q->suspicion.struct_size = sizeof q->cause;
    for (int i = 0; i < KIT_REQUESTS; i++) {
        request_make(q, &q->pool[i]);
        request_give(q, &q->pool[i]);
    }
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->posted, NULL);
    kit_cond_init(&q->ended);
}

tess_status kit_requests_start(kit_requests *q, tess_error *e) {
    tess_status s = kit_thread_start(&q->worker, q->host, q->ops->plugin, q->ops->thread, requests_work, q, e);
    q->started = s == TESS_OK;
    return s;
}

static void fail_with(kit_requests *q, tess_status why, const char *what) {
    tess_error cause = { .struct_size = sizeof cause };
    tess_plugin_fail(&cause, why, "%s: the communicator was %s", q->ops->plugin, what);
    kit_requests_fail(q, &cause);
}

void kit_requests_stop(kit_requests *q) {
    if (!q->started)
        return;
    pthread_mutex_lock(&q->lock);
    int orderly = q->finalized;
    pthread_mutex_unlock(&q->lock);
    if (!orderly)
        fail_with(q, TESS_E_ABORTED, "destroyed");
    pthread_mutex_lock(&q->lock);
    q->quit = 1;
    pthread_cond_signal(&q->posted);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->worker, NULL);
    q->started = 0;
}

void kit_requests_finish(kit_requests *q) {
    for (int i = 0; i < KIT_REQUESTS; i++)
        if (q->pool[i].calls != q->pool[i].inline_calls)
            free(q->pool[i].calls);
    while (q->more) {
        tess_request *r = q->more;
        q->more = r->sibling;
        if (r->calls != r->inline_calls)
            free(r->calls);
        free(r);
    }
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->posted);
    pthread_cond_destroy(&q->ended);
}

void kit_requests_fail(kit_requests *q, const tess_error *cause) {
    pthread_mutex_lock(&q->lock);
    note_failure(q, cause);
    pthread_cond_signal(&q->posted);
    pthread_mutex_unlock(&q->lock);
    q->ops->interrupt(comm_of(q));
}

void kit_requests_suspect(kit_requests *q, const tess_error *cause) {
    pthread_mutex_lock(&q->lock);
    if (q->running)
        q->suspicion = *cause;
    else
        note_failure(q, cause);
    pthread_cond_signal(&q->posted);
    pthread_mutex_unlock(&q->lock);
    q->ops->interrupt(comm_of(q));
}

tess_status kit_slot_abort(tess_comm *comm, tess_status why) {
    kit_requests *q = queue_of(comm);
    pthread_mutex_lock(&q->lock);
    q->aborted = 1;
    pthread_mutex_unlock(&q->lock);
    fail_with(q, why < 0 ? why : TESS_E_ABORTED, "aborted");
    return TESS_OK;
}

tess_status kit_slot_health(tess_comm *comm, tess_error *e) {
    kit_requests *q = queue_of(comm);
    pthread_mutex_lock(&q->lock);
    tess_status s = q->cause.code == TESS_OK ? TESS_OK : tess_plugin_copy_error(e, &q->cause);
    pthread_mutex_unlock(&q->lock);
    return s;
}

/* ---- posting ------------------------------------------------------------------------------------- */

static tess_status take_calls(kit_requests *q, tess_request *r, const tess_collective *calls, uint32_t n,
                              tess_error *e) {
    if (!request_reserve(r, n))
        return tess_plugin_fail(e, TESS_E_NOMEM, "%s: no memory for %u collectives", q->ops->plugin, n);
    r->n = n;
    r->own_op = 0;
    for (uint32_t i = 0; i < n; i++) {
        r->calls[i] = kit_take_call(TESS_AT(calls, i), calls->struct_size);
        tess_status s = q->ops->check(comm_of(q), &r->calls[i], e);
        if (s < 0)
            return s;
    }
    return TESS_OK;
}

tess_status kit_slot_post(tess_comm *comm, const tess_collective *calls, uint32_t n, tess_request **out,
                          tess_error *e) {
    kit_requests *q = queue_of(comm);
    if (n == 0 || n > UINT16_MAX || calls->struct_size < offsetof(tess_collective, tag) + sizeof calls->tag)
        return tess_plugin_fail(e, TESS_E_INVALID, "%s: %u collectives of %u bytes each", q->ops->plugin, n,
                                n ? calls->struct_size : 0);
    pthread_mutex_lock(&q->lock);
    tess_status s = refuse_post(q, e);
    tess_request *r = s == TESS_OK ? request_take(q, e) : NULL;
    if (s == TESS_OK)
        s = r ? take_calls(q, r, calls, n, e) : TESS_E_NOMEM;
    if (s == TESS_OK) {
        enqueue_request(q, r);
        *out = r;
    } else if (r) {
        request_give(q, r);
    }
    pthread_mutex_unlock(&q->lock);
    return s;
}

tess_status kit_requests_post_own(kit_requests *q, uint32_t own_op, tess_request **out, tess_error *e) {
    pthread_mutex_lock(&q->lock);
    tess_status s = refuse_post(q, e);
    tess_request *r = s == TESS_OK ? request_take(q, e) : NULL;
    if (r) {
        r->n = 0;
        r->own_op = own_op;
        enqueue_request(q, r);
        *out = r;
    }
    pthread_mutex_unlock(&q->lock);
    return r ? TESS_OK : s < 0 ? s : TESS_E_NOMEM;
}

/* ---- waiting ------------------------------------------------------------------------------------- */

static tess_status timed_out(const tess_request *r, int64_t timeout_ns, tess_error *e) {
    char what[88];
    const kit_announcement a = r->own_op ? kit_announce_own(r->own_op, 0, 0) : kit_announce(r->calls, r->n, 0);
    return tess_plugin_fail(e, TESS_E_TIMEOUT, "%s: %s has not ended within %.3f s", r->queue->ops->plugin,
                            kit_describe(&a, what, sizeof what), (double)timeout_ns * 1e-9);
}

tess_status kit_slot_wait(tess_request *r, int64_t timeout_ns, tess_error *e) {
    kit_requests *q = r->queue;
    tess_status s = status_of(r);
    if (s == TESS_PENDING && timeout_ns != 0) {
        const int64_t until_ns = kit_until_ns(timeout_ns);
        int late = 0;
        pthread_mutex_lock(&q->lock);
        while ((s = status_of(r)) == TESS_PENDING && !late)
            late = kit_cond_wait(&q->ended, &q->lock, until_ns);
        pthread_mutex_unlock(&q->lock);
    }
    if (s == TESS_PENDING && timeout_ns != 0)
        return timed_out(r, timeout_ns, e);
    return s < 0 ? tess_plugin_copy_error(e, &r->error) : s;
}

tess_status kit_slot_test(tess_request *r, tess_error *e) {
    return kit_slot_wait(r, 0, e);
}

tess_status kit_slot_wait_stream(tess_request *r, const tess_stream *stream, tess_error *e) {
    (void)stream;
    return kit_slot_wait(r, -1, e);
}

void kit_slot_request_free(tess_request *r) {
    if (!r)
        return;
    pthread_mutex_lock(&r->queue->lock);
    request_give(r->queue, r);
    pthread_mutex_unlock(&r->queue->lock);
}

/* ---- meeting the other ranks --------------------------------------------------------------------- */

tess_status kit_requests_meet(kit_requests *q, uint32_t own_op, int64_t timeout_ns, tess_error *e) {
    tess_request *r = NULL;
    tess_status s = kit_requests_post_own(q, own_op, &r, e);
    if (s < 0)
        return s;
    s = kit_slot_wait(r, timeout_ns, e);
    if (s != TESS_E_TIMEOUT || status_of(r) != TESS_PENDING)
        kit_slot_request_free(r);
    return s == TESS_PENDING ? TESS_E_TIMEOUT : s;
}

tess_status kit_slot_finalize(tess_comm *comm, int64_t timeout_ns, tess_error *e) {
    kit_requests *q = queue_of(comm);
    pthread_mutex_lock(&q->lock);
    int finalized = q->finalized;
    pthread_mutex_unlock(&q->lock);
    if (finalized)
        return TESS_OK;
    tess_status s = kit_requests_meet(q, KIT_OP_FINALIZE, timeout_ns, e);
    pthread_mutex_lock(&q->lock);
    q->finalized |= s == TESS_OK;
    pthread_mutex_unlock(&q->lock);
    return s;
}

tess_status kit_requests_choices(kit_requests *q, const kit_choice *mine, kit_choice *all, int64_t timeout_ns,
                                 tess_error *e) {
    const tess_collective c = { .struct_size = sizeof c,
                                .op = TESS_ALL_GATHER,
                                .send_dtype = TESS_I64,
                                .recv_dtype = TESS_I64,
                                .send_mem = TESS_MEM_HOST,
                                .recv_mem = TESS_MEM_HOST,
                                .send = mine,
                                .recv = all,
                                .count = sizeof *mine / sizeof(int64_t),
                                .scale = 1,
                                .tag = UINT64_C(0x73706c6974) /* "split" */ };
    tess_request *r = NULL;
    tess_error cause = { .struct_size = sizeof cause, .rank = -1 };
    tess_status s = kit_slot_post(comm_of(q), &c, 1, &r, e);
    if (s < 0)
        return s;
    s = kit_slot_wait(r, timeout_ns > 0 ? timeout_ns : -1, &cause);
    if (s == TESS_E_TIMEOUT && status_of(r) == TESS_PENDING) { /* it still writes to `all`: end it before leaving */
        kit_requests_fail(q, &cause);
        kit_slot_wait(r, -1, NULL);
    }
    kit_slot_request_free(r);
    return s < 0 ? tess_plugin_copy_error(e, &cause) : s;
}
