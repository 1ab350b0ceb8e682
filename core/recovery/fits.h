/* SPDX-License-Identifier: BSD-3-Clause */
/* Finds with how many ranks a group could go on if it lost one, by making the plan that it would have. */
#ifndef TESS_FITS_H
#define TESS_FITS_H
#include "plan/plan.h"

/** Sets up the same run with so many ranks; a step keeps its microbatches. TESS_E_INVALID when the ranks do not
 * divide them. */
tess_status tess__fits_set(tess__setup *, int32_t nranks);
/** The most bytes of images that a rank carries over. */
uint64_t tess__fits_carried(const tess__plan *);
/** Tells the launcher with how many ranks the group could go on. */
tess_status tess__fits_announce(tess *);
#endif
