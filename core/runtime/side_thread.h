/* SPDX-License-Identifier: BSD-3-Clause */
/* The thread that writes a checkpoint beside training. Nobody may change what it reads in place before it has ended.
 * A program that ends by exit or by a return from main waits for it too. */
#ifndef TESS_SIDE_THREAD_H
#define TESS_SIDE_THREAD_H
#include "base/status.h"

#include <pthread.h>

typedef struct tess__side_thread {
    pthread_t thread;
    int runs; /* since the start, until it was waited for */
    int done;
    void (*fn)(void *);
    void (*left)(void *);
    void *arg;
    struct tess__side_thread *next; /* of those that run */
} tess__side_thread;
/** Runs fn(arg). When the program ends before anyone has waited, left(arg) is called once it is done. */
tess_status tess__side_thread_start(tess__side_thread *, void (*fn)(void *), void (*left)(void *), void *arg);
/** Whether fn has not returned yet. */
int tess__side_thread_busy(const tess__side_thread *);
/** Waits for the thread's end; returns at once when none runs. */
void tess__side_thread_join(tess__side_thread *);
#endif
