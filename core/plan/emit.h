/* SPDX-License-Identifier: BSD-3-Clause */
/* Writes instructions into the program that is being compiled: buffers, collectives, and work without a buffer. */
#ifndef TESS_EMIT_H
#define TESS_EMIT_H
#include "compile.h"

/** Points to the number of the live buffer of a role and index; -1: none lives. */
int32_t *tess__emit_buffer_of(tess__compiler *, int role, int32_t index);
/** Begins a buffer's life; 0 bytes: nothing. `flags`: TESS__ZERO. */
tess_status tess__emit_alloc(tess__compiler *, int role, int32_t index, uint8_t category, int32_t unit, uint64_t bytes,
                             uint8_t flags);
/** Ends a buffer's life; nothing when it does not live. */
tess_status tess__emit_free(tess__compiler *, int role, int32_t index);

/** Makes a collective among the members of `which`, without scratch and without a reduction. */
tess__planned_collective tess__emit_collective(const tess__compiler *, uint8_t op, uint8_t which, uint32_t send,
                                               uint32_t recv, uint64_t count);
/** Begins the life of its scratch, when it wants any, and says so in *c. */
tess_status tess__emit_scratch(tess__compiler *, int role, int32_t index, int32_t unit, tess__planned_collective *c);
tess_status tess__emit_post(tess__compiler *, uint8_t op, uint8_t flags, int32_t index,
                            const tess__planned_collective *);
tess_status tess__emit(tess__compiler *, uint8_t op, int32_t index);
tess_status tess__emit_flagged(tess__compiler *, uint8_t op, uint8_t flags, int32_t index);
#endif
