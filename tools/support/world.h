/* SPDX-License-Identifier: BSD-3-Clause */
/* Finds this process's rank before there is an engine, and lets ranks wait for each other without one. */
#ifndef TOOL_WORLD_H
#define TOOL_WORLD_H
#include <tessera/tessera.h>

typedef struct {
    int32_t rank, ranks, local_ranks; /* local_ranks 0: unknown */
} tool_world;
/** Reads the world as tess_open does, from `tessera run`, torchrun, MPI's launchers or Slurm. Without a launcher there
 * is one rank. TESS_E_INVALID means that the variables contradict each other. */
tess_status tool_world_read(tool_world *out);

typedef struct tool_meeting tool_meeting;
/** Returns when every rank has joined. It fails as tess_open does. */
tess_status tool_meeting_open(tool_meeting **out);
/** Waits until every rank calls it. Returns TESS_E_ABORTED if a rank is lost. */
tess_status tool_meeting_wait(tool_meeting *);
/** Leaves the meeting. If `orderly` is 0, the others learn that a rank is lost. Null does nothing. */
void tool_meeting_close(tool_meeting *, int orderly);

/** Returns 1 if the thread of this name serves the other ranks. It works when they ask, not when this rank does. */
int tool_serves_ranks(const char *thread);
#endif
