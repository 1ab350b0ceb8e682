/* SPDX-License-Identifier: BSD-3-Clause */
#include "places.h"

#include "base/status.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ENGINES = 16, MOST_MEMBERS = 1024, OF_ALL = -1 };
typedef struct { /* where a rank waits, and how far each engine of its process has come */
    uint32_t engine, n_engines, opened;
    uint32_t in_exchange;
    uint64_t number; /* of the collective or exchange, in its engine */
    struct {
        uint32_t engine;
        uint64_t posted, exchanges;
    } engines[MOST_ENGINES];
    char what[160], of[96];
    int32_t n_members; /* for whom it waits; OF_ALL, or 0: they are too many to look at */
    int32_t members[MOST_MEMBERS];
} place;

/* ---- said ---- */

static void add_engine(void *ctx, uint32_t engine, void *user) {
    const tess__comms *c = user;
    place *p = ctx;
    if (p->n_engines < MOST_ENGINES) {
        p->engines[p->n_engines].engine = engine;
        p->engines[p->n_engines].posted = c->n_collectives;
        p->engines[p->n_engines].exchanges = c->exchange_count;
    }
    p->n_engines++;
}

static void begin_place(const tess__comms *c, uint64_t number, const char *what, place *p) {
    memset(p, 0, offsetof(place, members));
    p->engine = c->seat.engine;
    p->number = number;
    p->opened = tess__control_engines();
    snprintf(p->what, sizeof p->what, "%s", what);
    snprintf(p->of, sizeof p->of, "%s", c->title);
    tess__control_each_seat(add_engine, p);
}

static void set_members(const tess__comms *c, int which, place *p) {
    int32_t n = tess__comms_size(c, which);
    p->n_members = n == c->world.nranks && !c->members ? OF_ALL : n <= MOST_MEMBERS ? n : 0;
    for (int32_t i = 0; i < p->n_members; i++)
        p->members[i] = tess__comms_rank(c, tess__comms_member(c, which, i));
}

static void place_key(int32_t rank, char key[32]) {
    snprintf(key, 32, "place/%d", rank);
}

static void count_engine(void *ctx, uint32_t engine, void *user) {
    (void)engine, (void)user;
    ++*(uint32_t *)ctx;
}

/* One engine of all ranks needs none of this. */
static int matters(const tess__comms *c) {
    uint32_t n = 0;
    if (!c->control)
        return 0;
    tess__control_each_seat(count_engine, &n);
    return n > 1 || c->members;
}

static tess_status say(const tess__comms *c, const place *p) {
    char key[32];
    place_key(tess__comms_rank(c, c->world.rank), key);
    uint64_t bytes = offsetof(place, members) + 4 * (uint64_t)(p->n_members > 0 ? p->n_members : 0);
    return tess__control_set(c->control, key, p, bytes);
}

tess_status tess__places_enter_exchange(const tess__comms *c, const char *what) {
    if (!matters(c))
        return TESS_OK;
    place *here = malloc(sizeof *here);
    if (!here)
        return tess__fail(TESS_E_NOMEM, "no memory to say where this rank waits");
    begin_place(c, c->exchange_count - 1, what, here);
    here->in_exchange = 1;
    set_members(c, TESS__WORLD, here);
    tess_status s = say(c, here);
    free(here);
    return s;
}

/* ---- compared ---- */

typedef struct {
    const tess__comms *c;
    int32_t n;            /* ranks of the process's world */
    place **said;         /* by rank; null: not looked at, or it said nothing */
    char *looked, *waits; /* waits: for one that waits */
} search;

/* Tells whether the rank of `p` has not yet come to where `other` waits. */
static int is_before(const place *p, const place *other) {
    for (uint32_t i = 0; i < p->n_engines && i < MOST_ENGINES; i++)
        if (p->engines[i].engine == other->engine)
            return (other->in_exchange ? p->engines[i].exchanges : p->engines[i].posted) <= other->number;
    return other->engine > p->opened;
}

static int is_sound(const search *s, place *p, uint64_t bytes) {
    if (bytes < offsetof(place, members) || p->n_members < OF_ALL || p->n_members > MOST_MEMBERS ||
        bytes < offsetof(place, members) + 4 * (uint64_t)(p->n_members > 0 ? p->n_members : 0))
        return 0;
    p->what[sizeof p->what - 1] = p->of[sizeof p->of - 1] = 0;
    for (int32_t i = 0; i < p->n_members; i++)
        if (p->members[i] < 0 || p->members[i] >= s->n)
            return 0;
    return 1;
}

