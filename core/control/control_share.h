/* SPDX-License-Identifier: BSD-3-Clause */
/* All engines of a process share one connection to the key-value server. The last engine that closes says goodbye
 * and leaves the connection open, so that a later one can come back on it. */
#ifndef TESS_CONTROL_SHARE_H
#define TESS_CONTROL_SHARE_H
#include "control.h"

typedef struct tess__control_seat { /* one engine's; zero: not joined */
    struct tess__control_seat *next;
    tess__control *control;
    uint32_t engine; /* its number in this process, from 1; the same on all ranks, which open in the same order */
    tess__lost_fn on_lost;
    void *user;
} tess__control_seat;

/** [C] Opens the connection, or takes part in the one there is. `on_lost`: as for tess__control_on_lost. */
tess_status tess__control_join(const tess__world *, tess__lost_fn on_lost, void *user, tess__control_seat *);
/** No call of on_lost is under way when it returns. Without `orderly` the connection ends with its last engine, and the
 * other ranks learn of it. Not joined is fine. */
void tess__control_leave(tess__control_seat *, int orderly);
/** How many engines of this process have joined so far. */
uint32_t tess__control_engines(void);
/** Calls `visit` with the number and the `user` of each engine that has a seat. */
void tess__control_each_seat(void (*visit)(void *ctx, uint32_t engine, void *user), void *ctx);
#endif
