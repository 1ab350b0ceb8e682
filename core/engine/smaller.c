/* SPDX-License-Identifier: BSD-3-Clause */
/* A group that lost ranks and gets nobody in their place goes on with fewer. A step keeps its microbatches. Each rank
 * carries what it holds of the old group's images over to the plan of the smaller one, where shards are cut anew. */
#include "fewer.h"

#include "base/log.h"
#include "base/options.h"
#include "base/status.h"
#include "values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is carried over ------------------------------------------------------------------------------ */

typedef struct { /* what a rank says of itself */
    tess__holding holding;
    int32_t rank;
} said;

static said say_of(const tess *t) {
    const tess__mirror *m = &t->mirror;
    const tess__carry *c = m->carry;
    if (!c)
        return (said){ { { m->own[0], m->own[1] }, { m->copy[0], m->copy[1] } }, m->rank };
    int64_t own = c->has_own ? c->step : -1, copy = c->has_copy ? c->step : -1;
    return (said){ { { own, -1 }, { copy, -1 } }, c->rank };
}

/* All ranks' holdings, by their numbers in the group that the images are of. */
static tess_status gather_holdings(tess *t, int32_t then, int32_t *now, tess__holding *holding) {
    int32_t n = t->comms.world.nranks;
    said mine = say_of(t), *all = calloc((size_t)n, sizeof *all);
    if (!all)
        return tess__fail(TESS_E_NOMEM, "no memory to compare %d ranks", n);
    for (int32_t r = 0; r < then; r++) {
        now[r] = -1;
        holding[r] = (tess__holding){ { -1, -1 }, { -1, -1 } };
    }
    tess_status s = tess__comms_exchange(&t->comms, "tess_recover", &mine, sizeof mine, all);
    for (int32_t r = 0; !s && r < n; r++) {
        if (all[r].rank < 0 || all[r].rank >= then)
            s = tess__fail(TESS_E_INTERNAL, "rank %d says that it was rank %d of %d", r, all[r].rank, then);
        else {
            now[all[r].rank] = r;
            holding[all[r].rank] = all[r].holding;
        }
    }
    free(all);
    return s;
}

static tess_status take_images(tess *t, tess__carry *c) {
    const tess__mirror *m = &t->mirror;
    uint64_t bytes = tess__image_bytes(&t->plan.setup, &t->plan.layout);
    TRY(tess__memory_beside(&t->memory, tess__carried_bytes(&t->plan), &c->memory));
    uint32_t from = tess__image_mem(t);
    c->has_own = m->own[0] == c->step || m->own[1] == c->step;
    c->has_copy = tess__copy_groups(&t->plan.setup) && (m->copy[0] == c->step || m->copy[1] == c->step);
    if (c->has_own)
        TRY(tess__copy_now(t, c->memory.ptr, c->memory.mem, tess__image_at(t, 0, tess__image_slot(m->own, c->step)),
                           from, bytes));
    if (c->has_copy)
        TRY(tess__copy_now(t, (char *)c->memory.ptr + bytes, c->memory.mem,
                           tess__image_at(t, 1, tess__image_slot(m->copy, c->step)), from, bytes));
    return TESS_OK;
}

/* The newest step of which every image of the old group is left, and what this rank holds of it. */
static tess_status pack_images(tess *t) {
    int32_t then = t->plan.setup.nranks, torn = -1;
    tess__carry *c = calloc(1, sizeof *c);
    if (!c)
        return tess__fail(TESS_E_NOMEM, "no memory to go on with fewer ranks");
    c->now = calloc((size_t)then, sizeof *c->now);
    c->holding = calloc((size_t)then, sizeof *c->holding);
    c->rank = t->mirror.rank;
    tess_status s = c->now && c->holding ? gather_holdings(t, then, c->now, c->holding)
                                         : tess__fail(TESS_E_NOMEM, "no memory to compare %d ranks", then);
    if (!s && (c->step = tess__image_newest(&t->plan.setup, c->holding, &torn)) < 0)
        s = tess__image_gone(t, torn);
    if (!s)
        s = take_images(t, c);
    if (s) {
        tess__carry_free(t, c);
        return s;
    }
    t->mirror.carry = c;
    c->plan = t->plan; /* which is in use until it is replaced */
    return TESS_OK;
}

