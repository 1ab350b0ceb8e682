/* SPDX-License-Identifier: BSD-3-Clause */
/* Communicators: their lives, states, and the thread that brings them up. */
#include "nccl_double.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

static int version(void) {
    return (int)double__number("NCCL_VERSION", NCCL_VERSION_CODE);
}

static __thread int hangs; /* the call that was entered last */

ncclResult_t nccl__enter(const char *name, ncclResult_t usual, int since) {
    int code = double__fails(name);
    hangs = double__hangs(name);
    if (code)
        return code == -1 ? usual : (ncclResult_t)code;
    return version() < since ? ncclInvalidUsage : ncclSuccess;
}

#define ENTER_NCCL(name, usual, since)                                                                                 \
    do {                                                                                                               \
        ncclResult_t entered_ = nccl__enter(name, usual, since);                                                       \
        if (entered_ != ncclSuccess)                                                                                   \
            return entered_;                                                                                           \
    } while (0)

/* ---- state -------------------------------------------------------------------------------------- */

int nccl__is_aborted(ncclComm *c) {
    pthread_mutex_lock(&c->lock);
    int aborted = c->aborted;
    pthread_mutex_unlock(&c->lock);
    return aborted;
}

void nccl__set_state(ncclComm *c, ncclResult_t state) {
    pthread_mutex_lock(&c->lock);
    if (c->state == ncclSuccess || c->state == ncclInProgress)
        c->state = state;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

/* The real one's memory is gone, and what then happens is anything. */
static void must_not_be_over(ncclComm *c) {
    if (!c->ended)
        return;
    fprintf(stderr, "doubles: NCCL: a communicator is used after it was given back\n");
    abort();
}

ncclResult_t nccl__ready(ncclComm *c) {
    pthread_mutex_lock(&c->lock);
    must_not_be_over(c);
    ncclResult_t state = c->state == ncclInProgress ? ncclInvalidArgument : c->state;
    pthread_mutex_unlock(&c->lock);
    return state;
}

/* Those that were given back: kept, so that a later use of one is told. */
static pthread_mutex_t old_lock = PTHREAD_MUTEX_INITIALIZER;
static ncclComm *old;

void nccl__use(ncclComm *c) {
    pthread_mutex_lock(&c->lock);
    c->users++;
    pthread_mutex_unlock(&c->lock);
}

void nccl__unuse(ncclComm *c) {
    pthread_mutex_lock(&c->lock);
    int last = --c->users == 0;
    pthread_mutex_unlock(&c->lock);
    if (!last)
        return;
    nccl__disconnect(c);
    if (c->line != c)
        nccl__unuse(c->line);
    if (c->room)
        double__unmap(c->room, c->room_bytes);
    pthread_mutex_lock(&old_lock);
    c->older = old;
    old = c;
    pthread_mutex_unlock(&old_lock);
}

static void *help(void *arg) {
    ncclComm *c = arg;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        void (*task)(ncclComm *) = c->task;
        c->task = NULL;
        if (task) {
            c->busy = 1;
            pthread_mutex_unlock(&c->lock);
            task(c);
            nccl__set_state(c, ncclSuccess);
            pthread_mutex_lock(&c->lock);
            c->busy = 0;
            pthread_cond_broadcast(&c->changed);
        } else if (c->ended) {
            break;
        } else {
            pthread_cond_wait(&c->changed, &c->lock);
        }
    }
    pthread_mutex_unlock(&c->lock);
    nccl__unuse(c);
    return NULL;
}

/* As the real one: the caller's variable is set by the thread that made the child, when it is through, also in a
 * failure and when nobody waits any more. */
static void give_child(ncclComm *c) {
    pthread_mutex_lock(&c->lock);
    ncclComm *child = c->split.child, **out = c->split.out;
    c->split.child = NULL;
    c->split.out = NULL;
    pthread_mutex_unlock(&c->lock);
    if (out)
        __atomic_store_n(out, child, __ATOMIC_RELEASE);
    if (child)
        nccl__unuse(child);
}

static void hang(ncclComm *c) {
    double__hang(1);
    pthread_mutex_lock(&c->lock);
    while (!c->aborted)
        pthread_cond_wait(&c->changed, &c->lock);
    double__hang(-1);
    pthread_mutex_unlock(&c->lock);
    give_child(c);
}

