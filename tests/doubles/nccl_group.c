/* SPDX-License-Identifier: BSD-3-Clause */
/* Calls of a group, and when they reach their streams. */
#include "nccl_double.h"
#include "races.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static nccl_group *spare;
static __thread nccl_group *open_group; /* of calls made so far, whatever their communicators */
static __thread int depth;
static __thread ncclResult_t first_error;

static nccl_group *new_group(void) {
    enum { CHUNK = 64 };
    pthread_mutex_lock(&lock);
    if (!spare) {
        nccl_group *chunk = double__map(CHUNK * sizeof *chunk, PROT_READ | PROT_WRITE);
        if (!chunk)
            abort();
        for (int i = 0; i < CHUNK; i++) {
            chunk[i].next = spare;
            spare = &chunk[i];
        }
    }
    nccl_group *g = spare;
    spare = g->next;
    pthread_mutex_unlock(&lock);
    g->next = NULL;
    g->n = g->begun = 0;
    return g;
}

static void old_group(nccl_group *g) {
    pthread_mutex_lock(&lock);
    g->next = spare;
    spare = g;
    pthread_mutex_unlock(&lock);
}

/* On the stream's thread. */
static void run_group(void *data) {
    nccl_group *g = *(nccl_group **)data;
    ncclComm *c = g->comm;
    nccl__await_turn(g);
    nccl__take_room(g);
    if (!nccl__is_aborted(c) && !double__spoilt(c->device)) {
        nccl__hold_up(g);
        nccl__run_calls(c, g->calls, g->n);
    }
    nccl__end_turn(g);
    old_group(g);
    nccl__unuse(c);
}

static void describe_call(const ncclComm *c, const nccl_call *call, double_access *a) {
    static const char *const names[] = { [NCCL_ALL_GATHER] = "ncclAllGather",
                                         [NCCL_REDUCE_SCATTER] = "ncclReduceScatter",
                                         [NCCL_ALL_REDUCE] = "ncclAllReduce",
                                         [NCCL_BROADCAST] = "ncclBroadcast",
                                         [NCCL_SEND] = "ncclSend",
                                         [NCCL_RECV] = "ncclRecv" };
    uint64_t bytes = call->count * nccl__dtype_bytes(call->dtype), all = bytes * (uint64_t)c->nranks;
    if (call->what != NCCL_RECV && (call->what != NCCL_BROADCAST || c->rank == call->peer))
        double__reads(a, names[call->what], call->send, call->what == NCCL_REDUCE_SCATTER ? all : bytes);
    if (call->what != NCCL_SEND)
        double__writes(a, names[call->what], call->recv, call->what == NCCL_ALL_GATHER ? all : bytes);
}

static void describe_group(const void *data, double_access *a) {
    const nccl_group *g = *(nccl_group *const *)data;
    for (int i = 0; i < g->n; i++)
        describe_call(g->comm, &g->calls[i], a);
}
__attribute__((constructor)) static void describe_groups(void) {
    double__describes(run_group, describe_group);
}

static void push(nccl_group *g) {
    nccl__line_up(g);
    nccl__use(g->comm);
    double__push_always(g->stream, run_group, &g, sizeof g);
}

/* ---- recorded ------------------------------------------------------------------------------------- */

typedef struct {
    nccl_group *group;
    int *graphs; /* that refer to it */
} recorded;

