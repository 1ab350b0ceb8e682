/* SPDX-License-Identifier: BSD-3-Clause */
/* The place among the ranks before there is an engine, and a meeting of them without one. */
#ifndef TOOL_WORLD_H
#define TOOL_WORLD_H
#include <tessera/tessera.h>

typedef struct {
    int32_t rank, ranks, local_ranks; /* local_ranks 0: unknown */
} tool_world;
/** Reads the world as tess_open does: from `tessera run`, torchrun, MPI's launchers or Slurm. Without a launcher it is
 * one rank. TESS_E_INVALID: the variables contradict each other. */
tess_status tool_world_read(tool_world *out);

typedef struct tool_meeting tool_meeting;
/** Returns when every rank has come; fails as tess_open does. */
tess_status tool_meeting_open(tool_meeting **out);
/** Everybody is here. TESS_E_ABORTED when a rank was lost instead. */
tess_status tool_meeting_wait(tool_meeting *);
/** If it is not `orderly`, the others learn of a lost rank. Null is fine. */
void tool_meeting_close(tool_meeting *, int orderly);

/** Whether the thread of this name serves the other ranks: it works when they ask, not when this rank does. */
int tool_serves_ranks(const char *thread);
#endif