/* As in 2.26, where a communicator that does not block is not through every third time. */
static int is_lost_for_ever(const ncclComm *c) {
    int of_2_26 = version() >= NCCL_VERSION(2, 26, 0) && version() < NCCL_VERSION(2, 27, 0);
    return of_2_26 && !c->blocking && c->starts % 3 == 0;
}

/* In the thread that calls; an abort from another one waits until it has left. */
static ncclResult_t do_now(ncclComm *c, void (*task)(ncclComm *)) {
    nccl__use(c);
    pthread_mutex_lock(&c->lock);
    if (c->busy) {
        fprintf(stderr, "doubles: NCCL: two threads in one communicator\n");
        abort();
    }
    c->busy = 1;
    pthread_mutex_unlock(&c->lock);
    task(c);
    pthread_mutex_lock(&c->lock);
    c->busy = 0;
    ncclResult_t state = c->aborted ? ncclInternalError : c->state;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    nccl__unuse(c);
    return state;
}

ncclResult_t nccl__start(ncclComm *c, void (*task)(ncclComm *)) {
    pthread_mutex_lock(&c->lock);
    must_not_be_over(c);
    pthread_mutex_unlock(&c->lock);
    c->starts++;
    if (hangs || is_lost_for_ever(c))
        task = hang;
    hangs = 0;
    if (c->blocking)
        return do_now(c, task);
    pthread_mutex_lock(&c->lock);
    c->state = ncclInProgress;
    c->task = task;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    return ncclInProgress;
}

int nccl__connect_for(ncclComm *c, int how) {
    char mine = 1, theirs[NCCL_RANKS];
    nccl_move moves[2 * NCCL_RANKS];
    int n = 0;
    for (int i = 0; i < c->nranks; i++)
        if (i != c->rank) {
            moves[n++] = (nccl_move){ .peer = i, .send = &mine, .bytes = 1 };
            moves[n++] = (nccl_move){ .peer = i, .recv = &theirs[i], .bytes = 1 };
        }
    return nccl__exchange(c, NCCL_CONTROL, 200 + (uint64_t)how, moves, n);
}

/* ---- beginning ---------------------------------------------------------------------------------- */

static ncclComm *new_comm(const char *name, int rank, int nranks, int device, int blocking) {
    ncclComm *c = calloc(1, sizeof *c);
    pthread_t thread;
    sigset_t all, before;
    if (!c)
        return NULL;
    *c = (ncclComm){ .rank = rank, .nranks = nranks, .device = device, .blocking = blocking, .users = 2 };
    snprintf(c->name, sizeof c->name, "%s", name);
    snprintf(c->root, sizeof c->root, "%s", name);
    c->line = c;
    for (int i = 0; i < NCCL_RANKS; i++)
        c->members[i] = i;
    memset(c->socket, 0xff, sizeof c->socket);
    c->wake = eventfd(0, EFD_CLOEXEC);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int failed = c->wake < 0 || pthread_create(&thread, NULL, help, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        free(c);
        return NULL;
    }
    pthread_detach(thread);
    double__live("NCCL communicators", 1);
    return c;
}

static void connect_now(ncclComm *c) {
    ncclResult_t result = nccl__connect(c);
    if (result != ncclSuccess && result != ncclInProgress)
        nccl__set_state(c, result);
}

DOUBLE_API ncclResult_t ncclGetVersion(int *out) {
    ENTER_NCCL("ncclGetVersion", ncclInternalError, 0);
    *out = version();
    return ncclSuccess;
}

DOUBLE_API ncclResult_t ncclGetUniqueId(ncclUniqueId *out) {
    ENTER_NCCL("ncclGetUniqueId", ncclSystemError, 0);
    uint64_t noise[2];
    if (getrandom(noise, sizeof noise, 0) != sizeof noise)
        return ncclSystemError;
    memset(out, 0, sizeof *out);
    snprintf(out->internal, sizeof out->internal, "tessera-nccl-%016llx%016llx", (unsigned long long)noise[0],
             (unsigned long long)noise[1]);
    return ncclSuccess;
}

/* Of sends and receives a power of two, rounded up; as many as the device can hold. */
static int channels_of(const ncclConfig_t *config) {
    int most = config && config->maxCTAs != NCCL_CONFIG_UNDEF_INT ? config->maxCTAs : 32, channels = 1;
    int processors = (int)double__number("PROCESSORS", DOUBLE_PROCESSORS);
    while (channels < most)
        channels *= 2;
    return channels < processors ? channels : processors;
}

