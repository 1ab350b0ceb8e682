/* SPDX-License-Identifier: BSD-3-Clause */
/* With how many ranks a group could go on, should it lose one: the plan that it would have is made. */
#ifndef TESS_FITS_H
#define TESS_FITS_H
#include "plan/plan.h"

/** The setup of the same run with so many ranks: a step keeps its microbatches. TESS_E_INVALID when they do not divide.
 */
tess_status tess__fits_set(tess__setup *, int32_t nranks);
/** Bytes of the images that a rank carries over at the most. */
uint64_t tess__fits_carried(const tess__plan *);
/** Tells the launcher with how many ranks the group could go on. */
tess_status tess__fits_announce(tess *);
#endif
