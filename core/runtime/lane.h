/* SPDX-License-Identifier: BSD-3-Clause */
/* A lane: one thread that does what it is handed, in that order, while the engine's thread goes on. One lane brings
 * things up from host memory, another takes them down and steps the optimizer there. */
#ifndef TESS_LANE_H
#define TESS_LANE_H
#include <tessera/tessera.h>

typedef struct tess__lane tess__lane;
typedef struct { /* one piece of work, in its caller's words */
    uint8_t op;
    int32_t index, arg;
    uint64_t after; /* a ticket of something else, which it follows */
} tess__job;
/** Does one, on the lane's thread: it may call tess__fail, and allocates nothing. */
typedef tess_status (*tess__job_fn)(void *user, const tess__job *);

/** `cpus` ("2,6-7"): where the thread may run; "" where its creator may. It keeps denormals and blocks all signals. */
tess_status tess__lane_create(const char *cpus, tess__lane **out);
void tess__lane_destroy(tess__lane *); /* does what was posted first; null is fine */
/** Hands over one job and returns its ticket, from 1. Blocks only while very many are waiting. Allocates nothing. */
uint64_t tess__lane_post(tess__lane *, tess__job_fn fn, void *user, const tess__job *);
/** Blocks until the job with this ticket is done, and with it all before it; ticket 0: at once. The first job that
 * fails ends the lane: those behind it are not done, and every wait for one of them fails with its status and message.
 */
tess_status tess__lane_wait(tess__lane *, uint64_t ticket);
#endif
