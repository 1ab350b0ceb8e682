/* SPDX-License-Identifier: BSD-3-Clause */
/* A group goes on with fewer ranks: the images that a rank carries over, the new plan, the shards cut anew. */
#ifndef TESS_SMALLER_H
#define TESS_SMALLER_H
#include "mirror.h"

typedef struct tess__carry {
    tess__plan plan;        /* the plan of the group that the images are of */
    tess_buffer memory;     /* this rank's image, then that which it keeps for another */
    int32_t rank, next;     /* this rank's number in that group, and in the one that forms */
    int has_own, has_copy;  /* of `step` */
    int64_t step;           /* to go back to */
    int32_t *now;           /* by number in the old group: the number now; -1: lost */
    tess__holding *holding; /* by number in the old group: what each has of `step` */
} tess__carry;

/** [C] Plans, obtains memory and connects for a group that formed anew with fewer ranks. TESS_E_PEER: no image of a
 * shard is left. */
tess_status tess__smaller_join(tess *);
/** recut.c: [C] Takes all ranks back to the newest images of the group before. */
tess_status tess__smaller_restore(tess *, int64_t *step);
tess_status tess__smaller_finish(tess *); /* [C] there are images of this group now */
void tess__smaller_end(tess *);           /* what is carried over goes; nothing without it */
#endif
