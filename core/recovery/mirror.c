/* SPDX-License-Identifier: BSD-3-Clause */
/* Keeps images in host memory of what a rank must not lose, and copies of them on another rank. Replicas of a shard
 * are such copies already. Two generations are kept, because a death may tear the one that is being made. */
#include "mirror.h"

#include "base/hash.h"
#include "base/status.h"
#include "fits.h"
#include "kernels/digest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- an image --------------------------------------------------------------------------------------- */

/* Says in which kind of memory the original of an image's part lives. */
static uint32_t living_mem(const tess *t, const tess__image_part *p) {
    if (p->role == TESS__COMMON)
        return TESS_MEM_HOST;
    if (p->role == TESS__BUFFERS)
        return t->plan.setup.env.mem;
    const tess__group *g = &t->plan.layout.groups[p->index];
    return tess__rest_mem(t, p->role == TESS__MASTER ? &g->param_rest : &g->state_rest);
}

static void *original(const tess *t, const tess__image_part *p) {
    return p->role == TESS__COMMON ? t->settings.options.common : tess__address_of(t, p->role, p->index);
}

typedef struct {
    tess *t;
    char *image;
} copying;

static tess_status save_part(void *user, const tess__image_part *p) {
    const copying *c = user;
    return tess__copy_now(c->t, c->image + p->at, tess__image_mem(c->t), original(c->t, p), living_mem(c->t, p),
                          p->bytes);
}

static tess_status load_part(void *user, const tess__image_part *p) {
    const copying *c = user;
    return tess__copy_now(c->t, original(c->t, p), living_mem(c->t, p), c->image + p->at, tess__image_mem(c->t),
                          p->bytes);
}

static tess_status copy_image(tess *t, char *image, tess__image_part_fn fn) {
    copying c = { t, image };
    return tess__image_each(&t->plan.setup, &t->plan.layout, fn, &c);
}

/* ---- from rank to rank ------------------------------------------------------------------------------ */

enum { MOST_MEMBERS = 3 };
typedef struct { /* the ranks that keep images for each other */
    int which;   /* communicator */
    int32_t self, n;
} image_group;

static image_group image_group_of(const tess *t) {
    const tess__setup *s = &t->plan.setup;
    int32_t groups = tess__copy_groups(s), rank = t->comms.world.rank;
    if (!groups)
        return (image_group){ TESS__REPLICA, t->comms.replica_rank, s->replicas };
    return (image_group){ TESS__COPY, rank / groups, tess__copy_members(s, rank % groups) };
}

static uint64_t scratch_bytes(const tess *t) {
    for (int32_t i = 0; i < t->plan.resident.n_buffers; i++)
        if (t->plan.resident.buffers[i].role == TESS__MIRROR_SCRATCH)
            return t->plan.resident.buffers[i].bytes;
    return 0;
}

static tess_collective piece_of(const tess *t, const tess__image_sending *x, uint64_t done) {
    uint64_t left = x->bytes - done;
    char *stage = tess__address_of(t, TESS__MIRROR_STAGE, 0);
    tess_collective piece = { .op = TESS_BROADCAST,
                              .send_dtype = TESS_U8,
                              .recv_dtype = TESS_U8,
                              .send = stage,
                              .recv = stage,
                              .count = left < TESS__MIRROR_CHUNK ? left : TESS__MIRROR_CHUNK,
                              .scale = 1,
                              .root = x->root,
                              .scratch = tess__address_of(t, TESS__MIRROR_SCRATCH, 0),
                              .scratch_bytes = scratch_bytes(t) };
    piece.tag = tess__hash_u64(tess__hash_u64(TESS__HASH_START, done), (uint64_t)x->root << 32 | TESS__MIRROR);
    return piece;
}

tess_status tess__image_send(tess *t, const tess__image_sending *x) {
    uint32_t stage_mem = t->plan.setup.env.mem;
    for (uint64_t done = 0; done < x->bytes; done += TESS__MIRROR_CHUNK) {
        tess_collective piece = piece_of(t, x, done);
        if (x->self == x->root)
            TRY(tess__copy_now(t, piece.recv, stage_mem, x->from + done, tess__image_mem(t), piece.count));
        TRY(tess__comm_run(&t->comms, x->which, &piece, "the copy of an image (TESSERA_MIRROR)"));
        if (x->take && (x->self != x->root || x->all))
            TRY(x->take(x->user, done, piece.recv, stage_mem, piece.count));
    }
    return TESS_OK;
}