static void count_graphs(ncclComm *c, int by) {
    pthread_mutex_lock(&c->lock);
    c->in_graphs += by;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static int is_gone(const void *at) {
    double_piece piece;
    return at && !double__piece_of(at, &piece);
}

/* Each launch takes a turn of its own. */
static void launch_recorded(double_stream *s, const void *data) {
    const recorded *r = data;
    nccl_group *g = new_group();
    for (int i = 0; i < r->group->n; i++)
        if (is_gone(r->group->calls[i].send) || is_gone(r->group->calls[i].recv))
            double__spoil(double__stream_device(s), -1);
    *g = *r->group;
    g->next = NULL;
    g->stream = s;
    push(g);
}

static void keep_recorded(void *data) {
    recorded *r = data;
    pthread_mutex_lock(&lock);
    int first = (*r->graphs)++ == 0;
    pthread_mutex_unlock(&lock);
    if (first)
        nccl__use(r->group->comm);
    count_graphs(r->group->comm, 1);
}

static void drop_recorded(void *data) {
    recorded *r = data;
    ncclComm *c = r->group->comm;
    pthread_mutex_lock(&lock);
    int last = --*r->graphs == 0;
    pthread_mutex_unlock(&lock);
    if (last) {
        double__unmap(r->graphs, sizeof *r->graphs);
        old_group(r->group);
    }
    count_graphs(c, -1);
    if (last)
        nccl__unuse(c);
}

static void record(nccl_group *g) {
    static const double_recorded ops = { launch_recorded, keep_recorded, drop_recorded };
    recorded r = { g, double__map(sizeof *r.graphs, PROT_READ | PROT_WRITE) };
    if (!r.graphs)
        abort();
    for (int i = 0; i < g->n; i++)
        g->calls[i].recorded = 1;
    double__record_as(g->stream, &ops, &r, sizeof r);
    if (*r.graphs == 0) { /* the recording is broken */
        double__unmap(r.graphs, sizeof *r.graphs);
        old_group(g);
    }
}

static int way_of(const nccl_group *g) {
    int how = 0;
    for (int i = 0; i < g->n; i++)
        how |= g->calls[i].what == NCCL_SEND || g->calls[i].what == NCCL_RECV ? NCCL_IN_PAIRS : NCCL_BY_RING;
    return how;
}

/* Ranks connect when they need each other first: the peers must come to the same. */
static int connect(ncclComm *c, int how) {
    for (int bit = 1; bit <= NCCL_IN_PAIRS; bit <<= 1) {
        if (!(how & bit & ~c->connected))
            continue;
        if (nccl__connect_for(c, bit))
            return -1;
        c->connected |= bit;
    }
    return 0;
}

static void push_group(ncclComm *c) {
    nccl_group *g = c->launch;
    if (!c->blocking)
        usleep(double__random() % 2000);
    if (connect(c, way_of(g)) || nccl__is_aborted(c))
        old_group(g);
    else if (double__is_recording(g->stream))
        record(g);
    else
        push(g);
}

static ncclResult_t launch(nccl_group *g) {
    double__fails("groups-of-nccl"); /* counts them */
    g->comm->launch = g;
    return nccl__start(g->comm, push_group);
}

/* ---- the calls ---------------------------------------------------------------------------------- */

DOUBLE_API ncclResult_t ncclGroupStart(void) {
    ncclResult_t entered = nccl__enter("ncclGroupStart", ncclInternalError, 0);
    if (entered != ncclSuccess)
        return entered;
    if (depth++ == 0) {
        open_group = NULL;
        first_error = ncclSuccess;
    }
    return ncclSuccess;
}

DOUBLE_API ncclResult_t ncclGroupEnd(void) {
    ncclResult_t result = nccl__enter("ncclGroupEnd", ncclSystemError, 0);
    if (depth == 0)
        return ncclInvalidUsage;
    if (--depth)
        return result;
    if (result == ncclSuccess)
        result = first_error;
    while (open_group) {
        nccl_group *g = open_group;
        open_group = g->next;
        g->next = NULL;
        if (result != ncclSuccess && result != ncclInProgress) {
            old_group(g);
            continue;
        }
        ncclResult_t launched = launch(g);
        result = launched == ncclSuccess ? result : launched;
    }
    return result;
}

static ncclResult_t add(ncclComm *c, double_stream *s, const nccl_call *call) {
    nccl_group *g = open_group;
    while (g && g->comm != c)
        g = g->next;
    if (!g) {
        g = new_group();
        g->comm = c;
        g->stream = s;
        g->next = open_group;
        open_group = g;
    }
    if (g->stream != s || g->n == NCCL_CALLS)
        return ncclInvalidUsage;
    g->calls[g->n++] = *call;
    return ncclSuccess;
}

static int in_device(const ncclComm *c, const void *at, uint64_t bytes) {
    double_piece piece;
    return bytes == 0 || (double__piece_of(at, &piece) && piece.kind == DOUBLE_MEM_DEVICE &&
                          piece.device == c->device && double__range_ok(at, bytes, 0));
}

static ncclResult_t check(ncclComm *c, CUstream stream, const nccl_call *call) {
    uint64_t bytes = call->count * nccl__dtype_bytes(call->dtype), n = (uint64_t)c->nranks;
    ncclResult_t ready = nccl__ready(c);
    if (ready != ncclSuccess)
        return ready;
    if (double__current_device() != c->device || !double__stream_of(stream) || !nccl__dtype_bytes(call->dtype) ||
        call->peer < 0 || call->peer >= c->nranks)
        return ncclInvalidArgument;
    uint64_t in = call->what == NCCL_RECV ? 0 : call->what == NCCL_REDUCE_SCATTER ? n * bytes : bytes;
    uint64_t out = call->what == NCCL_SEND ? 0 : call->what == NCCL_ALL_GATHER ? n * bytes : bytes;
    if (call->what == NCCL_BROADCAST && c->rank != call->peer)
        in = 0;
    return in_device(c, call->send, in) && in_device(c, call->recv, out) ? ncclSuccess : ncclInvalidArgument;
}

/* The side of a collective that others reach, as one number; what ranks send themselves may lie anywhere. */
static void find_window(ncclComm *c, nccl_call *call) {
    uint64_t bytes = call->count * nccl__dtype_bytes(call->dtype), all = bytes * (uint64_t)c->nranks, place = 0;
    if (call->what == NCCL_ALL_GATHER)
        place = nccl__place_in_window(c, call->recv, all);
    else if (call->what == NCCL_REDUCE_SCATTER)
        place = nccl__place_in_window(c, call->send, all);
    else if (call->what == NCCL_ALL_REDUCE)
        place = nccl__place_in_window(c, call->send, bytes) * 31 + nccl__place_in_window(c, call->recv, bytes);
    call->in_window = place ? (uint8_t)(1 + place % 255) : 0;
    if (place)
        double__fails("collectives-in-windows"); /* counts them */
    if (place && c->engines && call->what == NCCL_ALL_GATHER)
        double__fails("gathers-by-engines");
}

static ncclResult_t give(const char *name, ncclComm *c, cudaStream_t stream, nccl_call call) {
    ncclResult_t result = nccl__enter(name, ncclSystemError, 0);
    if (result == ncclSuccess)
        result = check(c, (CUstream)stream, &call);
    if (result == ncclSuccess)
        find_window(c, &call);
    int alone = depth == 0;
    if (alone)
        open_group = NULL;
    if (result == ncclSuccess)
        result = add(c, double__stream_of((CUstream)stream), &call);
    if (alone && result == ncclSuccess) {
        nccl_group *g = open_group;
        open_group = NULL;
        return launch(g);
    }
    if (first_error == ncclSuccess)
        first_error = result;
    return result;
}

DOUBLE_API ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t dtype, ncclComm_t c,
                                      cudaStream_t stream) {
    return give("ncclAllGather", c, stream,
                (nccl_call){ .what = NCCL_ALL_GATHER, .dtype = dtype, .send = send, .recv = recv, .count = count });
}

