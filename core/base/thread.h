/* SPDX-License-Identifier: BSD-3-Clause */
/* How the core starts a thread. */
#ifndef TESS_THREAD_H
#define TESS_THREAD_H
#include <pthread.h>
#include <signal.h>

/** Starts a thread that no signal reaches: signals belong to the program. 0, or an errno. */
static inline int tess__thread_start(pthread_t *out, void *(*run)(void *), void *user) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the thread inherits it */
    int failed = pthread_create(out, NULL, run, user);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}
#endif
