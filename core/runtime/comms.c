/* SPDX-License-Identifier: BSD-3-Clause */
/* Makes, aborts and destroys communicators, posts on them and waits for what was posted. */
#include "claims.h"
#include "deadlock.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/status.h"

#include <stdio.h>
#include <string.h>

#define SECOND INT64_C(1000000000)

#define HAS(c, slot) TESS_CAN(tess_comm_ops, (c)->ops, slot)

void tess__comms_use(tess__comms *c, const tess__plugin *p, const tess__device *device) {
    c->plugin = p;
    c->ops = p->ops;
    c->device = device;
}

tess_status tess__comms_caps(const tess__comms *c, tess_comm_caps *out) {
    *out = (tess_comm_caps){ .struct_size = sizeof *out };
    tess_status s = c->ops->query(c->plugin->ctx, NULL, out);
    return s ? tess__fail(s, "comm %s cannot say what it needs", c->plugin->name) : TESS_OK;
}

int tess__comms_waits_on_streams(const tess__comms *c) {
    tess_comm_caps caps;
    return tess__comms_caps(c, &caps) == TESS_OK && (caps.caps & TESS_COMM_STREAM_ORDERED) && HAS(c, wait_stream);
}

void tess__comms_abort(tess__comms *c, tess_status why) {
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < TESS__N_COMMS; i++)
        if (tess__comms_stands_first(c->list, i) && HAS(c, abort))
            c->ops->abort(c->list[i], why);
    pthread_mutex_unlock(&c->lock);
}

void tess__comms_lost(void *user, int32_t rank, const char *why) {
    (void)rank, (void)why;
    tess__comms_abort(user, TESS_E_PEER);
}

/* ---- made ---- */

/* Puts a new communicator in its place, unless a rank was lost meanwhile. */
static tess_status keep_comm(tess__comms *c, int which, tess_comm *comm) {
    pthread_mutex_lock(&c->lock);
    c->list[which] = comm;
    pthread_mutex_unlock(&c->lock);
    if (c->control && tess__control_aborting(c->control)) {
        tess__comms_abort(c, TESS_E_PEER);
        return tess__fail(TESS_E_PEER, "a rank was lost while communicators were made");
    }
    return TESS_OK;
}

static tess_comm_config config_of(const tess__comms *c, int32_t rank, int32_t nranks, const char *group) {
    return (tess_comm_config){ .struct_size = sizeof(tess_comm_config),
                               .rank = rank,
                               .nranks = nranks,
                               .local_rank = c->world.local_rank,
                               .device = c->device->mem == TESS_MEM_HOST ? -1 : c->world.local_rank,
                               .group = group,
                               .timeout_ns = c->timeout_ns };
}

/* Each generation of ranks has a name of its own, so that late ranks of another do not meet it. */
static tess_status create_world(tess__comms *c) {
    tess_error e = { .struct_size = sizeof e };
    char name[32] = "world";
    if (c->world.generation)
        snprintf(name, sizeof name, "world-g%d", (int)c->world.generation);
    tess_comm_config config = config_of(c, c->world.rank, c->world.nranks, name);
    tess_comm *comm = NULL;
    tess_status s = c->ops->init(c->plugin->ctx, &config, &comm, &e);
    return s ? tess__comms_failed(c, s, &e) : keep_comm(c, TESS__WORLD, comm);
}

static tess_status split_world(tess__comms *c, int which, int32_t color, int32_t key, int32_t nranks,
                               const char *name) {
    tess_error e = { .struct_size = sizeof e };
    tess_comm *comm = NULL;
    tess_comm_config config = config_of(c, key, nranks, name);
    tess_status s = c->ops->split(c->list[TESS__WORLD], color, key, &config, &comm, &e);
    return s ? tess__comms_failed(c, s, &e) : keep_comm(c, which, comm);
}

