/* SPDX-License-Identifier: BSD-3-Clause */
/* What holds between communicators. Two of the same ranks may run at once, and each then keeps a part of the GPU until
 * its peers come. Ranks that begin them in different orders may so wait for each other for ever: here they do. One that
 * shares its parent's resources shares the parent's line too. */
#include "nccl_double.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;

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

/* ---- one line for a communicator, and for those that share its resources ------------------------- */

static uint64_t launched, latest_done; /* by number, of this process */

void nccl__line_up(nccl_group *g) {
    ncclComm *line = g->comm->line;
    pthread_mutex_lock(&line->lock);
    g->turn = line->turns++;
    pthread_mutex_unlock(&line->lock);
    pthread_mutex_lock(&lock);
    g->number = ++launched;
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

void nccl__end_turn(const nccl_group *g) {
    ncclComm *line = g->comm->line;
    pthread_mutex_lock(&line->lock);
    line->done++;
    pthread_cond_broadcast(&line->changed);
    pthread_mutex_unlock(&line->lock);
    pthread_mutex_lock(&lock);
    latest_done = g->number > latest_done ? g->number : latest_done;
    pthread_cond_broadcast(&ended);
    pthread_mutex_unlock(&lock);
}

/* ---- a reduction that is overtaken --------------------------------------------------------------- */

static int reduces(const nccl_group *g) {
    for (int i = 0; i < g->n; i++)
        if (g->calls[i].what == NCCL_REDUCE_SCATTER)
            return 1;
    return 0;
}

static int is_overtaken(const nccl_group *g, int seconds) { /* with the lock */
    struct timespec late;
    clock_gettime(CLOCK_REALTIME, &late);
    late.tv_sec += seconds;
    while (latest_done < g->number)
        if (pthread_cond_timedwait(&ended, &lock, &late) == ETIMEDOUT)
            return 0;
    return 1;
}

void nccl__hold_up(const nccl_group *g) {
    static uint64_t reductions;
    if (!reduces(g))
        return;
    pthread_mutex_lock(&lock);
    int seconds = double__asked("OVERTAKE", "ncclReduceScatter", ++reductions);
    int overtaken = seconds > 0 && is_overtaken(g, seconds);
    pthread_mutex_unlock(&lock);
    if (overtaken)
        double__fails("reductions-overtaken"); /* counts them */
}