/* Another was lost on the way: what is carried is still the old group's. */
static tess_status pack_again(tess *t) {
    tess__carry *c = t->mirror.carry;
    int32_t torn = -1;
    TRY(gather_holdings(t, c->plan.setup.nranks, c->now, c->holding));
    return tess__image_newest(&c->plan.setup, c->holding, &torn) == c->step ? TESS_OK : tess__image_gone(t, torn);
}

/* ---- the new plan -------------------------------------------------------------------------------------- */

/* The greatest of what this plan has obtained and what is carried beside it. */
static void note_peaks(tess *t) {
    uint64_t carried = t->mirror.carry->memory.bytes;
    for (uint32_t d = 1; d < 3; d++) {
        uint64_t bytes = tess__planned_bytes(&t->plan, d) + (d == TESS_DOMAIN_HOST ? carried : 0);
        if (bytes > t->mirror.planned_peak[d])
            t->mirror.planned_peak[d] = bytes;
    }
}

static void drop_tables(tess *t) {
    tess__memory_drop(&t->memory);
    free(t->transfers.in_flight);
    free(t->pass.entered);
    free(t->pass.begun);
    free(t->pass.block_params);
    free(t->pass.block_grads);
    free(t->step.segments);
    free(t->step.first_segment);
    free(t->step.segment_group);
    t->transfers.in_flight = NULL;
    t->pass.entered = t->pass.begun = NULL;
    t->pass.block_params = t->pass.block_grads = NULL;
    t->step.segments = NULL;
    t->step.first_segment = t->step.segment_group = NULL;
    tess__program_free(&t->pass.deviating_program);
}

/* The declarations go on; the parameters' places are the layout's, and each plan has its own. */
static tess_status replan_group(tess *t, const tess__plan *of) {
    tess__plan undone = t->plan;
    tess_status s = tess__plan_try(of, &t->plan);
    if (s) /* nothing of the old one is left in two hands */
        t->plan = (tess__plan){ .setup = of->setup };
    if (undone.layout.units != of->layout.units)
        tess__plan_drop(&undone);
    TRY(s);
    TRY(tess__fewer_set(&t->plan.setup, t->comms.world.nranks));
    return tess__plan_remake(&t->plan);
}

static void say_accum(tess *t) {
    t->settings.accum_text[0] = 0;
    if (t->plan.setup.accum > 1)
        snprintf(t->settings.accum_text, sizeof t->settings.accum_text, " (%d rank%s on)", t->plan.setup.nranks,
                 t->plan.setup.nranks == 1 ? " goes" : "s go");
}

static tess_status build_group(tess *t) {
    int kept = t->recorder.last_points != NULL;
    free(t->recorder.last_points);
    t->recorder.last_points = NULL;
    TRY(tess__comms_create(&t->comms, &t->plan.setup));
    TRY(tess__handshake_programs(t, t->plan.programs, TESS__N_PROGRAMS));
    TRY(tess__make_segments(t));
    TRY(tess__memory_obtain(&t->memory, tess__device_index(t)));
    TRY(tess__memory_share(&t->memory));
    note_peaks(t);
    TRY(tess__guard_create(t, &t->pass.guard));
    TRY(tess__moves_start(t));
    return kept ? tess_ledger_keep(t) : TESS_OK;
}

/* Where another was lost on the way, and one rank has come to its end: then all have images of the group that formed.
 */
static tess_status settle_images(tess *t) {
    int32_t n = t->comms.world.nranks;
    char mine = t->mirror.carry != NULL, *all = calloc((size_t)n, 1);
    if (!all)
        return tess__fail(TESS_E_NOMEM, "no memory to compare %d ranks", n);
    tess_status s = tess__comms_exchange(&t->comms, "tess_recover", &mine, 1, all);
    if (!s && mine && memchr(all, 0, (size_t)n)) {
        t->mirror.rank = t->mirror.carry->next;
        tess__fewer_end(t);
    }
    free(all);
    return s;
}