/* Makes this rank's group of `nranks` ranks, numbered by `color`. It is the world itself when that is one group. */
static tess_status create_group(tess__comms *c, int which, int32_t color, int32_t key, int32_t nranks,
                                const char *name) {
    if (nranks == c->world.nranks)
        c->list[which] = c->list[TESS__WORLD];
    if (nranks == c->world.nranks || nranks == 1)
        return TESS_OK;
    if (!HAS(c, split))
        return tess__fail(TESS_E_UNSUPPORTED, "TESSERA_STRATEGY: comm %s cannot split, which hybrid sharding needs",
                          c->plugin->name);
    return split_world(c, which, color, key, nranks, name);
}

/* Makes a communicator for reductions beside gathers, unless the GPU turned out to have no room for it. */
static tess_status create_sums(tess__comms *c, const tess__setup *u) {
    tess_comm_caps caps = { .struct_size = sizeof caps };
    c->list[TESS__SHARD_SUMS] = c->list[TESS__SHARD];
    if (!tess__sums_apart(u) || c->ops->query(c->plugin->ctx, c->list[TESS__WORLD], &caps) != TESS_OK ||
        !(caps.caps & TESS_COMM_APART))
        return TESS_OK;
    return split_world(c, TESS__SHARD_SUMS, c->replica_rank, c->shard_rank, c->shard_ranks, "sums");
}

tess_status tess__comms_create(tess__comms *c, const tess__setup *u) {
    snprintf(c->activity[c->activity_now], sizeof c->activity[0], "the start of comm %s", c->plugin->name);
    TRY(create_world(c));
    c->shard_ranks = u->shard_ranks;
    c->shard_rank = c->world.rank % u->shard_ranks;
    c->replica_rank = c->world.rank / u->shard_ranks;
    TRY(create_group(c, TESS__SHARD, c->replica_rank, c->shard_rank, u->shard_ranks, "shard"));
    TRY(create_sums(c, u));
    TRY(create_group(c, TESS__REPLICA, c->shard_rank, c->replica_rank, u->replicas, "replica"));
    c->copy_groups = tess__copy_groups(u);
    if (c->copy_groups) {
        int32_t group = c->world.rank % c->copy_groups;
        TRY(create_group(c, TESS__COPY, group, c->world.rank / c->copy_groups, tess__copy_members(u, group), "copy"));
    }
    c->activity[c->activity_now][0] = 0;
    return TESS_OK;
}

/* ---- given back ---- */

void tess__comms_withdraw(tess__comms *c) {
    pthread_mutex_lock(&c->lock);
    memcpy(c->closing, c->list, sizeof c->closing);
    memset(c->list, 0, sizeof c->list);
    pthread_mutex_unlock(&c->lock);
    for (int i = TESS__N_COMMS - 1; i > 0; i--)
        if (!tess__comms_stands_first(c->closing, i))
            c->closing[i] = NULL;
}

void tess__comms_destroy(tess__comms *c, int orderly) {
    tess_error e = { .struct_size = sizeof e };
    for (int i = TESS__N_COMMS - 1; orderly && i >= 0; i--)
        if (c->closing[i] && HAS(c, finalize))
            c->ops->finalize(c->closing[i], 5 * SECOND, &e);
    for (int i = TESS__N_COMMS - 1; i >= 0; i--)
        if (c->closing[i])
            c->ops->destroy(c->closing[i]);
}

/* ---- what went wrong ---- */

/* When ranks disagree, each says what it is about to do, so that the message can name both sides. */
static tess_status fail_mismatch(tess__comms *c, int which, const tess_error *e) {
    char key[64];
    tess__history mine = tess__history_of(c, tess__comms_activity(c)), theirs;
    char cause[512];
    int32_t peer = tess__comms_member(c, which, e->rank);
    if (!c->control || peer < 0)
        return tess__fail(TESS_E_MISMATCH, "in %s: %s", tess__comms_activity(c), e->message);
    tess__comms_rank_key(c, "mismatch", c->world.rank, key, sizeof key);
    tess__control_set(c->control, key, &mine, sizeof mine);
    tess__comms_rank_key(c, "mismatch", peer, key, sizeof key);
    uint64_t bytes = sizeof theirs;
    if (tess__control_get(c->control, key, &theirs, &bytes, INT64_C(1000000000))) {
        tess__control_cause_text(c->control, cause, sizeof cause); /* the other side was quicker */
        return tess__fail(TESS_E_MISMATCH, "%s", cause[0] ? cause : e->message);
    }
    return tess__histories_differ(c, &mine, peer, &theirs);
}

