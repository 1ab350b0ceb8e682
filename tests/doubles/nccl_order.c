/* SPDX-License-Identifier: BSD-3-Clause */
/* What holds between communicators. Two of the same ranks may run at once, and each then keeps a part of the GPU until
 * its peers come. Ranks that begin them in different orders may so wait for each other for ever: here they do. One that
 * shares its parent's resources shares the parent's line too. */
#include "nccl_double.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- the same order on every rank --------------------------------------------------------------- */

enum { SETS = 256 };
static struct { /* of ranks that have a communicator, or several */
    uint64_t id, launched;
} sets[SETS];

static uint64_t set_of(const ncclComm *c) {
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (const char *at = c->root; *at; at++)
        h = (h ^ (unsigned char)*at) * UINT64_C(0x100000001b3);
    for (int i = 0; i < c->nranks; i++)
        h = (h ^ (uint64_t)(c->members[i] + 1)) * UINT64_C(0x100000001b3);
    return h | 1;
}

static uint64_t launches_before(const ncclComm *c) { /* with the lock */
    uint64_t id = set_of(c);
    for (int i = 0; i < SETS; i++) {
        if (!sets[i].id)
            sets[i].id = id;
        if (sets[i].id == id)
            return sets[i].launched++;
    }
    fprintf(stderr, "doubles: NCCL: more than %d groups of ranks\n", SETS);
    abort();
}

/* ---- what goes on ------------------------------------------------------------------------------- */

enum { NOTHING, GATHER, REDUCTION, REPLICAS, KINDS };
static const char *const kinds[KINDS] = { "", "ncclAllGather", "ncclReduceScatter", "ncclAllReduce" };
static int64_t under_way[KINDS];

/* Of 16 or 32 bits; all else is what ranks say to each other beside them. */
static int kind_of(const nccl_group *g) {
    static const int of[] = { [NCCL_ALL_GATHER] = GATHER,
                              [NCCL_REDUCE_SCATTER] = REDUCTION,
                              [NCCL_ALL_REDUCE] = REPLICAS,
                              [NCCL_RECV] = NOTHING };
    for (int i = 0; i < g->n; i++) {
        uint64_t bytes = nccl__dtype_bytes(g->calls[i].dtype);
        if ((bytes == 2 || bytes == 4) && of[g->calls[i].what])
            return of[g->calls[i].what];
    }
    return NOTHING;
}

/* ---- one line for a communicator, and for those that share its resources ------------------------- */

void nccl__line_up(nccl_group *g) {
    ncclComm *line = g->comm->line;
    pthread_mutex_lock(&line->lock);
    g->turn = line->turns++;
    pthread_mutex_unlock(&line->lock);
    pthread_mutex_lock(&lock);
    uint64_t order = launches_before(g->comm);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < g->n; i++)
        g->calls[i].order = order;
}

static int is_its_turn(ncclComm *line, uint64_t turn) {
    pthread_mutex_lock(&line->lock);
    int is = line->done == turn;
    pthread_mutex_unlock(&line->lock);
    return is;
}

/* Who has a line alone leaves it when it is aborted; in a shared one those before end first. */
void nccl__await_turn(const nccl_group *g) {
    ncclComm *c = g->comm, *line = c->line;
    while (line != c && !is_its_turn(line, g->turn))
        nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
    pthread_mutex_lock(&c->lock);
    while (line == c && c->done != g->turn && !c->aborted)
        pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

/* ---- room on the device --------------------------------------------------------------------------- */

static int taken[DOUBLE_DEVICES]; /* multiprocessors, with the lock */

static int takes_room(const ncclComm *c) {
    int most = (int)double__number("PROCESSORS", DOUBLE_PROCESSORS);
    pthread_mutex_lock(&lock);
    int fits = taken[c->device] + c->channels <= most;
    if (fits)
        taken[c->device] += c->channels;
    pthread_mutex_unlock(&lock);
    return fits;
}

/* One that was aborted takes what it needs, and ends at once. */
void nccl__take_room(const nccl_group *g) {
    ncclComm *c = g->comm;
    while (!takes_room(c)) {
        if (!nccl__is_aborted(c)) {
            nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
            continue;
        }
        pthread_mutex_lock(&lock);
        taken[c->device] += c->channels;
        pthread_mutex_unlock(&lock);
        break;
    }
}

void nccl__end_turn(const nccl_group *g) {
    ncclComm *line = g->comm->line;
    pthread_mutex_lock(&lock);
    taken[g->comm->device] -= g->comm->channels;
    pthread_mutex_unlock(&lock);
    pthread_mutex_lock(&line->lock);
    line->done++;
    pthread_cond_broadcast(&line->changed);
    pthread_mutex_unlock(&line->lock);
    pthread_mutex_lock(&lock);
    under_way[kind_of(g)] -= g->begun;
    pthread_mutex_unlock(&lock);
    double__nccl_did();
}

/* ---- a reduction that is overtaken, and a process that ends in the middle -------------------------- */

static int was_aborted(void *comm) {
    return nccl__is_aborted(comm);
}

/* Where a file says whether it still is to happen, the process that takes a dead rank's place goes on. */
static int may_end_now(void) {
    const char *once = double__variable("END_FILE");
    return !once || unlink(once) == 0;
}

/* The process gets the signal in the middle of it. */
static void end_process(const nccl_group *g, uint64_t number, int signal, int overtaken) { /* with the lock */
    fprintf(stderr, "doubles: signal %d in %s %llu%s%s; under way: %lld gathers, %lld reductions, %lld of replicas\n",
            signal, kinds[kind_of(g)], (unsigned long long)number, g->calls->recorded ? ", recorded" : "",
            overtaken ? ", overtaken" : "", (long long)under_way[GATHER], (long long)under_way[REDUCTION],
            (long long)under_way[REPLICAS]);
    kill(getpid(), signal);
}

void nccl__hold_up(nccl_group *g) {
    static uint64_t begun[KINDS];
    int kind = kind_of(g);
    if (kind == NOTHING)
        return;
    pthread_mutex_lock(&lock);
    uint64_t number = ++begun[kind];
    under_way[kind] += g->begun = 1;
    pthread_mutex_unlock(&lock);
    int seconds = double__asked("OVERTAKE", kinds[kind], number);
    int overtaken = seconds > 0 && double__is_overtaken(seconds, was_aborted, g->comm);
    pthread_mutex_lock(&lock);
    int signal = double__asked("END", kinds[kind], number);
    if (signal > 0 && may_end_now())
        end_process(g, number, signal, overtaken);
    pthread_mutex_unlock(&lock);
    if (overtaken && kind == REDUCTION)
        double__fails("reductions-overtaken"); /* counts them */
}
