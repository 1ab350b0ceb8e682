/* SPDX-License-Identifier: BSD-3-Clause */
/* A group that lost ranks and gets nobody in their place goes on with fewer. A step keeps its microbatches. Each rank
 * carries the images that it holds of the old group over to the plan of the smaller one. */
#include "smaller.h"

#include "base/options.h"
#include "base/status.h"
#include "fits.h"
#include "image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is carried over ------------------------------------------------------------------------------ */

static void carry_free(tess *t, tess__carry *c) {
    tess__memory_beside_free(&t->memory, &c->memory);
    free(c->now);
    free(c->holding);
    free(c);
}

void tess__smaller_end(tess *t) {
    tess__carry *c = t->mirror.carry;
    if (!c)
        return;
    t->mirror.carry = NULL;
    tess__plan_drop(&c->plan);
    carry_free(t, c);
}

typedef struct { /* what a rank tells the others of itself */
    tess__holding holding;
    int32_t rank;
} rank_images;

static rank_images images_of(const tess *t) {
    const tess__mirror *m = &t->mirror;
    const tess__carry *c = m->carry;
    if (!c)
        return (rank_images){ { { m->own[0], m->own[1] }, { m->copy[0], m->copy[1] } }, m->rank };
    int64_t own = c->has_own ? c->step : -1, copy = c->has_copy ? c->step : -1;
    return (rank_images){ { { own, -1 }, { copy, -1 } }, c->rank };
}

/* Gathers which images all ranks hold, by their numbers in the group that the images are of. */
static tess_status gather_holdings(tess *t, int32_t then, int32_t *now, tess__holding *holding) {
    int32_t n = t->comms.world.nranks;
    rank_images mine = images_of(t), *all = calloc((size_t)n, sizeof *all);
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
    TRY(tess__memory_beside(&t->memory, tess__fits_carried(&t->plan), &c->memory));
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

/* Packs what this rank holds of the newest step of which every image of the old group is left. */
static tess_status pack_images(tess *t) {
    int32_t then = t->plan.setup.nranks, torn;
    tess__carry *c = calloc(1, sizeof *c);
    if (!c)
        return tess__fail(TESS_E_NOMEM, "no memory to go on with fewer ranks");
    c->now = calloc((size_t)then, sizeof *c->now);
    c->holding = calloc((size_t)then, sizeof *c->holding);
    c->rank = t->mirror.rank;
    tess__images_check(t);
    tess_status s = c->now && c->holding ? gather_holdings(t, then, c->now, c->holding)
                                         : tess__fail(TESS_E_NOMEM, "no memory to compare %d ranks", then);
    if (!s && (c->step = tess__image_newest(&t->plan.setup, c->holding, &torn)) < 0)
        s = tess__image_gone(t, torn);
    if (!s)
        s = take_images(t, c);
    if (s) {
        carry_free(t, c);
        return s;
    }
    t->mirror.carry = c;
    c->plan = t->plan; /* the engine uses it until it is replaced */
    return TESS_OK;
}

/* Packs again when another rank was lost on the way: what is carried is still the old group's. */
static tess_status pack_again(tess *t) {
    tess__carry *c = t->mirror.carry;
    int32_t torn;
    TRY(gather_holdings(t, c->plan.setup.nranks, c->now, c->holding));
    return tess__image_newest(&c->plan.setup, c->holding, &torn) == c->step ? TESS_OK : tess__image_gone(t, torn);
}

/* ---- the new plan -------------------------------------------------------------------------------------- */

/* Keeps the greatest of what this plan has obtained and what is carried beside it. */
static void note_peaks(tess *t) {
    uint64_t carried = t->mirror.carry->memory.bytes;
    for (uint32_t d = 1; d < TESS__DOMAINS; d++) {
        uint64_t bytes = tess__planned_bytes(&t->plan, d) + (d == TESS_DOMAIN_HOST ? carried : 0);
        if (bytes > t->mirror.planned_peak[d])
            t->mirror.planned_peak[d] = bytes;
    }
}

/* Plans for the new group. The declarations stay, but parameters have their places from the layout, and each plan
 * has its own. */
static tess_status replan_group(tess *t, const tess__plan *of) {
    tess__plan undone = t->plan;
    tess_status s = tess__plan_try(of, &t->plan);
    if (s) /* so that nothing of the old plan has two owners */
        t->plan = (tess__plan){ .setup = of->setup };
    if (undone.layout.units != of->layout.units)
        tess__plan_drop(&undone);
    TRY(s);
    TRY(tess__fits_set(&t->plan.setup, t->comms.world.nranks));
    return tess__plan_remake(&t->plan);
}

/* Fewer ranks have more microbatches each, so there is always something to say. */
static void say_accum(tess *t) {
    snprintf(t->settings.accum_text, sizeof t->settings.accum_text, " (%d rank%s on)", t->plan.setup.nranks,
             t->plan.setup.nranks == 1 ? " goes" : "s go");
}

static tess_status build_group(tess *t) {
    TRY(tess__comms_create(&t->comms, &t->plan.setup));
    TRY(tess__handshake_programs(t, t->plan.programs, TESS__N_PROGRAMS));
    TRY(tess__segments_make(&t->step, &t->plan, t->comms.shard_rank));
    TRY(tess__memory_obtain(&t->memory, tess__device_index(t)));
    TRY(tess__memory_share(&t->memory));
    note_peaks(t);
    TRY(tess__guard_create(t, &t->pass.guard));
    return tess__transfers_start(t, tess__device_index(t));
}

/* Settles which images count if another rank was lost on the way and one rank has finished already. Then all have
 * images of the group that formed. */
static tess_status settle_images(tess *t) {
    int32_t n = t->comms.world.nranks;
    char mine = t->mirror.carry != NULL, *all = calloc((size_t)n, 1);
    if (!all)
        return tess__fail(TESS_E_NOMEM, "no memory to compare %d ranks", n);
    tess_status s = tess__comms_exchange(&t->comms, "tess_recover", &mine, 1, all);
    if (!s && mine && memchr(all, 0, (size_t)n)) {
        t->mirror.rank = t->mirror.carry->next;
        tess__smaller_end(t);
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
    tess__memory_drop(&t->memory);
    tess__tables_destroy(t);
    tess__mirror_reset(&t->mirror);
    const tess__given *before = tess__given_use(&t->settings.given);
    tess_status s = replan_group(t, &t->mirror.carry->plan);
    tess__given_use(before);
    TRY(s);
    say_accum(t);
    TRY(tess__tables_create(t)); /* first, because there must be tables when a rank is lost in what follows */
    return build_group(t);
}
