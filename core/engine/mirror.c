/* SPDX-License-Identifier: BSD-3-Clause */
/* Images in host memory of what a rank must not lose, and copies of them on another rank. Where a shard has replicas
 * these are the copies. Two generations are kept, as a death may tear the one that is being made. */
#include "state.h"

#include "base/hash.h"
#include "base/status.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- an image --------------------------------------------------------------------------------------- */

typedef struct { /* a part of it, where it lives */
    char *at;
    uint64_t bytes;
    uint32_t mem;
} part;

typedef tess_status (*part_fn)(tess *, const part *, char *image);

static tess_status each_part(tess *t, char *image, part_fn fn) {
    const tess__setup *s = &t->plan.setup;
    for (int32_t i = 0; i < t->plan.layout.n_groups; i++) {
        const tess__group *g = &t->plan.layout.groups[i];
        part p = { tess__address_of(t, TESS__MASTER, i), g->shard_elems * tess_dtype_bytes(g->master),
                   tess__rest_mem(t, &g->param_rest) };
        TRY(fn(t, &p, image));
        image += tess__round_up(p.bytes, s->align);
        for (int32_t k = 0; g->trainable && k < s->n_states; k++) {
            part state = { tess__address_of(t, TESS__STATE0 + k, i), g->shard_elems * 4,
                           tess__rest_mem(t, &g->state_rest) };
            TRY(fn(t, &state, image));
            image += tess__round_up(state.bytes, s->align);
        }
    }
    part buffers = { tess__address_of(t, TESS__BUFFERS, 0), t->plan.layout.buffer_bytes, s->env.mem };
    return buffers.bytes ? fn(t, &buffers, image) : TESS_OK;
}

static uint32_t image_mem(const tess *t) {
    return tess__rest_mem(t, &(tess__rest){ .domain = TESS_DOMAIN_HOST, .pageable = tess__one_memory(&t->plan.setup) });
}

static tess_status save_part(tess *t, const part *p, char *image) {
    return tess__copy_now(t, image, image_mem(t), p->at, p->mem, p->bytes);
}

static tess_status load_part(tess *t, const part *p, char *image) {
    return tess__copy_now(t, p->at, p->mem, image, image_mem(t), p->bytes);
}

static char *image_at(const tess *t, int of_other, int slot) {
    uint64_t bytes = tess__image_bytes(&t->plan.setup, &t->plan.layout);
    return (char *)tess__address_of(t, TESS__MIRROR, 0) + (uint64_t)(2 * of_other + slot) * bytes;
}

/* ---- from rank to rank ------------------------------------------------------------------------------ */

enum { MOST_MEMBERS = 3 };
typedef struct { /* the ranks among which a shard's images go */
    int which;   /* communicator */
    int32_t self, n;
} circle;

static circle circle_of(const tess *t) {
    const tess__setup *s = &t->plan.setup;
    int32_t groups = tess__copy_groups(s), rank = t->comms.world.rank;
    if (!groups)
        return (circle){ TESS__REPLICA, t->comms.replica_rank, s->replicas };
    return (circle){ TESS__COPY, rank / groups, tess__copy_members(s, rank % groups) };
}

static uint64_t scratch_bytes(const tess *t) {
    for (int32_t i = 0; i < t->plan.resident.n_buffers; i++)
        if (t->plan.resident.buffers[i].role == TESS__MIRROR_SCRATCH)
            return t->plan.resident.buffers[i].bytes;
    return 0;
}

