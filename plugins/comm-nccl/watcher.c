/* SPDX-License-Identifier: BSD-3-Clause */
/* NCCL's calls block. If a peer does not arrive, only an abort from another thread ends the call. So while requests are
 * in flight, a thread checks every millisecond for late calls, ended requests and NCCL's errors. After a while it also
 * compares the ranks' announcements. */
#include "communicator.h"

#include <time.h>

/* ---- ending it ---------------------------------------------------------------------------------- */

static int lock_soon(tess_comm *c) {
    enum { PATIENCE_NS = 100000000, SECOND = 1000000000 };
    struct timespec late;
    clock_gettime(CLOCK_REALTIME, &late);
    late.tv_nsec += PATIENCE_NS;
    late.tv_sec += late.tv_nsec / SECOND;
    late.tv_nsec %= SECOND;
    return pthread_mutex_timedlock(&c->lock, &late) == 0;
}

/* The lock, or the knowledge that its holder blocks in NCCL or will not go there any more. A holder that shows neither
 * for two seconds is kept from running, or waits for the device, which may need the abort. */
static int lock_unless_held_up(tess_comm *c) {
    enum { LOOKS = 20 };
    struct nccl_seen seen = { 0, 0 };
    for (int i = 0; i < LOOKS; i++) {
        if (lock_soon(c))
            return 1;
        if (nccl_use_may_abort(&c->use, &seen))
            break;
    }
    return 0;
}

/* Without the lock this only aborts; the thread that holds the lock then returns from NCCL and cleans up. */
static void fail_in_context(tess_comm *c, const tess_error *f, int locked) {
    tess_error ignored = { .struct_size = sizeof ignored };
    if (!locked) {
        nccl_keep_first(c, f);
        nccl_abort(c);
        return;
    }
    if (nccl_failure(c, &ignored) == TESS_OK)
        nccl_sweep(c); /* requests that have completed stay successful */
    nccl_fail_locked(c, f);
}

void nccl_comm_fail(tess_comm *c, const tess_error *f) {
    tess_error ignored = { .struct_size = sizeof ignored };
    tess_status none = TESS_OK;
    atomic_compare_exchange_strong(&c->why, &none, f->code);
    atomic_store(&c->stop, 1);
    int locked = lock_unless_held_up(c);
    if (nccl_enter(&c->gpu, &ignored) == TESS_OK) {
        fail_in_context(c, f, locked);
        nccl_leave(&c->gpu);
    } else {
        nccl_keep_first(c, f);
        nccl_abort(c);
    }
    if (locked)
        pthread_mutex_unlock(&c->lock);
}

tess_status nccl_stopped(tess_comm *c, const char *call, tess_error *f) {
    tess_status why = atomic_load(&c->why);
    if (nccl_failure(c, f) == TESS_OK)
        tess_plugin_fail(f, why ? why : TESS_E_ABORTED, "nccl: the communicator was aborted in %s", call);
    return f->code;
}

/* ---- calls that block --------------------------------------------------------------------------- */

static void wake_watcher(tess_comm *c) {
    pthread_mutex_lock(&c->watch_lock);
    c->active = 1;
    pthread_cond_signal(&c->work);
    pthread_mutex_unlock(&c->watch_lock);
}

/* `inside` before `stop` is read, and `stop` before an abort waits for the lock: one of the two sees the other. */
tess_status nccl_gate_enter(tess_comm *c, const char *call, int64_t late_ns, tess_error *f) {
    atomic_store(&c->gate.call, call);
    atomic_store(&c->gate.late_ns, late_ns);
    atomic_store(&c->gate.inside, 1);
    wake_watcher(c);
    if (!atomic_load(&c->stop))
        return TESS_OK;
    atomic_store(&c->gate.inside, 0);
    return nccl_stopped(c, call, f);
}

tess_status nccl_gate_leave(tess_comm *c, tess_status s, tess_error *f) {
    atomic_store(&c->gate.inside, 0);
    return atomic_load(&c->stop) ? nccl_stopped(c, atomic_load(&c->gate.call), f) : s;
}

/* Ends a call that takes too long, or in which the run ends. */
static void watch_gate(tess_comm *c) {
    tess_error f = { .struct_size = sizeof f, .rank = -1 };
    const char *call = atomic_load(&c->gate.call);
    if (!atomic_load(&c->gate.inside) || atomic_load(&c->stop))
        return;
    if (kit_aborting(c->settings->host))
        tess_plugin_fail(&f, TESS_E_ABORTED, "nccl: the run was aborted in %s", call);
    else if (kit_now_ns() > atomic_load(&c->gate.late_ns))
        tess_plugin_fail(&f, TESS_E_TIMEOUT, "nccl: %s of group '%.100s' did not end in time", call, c->prefix);
    if (f.code != TESS_OK && atomic_load(&c->gate.inside))
        nccl_comm_fail(c, &f);
}