/* NCCL's own variable holds over what the caller asks for. */
static int blocks(const ncclConfig_t *config) {
    const char *always = getenv("NCCL_COMM_BLOCKING");
    if (always && (strcmp(always, "0") == 0 || strcmp(always, "1") == 0))
        return *always == '1';
    return !config || config->blocking == NCCL_CONFIG_UNDEF_INT || config->blocking;
}

/* The field came in 2.28; a configuration of an older version is shorter. */
static int takes_engines(const ncclConfig_t *config) {
#ifdef NCCL_CTA_POLICY_ZERO
    return config && config->size >= offsetof(ncclConfig_t, CTAPolicy) + sizeof config->CTAPolicy &&
           config->CTAPolicy == NCCL_CTA_POLICY_ZERO;
#else /* an older nccl.h */
    return (void)config, 0;
#endif
}

static int is_switch(int value) {
    return value == NCCL_CONFIG_UNDEF_INT || value == 0 || value == 1;
}

/* What NCCL checks of a configuration. It may be of another version: who made it says how long it is. */
static int config_ok(const ncclConfig_t *config) {
    if (!config)
        return 1;
    int least = config->minCTAs == NCCL_CONFIG_UNDEF_INT ? 1 : config->minCTAs;
    int most = config->maxCTAs == NCCL_CONFIG_UNDEF_INT ? 64 : config->maxCTAs;
    return config->magic == 0xcafebeef && config->version > 0 &&
           config->size >= offsetof(ncclConfig_t, splitShare) + sizeof config->splitShare &&
           is_switch(config->blocking) && is_switch(config->splitShare) && least >= 1 && least <= most;
}

DOUBLE_API ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int nranks, ncclUniqueId id, int rank,
                                               ncclConfig_t *config) {
    ENTER_NCCL("ncclCommInitRankConfig", ncclSystemError, 0);
    int device = double__current_device();
    if (device < 0)
        return ncclUnhandledCudaError;
    if (nranks < 1 || nranks > NCCL_RANKS || rank < 0 || rank >= nranks || !config_ok(config))
        return ncclInvalidArgument;
    ncclComm *c = new_comm(id.internal, rank, nranks, device, blocks(config));
    if (!c)
        return ncclSystemError;
    c->shares = config && config->splitShare == 1;
    c->engines = takes_engines(config);
    c->channels = channels_of(config);
    *out = c;
    double__endless(1);
    ncclResult_t result = nccl__start(c, connect_now);
    double__endless(-1);
    return result;
}

DOUBLE_API ncclResult_t ncclCommInitRank(ncclComm_t *out, int nranks, ncclUniqueId id, int rank) {
    return ncclCommInitRankConfig(out, nranks, id, rank, NULL);
}

/* ---- splitting ---------------------------------------------------------------------------------- */

struct choice {
    int32_t color, key;
};

static int find_place(ncclComm *c, const struct choice *all, int *size) {
    const struct choice *mine = &all[c->rank];
    int place = 0;
    *size = 0;
    for (int i = 0; i < c->nranks; i++) {
        *size += all[i].color == mine->color;
        place += all[i].color == mine->color && (all[i].key < mine->key || (all[i].key == mine->key && i < c->rank));
    }
    return place;
}

/* The ranks of `all` that have its color, in its order. */
static void note_members(ncclComm *child, const ncclComm *c, const struct choice *all) {
    snprintf(child->root, sizeof child->root, "%s", c->root);
    for (int i = 0; i < c->nranks; i++) {
        int place = 0;
        for (int k = 0; k < c->nranks; k++)
            place += all[k].color == all[i].color && (all[k].key < all[i].key || (all[k].key == all[i].key && k < i));
        if (all[i].color == all[c->rank].color)
            child->members[place] = c->members[i];
    }
}

static void split_now(ncclComm *c) {
    struct choice all[NCCL_RANKS], mine = { c->split.color, c->split.key };
    nccl_move moves[2 * NCCL_RANKS];
    ncclComm *child = c->split.child;
    int n = 0;
    all[c->rank] = mine;
    for (int i = 1; i < c->nranks; i++) {
        int to = (c->rank + i) % c->nranks, from = (c->rank + c->nranks - i) % c->nranks;
        moves[n++] = (nccl_move){ .peer = to, .send = &mine, .bytes = sizeof mine };
        moves[n++] = (nccl_move){ .peer = from, .recv = &all[from], .bytes = sizeof mine };
    }
    int failed = nccl__exchange(c, NCCL_CONTROL, 99, moves, n);
    c->splits++;
    if (child && failed) {
        nccl__set_state(child, ncclRemoteError);
    } else if (child) {
        child->rank = find_place(c, all, &child->nranks);
        note_members(child, c, all);
        snprintf(child->name, sizeof child->name, "%.80s.%d.%d", c->name, c->splits, mine.color);
        connect_now(child);
        nccl__set_state(child, ncclSuccess);
    }
    give_child(c);
}