/* `from` of member `root` to every other's `to`; null: this member does not keep it. */
static tess_status pass_around(tess *t, const circle *c, int32_t root, const char *from, char *to) {
    uint64_t bytes = tess__image_bytes(&t->plan.setup, &t->plan.layout);
    char *stage = tess__address_of(t, TESS__MIRROR_STAGE, 0);
    uint32_t mem = image_mem(t), stage_mem = t->plan.setup.env.mem;
    for (uint64_t done = 0; done < bytes; done += TESS__MIRROR_CHUNK) {
        uint64_t n = bytes - done < TESS__MIRROR_CHUNK ? bytes - done : TESS__MIRROR_CHUNK;
        tess_collective piece = { .op = TESS_BROADCAST,
                                  .send_dtype = TESS_U8,
                                  .recv_dtype = TESS_U8,
                                  .send = stage,
                                  .recv = stage,
                                  .count = n,
                                  .scale = 1,
                                  .root = root,
                                  .scratch = tess__address_of(t, TESS__MIRROR_SCRATCH, 0),
                                  .scratch_bytes = scratch_bytes(t) };
        piece.tag = tess__hash_u64(tess__hash_u64(TESS__HASH_START, done), (uint64_t)root << 32 | TESS__MIRROR);
        if (c->self == root)
            TRY(tess__copy_now(t, stage, stage_mem, from + done, mem, n));
        TRY(tess__comm_run(&t->comms, c->which, &piece, "the copy of an image (TESSERA_MIRROR)"));
        if (c->self != root && to)
            TRY(tess__copy_now(t, to + done, mem, stage, stage_mem, n));
    }
    return TESS_OK;
}

/* Circles differ in what they send. The collectives that follow have the same numbers everywhere all the same. */
static void skip_numbers(tess *t, uint64_t before) {
    uint64_t bytes = tess__image_bytes(&t->plan.setup, &t->plan.layout);
    tess__comms_skip(&t->comms, before + MOST_MEMBERS * (bytes / TESS__MIRROR_CHUNK + 1));
}

/* ---- taken ------------------------------------------------------------------------------------------ */

/* Each keeps the image of the member before it. */
static tess_status send_copies(tess *t, int slot) {
    circle c = circle_of(t);
    uint64_t before = t->comms.n_collectives;
    for (int32_t root = 0; c.which == TESS__COPY && root < c.n; root++)
        TRY(pass_around(t, &c, root, image_at(t, 0, slot), c.self == (root + 1) % c.n ? image_at(t, 1, slot) : NULL));
    skip_numbers(t, before);
    return TESS_OK;
}

tess_status tess__mirror_take(tess *t) {
    tess__mirror *m = &t->mirror;
    int64_t step = (int64_t)t->step.steps_done;
    int slot = m->slot;
    m->own[slot] = m->copy[slot] = -1;
    TRY(tess__streams_sync(&t->streams));
    TRY(each_part(t, image_at(t, 0, slot), save_part));
    m->own[slot] = step;
    TRY(send_copies(t, slot));
    m->copy[slot] = step;
    m->slot = !slot;
    if (m->taken < 0 && t->comms.world.rank == 0)
        TRY(tess__control_set(t->comms.control, TESS__KV_READY, "1", 1));
    m->taken = step;
    m->ready = 1;
    return TESS_OK;
}

tess_status tess__mirror_step(tess *t, uint32_t pass_kind) {
    int64_t step = (int64_t)t->step.steps_done, every = t->plan.setup.mirror;
    if (!every || (pass_kind & 15) != TESS_PASS_TRAIN || t->pass.microbatch || t->pass.pending_grads)
        return TESS_OK;
    int due = t->mirror.taken < 0 || (step % every == 0 && step != t->mirror.taken);
    return due ? tess__mirror_take(t) : TESS_OK;
}

void tess__mirror_reset(tess__mirror *m) {
    m->own[0] = m->own[1] = m->copy[0] = m->copy[1] = m->taken = -1;
    m->slot = 0;
}

/* ---- given back ------------------------------------------------------------------------------------- */

typedef struct {
    int64_t own[2], copy[2];
} holding; /* what a rank has */

static int has(const int64_t steps[2], int64_t step) {
    return steps[0] == step || steps[1] == step;
}

static int slot_of(const int64_t steps[2], int64_t step) {
    return steps[1] == step;
}

/* The ranks of the circle that `rank` is in. */
static int32_t rank_in_circle(const tess *t, int32_t rank, int32_t member) {
    int32_t groups = tess__copy_groups(&t->plan.setup), shards = t->plan.setup.shard_ranks;
    return groups ? rank % groups + member * groups : rank % shards + member * shards;
}

