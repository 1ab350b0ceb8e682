/* SPDX-License-Identifier: BSD-3-Clause */
/* The step of a group whose optimizer needs whole matrices: updates come together on the owners and go back. */
#ifndef TESS_COMPILE_MATRICES_H
#define TESS_COMPILE_MATRICES_H
#include "compile.h"

/** Makes the updates of a group and posts their way to the owners. */
tess_status tess__matrices_begin(tess__compiler *, int32_t group);
/** A group's whole step, with nothing beside it. */
tess_status tess__matrices_alone(tess__compiler *, int32_t group);
/** Three units are under way: the updates of one come together and the results of another go back while the owners work
 * on the one between. Moves all on by one when `begun` is a unit, and ends the one whose results were on their way. */
tess_status tess__matrices_follow(tess__compiler *);
/** Ends all that are under way. */
tess_status tess__matrices_flush(tess__compiler *);
#endif
