/* SPDX-License-Identifier: BSD-3-Clause */
/* One communicator: its GPU, its stream, its requests in post order, and a watcher that sees failures while nobody
 * asks. */
#ifndef NCCL_COMMUNICATOR_H
#define NCCL_COMMUNICATOR_H
#include "collective.h"
#include "operations.h"
#include "settings.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- gpu.c: what a communicator has of a GPU; calls between enter and leave --------------------- */

struct nccl_gpu {
    const tess_cuda *cu;
    const struct nccl_library *lib;
    CUdevice device;
    CUcontext context;
    CUstream stream; /* of the communicator's own */
    CUmodule module;
    CUfunction reduce;
};

/* Fills in what it could; nccl_gpu_close takes it back, also after a failure. */
tess_status nccl_gpu_open(struct nccl_gpu *, int32_t index, tess_error *);
void nccl_gpu_close(struct nccl_gpu *);
tess_status nccl_enter(const struct nccl_gpu *, tess_error *);
void nccl_leave(const struct nccl_gpu *);

/* ---- the communicator --------------------------------------------------------------------------- */

struct tess_request {
    tess_comm *comm;
    tess_request *next; /* in flight, or among the free ones */
    _Atomic(tess_status) status;
    tess_error failure;
    CUevent begun, ended;             /* begun: `after`, then where the announcements have come */
    int compares;                     /* announcements are on their way */
    kit_announcement *own, *all;      /* pinned: ours; everybody's */
    CUdeviceptr own_there, all_there; /* the same on the GPU */
};

struct nccl_chunk { /* of requests, made together */
    struct nccl_chunk *next;
    tess_request *requests;
    void *pinned;
    CUdeviceptr announcements;
};

struct tess_comm {
    const struct nccl_settings *settings;
    struct nccl_gpu gpu;
    int rank, size, index; /* index: of the GPU */
    char prefix[200];
    int64_t timeout_ns;       /* how long NCCL may be in progress */
    atomic_int stop;          /* give up whatever is waited for */
    _Atomic(tess_status) why; /* of the first abort, which may have to wait for the lock */

    pthread_mutex_t lock; /* guards what follows; held for no longer than NCCL or the driver take to queue something */
    pthread_cond_t work;
    ncclComm_t comm; /* null once aborted or destroyed */
    tess_error failure;
    struct nccl_chunk *chunks;
    tess_request *free, *head, *tail;
    uint64_t seq;
    int finalized, quit, watching;
    pthread_t watcher;
};

/* A communicator without NCCL's: everything of its own. Give it c->comm, then nccl_comm_begin. */
tess_status nccl_comm_create(const struct nccl_settings *, const tess_comm_config *, tess_comm **out, tess_error *);
/* Says hello to the others and starts the watcher. */
tess_status nccl_comm_begin(tess_comm *, tess_error *);
void nccl_comm_destroy(tess_comm *); /* null is fine */
tess_status nccl_comm_finalize(tess_comm *, int64_t timeout_ns, tess_error *);
/* The first failure stays. */
void nccl_comm_fail(tess_comm *, const tess_error *);
tess_status nccl_comm_health(tess_comm *, tess_error *);
/* Asks a communicator of NCCL's until it is through; gives up when `c` is stopped, the run is ending, or at `late_ns`.
 */
tess_status nccl_settle(tess_comm *c, ncclComm_t which, int64_t late_ns, const char *call, tess_error *);

tess_status nccl_comm_post(tess_comm *, const tess_collective *, uint32_t n, tess_request **out, tess_error *);
tess_status nccl_comm_wait(tess_request *, int64_t timeout_ns, tess_error *);
tess_status nccl_comm_wait_stream(tess_request *, const tess_stream *, tess_error *);
void nccl_comm_release(tess_request *);

/* ---- requests.c, with the lock ------------------------------------------------------------------ */

tess_status nccl_request_take(tess_comm *, tess_request **out, tess_error *);
void nccl_request_give(tess_request *);
/* Ends what has come to its end, in order. In the GPU's context. */
void nccl_sweep(tess_comm *);
void nccl_fail_locked(tess_comm *, const tess_error *);
void nccl_free_chunks(tess_comm *);
/* Fails the communicator when a rank announced something else than this one. */
void nccl_compare(tess_comm *, const tess_request *);

/* ---- memory.c ----------------------------------------------------------------------------------- */

tess_status nccl_memory_obtain(tess_comm *, uint64_t bytes, tess_buffer *out, tess_error *);
void nccl_memory_release(tess_comm *, tess_buffer *);
/* TESS_E_UNSUPPORTED is no failure. */
tess_status nccl_memory_register(tess_comm *, void *at, uint64_t bytes, void **reg, tess_error *);
void nccl_memory_deregister(tess_comm *, void *reg);

/* ---- rendezvous.c: how ranks find each other ------------------------------------------------------- */

/* Everybody is there, each on a GPU of its own: the same id for all. */
tess_status nccl_meet(const tess_comm *, ncclUniqueId *id, int64_t late_ns, tess_error *);
#endif
