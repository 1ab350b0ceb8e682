/* SPDX-License-Identifier: BSD-3-Clause */
/* Images in host memory: the parts of one, and which rank of a group has which. */
#ifndef TESS_MIRROR_H
#define TESS_MIRROR_H
#include "image.h"

typedef struct { /* steps of the images that a rank has, its own and those that it keeps for another; -1: none */
    int64_t own[2], copy[2];
} tess__holding;
/** The rank that can give the image of `step` of `rank`'s shard; -1: none. `all`: by rank. */
int32_t tess__image_giver(const tess__setup *, const tess__holding *all, int32_t rank, int64_t step);
/** The newest step that every rank can get its image of; -1: none, and `torn` names a rank that cannot. */
int64_t tess__image_newest(const tess__setup *, const tess__holding *all, int32_t *torn);

/** Ends the run with TESS_E_PEER, which all ranks find alike. `rank`: whose shard has no image left. */
tess_status tess__image_gone(tess *, int32_t rank);

/** Which of the two images is of `step`: 0 or 1. */
int tess__image_slot(const int64_t steps[2], int64_t step);

/** [C] Sends `bytes` of `root`'s `from` in pieces of at most TESS__MIRROR_CHUNK. Each piece goes, in memory of the
 * device, to `take` of the others, and of the root with `all`. `tag` tells apart what is sent. */
typedef tess_status (*tess__image_take_fn)(void *user, uint64_t done, const char *piece, uint32_t mem, uint64_t bytes);
typedef struct {
    int which;
    int32_t self, root;
    const char *from;
    uint64_t bytes;
    int all;
    tess__image_take_fn take;
    void *user;
} tess__image_sending;
tess_status tess__image_send(tess *, const tess__image_sending *);

/** Tells whether images of this step are to be taken, before a pass. */
int tess__mirror_is_due(const tess *, uint32_t pass_kind);
/** [C] Takes images of the present state. */
tess_status tess__mirror_take(tess *);
/** [C] Takes all ranks back to the newest step of which every shard is left somewhere. TESS_E_PEER: there is none. */
tess_status tess__mirror_restore(tess *, int64_t *step);
#endif
