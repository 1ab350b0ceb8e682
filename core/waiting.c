/* Ranks that wait for each other in different places. A backend compares what is posted on one communicator; this
 * compares, once a wait has become long, across communicators and with the exchanges of the control plane, so that a
 * call on one rank alone ends as an error. It draws only conclusions that cannot be wrong later: a rank in an exchange
 * that this rank has not come to will post nothing before it, and what was posted as number n stays so. */
#include "engine.h"

#include "status.h"

#include <stdio.h>
#include <string.h>

typedef struct { /* what a rank last said of itself */
    uint64_t posted, exchanges;
    uint64_t tags[TESS__RECENT_TAGS]; /* of the last ones posted, by number modulo */
    uint64_t in_exchange;
    char what[224];
} record;

static void key_of(int32_t rank, char *key, size_t n) {
    snprintf(key, n, "waiting/%d", rank);
}

tess_status tess__waiting_say(tess *t, int in_exchange, const char *what) {
    char key[32];
    record mine = { .posted = t->n_collectives, .exchanges = t->exchange_count, .in_exchange = in_exchange != 0 };
    memcpy(mine.tags, t->recent_tags, sizeof mine.tags);
    snprintf(mine.what, sizeof mine.what, "%s", what);
    key_of(t->world.rank, key, sizeof key);
    return tess__control_set(t->control, key, &mine, sizeof mine);
}

static int cannot_meet(const tess *t, const record *theirs, uint64_t seq) {
    if (theirs->in_exchange && theirs->exchanges > t->exchange_count && theirs->posted <= seq)
        return 1;
    return theirs->posted > seq && theirs->posted - seq <= TESS__RECENT_TAGS &&
           theirs->tags[seq % TESS__RECENT_TAGS] != t->recent_tags[seq % TESS__RECENT_TAGS];
}

tess_status tess__waiting_check(tess *t, uint64_t seq, const char *what) {
    if (!t->control)
        return TESS_OK;
    tess_status s = tess__waiting_say(t, 0, what);
    for (int32_t r = 0; !s && r < t->world.nranks; r++) {
        char key[32];
        record theirs = { .posted = 0 };
        uint64_t bytes = sizeof theirs;
        key_of(r, key, sizeof key);
        if (r == t->world.rank || tess__control_get(t->control, key, &theirs, &bytes, INT64_C(100000000)))
            continue; /* it has not said anything: no conclusion */
        theirs.what[sizeof theirs.what - 1] = 0;
        if (cannot_meet(t, &theirs, seq))
            return tess__fail(TESS_E_MISMATCH, "the ranks call different things: rank %d is in %s, rank %d in %s",
                              t->world.rank, what, r, theirs.what);
    }
    return s;
}
