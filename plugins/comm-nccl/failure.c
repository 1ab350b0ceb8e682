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

/* NCCL ends what runs at once, and then waits for the graphs that refer to the communicator: those who are to destroy
 * them must not wait for that. */
static int abort_apart(tess_comm *c, ncclComm_t comm) {
    tess_error ignored = { .struct_size = sizeof ignored };
    struct abort_job *job = malloc(sizeof *job);
    if (!job)
        return 0;
    *job = (struct abort_job){ c, comm };
    c->aborts_apart = kit_thread_start(&c->aborter, c->settings->host, "nccl", "tess-nccl-abort", abort_now, job,
                                       &ignored) == TESS_OK;
    if (!c->aborts_apart)
        free(job);
    return c->aborts_apart;
}

void nccl_abort_join(tess_comm *c) {
    if (c->aborts_apart)
        pthread_join(c->aborter, NULL);
    c->aborts_apart = 0;
}

/* Ends NCCL's work in the stream, and a call that blocks. */
void nccl_abort_worker(tess_comm *c) {
    ncclComm_t comm = atomic_exchange(&c->comm, NULL);
    if (comm && !(atomic_load(&c->recorded) && abort_apart(c, comm)))
        c->gpu.lib->ncclCommAbort(comm);
}

void nccl_fail_locked(tess_comm *c, const tess_error *f) {
    nccl_keep_first(c, f);
    atomic_store(&c->stop, 1);
    nccl_abort_worker(c);
    if (c->setup)
        c->gpu.lib->ncclCommAbort(c->setup);
    c->setup = NULL;
}