DOUBLE_API ncclResult_t ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t *out, ncclConfig_t *config) {
    ENTER_NCCL("ncclCommSplit", ncclSystemError, 0);
    ncclResult_t ready = nccl__ready(c);
    if (ready != ncclSuccess)
        return ready;
    if ((color < 0 && color != NCCL_SPLIT_NOCOLOR) || !config_ok(config))
        return ncclInvalidArgument;
    ncclComm *child = NULL;
    if (config && blocks(config) != c->blocking) { /* the real one's guide says nothing of that */
        fprintf(stderr, "doubles: NCCL: a split that blocks otherwise than its parent\n");
        return ncclInvalidUsage;
    }
    if (color >= 0) {
        child = new_comm("", 0, 1, c->device, c->blocking);
        if (!child)
            return ncclSystemError;
        nccl__use(child); /* the task's */
        child->shares = config && config->splitShare == 1;
        child->engines = takes_engines(config);
        child->channels = channels_of(config);
        if (c->shares) { /* the parent's setting says so, not the child's */
            child->line = c->line;
            nccl__use(c->line);
        }
        child->state = ncclInProgress;
    }
    c->split.color = color;
    c->split.key = key;
    c->split.child = child;
    c->split.out = out;
    *out = NULL;
    return nccl__start(c, split_now);
}

/* ---- ending ------------------------------------------------------------------------------------- */

static void wait_for_turns(ncclComm *c) {
    pthread_mutex_lock(&c->lock);
    while (((c->line == c && c->done < c->turns) || c->in_graphs) && !c->aborted)
        pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

DOUBLE_API ncclResult_t ncclCommFinalize(ncclComm_t c) {
    ENTER_NCCL("ncclCommFinalize", ncclSystemError, 0);
    ncclResult_t ready = nccl__ready(c);
    c->finalized = 1;
    return ready == ncclSuccess ? nccl__start(c, wait_for_turns) : ready;
}

static int wake(ncclComm *c) {
    uint64_t one = 1;
    pthread_mutex_lock(&c->lock);
    c->aborted = 1;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    return write(c->wake, &one, sizeof one) == sizeof one;
}

static ncclResult_t end(ncclComm *c, int abort) {
    pthread_mutex_lock(&c->lock);
    int ended = c->ended;
    c->ended = 1;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    if (ended)
        return ncclInvalidArgument;
    if (abort) {
        int woken = wake(c);
        pthread_mutex_lock(&c->lock);
        woken = woken && (!c->split.child || wake(c->split.child));
        pthread_mutex_unlock(&c->lock);
        if (!woken)
            return ncclSystemError;
        for (int channel = 0; channel < NCCL_CHANNELS; channel++)
            for (int peer = 0; peer < c->nranks; peer++)
                if (c->socket[channel][peer] >= 0)
                    shutdown(c->socket[channel][peer], SHUT_RDWR);
    }
    pthread_mutex_lock(&c->lock);
    while (c->task || c->busy || c->in_graphs) /* no thread of NCCL's touches a stream from here on, and no graph */
        pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
    if (abort) /* it frees memory, which may wait for the device: for other communicators' work, too */
        double__linger(c->device);
    if (!c->finalized) { /* an abort lets go of them; after finalize the proxy that would is gone */
        double__live("NCCL registrations", -c->registrations);
        nccl__drop_windows(c);
    }
    double__live("NCCL communicators", -1);
    nccl__unuse(c);
    return ncclSuccess;
}

/* Waits for what is in flight, as NCCL does: for ever, when a peer is gone. */
DOUBLE_API ncclResult_t ncclCommDestroy(ncclComm_t c) {
    ncclResult_t entered = nccl__enter("ncclCommDestroy", ncclSystemError, 0);
    if (!c)
        return ncclSuccess;
    wait_for_turns(c);
    ncclResult_t result = end(c, 0);
    return entered != ncclSuccess ? entered : result;
}

static atomic_int aborts; /* under way */

DOUBLE_API ncclResult_t ncclCommAbort(ncclComm_t c) {
    atomic_fetch_add(&aborts, 1);
    ncclResult_t entered = nccl__enter("ncclCommAbort", ncclSystemError, 0);
    ncclResult_t result = c ? end(c, 1) : ncclSuccess;
    atomic_fetch_sub(&aborts, 1);
    return entered != ncclSuccess ? entered : result;
}

/* ---- asking ------------------------------------------------------------------------------------- */

DOUBLE_API ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *out) {
    ENTER_NCCL("ncclCommGetAsyncError", ncclInternalError, 0);
    pthread_mutex_lock(&c->lock);
    must_not_be_over(c);
    *out = c->state;
    pthread_mutex_unlock(&c->lock);
    return ncclSuccess;
}