static tess_status keep_piece(void *user, uint64_t done, const char *piece, uint32_t mem, uint64_t bytes) {
    const copying *c = user;
    return tess__copy_now(c->t, c->image + done, tess__image_mem(c->t), piece, mem, bytes);
}

/* Sends `from` of member `root` to every other member's `to`. Null: this member does not keep it. */
static tess_status pass_around(tess *t, const image_group *c, int32_t root, const char *from, char *to) {
    copying keep = { t, to };
    tess__image_sending x = { .which = c->which, .self = c->self, .root = root, .from = from, .user = &keep };
    x.bytes = tess__image_bytes(&t->plan.setup, &t->plan.layout);
    x.take = to ? keep_piece : NULL;
    return tess__image_send(t, &x);
}

/* Groups post different numbers of collectives; numbers are skipped so that later collectives match. */
static void skip_numbers(tess *t, uint64_t before) {
    uint64_t bytes = tess__image_bytes(&t->plan.setup, &t->plan.layout);
    tess__comms_skip(&t->comms, before + MOST_MEMBERS * (bytes / TESS__MIRROR_CHUNK + 1));
}

/* ---- taken ------------------------------------------------------------------------------------------ */

/* Each member keeps the image of the member before it. */
static tess_status send_copies(tess *t, int slot) {
    image_group c = image_group_of(t);
    uint64_t before = t->comms.n_collectives;
    for (int32_t root = 0; c.which == TESS__COPY && root < c.n; root++)
        TRY(pass_around(t, &c, root, tess__image_at(t, 0, slot),
                        c.self == (root + 1) % c.n ? tess__image_at(t, 1, slot) : NULL));
    skip_numbers(t, before);
    return TESS_OK;
}

/* A replica's image, or that of rank 0 in a smaller group, is as good as one's own when all have the same bytes. */
static tess_status check_common(const tess *t, const uint64_t *all) {
    for (int32_t r = 1; !t->comms.world.generation && r < t->comms.world.nranks; r++)
        if (all[r] != all[0])
            return tess__fail(
                TESS_E_MISMATCH,
                "the %llu bytes of tess_options.common differ between rank 0 and rank %d: keep there what "
                "is the same on all ranks",
                (unsigned long long)t->plan.setup.common_bytes, r);
    return TESS_OK;
}

/* Tells the launcher of this group's first images when each rank has its own and knows that a lost rank is no end. A
 * rank that took the loss for its end would end them all. */
static tess_status announce(tess *t) {
    uint64_t mine = tess__digest(t->settings.options.common, 1, 0, t->plan.setup.common_bytes, 0);
    uint64_t *all = calloc((size_t)t->comms.world.nranks, sizeof *all);
    if (!all)
        return tess__fail(TESS_E_NOMEM, "no memory to compare %d ranks", t->comms.world.nranks);
    t->mirror.ready = 1;
    tess_status s = tess__comms_exchange(&t->comms, "the first images", &mine, sizeof mine, all);
    s = s ? s : check_common(t, all);
    free(all);
    return !s && t->comms.world.rank == 0 ? tess__fits_announce(t) : s;
}

tess_status tess__mirror_take(tess *t) {
    tess__mirror *m = &t->mirror;
    int64_t step = (int64_t)t->step.steps_done;
    int slot = m->slot;
    m->own[slot] = m->copy[slot] = -1;
    TRY(tess__streams_sync(&t->streams));
    TRY(copy_image(t, tess__image_at(t, 0, slot), save_part));
    TRY(tess__image_digest(t, 0, slot));
    m->own[slot] = step;
    tess__scale_imaged(&t->scaler, step);
    TRY(send_copies(t, slot));
    TRY(tess__image_digest(t, 1, slot));
    m->copy[slot] = step;
    m->slot = !slot;
    if (m->taken < 0)
        TRY(announce(t));
    m->taken = step;
    return TESS_OK;
}

int tess__mirror_is_due(const tess *t, uint32_t pass_kind) {
    int64_t step = (int64_t)t->step.steps_done, every = t->plan.setup.mirror;
    if (!every || (pass_kind & 15) != TESS_PASS_TRAIN || t->pass.microbatch || t->pass.pending_grads)
        return 0;
    return t->mirror.taken < 0 || (step % every == 0 && step != t->mirror.taken);
}

/* ---- given back ------------------------------------------------------------------------------------- */

static int has_step(const int64_t steps[2], int64_t step) {
    return steps[0] == step || steps[1] == step;
}

int tess__image_slot(const int64_t steps[2], int64_t step) {
    return steps[1] == step;
}

/* The rank that is this member of the group of `rank`. */
static int32_t rank_of_member(const tess__setup *s, int32_t rank, int32_t member) {
    int32_t groups = tess__copy_groups(s), shards = s->shard_ranks;
    return groups ? rank % groups + member * groups : rank % shards + member * shards;
}

