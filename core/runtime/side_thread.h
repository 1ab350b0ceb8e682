/* SPDX-License-Identifier: BSD-3-Clause */
/* The thread that writes a checkpoint beside training. What it reads where it lies nobody may change before it has
 * ended. */
#ifndef TESS_SIDE_THREAD_H
#define TESS_SIDE_THREAD_H
#include "base/status.h"

#include <pthread.h>

typedef struct {
    pthread_t thread;
    int runs; /* since the start, until it was waited for */
} tess__side_thread;
tess_status tess__side_thread_start(tess__side_thread *, void *(*fn)(void *), void *arg);
/** Waits for its end; returns at once when none runs. */
void tess__side_thread_join(tess__side_thread *);
#endif
