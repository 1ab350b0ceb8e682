/* SPDX-License-Identifier: BSD-3-Clause */
/* Emits the way of optimizer states that rest in a store, and of parameters and gradients with them. They come to host
 * memory ahead of their group's step, and behind it they go back. So a group's come while the one before is stepped,
 * and go while the next one is. A compiler whose setup gathers nothing ahead moves one group's at a time, which takes
 * the least memory. */
#ifndef TESS_COMPILE_STATES_H
#define TESS_COMPILE_STATES_H
#include "compile.h"

/** The states of the group that a step apart from its passes begins with begin to come. */
tess_status tess__states_begin(tess__compiler *);
/** A group's begin to come, ahead of their step. */
tess_status tess__states_ahead(tess__compiler *, int32_t group);
/** They are there. */
tess_status tess__states_need(tess__compiler *, int32_t group);
/** They begin to go back, and those that went before are there. */
tess_status tess__states_store(tess__compiler *, int32_t group);
/** They begin to go back as soon as the lane has stepped them, whatever the engine's thread does then; and are there.
 */
tess_status tess__states_store_behind(tess__compiler *, int32_t group);
tess_status tess__states_stored(tess__compiler *, int32_t group);
/** Memory for a shard of parameters that comes from the store, for a gather; none where it rests elsewhere. */
tess_status tess__staged_param(tess__compiler *, int32_t group);
/** All are back. */
tess_status tess__states_end(tess__compiler *);

/* A gradient that rests in a store is summed in host memory and goes there. It comes back to be added to, for the norm,
 * and for the step. Where the step is part of the pass, it is stepped where it was summed and goes nowhere. */

/** Memory for it, and for partial sums where microbatches are summed; none where it rests elsewhere. */
tess_status tess__grad_memory(tess__compiler *, int32_t group);
/** It begins to come, ahead of who needs it. */
tess_status tess__grad_ahead(tess__compiler *, int32_t group);
/** It is there. Apart from passes the next one begins to come. */
tess_status tess__grad_need(tess__compiler *, int32_t group);
/** It begins to go, and the one that went before is there. */
tess_status tess__grad_store(tess__compiler *, int32_t group);
/** It begins to go as soon as the lane has summed it. That it has begun is known, and the one before it is there; or it
 * is there itself. */
tess_status tess__grad_store_behind(tess__compiler *, int32_t group);
tess_status tess__grad_going(tess__compiler *, int32_t group);
tess_status tess__grad_stored(tess__compiler *, int32_t group);
/** All have gone. */
tess_status tess__grad_end(tess__compiler *);
/** Nobody needs it: neither that memory, nor where it rests in other places. */
tess_status tess__grad_free(tess__compiler *, int32_t group);
#endif
