/* SPDX-License-Identifier: BSD-3-Clause */
#include "deadlock.h"

#include "base/log.h"
#include "base/status.h"
#include "claims.h"

#include <stdio.h>
#include <string.h>

/* ---- ranks that wait for each other in one engine ---- */

typedef struct { /* what a rank last said of itself */
    uint64_t posted, exchanges;
    uint64_t tags[TESS__RECENT_TAGS]; /* of the last ones posted, by number modulo */
    uint64_t in_exchange;
    tess__claim now;
} position;

static tess_status say_waiting(tess__comms *c, int in_exchange, const char *what) {
    char key[32];
    position mine = { .posted = c->n_collectives, .exchanges = c->exchange_count, .in_exchange = in_exchange != 0 };
    memcpy(mine.tags, c->recent_tags, sizeof mine.tags);
    mine.now = tess__claim_of(c, what);
    tess__comms_rank_key(c, "waiting", c->world.rank, key, sizeof key);
    return tess__control_set(c->control, key, &mine, sizeof mine);
}

static int cannot_meet(const tess__comms *c, const position *theirs, uint64_t seq) {
    if (theirs->in_exchange && theirs->exchanges > c->exchange_count && theirs->posted <= seq)
        return 1;
    uint64_t tag = theirs->tags[seq % TESS__RECENT_TAGS]; /* 0: not known */
    return theirs->posted > seq && theirs->posted - seq <= TESS__RECENT_TAGS &&
           c->n_collectives - seq <= TESS__RECENT_TAGS && tag && tag != c->recent_tags[seq % TESS__RECENT_TAGS];
}

/* Ranks that wait say so each second. Of the others this rank knows only that they do not wait. */
static void add_absent(tess__comms *c, int32_t rank) {
    size_t at = strlen(c->absent), room = sizeof c->absent - at;
    if (room > 16)
        snprintf(c->absent + at, room, "%srank %d", at ? ", " : "", rank);
}

static tess_status check_deadlock(tess__comms *c, uint64_t seq, const char *what) {
    tess__claim mine = tess__claim_of(c, what);
    c->absent[0] = 0;
    if (!c->control)
        return TESS_OK;
    tess_status s = say_waiting(c, 0, what);
    for (int32_t r = 0; !s && r < c->world.nranks; r++) {
        char key[32];
        position theirs = { .posted = 0 };
        uint64_t bytes = sizeof theirs;
        tess__comms_rank_key(c, "waiting", r, key, sizeof key);
        if (r == c->world.rank)
            continue;
        int silent = tess__control_get(c->control, key, &theirs, &bytes, INT64_C(100000000)) != TESS_OK;
        if (silent || theirs.posted <= seq)
            add_absent(c, r);
        if (!silent && cannot_meet(c, &theirs, seq))
            return tess__claims_differ(c, &mine, r, &theirs.now);
    }
    return s;
}

/* ---- in different engines ---- */

enum { MOST_ENGINES = 8 };
typedef struct { /* where a rank waits, and how far each engine of its process has come */
    uint32_t engine, n_engines;
    uint32_t in_exchange, of_all; /* of_all: every rank takes part */
    uint64_t number;              /* of the collective or exchange, in its engine */
    struct {
        uint32_t engine;
        uint64_t posted, exchanges;
    } engines[MOST_ENGINES];
    char what[160];
} engine_position;

static void add_engine(void *ctx, uint32_t engine, void *user) {
    const tess__comms *c = user;
    engine_position *p = ctx;
    if (p->n_engines < MOST_ENGINES) {
        p->engines[p->n_engines].engine = engine;
        p->engines[p->n_engines].posted = c->n_collectives;
        p->engines[p->n_engines].exchanges = c->exchange_count;
    }
    p->n_engines++;
}

static engine_position engine_position_of(const tess__comms *c, uint64_t number, const char *what) {
    engine_position p;
    memset(&p, 0, sizeof p);
    p.engine = c->seat.engine;
    p.number = number;
    snprintf(p.what, sizeof p.what, "%s", what);
    tess__control_each_seat(add_engine, &p);
    return p;
}

static tess_status say_engines(const tess__comms *c, const engine_position *p) {
    char key[32];
    snprintf(key, sizeof key, "place/%d", c->world.rank);
    return p->n_engines > 1 ? tess__control_set(c->control, key, p, sizeof *p) : TESS_OK;
}

/* Tells whether the rank of `p` has not yet come to where `other` waits. */
static int is_before(const engine_position *p, const engine_position *other) {
    for (uint32_t i = 0; i < p->n_engines && i < MOST_ENGINES; i++)
        if (p->engines[i].engine == other->engine)
            return (other->in_exchange ? p->engines[i].exchanges : p->engines[i].posted) <= other->number;
    return 0;
}

/* One thread uses all engines of a process. So two ranks that wait in different engines, each for the other, wait for
 * ever. Where not all ranks take part in both, a third might still end one of the waits. */
static tess_status check_engines(tess__comms *c, int which, uint64_t seq) {
    engine_position mine = engine_position_of(c, seq, tess__comms_activity(c));
    mine.of_all = c->list[which] == c->list[TESS__WORLD] ||
                  (which == TESS__SHARD_SUMS && c->list[TESS__SHARD] == c->list[TESS__WORLD]);
    if (!c->control || mine.n_engines < 2)
        return TESS_OK;
    tess_status s = say_engines(c, &mine);
    for (int32_t r = 0; !s && mine.of_all && r < c->world.nranks; r++) {
        char key[32];
        engine_position theirs;
        uint64_t bytes = sizeof theirs;
        snprintf(key, sizeof key, "place/%d", r);
        if (r == c->world.rank || tess__control_get(c->control, key, &theirs, &bytes, INT64_C(100000000)))
            continue;
        theirs.what[sizeof theirs.what - 1] = 0;
        if (theirs.engine != mine.engine && theirs.of_all && is_before(&theirs, &mine) && is_before(&mine, &theirs))
            return tess__fail(TESS_E_MISMATCH,
                              "the ranks use their engines in different orders: rank %d is in %s of engine %u, rank %d "
                              "in %s of engine %u",
                              c->world.rank, mine.what, mine.engine, r, theirs.what, theirs.engine);
    }
    return s;
}

/* ---- for comms.c ---- */

tess_status tess__deadlock_check(tess__comms *c, int which, uint64_t seq) {
    TRY(check_deadlock(c, seq, tess__comms_activity(c)));
    return check_engines(c, which, seq);
}

tess_status tess__deadlock_enter_exchange(tess__comms *c, const char *what) {
    engine_position here = engine_position_of(c, c->exchange_count - 1, what);
    here.in_exchange = here.of_all = 1;
    TRY(say_waiting(c, 1, what));
    return say_engines(c, &here);
}

void tess__deadlock_name_absent(const tess__comms *c) {
    if (c->absent[0])
        tess__log(TESS_LOG_WARNING, "rank %d has waited for 10 s in %s; %s does not wait with it: it computes or hangs",
                  c->world.rank, tess__comms_activity(c), c->absent);
}
