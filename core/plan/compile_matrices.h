/* SPDX-License-Identifier: BSD-3-Clause */
/* The step of a group whose optimizer needs whole matrices: updates come together on the owners and go back. */
#ifndef TESS_COMPILE_MATRICES_H
#define TESS_COMPILE_MATRICES_H
#include "compile.h"

/** Makes the updates of a group and posts their way to the owners. */
tess_status tess__matrices_begin(tess__compiler *, int32_t group);
/** Lets the owners work, and posts the way back. */
tess_status tess__matrices_work(tess__compiler *, int32_t group);
/** Steps the shard with the results, and releases them and the gradient. */
tess_status tess__matrices_end(tess__compiler *, int32_t group);
#endif