static int32_t count_members(const tess__setup *s, int32_t rank) {
    int32_t groups = tess__copy_groups(s);
    return groups ? tess__copy_members(s, rank % groups) : s->replicas;
}

static int32_t member_of(const tess__setup *s, int32_t rank) {
    int32_t groups = tess__copy_groups(s);
    return rank / (groups ? groups : s->shard_ranks);
}

/* Finds the member of a rank's group that can give back the rank's image of `step`; -1: none is left. */
static int32_t find_giver(const tess__setup *s, const tess__holding *all, int32_t rank, int64_t step) {
    int32_t n = count_members(s, rank), self = member_of(s, rank);
    if (has_step(all[rank].own, step))
        return self;
    if (tess__copy_groups(s)) {
        int32_t next = (self + 1) % n;
        return has_step(all[rank_of_member(s, rank, next)].copy, step) ? next : -1;
    }
    for (int32_t k = 0; k < n; k++)
        if (has_step(all[rank_of_member(s, rank, k)].own, step))
            return k;
    return -1;
}

int32_t tess__image_giver(const tess__setup *s, const tess__holding *all, int32_t rank, int64_t step) {
    int32_t member = find_giver(s, all, rank, step);
    return member < 0 ? -1 : rank_of_member(s, rank, member);
}

static int32_t first_without(const tess__setup *s, const tess__holding *all, int64_t step) {
    for (int32_t r = 0; r < s->nranks; r++)
        if (find_giver(s, all, r, step) < 0)
            return r;
    return -1;
}

int64_t tess__image_newest(const tess__setup *s, const tess__holding *all, int32_t *torn) {
    int64_t best = -1, newest = -1;
    for (int32_t r = 0; r < s->nranks; r++)
        for (int k = 0; k < 2; k++) {
            int64_t step = all[r].own[k];
            newest = step > newest ? step : newest;
            if (step > best && first_without(s, all, step) < 0)
                best = step;
        }
    *torn = newest < 0 ? 0 : first_without(s, all, newest);
    return best;
}

/* Gives every member its image that lacks it. Images of replicas are all the same, so sending one is enough. */
static tess_status give_back(tess *t, const tess__holding *all, int64_t step) {
    const tess__setup *u = &t->plan.setup;
    image_group c = image_group_of(t);
    tess__mirror *m = &t->mirror;
    int copies = c.which == TESS__COPY, sent = 0;
    uint64_t before = t->comms.n_collectives;
    for (int32_t k = 0; k < c.n; k++) {
        int32_t rank = rank_of_member(u, t->comms.world.rank, k), from = find_giver(u, all, rank, step);
        if (from == k || (sent && !copies))
            continue;
        int lacks = !has_step(m->own, step) && (k == c.self || !copies);
        const int64_t *held = copies ? m->copy : m->own;
        TRY(pass_around(t, &c, from, from == c.self ? tess__image_at(t, copies, tess__image_slot(held, step)) : NULL,
                        lacks ? tess__image_at(t, 0, 0) : NULL));
        if (lacks)
            m->own[0] = step;
        sent = 1;
    }
    skip_numbers(t, before);
    return TESS_OK;
}

tess_status tess__image_gone(tess *t, int32_t rank) {
    t->mirror.gone = 1;
    return tess__fail(TESS_E_PEER, "no image is left of rank %d's shard: it was lost with the rank that kept its copy",
                      rank);
}

tess_status tess__mirror_restore(tess *t, int64_t *step) {
    tess__mirror *m = &t->mirror;
    int32_t torn = -1;
    tess__images_check(t);
    tess__holding mine = { { m->own[0], m->own[1] }, { m->copy[0], m->copy[1] } };
    tess__holding *all = calloc((size_t)t->comms.world.nranks, sizeof *all);
    if (!all)
        return tess__fail(TESS_E_NOMEM, "no memory to compare %d ranks", t->comms.world.nranks);
    tess_status s = tess__comms_exchange(&t->comms, "tess_recover", &mine, sizeof mine, all);
    *step = s ? -1 : tess__image_newest(&t->plan.setup, all, &torn);
    if (!s && *step < 0)
        s = tess__image_gone(t, torn);
    if (!s)
        s = give_back(t, all, *step);
    free(all);
    if (s)
        return s;
    int slot = tess__image_slot(m->own, *step);
    m->slot = !slot; /* the next ones must not write over it */
    return copy_image(t, tess__image_at(t, 0, slot), load_part);
}
