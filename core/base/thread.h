/* SPDX-License-Identifier: BSD-3-Clause */
/* How the core starts a thread. */
#ifndef TESS_THREAD_H
#define TESS_THREAD_H
#include <pthread.h>
#include <signal.h>

/** Starts a thread that no signal of the program reaches. Those of its own crashes do, so that a handler sees them
 * (crash.h). 0, or an errno. */
static inline int tess__thread_start(pthread_t *out, void *(*run)(void *), void *user) {
    static const int crashes[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL };
    sigset_t all, before;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof crashes / sizeof crashes[0]; i++)
        sigdelset(&all, crashes[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the thread inherits it */
    int failed = pthread_create(out, NULL, run, user);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}
#endif
