/* SPDX-License-Identifier: BSD-3-Clause */
/* Cuts shards anew for a smaller group: every image of the old group goes to all, and each rank takes its own part. */
#include "smaller.h"

#include "base/log.h"
#include "base/status.h"
#include "engine/values.h"

#include <stdlib.h>

typedef struct {
    tess *t;
    int32_t rank; /* whose image it is, by its number in the old group */
    uint64_t done, bytes;
    const char *piece; /* bytes [done, done + bytes) of the image */
    uint32_t mem;
} cutting;

/* Takes values [from, from + n) of a parameter or state, as far as they belong to this rank now. */
static tess_status place_values(const cutting *c, uint32_t of, int32_t param, uint64_t from, uint64_t n,
                                const char *at) {
    tess__owned o = tess__owned_at(c->t, of, param);
    uint64_t first = o.piece.in_param > from ? o.piece.in_param : from;
    uint64_t end = o.piece.in_param + o.piece.elems < from + n ? o.piece.in_param + o.piece.elems : from + n;
    uint32_t bytes = tess_dtype_bytes(o.dtype);
    if (!o.piece.elems || first >= end)
        return TESS_OK;
    return tess__copy_now(c->t, o.at + (first - o.piece.in_param) * bytes, o.mem, at + (first - from) * bytes, c->mem,
                          (end - first) * bytes);
}

static uint64_t value_bytes(const tess__group *g, const tess__image_part *p) {
    return tess_dtype_bytes(p->role == TESS__MASTER ? g->master : g->step.state[p->role - TESS__STATE0].dtype);
}

/* Takes the values from `first` on of a group's old shard, which lie at `at`. */
static tess_status cut_group(const cutting *c, const tess__image_part *p, uint64_t first, uint64_t n, const char *at) {
    const tess__plan *then = &c->t->mirror.carry->plan;
    const tess__group *g = &then->layout.groups[p->index];
    uint32_t of = p->role == TESS__MASTER ? TESS_OF_PARAM : TESS_OF_MOMENT1 + (uint32_t)(p->role - TESS__STATE0);
    uint64_t bytes = value_bytes(g, p),
             every = p->role == TESS__MASTER ? 1 : g->step.state[p->role - TESS__STATE0].every;
    uint64_t begin = (uint64_t)(c->rank % then->setup.shard_ranks) * g->shard_elems + first * every;
    uint64_t end = begin + n * every;
    for (int32_t i = 0; i < g->n_params; i++) {
        int32_t index = then->layout.order[g->first_param + i];
        const tess__param *x = &then->model.params[index];
        uint64_t from = x->offset > begin ? x->offset : begin;
        uint64_t to = x->offset + x->elems < end ? x->offset + x->elems : end;
        if (from < to)
            TRY(place_values(c, of, index, (from - x->offset) / every, tess__values_of(to - from, (uint32_t)every),
                             at + (from - begin) / every * bytes));
    }
    return TESS_OK;
}

static tess_status cut_part(void *user, const tess__image_part *p) {
    const cutting *c = user;
    uint64_t from = p->at > c->done ? p->at : c->done;
    uint64_t to = p->at + p->bytes < c->done + c->bytes ? p->at + p->bytes : c->done + c->bytes;
    if (from >= to)
        return TESS_OK;
    const char *at = c->piece + (from - c->done);
    if (p->role == TESS__BUFFERS) /* running statistics are those of rank 0, as in an evaluation */
        return c->rank ? TESS_OK
                       : tess__copy_now(c->t, (char *)tess__address_of(c->t, TESS__BUFFERS, 0) + (from - p->at),
                                        c->t->plan.setup.env.mem, at, c->mem, to - from);
    if (p->role == TESS__COMMON)
        return c->rank ? TESS_OK
                       : tess__copy_now(c->t, (char *)c->t->settings.options.common + (from - p->at), TESS_MEM_HOST, at,
                                        c->mem, to - from);
    const tess__group *g = &c->t->mirror.carry->plan.layout.groups[p->index];
    uint64_t bytes = value_bytes(g, p);
    return cut_group(c, p, (from - p->at) / bytes, (to - from) / bytes, at);
}

static tess_status take_piece(void *user, uint64_t done, const char *piece, uint32_t mem, uint64_t bytes) {
    cutting *c = user;
    const tess__plan *then = &c->t->mirror.carry->plan;
    c->done = done;
    c->bytes = bytes;
    c->piece = piece;
    c->mem = mem;
    return tess__image_each(&then->setup, &then->layout, cut_part, c);
}

/* Sends the image of `rank`'s shard from a rank that has it to all. */
static tess_status share_image(tess *t, int32_t rank) {
    const tess__carry *k = t->mirror.carry;
    int32_t giver = tess__image_giver(&k->plan.setup, k->holding, rank, k->step);
    uint64_t bytes = tess__image_bytes(&k->plan.setup, &k->plan.layout);
    int is_copy = tess__copy_groups(&k->plan.setup) && giver != rank;
    const char *from = (const char *)k->memory.ptr + (is_copy ? bytes : 0);
    cutting c = { .t = t, .rank = rank };
    if (t->comms.world.nranks == 1)
        return take_piece(&c, 0, from, k->memory.mem, bytes);
    tess__image_sending x = { .which = TESS__WORLD, .self = t->comms.world.rank, .root = k->now[giver], .from = from };
    x.bytes = bytes;
    x.all = 1;
    x.take = take_piece;
    x.user = &c;
    return tess__image_send(t, &x);
}

tess_status tess__smaller_restore(tess *t, int64_t *step) {
    const tess__carry *c = t->mirror.carry;
    for (int32_t r = 0; r < c->plan.setup.shard_ranks; r++) /* one of each shard's replicas is enough */
        TRY(share_image(t, r));
    *step = c->step;
    return TESS_OK;
}

/* Frees the old images only when every rank has new ones. */
tess_status tess__smaller_finish(tess *t) {
    char mine = 0, *all = calloc((size_t)t->comms.world.nranks, 1);
    if (!all)
        return tess__fail(TESS_E_NOMEM, "no memory to compare %d ranks", t->comms.world.nranks);
    tess_status s = tess__comms_exchange(&t->comms, "the end of tess_recover", &mine, 1, all);
    free(all);
    TRY(s);
    tess__smaller_end(t);
    t->mirror.rank = t->comms.world.rank;
    if (t->comms.world.rank == 0)
        tess__log(TESS_LOG_INFO, "%d rank%s on, each with %d microbatch%s per step", t->plan.setup.nranks,
                  t->plan.setup.nranks == 1 ? " goes" : "s go", t->plan.setup.accum,
                  t->plan.setup.accum == 1 ? "" : "es");
    if (t->plan.setup.audit_every && t->plan.setup.nranks == 1)
        tess__log(TESS_LOG_WARNING, "one rank is left, and nobody computes its blocks again (TESSERA_AUDIT)");
    return TESS_OK;
}
