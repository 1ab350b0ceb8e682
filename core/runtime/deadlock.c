/* SPDX-License-Identifier: BSD-3-Clause */
#include "deadlock.h"

#include "base/log.h"
#include "base/status.h"
#include "claims.h"
#include "places.h"

#include <stdio.h>
#include <string.h>

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
        snprintf(c->absent + at, room, "%srank %d", at ? ", " : "", tess__comms_rank(c, rank));
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

/* ---- for comms.c ---- */

tess_status tess__deadlock_check(tess__comms *c, int which, uint64_t seq) {
    TRY(check_deadlock(c, seq, tess__comms_activity(c)));
    return tess__places_check(c, which, seq);
}

tess_status tess__deadlock_enter_exchange(tess__comms *c, const char *what) {
    TRY(say_waiting(c, 1, what));
    return tess__places_enter_exchange(c, what);
}

void tess__deadlock_name_absent(const tess__comms *c) {
    if (c->absent[0])
        tess__log(TESS_LOG_WARNING, "rank %d has waited for 10 s in %s; %s does not wait with it: it computes or hangs",
                  tess__comms_rank(c, c->world.rank), tess__comms_activity(c), c->absent);
}
