/* SPDX-License-Identifier: BSD-3-Clause */
#include "side_thread.h"

#include "base/thread.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tess__side_thread *running;
static pid_t process; /* the process they run in: a child of fork has none of them */
static int watched;   /* wait_at_exit is registered */

/* Waits without a join, because another thread may be joining. */
static void wait_at_exit(void) {
    const struct timespec pause = { .tv_nsec = 1000000 };
    if (getpid() != process)
        return;
    pthread_mutex_lock(&lock);
    for (tess__side_thread *s = running; s; s = s->next) {
        while (tess__side_thread_busy(s))
            nanosleep(&pause, NULL);
        s->left(s->arg);
    }
    pthread_mutex_unlock(&lock);
}

static void watch(tess__side_thread *s) {
    pthread_mutex_lock(&lock);
    if (process != getpid())
        running = NULL;
    process = getpid();
    if (!watched)
        watched = atexit(wait_at_exit) == 0;
    s->next = running;
    running = s;
    pthread_mutex_unlock(&lock);
}

static void forget(const tess__side_thread *s) {
    pthread_mutex_lock(&lock);
    for (tess__side_thread **at = &running; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    pthread_mutex_unlock(&lock);
}

static void *run(void *arg) {
    tess__side_thread *s = arg;
    s->fn(s->arg);
    __atomic_store_n(&s->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

tess_status tess__side_thread_start(tess__side_thread *s, void (*fn)(void *), void (*left)(void *), void *arg) {
    *s = (tess__side_thread){ .fn = fn, .left = left, .arg = arg };
    if (tess__thread_start(&s->thread, run, s))
        return tess__fail(TESS_E_SYSTEM, "no thread to write a checkpoint");
    s->runs = 1;
    watch(s);
    return TESS_OK;
}

int tess__side_thread_busy(const tess__side_thread *s) {
    return s->runs && !__atomic_load_n(&s->done, __ATOMIC_ACQUIRE);
}

void tess__side_thread_join(tess__side_thread *s) {
    if (s->runs) {
        pthread_join(s->thread, NULL);
        forget(s);
    }
    s->runs = 0;
}
