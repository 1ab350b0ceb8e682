/* SPDX-License-Identifier: BSD-3-Clause */
#include "claims.h"

#include "base/status.h"

#include <stdio.h>
#include <string.h>

tess__claim tess__claim_of(const tess__comms *c, const char *what) {
    tess__claim claim;
    memset(&claim, 0, sizeof claim);
    snprintf(claim.what, sizeof claim.what, "%s", what);
    snprintf(claim.after, sizeof claim.after, "%s", c->common_text);
    return claim;
}

tess__history tess__history_of(const tess__comms *c, const char *what) {
    tess__history h = { .now = tess__claim_of(c, what), .posted = c->n_collectives };
    memcpy(h.tags, c->recent_tags, sizeof h.tags);
    memcpy(h.what, c->recent_what, sizeof h.what);
    return h;
}

tess_status tess__claims_differ(const tess__comms *c, const tess__claim *mine, int32_t peer, tess__claim *theirs) {
    theirs->what[sizeof theirs->what - 1] = theirs->after[sizeof theirs->after - 1] = 0;
    if (strcmp(mine->what, theirs->what) != 0 || strcmp(mine->after, theirs->after) == 0)
        return tess__fail(TESS_E_MISMATCH, "the ranks call different things: rank %d is in %s, rank %d in %s",
                          tess__comms_rank(c, c->world.rank), mine->what, tess__comms_rank(c, peer), theirs->what);
    return tess__fail(TESS_E_MISMATCH, "the ranks stepped differently before %s: rank %d called %s, rank %d %s",
                      mine->what, tess__comms_rank(c, c->world.rank), mine->after[0] ? mine->after : "no tess_step",
                      tess__comms_rank(c, peer), theirs->after[0] ? theirs->after : "no tess_step");
}

/* Tags of 0 are unknown and never differ. */
static int differ(uint64_t mine, uint64_t theirs) {
    return mine && theirs && mine != theirs;
}

static void take_posted(tess__history *h, uint64_t at) {
    memcpy(h->now.what, h->what[at], TESS__POSTED_TEXT);
    h->now.what[TESS__POSTED_TEXT - 1] = 0;
}

tess_status tess__histories_differ(const tess__comms *c, tess__history *mine, int32_t peer, tess__history *theirs) {
    uint64_t last = mine->posted < theirs->posted ? mine->posted : theirs->posted,
             most = mine->posted > theirs->posted ? mine->posted : theirs->posted;
    uint64_t first = most > TESS__RECENT_TAGS ? most - TESS__RECENT_TAGS : 0, seq = first;
    while (seq < last && !differ(mine->tags[seq % TESS__RECENT_TAGS], theirs->tags[seq % TESS__RECENT_TAGS]))
        seq++;
    if (seq < last && (seq > first || first == 0)) { /* otherwise the first that differs is too old to be known */
        take_posted(mine, seq % TESS__RECENT_TAGS);
        take_posted(theirs, seq % TESS__RECENT_TAGS);
    }
    return tess__claims_differ(c, &mine->now, peer, &theirs->now);
}
