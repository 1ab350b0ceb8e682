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

/* Aborts of this process that have begun and not ended: they give back what NCCL has of memory, whosever it is. */
static atomic_int aborts;

struct abort_job {
    tess_comm *c;
    ncclComm_t comm;
};

static void abort_now(tess_comm *c, ncclComm_t comm) {
    c->gpu.lib->ncclCommAbort(comm);
    atomic_fetch_sub(&aborts, 1);
}

static void abort_in_thread(void *arg) {
    struct abort_job *job = arg;
    tess_error ignored = { .struct_size = sizeof ignored };
    int entered = nccl_enter(&job->c->gpu, &ignored) == TESS_OK;
    abort_now(job->c, job->comm);
    if (entered)
        nccl_leave(&job->c->gpu);
    free(job);
}

/* NCCL ends what runs at once. Then it frees memory, which may wait for the work of other communicators that are yet to
 * be aborted, and it waits for the graphs that refer to the communicator. Who aborts must not wait for either. */
static void abort_apart(tess_comm *c, ncclComm_t comm) {
    tess_error ignored = { .struct_size = sizeof ignored };
    struct abort_job *job = malloc(sizeof *job);
    if (job) {
        *job = (struct abort_job){ c, comm };
        c->aborts_in_thread = kit_thread_start(&c->abort, c->settings->host, "nccl", "tess-nccl-abort", abort_in_thread,
                                               job, &ignored) == TESS_OK;
    }
    if (!c->aborts_in_thread) {
        free(job);
        abort_now(c, comm);
    }
}

void nccl_abort_join(tess_comm *c) {
    if (c->aborts_in_thread)
        pthread_join(c->abort, NULL);
    c->aborts_in_thread = 0;
}

/* Ends NCCL's work in the stream, and a call that blocks. It counts before it takes the communicator away, for who
 * finds that gone. */
void nccl_abort(tess_comm *c) {
    atomic_fetch_add(&aborts, 1);
    ncclComm_t comm = atomic_exchange(&c->comm, NULL);
    if (comm)
        abort_apart(c, comm);
    else
        atomic_fetch_sub(&aborts, 1);
}

void nccl_fail_locked(tess_comm *c, const tess_error *f) {
    nccl_keep_first(c, f);
    atomic_store(&c->stop, 1);
    nccl_abort(c);
}

/* ---- memory after a failure --------------------------------------------------------------------- */

static int streams_are_idle(const tess_comm *c) {
    CUstream streams[] = { c->gpu.stream, c->gpu.sums.stream };
    int idle = 1;
    for (int i = 0; i < 2; i++)
        idle &= !streams[i] || c->gpu.cu->cuStreamQuery(streams[i]) != CUDA_ERROR_NOT_READY;
    return idle;
}

int nccl_wait_until_idle(const tess_comm *c, int64_t late_ns) {
    while (!streams_are_idle(c) && kit_now_ns() < late_ns)
        kit_nap(100000);
    return streams_are_idle(c);
}

/* Who fails sets `stop`, and may take a while to abort. */
static int is_aborting(const tess_comm *c) {
    return atomic_load(&aborts) || (atomic_load(&c->stop) && atomic_load(&c->comm));
}

int nccl_wait_until_aborted(const tess_comm *c, int64_t late_ns) {
    while (is_aborting(c) && kit_now_ns() < late_ns)
        kit_nap(100000);
    return !is_aborting(c) && (!atomic_load(&c->stop) || nccl_wait_until_idle(c, late_ns));
}
