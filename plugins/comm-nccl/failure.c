/* SPDX-License-Identifier: BSD-3-Clause */
/* The failure that stays with a communicator, and the abort that ends what NCCL has in flight. */
#include "communicator.h"

#include <stdlib.h>

tess_status nccl_failure(tess_comm *c, tess_error *f) {
    pthread_mutex_lock(&c->failure_lock);
    tess_status s = c->failure.code;
    if (s)
        *f = c->failure;
    pthread_mutex_unlock(&c->failure_lock);
    return s;
}

void nccl_keep_first(tess_comm *c, const tess_error *f) {
    pthread_mutex_lock(&c->failure_lock);
    if (c->failure.code == TESS_OK)
        c->failure = *f;
    pthread_mutex_unlock(&c->failure_lock);
}

struct abort_job {
    tess_comm *c;
    ncclComm_t comm;
};

static void abort_now(void *arg) {
    struct abort_job *job = arg;
    tess_error ignored = { .struct_size = sizeof ignored };
    int entered = nccl_enter(&job->c->gpu, &ignored) == TESS_OK;
    job->c->gpu.lib->ncclCommAbort(job->comm);
    if (entered)
        nccl_leave(&job->c->gpu);
    free(job);
}

/* NCCL ends what runs at once. Then it frees memory, which may wait for the work of other communicators that are yet to
 * be aborted, and it waits for the graphs that refer to the communicator. Who aborts must not wait for either. */
static void abort_apart(tess_comm *c, struct nccl_abort *a, ncclComm_t comm) {
    tess_error ignored = { .struct_size = sizeof ignored };
    struct abort_job *job = malloc(sizeof *job);
    if (job) {
        *job = (struct abort_job){ c, comm };
        a->runs = kit_thread_start(&a->thread, c->settings->host, "nccl", "tess-nccl-abort", abort_now, job,
                                   &ignored) == TESS_OK;
    }
    if (!a->runs) {
        free(job);
        c->gpu.lib->ncclCommAbort(comm);
    }
}

static void join(struct nccl_abort *a) {
    if (a->runs)
        pthread_join(a->thread, NULL);
    a->runs = 0;
}

void nccl_abort_join(tess_comm *c) {
    join(&c->worker_abort);
    join(&c->setup_abort);
    if (c->newborn) /* nobody waited for this split; its parent's abort has ended the thread that made it */
        c->gpu.lib->ncclCommAbort(c->newborn);
    c->newborn = NULL;
}

/* Ends NCCL's work in the stream, and a call that blocks. */
void nccl_abort_worker(tess_comm *c) {
    ncclComm_t comm = atomic_exchange(&c->comm, NULL);
    if (comm)
        abort_apart(c, &c->worker_abort, comm);
}

void nccl_fail_locked(tess_comm *c, const tess_error *f) {
    nccl_keep_first(c, f);
    atomic_store(&c->stop, 1);
    nccl_abort_worker(c);
    if (c->setup)
        abort_apart(c, &c->setup_abort, c->setup);
    c->setup = NULL;
}