DOUBLE_API ncclResult_t ncclCommCount(const ncclComm_t c, int *out) {
    ENTER_NCCL("ncclCommCount", ncclInternalError, 0);
    *out = c->nranks;
    return ncclSuccess;
}

DOUBLE_API ncclResult_t ncclCommUserRank(const ncclComm_t c, int *out) {
    ENTER_NCCL("ncclCommUserRank", ncclInternalError, 0);
    *out = c->rank;
    return ncclSuccess;
}

DOUBLE_API const char *ncclGetErrorString(ncclResult_t result) {
    switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError: return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "unknown result code";
    }
}

DOUBLE_API const char *ncclGetLastError(ncclComm_t c) {
    (void)c;
    return "";
}

/* ---- memory ------------------------------------------------------------------------------------- */

DOUBLE_API ncclResult_t ncclMemAlloc(void **out, size_t bytes) {
    ENTER_NCCL("ncclMemAlloc", ncclUnhandledCudaError, NCCL_VERSION(2, 19, 1));
    uintptr_t at;
    uint64_t granule = (uint64_t)double__number("MULTICAST", 2 << 20);
    if (double__current_device() < 0 ||
        double__take(double__current_device(), (bytes + granule - 1) / granule * granule, 1, &at))
        return ncclUnhandledCudaError;
    *out = (void *)at;
    return ncclSuccess;
}

DOUBLE_API ncclResult_t ncclMemFree(void *at) {
    ncclResult_t entered = nccl__enter("ncclMemFree", ncclUnhandledCudaError, NCCL_VERSION(2, 19, 1));
    double_piece piece;
    if (double__current_device() < 0 || !double__piece_of(at, &piece) || !piece.nccl)
        return ncclInvalidArgument;
    if (atomic_load(&aborts)) { /* the real one's abort reads and lets go of what is registered */
        fprintf(stderr, "doubles: ncclMemFree beside ncclCommAbort\n");
        abort();
    }
    nccl__memory_goes(piece.at, piece.bytes);
    if (double__device_works(piece.device) && !double__spoilt(piece.device)) {
        fprintf(stderr, "doubles: ncclMemFree while the device works, or may\n");
        double__spoil(piece.device, -1); /* the real one unmaps at once: what still runs finds nothing there */
    }
    return double__give((uintptr_t)at, DOUBLE_MEM_DEVICE) ? ncclInvalidArgument : entered;
}

DOUBLE_API ncclResult_t ncclCommRegister(const ncclComm_t c, void *at, size_t bytes, void **handle) {
    ENTER_NCCL("ncclCommRegister", ncclSystemError, NCCL_VERSION(2, 19, 1));
    ncclResult_t ready = nccl__ready(c);
    if (ready != ncclSuccess)
        return ready;
    if (!double__range_ok(at, bytes, 0))
        return ncclInvalidArgument;
    double__live("NCCL registrations", 1);
    c->registrations++;
    *handle = c;
    return ncclSuccess;
}

DOUBLE_API ncclResult_t ncclCommDeregister(const ncclComm_t c, void *handle) {
    ncclResult_t entered = nccl__enter("ncclCommDeregister", ncclSystemError, NCCL_VERSION(2, 19, 1));
    if (handle != c)
        return ncclInvalidArgument;
    if (c->finalized) /* the real one's proxy is gone, and peers keep their mappings until the process ends */
        return ncclInternalError;
    c->registrations--;
    double__live("NCCL registrations", -1);
    return entered;
}
