#include "communicator.h"

#include "reduce.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

/* ---- requests; behind the lock -------------------------------------------------------------------- */

static tess_request *take_free(tess_comm *c) {
    tess_request *r = c->free;
    if (r) {
        c->free = r->next;
        return r;
    }
    r = calloc(1, sizeof *r);
    if (r) {
        r->calls = r->inline_calls;
        r->room = SHM_INLINE_CALLS;
        r->sibling = c->more;
        c->more = r;
    }
    return r;
}

static void give_free(tess_comm *c, tess_request *r) {
    r->next = c->free;
    c->free = r;
}

static int make_room(tess_request *r, uint32_t n) {
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

static void enqueue(tess_comm *c, tess_request *r) {
    r->comm = c;
    r->next = NULL;
    r->failure.status = TESS_OK;
    atomic_store_explicit(&r->status, TESS_PENDING, memory_order_relaxed);
    if (c->tail)
        c->tail->next = r;
    else
        c->head = r;
    c->tail = r;
    pthread_cond_signal(&c->work);
}

static tess_request *dequeue(tess_comm *c) {
    tess_request *r = c->head;
    c->head = r->next;
    if (!c->head)
        c->tail = NULL;
    return r;
}

static void end(tess_comm *c, tess_request *r, const struct shm_failure *f) {
    if (f)
        r->failure = *f;
    atomic_store_explicit(&r->status, f ? f->status : TESS_OK, memory_order_release);
    pthread_cond_broadcast(&c->done);
}

/* ---- the worker ----------------------------------------------------------------------------------- */

static tess_status run(tess_comm *c, tess_request *r, struct shm_failure *f) {
    tess_status s = r->own_op ? shm_run_meeting(&c->operations, r->own_op, f) : TESS_OK;
    if (r->own_op && s == TESS_OK)
        shm_table_say_state(&c->table, SHM_LEFT);
    for (uint32_t i = 0; i < r->n && s == TESS_OK; i++)
        s = shm_run_call(&c->operations, &r->calls[i], f);
    return s;
}

/* The others learn of it before any request ends, so before its memory can change under their hands. */
static void give_up(tess_comm *c, tess_request *running) {
    shm_table_say_state(&c->table, c->cause.status);
    if (running)
        end(c, running, &c->cause);
    while (c->head)
        end(c, dequeue(c), &c->cause);
}

static void *work(void *arg) {
    tess_comm *c = arg;
    shm_enter_thread(c->settings, "tess-shm-work");
    pthread_mutex_lock(&c->lock);
    while (c->cause.status == TESS_OK && !c->quit) {
        if (!c->head) {
            pthread_cond_wait(&c->work, &c->lock);
            continue;
        }
        tess_request *r = dequeue(c);
        struct shm_failure f = { .status = TESS_OK };
        pthread_mutex_unlock(&c->lock);
        tess_status s = run(c, r, &f);
        pthread_mutex_lock(&c->lock);
        if (s != TESS_OK && c->cause.status == TESS_OK)
            c->cause = f;
        if (s != TESS_OK)
            give_up(c, r);
        else
            end(c, r, NULL);
    }
    if (c->cause.status != TESS_OK)
        give_up(c, NULL);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- begin and end -------------------------------------------------------------------------------- */

static int start_worker(tess_comm *c) {
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->work, NULL);
    pthread_cond_init(&c->done, &clock);
    pthread_condattr_destroy(&clock);
    c->worker_started = pthread_create(&c->worker, NULL, work, c) == 0;
    return c->worker_started;
}

tess_status shm_comm_create(const struct shm_settings *settings, struct shm_group *group, const int *members, int rank,
                            int size, const char *prefix, uint64_t table_offset, tess_comm **out,
                            struct shm_failure *f) {
    void *memory = NULL;
    tess_comm *c = calloc(1, sizeof *c);
    if (!c) {
        shm_group_drop(group);
        return shm_fail(f, TESS_E_NOMEM, -1, "shm: no memory for a communicator");
    }
    c->settings = settings;
    c->group = group;
    c->rank = rank;
    c->size = size;
    memcpy(c->members, members, (size_t)size * sizeof *members);
    snprintf(c->prefix, sizeof c->prefix, "%s", prefix);
    for (int i = 0; i < SHM_REQUESTS; i++) {
        c->pool[i].calls = c->pool[i].inline_calls;
        c->pool[i].room = SHM_INLINE_CALLS;
        give_free(c, &c->pool[i]);
    }
    c->operations.table = &c->table;
    tess_status s = shm_table_map(group, members[0], table_offset, shm_table_bytes(size), &memory, f);
    if (s == TESS_OK) {
        shm_table_open(&c->table, group, c->members, rank, size, memory, &c->cause);
        if (!start_worker(c))
            s = shm_fail(f, TESS_E_SYSTEM, -1, "shm: cannot start a thread");
    }
    if (s == TESS_OK)
        *out = c;
    else
        shm_comm_destroy(c);
    return s;
}

static void free_requests(tess_comm *c) {
    for (int i = 0; i < SHM_REQUESTS; i++)
        if (c->pool[i].calls != c->pool[i].inline_calls)
            free(c->pool[i].calls);
    while (c->more) {
        tess_request *r = c->more;
        c->more = r->sibling;
        if (r->calls != r->inline_calls)
            free(r->calls);
        free(r);
    }
}

void shm_comm_destroy(tess_comm *c) {
    if (!c)
        return;
    if (c->worker_started) {
        struct shm_failure f = { .status = TESS_OK };
        pthread_mutex_lock(&c->lock);
        int orderly = c->finalized;
        c->quit = 1;
        pthread_cond_signal(&c->work);
        pthread_mutex_unlock(&c->lock);
        shm_fail(&f, TESS_E_ABORTED, -1, "shm: the communicator was destroyed");
        if (!orderly)
            shm_comm_fail(c, &f);
        pthread_join(c->worker, NULL);
        if (!orderly)
            shm_table_say_state(&c->table, TESS_E_ABORTED);
        pthread_cond_destroy(&c->done);
        pthread_cond_destroy(&c->work);
        pthread_mutex_destroy(&c->lock);
    }
    shm_table_close(&c->table);
    shm_group_drop(c->group);
    free_requests(c);
    free(c);
}

/* ---- the caller's side ---------------------------------------------------------------------------- */

static tess_status take_calls(tess_comm *c, tess_request *r, const tess_collective *calls, uint32_t n,
                              struct shm_failure *f) {
    const char *bytes = (const char *)calls;
    if (!make_room(r, n))
        return shm_fail(f, TESS_E_NOMEM, -1, "shm: no memory for %u collectives in one post", n);
    for (uint32_t i = 0; i < n; i++) {
        r->calls[i] = shm_take_call((const void *)(bytes + (size_t)i * calls->struct_size), calls->struct_size);
        tess_status s = shm_check(&r->calls[i], c->rank, c->size, f);
        if (s)
            return s;
    }
    r->own_op = 0;
    r->n = n;
    return TESS_OK;
}

tess_status shm_comm_post(tess_comm *c, const tess_collective *calls, uint32_t n, tess_request **out,
                          struct shm_failure *f) {
    if (n == 0 || calls->struct_size < offsetof(tess_collective, tag) + sizeof calls->tag)
        return shm_fail(f, TESS_E_INVALID, -1, "shm: %u collectives of %u bytes each", n, n ? calls->struct_size : 0);
    pthread_mutex_lock(&c->lock);
    tess_request *r = NULL;
    tess_status s = TESS_OK;
    if (c->cause.status != TESS_OK)
        *f = c->cause, s = f->status;
    else if (c->finalized)
        s = shm_fail(f, TESS_E_INVALID, -1, "shm: post after finalize");
    else if (!(r = take_free(c)))
        s = shm_fail(f, TESS_E_NOMEM, -1, "shm: no memory for a request");
    if (s == TESS_OK && (s = take_calls(c, r, calls, n, f)) != TESS_OK)
        give_free(c, r);
    if (s == TESS_OK) {
        enqueue(c, r);
        *out = r;
    }
    pthread_mutex_unlock(&c->lock);
    return s;
}

static struct timespec end_of(int64_t timeout_ns) {
    int64_t until = shm_now_ns() + timeout_ns;
    return (struct timespec){ until / 1000000000, until % 1000000000 };
}

/* Waits for `done` until the request has ended; behind the lock. */
static tess_status sleep_on(tess_comm *c, tess_request *r, int64_t timeout_ns) {
    /* About a century: a sum with the clock that cannot overflow. */
    const int64_t forever = INT64_C(3000000000000000000);
    int no_end = timeout_ns < 0 || timeout_ns > forever, over = 0;
    struct timespec until = no_end ? (struct timespec){ 0 } : end_of(timeout_ns);
    tess_status s;
    while ((s = atomic_load_explicit(&r->status, memory_order_acquire)) == TESS_PENDING && !over)
        over = no_end ? pthread_cond_wait(&c->done, &c->lock) && 0
                      : pthread_cond_timedwait(&c->done, &c->lock, &until) == ETIMEDOUT;
    return s;
}

tess_status shm_comm_wait(tess_request *r, int64_t timeout_ns, struct shm_failure *f) {
    tess_status s = atomic_load_explicit(&r->status, memory_order_acquire);
    if (s == TESS_PENDING && timeout_ns == 0)
        return TESS_PENDING;
    if (s == TESS_PENDING) {
        pthread_mutex_lock(&r->comm->lock);
        s = sleep_on(r->comm, r, timeout_ns);
        pthread_mutex_unlock(&r->comm->lock);
    }
    if (s == TESS_PENDING)
        return shm_fail(f, TESS_E_TIMEOUT, -1, "shm: not done within %.3f s", (double)timeout_ns * 1e-9);
    *f = r->failure;
    return s;
}

void shm_comm_release(tess_request *r) {
    pthread_mutex_lock(&r->comm->lock);
    give_free(r->comm, r);
    pthread_mutex_unlock(&r->comm->lock);
}

tess_status shm_comm_finalize(tess_comm *c, int64_t timeout_ns, struct shm_failure *f) {
    tess_status s;
    pthread_mutex_lock(&c->lock);
    tess_request *r = c->cause.status == TESS_OK && !c->finalized ? take_free(c) : NULL;
    if (!r) {
        *f = c->cause;
        s = c->cause.status != TESS_OK || c->finalized ? c->cause.status
                                                       : shm_fail(f, TESS_E_NOMEM, -1, "shm: no memory for a request");
    } else {
        r->own_op = SHM_OP_FINALIZE;
        r->n = 0;
        enqueue(c, r);
        s = sleep_on(c, r, timeout_ns);
        if (s == TESS_PENDING) { /* the request stays the worker's until destroy */
            s = shm_fail(f, TESS_E_TIMEOUT, -1, "shm: the other ranks have not come to finalize");
        } else {
            *f = r->failure;
            c->finalized = s == TESS_OK;
            give_free(c, r);
        }
    }
    pthread_mutex_unlock(&c->lock);
    return s;
}

void shm_comm_fail(tess_comm *c, const struct shm_failure *f) {
    pthread_mutex_lock(&c->lock);
    if (c->cause.status == TESS_OK)
        c->cause = *f;
    pthread_cond_signal(&c->work);
    pthread_mutex_unlock(&c->lock);
    shm_table_stop(&c->table);
}

tess_status shm_comm_health(tess_comm *c, struct shm_failure *f) {
    pthread_mutex_lock(&c->lock);
    *f = c->cause;
    pthread_mutex_unlock(&c->lock);
    return f->status;
}
