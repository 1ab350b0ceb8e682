/* SPDX-License-Identifier: BSD-3-Clause */
#include "lane.h"

#include "base/fp_env.h"
#include "base/pool.h"
#include "base/status.h"
#include "base/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LANE_JOBS = 256 };

typedef struct {
    tess__job_fn fn;
    void *user;
    tess__job job;
} posted_job;

struct tess__lane {
    pthread_t thread;
    pthread_mutex_t lock; /* of all that follows */
    pthread_cond_t posted_more, done_more;
    uint64_t posted, done; /* tickets */
    int stop;
    uint64_t failed; /* the ticket that failed, or 0 */
    tess_status error;
    char message[512];
    posted_job jobs[LANE_JOBS]; /* ticket n lies at n % LANE_JOBS */
};

static void note_failure(tess__lane *lane, uint64_t ticket, tess_status status) {
    lane->failed = ticket;
    lane->error = status;
    snprintf(lane->message, sizeof lane->message, "%s", tess_last_error());
}

static void *lane_work(void *arg) {
    tess__lane *lane = arg;
    tess__fp_enter();
    pthread_mutex_lock(&lane->lock);
    for (;;) {
        while (!lane->stop && lane->done == lane->posted)
            pthread_cond_wait(&lane->posted_more, &lane->lock);
        if (lane->done == lane->posted)
            break;
        uint64_t ticket = lane->done + 1;
        posted_job next = lane->jobs[ticket % LANE_JOBS];
        int skip = lane->failed != 0;
        pthread_mutex_unlock(&lane->lock);
        tess_status status = skip ? TESS_OK : next.fn(next.user, &next.job);
        pthread_mutex_lock(&lane->lock);
        if (status)
            note_failure(lane, ticket, status);
        lane->done = ticket;
        pthread_cond_broadcast(&lane->done_more);
    }
    pthread_mutex_unlock(&lane->lock);
    return NULL;
}

static int lane_start(tess__lane *lane, const cpu_set_t *cpus) {
    int failed = tess__thread_start(&lane->thread, lane_work, lane);
    if (!failed && cpus)
        pthread_setaffinity_np(lane->thread, sizeof *cpus, cpus); /* better here than not at all: no error */
    return failed;
}

tess_status tess__lane_create(const char *cpus, tess__lane **out) {
    cpu_set_t set;
    int bind = cpus && *cpus;
    if (bind && !tess__pool_cpus(cpus, &set))
        return tess__fail(TESS_E_INVALID, "\"%s\" is no list of cpus, expected a list such as 2,6-7", cpus);
    tess__lane *lane = calloc(1, sizeof *lane);
    if (!lane)
        return tess__fail(TESS_E_NOMEM, "no memory for a transfer thread");
    pthread_mutex_init(&lane->lock, NULL);
    pthread_cond_init(&lane->posted_more, NULL);
    pthread_cond_init(&lane->done_more, NULL);
    int failed = lane_start(lane, bind ? &set : NULL);
    if (failed) {
        free(lane);
        return tess__fail(TESS_E_SYSTEM, "cannot start a transfer thread: %s", strerror(failed));
    }
    *out = lane;
    return TESS_OK;
}

void tess__lane_destroy(tess__lane *lane) {
    if (!lane)
        return;
    pthread_mutex_lock(&lane->lock);
    lane->stop = 1;
    pthread_cond_signal(&lane->posted_more);
    pthread_mutex_unlock(&lane->lock);
    pthread_join(lane->thread, NULL);
    pthread_cond_destroy(&lane->posted_more);
    pthread_cond_destroy(&lane->done_more);
    pthread_mutex_destroy(&lane->lock);
    free(lane);
}

uint64_t tess__lane_post(tess__lane *lane, tess__job_fn fn, void *user, const tess__job *job) {
    pthread_mutex_lock(&lane->lock);
    while (lane->posted - lane->done == LANE_JOBS)
        pthread_cond_wait(&lane->done_more, &lane->lock);
    uint64_t ticket = ++lane->posted;
    lane->jobs[ticket % LANE_JOBS] = (posted_job){ fn, user, *job };
    pthread_cond_signal(&lane->posted_more);
    pthread_mutex_unlock(&lane->lock);
    return ticket;
}

tess_status tess__lane_wait(tess__lane *lane, uint64_t ticket) {
    tess_status status = TESS_OK;
    if (!ticket)
        return TESS_OK;
    pthread_mutex_lock(&lane->lock);
    while (lane->done < ticket)
        pthread_cond_wait(&lane->done_more, &lane->lock);
    if (lane->failed && lane->failed <= ticket)
        status = lane->error;
    pthread_mutex_unlock(&lane->lock);
    return status ? tess__fail(status, "%s", lane->message) : TESS_OK; /* written once, before `failed` was seen */
}