static tess_status comm_failed(tess__comms *c, int which, tess_status s, const tess_error *e) {
    if (s == TESS_E_MISMATCH)
        return fail_mismatch(c, which, e);
    int32_t peer = tess__comms_member(c, which, e->rank);
    c->lost_peer = tess__comms_rank(c, peer) + 1;
    if (peer >= 0)
        return tess__fail(s, "%s failed at rank %d: %s", tess__comms_activity(c), tess__comms_rank(c, peer),
                          e->message);
    return tess__fail(s, "%s failed: %s", tess__comms_activity(c), e->message);
}

/* A rank that ended in order will never come, so fail at once instead of after the timeout. */
static tess_status check_departed(tess__comms *c) {
    for (int32_t r = 0; c->control && r < c->world.nranks; r++)
        if (r != c->world.rank && tess__control_departed(c->control, tess__comms_rank(c, r)))
            return tess__fail(TESS_E_PEER, "rank %d has ended while rank %d waits for it in %s", tess__comms_rank(c, r),
                              tess__comms_rank(c, c->world.rank), tess__comms_activity(c));
    return TESS_OK;
}

/* ---- post and wait ---- */

tess_status tess__comm_wait(tess__comms *c, int which, tess_request *request, uint64_t seq) {
    const int64_t slice = INT64_C(100000000), second = 10 * slice;
    tess_error e = { .struct_size = sizeof e, .rank = -1 };
    for (int64_t waited = 0;; waited += slice) {
        tess_status s = c->ops->wait(request, slice, &e);
        if (s == TESS_OK)
            return TESS_OK;
        if (s != TESS_E_TIMEOUT)
            return comm_failed(c, which, s, &e);
        TRY(check_departed(c));
        if ((waited + slice) % second == 0)
            TRY(tess__deadlock_check(c, which, seq));
        if (waited + slice == 10 * second)
            tess__deadlock_name_absent(c);
        if (waited > c->timeout_ns)
            return tess__fail(TESS_E_TIMEOUT, "%s took more than %lld s (TESSERA_TIMEOUT)%s%s%s",
                              tess__comms_activity(c), (long long)(c->timeout_ns / 1000000000),
                              c->absent[0] ? ": " : "", c->absent,
                              c->absent[0] ? " did not come to it and computes or hangs" : "");
    }
}

static tess_status check_health(tess__comms *c, int which) {
    tess_error e = { .struct_size = sizeof e, .rank = -1 };
    if (!tess__comms_stands_first(c->list, which) || !HAS(c, health))
        return TESS_OK;
    tess_status s = c->ops->health(c->list[which], &e);
    return s ? comm_failed(c, which, s, &e) : TESS_OK;
}

tess_status tess__comms_listen(tess__comms *c, int64_t waited_ns) {
    for (int i = 0; i < TESS__N_COMMS; i++)
        TRY(check_health(c, i));
    TRY(check_departed(c));
    if (waited_ns > c->timeout_ns)
        return tess__fail(TESS_E_TIMEOUT, "a recorded training pass took more than %lld s (TESSERA_TIMEOUT)",
                          (long long)(c->timeout_ns / 1000000000));
    return TESS_OK;
}

