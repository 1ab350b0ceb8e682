/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks as threads of one process, for sources that are included with these in place of communicators. A rank that
 * posts another collective than its group does, or none, is a fault of all of them within seconds. */
#ifndef THREAD_RANKS_H
#define THREAD_RANKS_H
#include "core/engine/state.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { RANKS_MOST = 8, RANKS_VALUE = 64, RANKS_PATIENCE_S = 4 };

typedef struct { /* ranks that meet */
    pthread_mutex_t lock;
    pthread_cond_t met;
    int n, arrived, turn, broken;
    tess_collective posted;    /* by the first to come */
    uint64_t number, tags[64]; /* of all that were posted since ranks_begin */
    int n_tags;
    char *data;
    char value[RANKS_MOST][RANKS_VALUE];
} ranks_meeting;

static struct {
    ranks_meeting world, group[RANKS_MOST]; /* all of them, or those whose numbers are equal modulo the groups */
    int32_t n, groups;
    _Atomic int wrong, posts, exchanges;  /* lines that were not met; what all ranks have posted and exchanged */
    _Atomic int fail_post, fail_exchange; /* 1: the next fails, on every rank */
} ranks;

#define RANKS_CHECK(x) ((x) ? 0 : ranks_note(__LINE__, #x))
static inline int ranks_note(int line, const char *what) {
    fprintf(stderr, "line %d: %s\n", line, what);
    return ++ranks.wrong;
}

static inline void ranks_meeting_init(ranks_meeting *m, int n) {
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->met, NULL);
    m->n = n;
    m->arrived = m->turn = m->broken = m->n_tags = 0;
    m->data = m->data ? m->data : malloc(TESS__MIRROR_CHUNK);
}

static inline void ranks_begin(int32_t n, int32_t groups) {
    ranks_meeting_init(&ranks.world, n);
    for (int32_t g = 0; g < groups; g++)
        ranks_meeting_init(&ranks.group[g], n / groups + (g < n % groups));
    ranks.n = n;
    ranks.groups = groups;
    ranks.wrong = ranks.posts = ranks.exchanges = ranks.fail_post = ranks.fail_exchange = 0;
}

/* Waits for all of them. */
static inline tess_status ranks_meet(ranks_meeting *m) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += RANKS_PATIENCE_S;
    pthread_mutex_lock(&m->lock);
    int turn = m->turn;
    if (++m->arrived == m->n) {
        m->arrived = 0;
        m->turn++;
        pthread_cond_broadcast(&m->met);
    }
    while (turn == m->turn && !m->broken)
        if (pthread_cond_timedwait(&m->met, &m->lock, &until) == ETIMEDOUT && turn == m->turn) {
            m->broken = 1;
            pthread_cond_broadcast(&m->met);
        }
    int broken = m->broken;
    pthread_mutex_unlock(&m->lock);
    return broken ? TESS_E_TIMEOUT : TESS_OK;
}

static inline const tess *ranks_engine(const tess__comms *c) {
    return (const tess *)((const char *)c - offsetof(tess, comms));
}

static inline int ranks_posts_alike(const ranks_meeting *m, const tess_collective *c, uint64_t number) {
    const tess_collective *p = &m->posted;
    return p->op == c->op && p->send_dtype == c->send_dtype && p->recv_dtype == c->recv_dtype && p->count == c->count &&
           p->scale == c->scale && p->root == c->root && p->tag == c->tag && m->number == number;
}

/* In place of tess__comm_run: a broadcast of bytes within the group. */
static inline tess_status ranks_comm_run(tess__comms *c, int which, const tess_collective *x, const char *doing) {
    int32_t rank = c->world.rank, group = which == TESS__WORLD ? 0 : rank % ranks.groups;
    ranks_meeting *m = which == TESS__WORLD ? &ranks.world : &ranks.group[group];
    int32_t self = which == TESS__WORLD ? rank : rank / ranks.groups;
    uint64_t number = c->n_collectives++;
    ranks.posts++;
    if (ranks.fail_post)
        return tess__fail(TESS_E_PEER, "a rank is gone");
    RANKS_CHECK(strcmp(doing, "the copy of an image (TESSERA_MIRROR)") == 0);
    RANKS_CHECK(x->op == TESS_BROADCAST && x->send_dtype == TESS_U8 && x->recv_dtype == TESS_U8 && x->scale == 1);
    RANKS_CHECK(x->count > 0 && x->count <= TESS__MIRROR_CHUNK && x->root >= 0 && x->root < m->n);
    RANKS_CHECK(x->send == ranks_engine(c)->memory.address[TESS__MIRROR_STAGE][0] && x->recv == x->send);
    RANKS_CHECK(x->scratch == ranks_engine(c)->memory.address[TESS__MIRROR_SCRATCH][0] && x->scratch_bytes == 640);
    if (self == x->root) {
        m->posted = *x;
        m->number = number;
        if (m->n_tags < 64)
            m->tags[m->n_tags++] = x->tag;
        memcpy(m->data, x->send, x->count);
    }
    TRY(ranks_meet(m));
    RANKS_CHECK(ranks_posts_alike(m, x, number));
    if (self != x->root)
        memcpy(x->recv, m->data, x->count);
    return ranks_meet(m);
}

/* In place of tess__comms_exchange. */
static inline tess_status ranks_exchange(tess__comms *c, const char *what, const void *mine, uint64_t bytes,
                                         void *out) {
    ranks_meeting *m = &ranks.world;
    ranks.exchanges++;
    if (ranks.fail_exchange)
        return tess__fail(TESS_E_PEER, "%s: a rank is gone", what);
    RANKS_CHECK(bytes <= RANKS_VALUE);
    memcpy(m->value[c->world.rank], mine, bytes);
    TRY(ranks_meet(m));
    for (int32_t r = 0; r < m->n; r++)
        memcpy((char *)out + (uint64_t)r * bytes, m->value[r], bytes);
    return ranks_meet(m);
}

/* In place of tess__comms_skip. */
static inline void ranks_skip(tess__comms *c, uint64_t number) {
    RANKS_CHECK(number >= c->n_collectives);
    c->n_collectives = number;
}
#endif
