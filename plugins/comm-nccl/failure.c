/* SPDX-License-Identifier: BSD-3-Clause */
/* The failure that stays with a communicator, and the abort that ends what NCCL has in flight. */
#include "communicator.h"

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

/* Ends NCCL's work in the stream, and a call that blocks. */
void nccl_abort_worker(tess_comm *c) {
    ncclComm_t comm = atomic_exchange(&c->comm, NULL);
    if (comm)
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