static void look_at(search *s, int32_t rank) {
    char key[32];
    place *p = s->looked[rank] ? NULL : malloc(sizeof *p);
    s->looked[rank] = 1;
    if (!p)
        return;
    uint64_t bytes = sizeof *p;
    place_key(rank, key);
    if (tess__control_get(s->c->control, key, p, &bytes, INT64_C(100000000)) == TESS_OK && is_sound(s, p, bytes))
        s->said[rank] = p;
    else
        free(p);
}

/* The i-th rank for which `p` waits, -1: no more. */
static int32_t waits_for(const search *s, const place *p, int32_t i) {
    if (p->n_members == OF_ALL)
        return i < s->n ? i : -1;
    return i < p->n_members ? p->members[i] : -1;
}

/* The next rank of a circle behind `rank`: it waits for one that has not come and waits itself. -1: none. */
static int32_t next_of(const search *s, int32_t rank) {
    const place *p = s->said[rank];
    for (int32_t i = 0, r; (r = waits_for(s, p, i)) >= 0; i++)
        if (r != rank && s->said[r] && s->waits[r] && is_before(s->said[r], p))
            return r;
    return -1;
}

/* Looks at the ranks for which this one waits, and for which those do. */
static void look_around(search *s, int32_t self) {
    int32_t *queue = calloc((size_t)s->n, sizeof *queue), n = 0;
    if (!queue)
        return;
    queue[n++] = self;
    for (int32_t at = 0; at < n; at++) {
        const place *p = s->said[queue[at]];
        for (int32_t i = 0, r; (r = waits_for(s, p, i)) >= 0; i++) {
            int seen = s->looked[r];
            look_at(s, r);
            if (!seen && s->said[r])
                queue[n++] = r;
        }
    }
    free(queue);
}

/* Leaves marked those that wait in a circle, or for such. What a rank said of itself may be old. But the first of a
 * circle to leave its wait would need the next one to have left before. */
static void mark_circular(search *s) {
    for (int32_t r = 0; r < s->n; r++)
        s->waits[r] = s->said[r] != NULL;
    for (int again = 1; again;) {
        again = 0;
        for (int32_t r = 0; r < s->n; r++)
            if (s->waits[r] && next_of(s, r) < 0) {
                s->waits[r] = 0;
                again = 1;
            }
    }
}

/* Names the ranks of a circle, from its lowest on. */
static tess_status name_circle(search *s) {
    char text[700] = "";
    int32_t rank = 0, first, r;
    while (rank < s->n && !s->waits[rank])
        rank++;
    if (rank == s->n)
        return TESS_OK;
    for (int32_t steps = 0; steps < s->n; steps++) /* until certainly within a circle */
        rank = next_of(s, rank);
    for (first = rank, r = next_of(s, rank); r != rank; r = next_of(s, r))
        first = r < first ? r : first;
    rank = first;
    do {
        size_t at = strlen(text);
        snprintf(text + at, sizeof text - at, "%srank %d is in %s of %s", at ? ", " : "", rank, s->said[rank]->what,
                 s->said[rank]->of);
        rank = next_of(s, rank);
    } while (rank != first);
    return tess__fail(TESS_E_MISMATCH, "the ranks use their engines and groups in different orders: %s", text);
}

static tess_status find_circle(const tess__comms *c, place *mine) {
    int32_t n = c->members ? c->all_ranks : c->world.nranks, self = tess__comms_rank(c, c->world.rank);
    search s = { .c = c, .n = n, .said = calloc((size_t)n, sizeof *s.said), .looked = calloc((size_t)n, 2) };
    tess_status status = TESS_OK;
    if (!s.said || !s.looked)
        status = tess__fail(TESS_E_NOMEM, "no memory to compare %d ranks", n);
    if (!status) {
        s.waits = s.looked + n;
        s.said[self] = mine;
        s.looked[self] = 1;
        look_around(&s, self);
        mark_circular(&s);
        status = name_circle(&s);
        s.said[self] = NULL;
    }
    for (int32_t r = 0; s.said && r < n; r++)
        free(s.said[r]);
    free(s.said);
    free(s.looked);
    return status;
}

tess_status tess__places_check(tess__comms *c, int which, uint64_t seq) {
    if (!matters(c))
        return TESS_OK;
    place *mine = malloc(sizeof *mine);
    if (!mine)
        return tess__fail(TESS_E_NOMEM, "no memory to say where this rank waits");
    begin_place(c, seq, tess__comms_activity(c), mine);
    set_members(c, which, mine);
    tess_status s = say(c, mine);
    if (!s)
        s = find_circle(c, mine);
    free(mine);
    return s;
}