/* ---- the thread --------------------------------------------------------------------------------- */

static ncclResult_t async_error(tess_comm *c, ncclResult_t *state) {
    if (!nccl_use_begin(&c->use, &c->stop))
        return ncclInvalidUsage;
    ncclComm_t comm = atomic_load(&c->comm);
    ncclResult_t r = comm ? c->gpu.lib->ncclCommGetAsyncError(comm, state) : ncclInvalidUsage;
    nccl_use_end(&c->use);
    return r;
}

void nccl_look(tess_comm *c) {
    tess_error f = { .struct_size = sizeof f, .rank = -1 };
    ncclResult_t state = ncclSuccess;
    if (nccl_enter(&c->gpu, &f) != TESS_OK)
        return;
    nccl_sweep(c);
    if (async_error(c, &state) == ncclSuccess && state != ncclSuccess && state != ncclInProgress) {
        if (nccl_compare_stalled(c, &f) == TESS_OK) /* a rank that has seen a mismatch leaves */
            nccl_failed(&f, c->gpu.lib, state, "a collective");
        nccl_fail_locked(c, &f);
    }
    nccl_leave(&c->gpu);
}

struct patience { /* detects that no request has made progress for a while */
    uint64_t announced, ended;
    int64_t look_ns, every_ns;
};

static int has_moved(tess_comm *c, struct patience *p) {
    pthread_mutex_lock(&c->said.lock);
    int same = p->announced == c->said.n && p->ended == c->said.ended;
    p->announced = c->said.n;
    p->ended = c->said.ended;
    pthread_mutex_unlock(&c->said.lock);
    return !same;
}

/* A collective that does not end may wait for a rank that computes, or for one that posted something else. Ranks that
 * share processors wait for each other for tens of milliseconds, and a look costs the server memory. */
static void watch_stall(tess_comm *c, struct patience *p) {
    const int64_t first_ns = 400000000, most_ns = 1600000000;
    tess_error f = { .struct_size = sizeof f, .rank = -1 };
    if (has_moved(c, p) || p->announced == p->ended) {
        p->every_ns = first_ns;
        p->look_ns = kit_now_ns() + first_ns;
        return;
    }
    if (kit_now_ns() < p->look_ns || atomic_load(&c->stop))
        return;
    if (nccl_compare_stalled(c, &f) != TESS_OK)
        nccl_comm_fail(c, &f);
    p->every_ns = p->every_ns < most_ns ? 2 * p->every_ns : p->every_ns;
    p->look_ns = kit_now_ns() + p->every_ns;
}

/* Whether there is anything left to look at. */
static int watch_once(tess_comm *c, struct patience *p) {
    int more = 1;
    watch_gate(c);
    watch_stall(c, p);
    if (pthread_mutex_trylock(&c->lock) == 0) {
        nccl_look(c);
        more = c->head != NULL;
        pthread_mutex_unlock(&c->lock);
    }
    return more;
}

static void watcher_work(void *arg) {
    enum { EVERY_NS = 1000000 };
    tess_comm *c = arg;
    struct patience p = { .announced = 0 };
    pthread_mutex_lock(&c->watch_lock);
    while (!c->quit) {
        if (!c->active) {
            pthread_cond_wait(&c->work, &c->watch_lock);
            continue;
        }
        c->active = 0;
        pthread_mutex_unlock(&c->watch_lock);
        int more = watch_once(c, &p);
        kit_nap(EVERY_NS);
        pthread_mutex_lock(&c->watch_lock);
        c->active |= more;
    }
    pthread_mutex_unlock(&c->watch_lock);
}

tess_status nccl_watcher_start(tess_comm *c, tess_error *f) {
    tess_status s = kit_thread_start(&c->watcher, c->settings->host, "nccl", "tess-nccl-watch", watcher_work, c, f);
    c->watching = s == TESS_OK;
    return s;
}

void nccl_watcher_stop(tess_comm *c) {
    pthread_mutex_lock(&c->watch_lock);
    c->quit = 1;
    pthread_cond_broadcast(&c->work);
    pthread_mutex_unlock(&c->watch_lock);
    if (c->watching)
        pthread_join(c->watcher, NULL);
}