tess_status tess__comm_post(tess__comms *c, int which, tess_collective *posted, tess_request **request) {
    tess_error e = { .struct_size = sizeof e, .rank = -1 };
    posted->struct_size = sizeof *posted;
    posted->send_mem = posted->recv_mem = c->device->mem;
    posted->after = c->device->compute;
    posted->send_reg = tess__comms_registration(c, c->list[which], posted->send);
    posted->recv_reg = tess__comms_registration(c, c->list[which], posted->recv);
    posted->seq = c->n_collectives++;
    posted->tag = tess__hash_u64(tess__hash_u64(posted->tag, c->common), c->pass_kind) | 1;
    c->recent_tags[posted->seq % TESS__RECENT_TAGS] = posted->tag;
    memcpy(c->recent_what[posted->seq % TESS__RECENT_TAGS], tess__comms_activity(c), sizeof c->recent_what[0] - 1);
    tess_status s = c->ops->post(c->list[which], posted, 1, request, &e);
    return s ? comm_failed(c, which, s, &e) : TESS_OK;
}

int tess__comm_has_ended(const tess__comms *c, tess_request *r) {
    tess_error e = { .struct_size = sizeof e, .rank = -1 };
    return c->ops->test(r, &e) != TESS_PENDING;
}

tess_status tess__comm_wait_on_stream(const tess__comms *c, tess_request *r, const tess_stream *stream) {
    tess_error e = { .struct_size = sizeof e, .rank = -1 };
    return tess__comms_failed(c, c->ops->wait_stream(r, stream, &e), &e);
}

void tess__comm_free(const tess__comms *c, tess_request *r) {
    c->ops->request_free(r);
}

void tess__comm_drop(const tess__comms *c, tess_request *r) {
    tess_error e = { .struct_size = sizeof e };
    if (r && c->ops->wait(r, 5 * SECOND, &e) != TESS_E_TIMEOUT)
        c->ops->request_free(r);
}

tess_status tess__comm_run(tess__comms *c, int which, const tess_collective *collective, const char *doing) {
    tess_collective own = *collective;
    tess__comms_doing(c, doing);
    TRY(tess__comm_post(c, which, &own, &c->unowned_request));
    TRY(tess__comm_wait(c, which, c->unowned_request, own.seq));
    tess__comm_free(c, c->unowned_request);
    c->unowned_request = NULL;
    tess__comms_idle(c);
    return TESS_OK;
}

void tess__comms_reset(tess__comms *c) {
    c->unowned_request = NULL;
    c->n_collectives = c->exchange_count = c->common = 0;
    c->lost_peer = 0;
    c->pass_kind = 0;
    c->common_text[0] = c->absent[0] = c->activity[c->activity_now][0] = 0;
    memset(c->recent_tags, 0, sizeof c->recent_tags);
    memset(c->closing, 0, sizeof c->closing);
}

void tess__comms_skip(tess__comms *c, uint64_t number) {
    c->n_collectives = number;
    memset(c->recent_tags, 0, sizeof c->recent_tags);
}

/* ---- on the control plane ---- */

static tess_status exchange(tess__comms *c, const char *what, int in_step, const void *mine, uint64_t bytes,
                            void *out) {
    if (!c->control) {
        memcpy(out, mine, bytes);
        return TESS_OK;
    }
    char plain[96], key[112];
    snprintf(plain, sizeof plain, "exchange/%llu/%s", (unsigned long long)c->exchange_count, what);
    tess__comms_key(c, plain, key, sizeof key);
    if (c->seat.engine > 1 && c->exchange_count == 0) /* waits for ranks that are still between two engines */
        snprintf(key, sizeof key, "open/e%u/%s", c->seat.engine, what);
    c->exchange_count++;
    tess__control_doing(c->control, what);
    if (!in_step)
        TRY(tess__deadlock_enter_exchange(c, what));
    if (c->members)
        TRY(tess__control_exchange_among(c->control, c->members, c->world.nranks, key, mine, bytes, out));
    else
        TRY(tess__control_exchange(c->control, key, mine, bytes, out));
    tess__control_doing(c->control, NULL);
    return TESS_OK;
}

tess_status tess__comms_exchange(tess__comms *c, const char *what, const void *mine, uint64_t bytes, void *out) {
    return exchange(c, what, 0, mine, bytes, out);
}

tess_status tess__comms_exchange_in_step(tess__comms *c, const char *what, const void *mine, uint64_t bytes,
                                         void *out) {
    return exchange(c, what, 1, mine, bytes, out);
}