static int32_t circle_size(const tess *t, int32_t rank) {
    int32_t groups = tess__copy_groups(&t->plan.setup);
    return groups ? tess__copy_members(&t->plan.setup, rank % groups) : t->plan.setup.replicas;
}

static int32_t member_of(const tess *t, int32_t rank) {
    int32_t groups = tess__copy_groups(&t->plan.setup);
    return rank / (groups ? groups : t->plan.setup.shard_ranks);
}

/* The member of a rank's circle that can give it back its image of `step`; -1: none is left. */
static int32_t giver(const tess *t, const holding *all, int32_t rank, int64_t step) {
    int32_t n = circle_size(t, rank), self = member_of(t, rank);
    if (has(all[rank].own, step))
        return self;
    if (tess__copy_groups(&t->plan.setup)) {
        int32_t next = (self + 1) % n;
        return has(all[rank_in_circle(t, rank, next)].copy, step) ? next : -1;
    }
    for (int32_t k = 0; k < n; k++)
        if (has(all[rank_in_circle(t, rank, k)].own, step))
            return k;
    return -1;
}

static int32_t first_without(const tess *t, const holding *all, int64_t step) {
    for (int32_t r = 0; r < t->comms.world.nranks; r++)
        if (giver(t, all, r, step) < 0)
            return r;
    return -1;
}

/* The newest step that every rank can get its image of; -1: none, and `torn` names a rank that cannot. */
static int64_t newest_whole(const tess *t, const holding *all, int32_t *torn) {
    int64_t best = -1, newest = -1;
    for (int32_t r = 0; r < t->comms.world.nranks; r++)
        for (int k = 0; k < 2; k++) {
            int64_t step = all[r].own[k];
            newest = step > newest ? step : newest;
            if (step > best && first_without(t, all, step) < 0)
                best = step;
        }
    *torn = newest < 0 ? 0 : first_without(t, all, newest);
    return best;
}

/* Every member that lacks its image gets it. Those of replicas are all the same, so that one is enough. */
static tess_status give_back(tess *t, const holding *all, int64_t step) {
    circle c = circle_of(t);
    tess__mirror *m = &t->mirror;
    int copies = c.which == TESS__COPY, sent = 0;
    uint64_t before = t->comms.n_collectives;
    for (int32_t k = 0; k < c.n; k++) {
        int32_t rank = rank_in_circle(t, t->comms.world.rank, k), from = giver(t, all, rank, step);
        if (from == k || (sent && !copies))
            continue;
        int lacks = !has(m->own, step) && (k == c.self || !copies);
        const int64_t *held = copies ? m->copy : m->own;
        TRY(pass_around(t, &c, from, from == c.self ? image_at(t, copies, slot_of(held, step)) : NULL,
                        lacks ? image_at(t, 0, 0) : NULL));
        if (lacks)
            m->own[0] = step;
        sent = 1;
    }
    skip_numbers(t, before);
    return TESS_OK;
}

tess_status tess__mirror_restore(tess *t, int64_t *step) {
    tess__mirror *m = &t->mirror;
    int32_t torn = -1;
    holding mine = { { m->own[0], m->own[1] }, { m->copy[0], m->copy[1] } };
    holding *all = calloc((size_t)t->comms.world.nranks, sizeof *all);
    if (!all)
        return tess__fail(TESS_E_NOMEM, "no memory to compare %d ranks", t->comms.world.nranks);
    tess_status s = tess__comms_exchange(&t->comms, "tess_recover", &mine, sizeof mine, all);
    *step = s ? -1 : newest_whole(t, all, &torn);
    if (!s && *step < 0)
        s = tess__fail(TESS_E_PEER, "no image is left of rank %d's shard: it was lost with the rank that kept its copy",
                       torn);
    if (!s)
        s = give_back(t, all, *step);
    free(all);
    if (s)
        return s;
    int slot = slot_of(m->own, *step);
    m->slot = !slot; /* the next ones must not write over it */
    return each_part(t, image_at(t, 0, slot), load_part);
}
