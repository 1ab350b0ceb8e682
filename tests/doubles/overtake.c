/* SPDX-License-Identifier: BSD-3-Clause */
/* Work that waits until work of NCCL's passes it: that two things go on beside each other shows without a clock. */
#include "double.h"

#include <time.h>

enum { A_SECOND = 1000000000 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t did = PTHREAD_COND_INITIALIZER;
static uint64_t latest; /* of what NCCL did, by when it was given */

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t); /* which a condition waits by */
    return (int64_t)t.tv_sec * A_SECOND + t.tv_nsec;
}

int double__is_overtaken(int seconds, int (*gives_up)(void *), void *of) {
    uint64_t given = double__given();
    int64_t late = now_ns() + seconds * (int64_t)A_SECOND;
    pthread_mutex_lock(&lock);
    while (latest < given && now_ns() < late && !gives_up(of)) {
        int64_t until = now_ns() + A_SECOND / 20;
        struct timespec at = { .tv_sec = until / A_SECOND, .tv_nsec = until % A_SECOND };
        pthread_cond_timedwait(&did, &lock, &at);
    }
    int is = latest >= given;
    pthread_mutex_unlock(&lock);
    return is;
}

static int waits_on(void *of) {
    (void)of;
    return 0;
}

void double__hold_up(const char *name, uint64_t *n, const char *overtaken) {
    pthread_mutex_lock(&lock);
    int seconds = double__asked("OVERTAKE", name, ++*n);
    pthread_mutex_unlock(&lock);
    if (seconds > 0 && double__is_overtaken(seconds, waits_on, NULL))
        double__fails(overtaken); /* counts them */
}

void double__nccl_did(void) {
    pthread_mutex_lock(&lock);
    latest = double__given() > latest ? double__given() : latest;
    pthread_cond_broadcast(&did);
    pthread_mutex_unlock(&lock);
}
