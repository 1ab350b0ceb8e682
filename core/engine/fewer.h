/* SPDX-License-Identifier: BSD-3-Clause */
/* Before a group becomes smaller: with how many ranks it could go on, and what a rank carries over of its images. */
#ifndef TESS_FEWER_H
#define TESS_FEWER_H
#include "mirror.h"

typedef struct tess__carry {
    tess__plan plan;        /* of the group that the images are of */
    tess_buffer memory;     /* this rank's image, then that which it keeps for another */
    int32_t rank, next;     /* this rank's number in that group, and in the one that forms */
    int has_own, has_copy;  /* of `step` */
    int64_t step;           /* to go back to */
    int32_t *now;           /* by number then: that of today; -1: lost */
    tess__holding *holding; /* the same: what each has of `step` */
} tess__carry;
void tess__carry_free(tess *, tess__carry *); /* but its plan */

/** The setup of the same run with so many ranks: a step keeps its microbatches. TESS_E_INVALID when they do not divide.
 */
tess_status tess__fewer_set(tess__setup *, int32_t nranks);
/** Bytes of the images that a rank carries at the most. */
uint64_t tess__carried_bytes(const tess__plan *);
#endif
