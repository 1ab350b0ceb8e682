/* SPDX-License-Identifier: BSD-3-Clause */
/* When ranks call different things, each says of itself where it is, and the message names both sides. */
#ifndef TESS_CLAIMS_H
#define TESS_CLAIMS_H
#include "comms.h"

typedef struct { /* the call that a rank is in, and the one before it that all must have made alike */
    char what[224], after[192];
} tess__claim;

typedef struct { /* a claim, and the collectives that the rank posted before it */
    tess__claim now;
    uint64_t posted;
    uint64_t tags[TESS__RECENT_TAGS];
    char what[TESS__RECENT_TAGS][TESS__POSTED_TEXT];
} tess__history;

tess__claim tess__claim_of(const tess__comms *, const char *what);
tess__history tess__history_of(const tess__comms *, const char *what);
/** Fails with TESS_E_MISMATCH, naming both sides. Makes what the peer sent safe to read. */
tess_status tess__claims_differ(const tess__comms *, const tess__claim *mine, int32_t peer, tess__claim *theirs);
/** Fails in the same way, naming the first posted collectives that differ. Ranks are ahead of their collectives and
 * may hear of a mismatch late. */
tess_status tess__histories_differ(const tess__comms *, tess__history *mine, int32_t peer, tess__history *theirs);
#endif