DOUBLE_API ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t dtype,
                                          ncclRedOp_t op, ncclComm_t c, cudaStream_t stream) {
    return give(
        "ncclReduceScatter", c, stream,
        (nccl_call){
            .what = NCCL_REDUCE_SCATTER, .op = op, .dtype = dtype, .send = send, .recv = recv, .count = count });
}

DOUBLE_API ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                                      ncclComm_t c, cudaStream_t stream) {
    return give(
        "ncclAllReduce", c, stream,
        (nccl_call){ .what = NCCL_ALL_REDUCE, .op = op, .dtype = dtype, .send = send, .recv = recv, .count = count });
}

DOUBLE_API ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t dtype, int root,
                                      ncclComm_t c, cudaStream_t stream) {
    return give("ncclBroadcast", c, stream,
                (nccl_call){
                    .what = NCCL_BROADCAST, .peer = root, .dtype = dtype, .send = send, .recv = recv, .count = count });
}

DOUBLE_API ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t dtype, int peer, ncclComm_t c,
                                 cudaStream_t stream) {
    return give("ncclSend", c, stream,
                (nccl_call){ .what = NCCL_SEND, .peer = peer, .dtype = dtype, .send = send, .count = count });
}

DOUBLE_API ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t dtype, int peer, ncclComm_t c,
                                 cudaStream_t stream) {
    return give("ncclRecv", c, stream,
                (nccl_call){ .what = NCCL_RECV, .peer = peer, .dtype = dtype, .recv = recv, .count = count });
}
