/* SPDX-License-Identifier: BSD-3-Clause */
/* Work that waits until work of NCCL's passes it: that two things go on beside each other shows without a clock. */
#include "double.h"

#include <errno.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t did = PTHREAD_COND_INITIALIZER;
static uint64_t latest; /* of what NCCL did, by when it was given */

static int is_overtaken(uint64_t given, int seconds) { /* with the lock */
    struct timespec late;
    clock_gettime(CLOCK_REALTIME, &late);
    late.tv_sec += seconds;
    while (latest < given)
        if (pthread_cond_timedwait(&did, &lock, &late) == ETIMEDOUT)
            return 0;
    return 1;
}

void double__hold_up(const char *name, uint64_t *n, const char *overtaken) {
    pthread_mutex_lock(&lock);
    int seconds = double__asked("OVERTAKE", name, ++*n);
    int was = seconds > 0 && is_overtaken(double__given(), seconds);
    pthread_mutex_unlock(&lock);
    if (was)
        double__fails(overtaken); /* counts them */
}

void double__nccl_did(void) {
    pthread_mutex_lock(&lock);
    latest = double__given() > latest ? double__given() : latest;
    pthread_cond_broadcast(&did);
    pthread_mutex_unlock(&lock);
}
