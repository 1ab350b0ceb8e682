/* SPDX-License-Identifier: BSD-3-Clause */
#include "control_state.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000ll

void tess__control_wake(tess__control *control) {
    uint64_t one = 1;
    ssize_t ignored = write(control->wake_fd, &one, sizeof one);
    (void)ignored;
}

int tess__control_wait(tess__control *control, int64_t deadline_ns) {
    if (deadline_ns == INT64_MAX)
        return pthread_cond_wait(&control->changed, &control->lock);
    struct timespec at = { .tv_sec = deadline_ns / SECOND_NS, .tv_nsec = deadline_ns % SECOND_NS };
    return pthread_cond_timedwait(&control->changed, &control->lock, &at) == ETIMEDOUT;
}

void tess__control_set_cause(tess__control *control, int32_t rank, const char *text) {
    if (control->has_cause)
        return;
    control->has_cause = 1;
    control->cause_rank = rank;
    snprintf(control->cause_text, sizeof control->cause_text, "%s", text);
    atomic_store(&control->news, 1);
    atomic_store(&control->aborting, 1);
    pthread_cond_broadcast(&control->changed);
}