tess_status tess__smaller_join(tess *t) {
    TRY(settle_images(t));
    if (t->mirror.carry)
        TRY(pack_again(t));
    else {
        TRY(pack_images(t));
        note_peaks(t);
    }
    t->mirror.carry->next = t->comms.world.rank;
    drop_tables(t);
    tess__mirror_reset(&t->mirror);
    const tess__given *before = tess__given_use(&t->settings.given);
    tess_status s = replan_group(t, &t->mirror.carry->plan);
    tess__given_use(before);
    if (s)
        return s;
    say_accum(t);
    TRY(tess__make_tables(t)); /* before anything that waits for others: there must be some when one of them is lost */
    return build_group(t);
}

/* ---- shards cut anew ----------------------------------------------------------------------------------- */

typedef struct {
    tess *t;
    int32_t rank; /* whose image it is, by its number then */
    uint64_t done, bytes;
    const char *piece; /* bytes [done, done + bytes) of the image */
    uint32_t mem;
} cutting;

/* Elements [from, from + n) of a parameter or of a state of it, as far as they belong to this rank now. */
static tess_status place_elements(const cutting *c, uint32_t of, int32_t param, uint64_t from, uint64_t n,
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

/* The elements from `first` on of a group's old shard, which lie at `at`. */
static tess_status cut_group(const cutting *c, const tess__image_part *p, uint64_t first, uint64_t n, const char *at) {
    const tess__plan *then = &c->t->mirror.carry->plan;
    const tess__group *g = &then->layout.groups[p->index];
    uint32_t of = p->role == TESS__MASTER ? TESS_OF_PARAM : TESS_OF_MOMENT1 + (uint32_t)(p->role - TESS__STATE0);
    uint64_t bytes = p->role == TESS__MASTER ? tess_dtype_bytes(g->master) : 4;
    uint64_t begin = (uint64_t)(c->rank % then->setup.shard_ranks) * g->shard_elems + first, end = begin + n;
    for (int32_t i = 0; i < g->n_params; i++) {
        int32_t index = then->layout.order[g->first_param + i];
        const tess__param *x = &then->model.params[index];
        uint64_t from = x->offset > begin ? x->offset : begin;
        uint64_t to = x->offset + x->elems < end ? x->offset + x->elems : end;
        if (from < to)
            TRY(place_elements(c, of, index, from - x->offset, to - from, at + (from - begin) * bytes));
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
    const tess__group *g = &c->t->mirror.carry->plan.layout.groups[p->index];
    uint64_t bytes = p->role == TESS__MASTER ? tess_dtype_bytes(g->master) : 4;
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

/* The image of `rank`'s shard, from who has it to all. */
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
    for (int32_t r = 0; r < c->plan.setup.shard_ranks; r++) /* replicas of a shard have the same */
        TRY(share_image(t, r));
    *step = c->step;
    return TESS_OK;
}

/* Only when all have images of the new group are those of the old one let go. */
tess_status tess__smaller_finish(tess *t) {
    char mine = 0, *all = calloc((size_t)t->comms.world.nranks, 1);
    if (!all)
        return tess__fail(TESS_E_NOMEM, "no memory to compare %d ranks", t->comms.world.nranks);
    tess_status s = tess__comms_exchange(&t->comms, "the end of tess_recover", &mine, 1, all);
    free(all);
    if (s)
        return s;
    tess__fewer_end(t);
    t->mirror.rank = t->comms.world.rank;
    if (t->comms.world.rank == 0)
        tess__log(TESS_LOG_INFO, "%d rank%s on, each with %d microbatch%s per step", t->plan.setup.nranks,
                  t->plan.setup.nranks == 1 ? " goes" : "s go", t->plan.setup.accum,
                  t->plan.setup.accum == 1 ? "" : "es");
    return TESS_OK;
}
