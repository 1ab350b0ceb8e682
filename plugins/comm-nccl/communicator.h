/* SPDX-License-Identifier: BSD-3-Clause */
/* One communicator: its GPU, its stream, its requests in post order, and a watcher that sees failures while nobody
 * asks and ends what blocks. */
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
    CUstream stream; /* the communicator owns it and the stream in `sums` */
    struct nccl_sums sums;
    CUmodule module;
    struct nccl_kernels kernels;
};

/* Fills in the fields that it could obtain. nccl_gpu_close releases them, also after a failure. */
tess_status nccl_gpu_open(struct nccl_gpu *, int32_t index, tess_error *);
void nccl_gpu_close(struct nccl_gpu *);
tess_status nccl_enter(const struct nccl_gpu *, tess_error *);
void nccl_leave(const struct nccl_gpu *);

/* ---- the communicator --------------------------------------------------------------------------- */

struct tess_request {
    tess_comm *comm;
    tess_request *next; /* in the list of requests in flight, or in the free list */
    _Atomic(tess_status) status;
    tess_error failure;
    CUevent begun, ended;             /* begun: `after` */
    uint64_t seq;                     /* in post order */
    int compares;                     /* announcements are on their way */
    int recorded;                     /* joined a recording: it has ended, and nobody may ask for its events */
    kit_announcement *own, *all;      /* pinned: ours; everybody's */
    CUdeviceptr own_there, all_there; /* the same on the GPU */
};

struct nccl_chunk { /* requests that one allocation made */
    struct nccl_chunk *next;
    tess_request *requests;
    void *pinned;
    CUdeviceptr announcements;
};

enum { NCCL_REMEMBERED = 256 };
struct nccl_said { /* this rank's announcements, which explain a hang to the other ranks */
    pthread_mutex_t lock;
    kit_announcement last[NCCL_REMEMBERED]; /* index: sequence number modulo NCCL_REMEMBERED */
    uint64_t n, ended;                      /* announced; ended: all before that number */
};

struct nccl_gate { /* a call of NCCL's that blocks */
    atomic_int inside;
    _Atomic(const char *) call;
    _Atomic(int64_t) late_ns;
};

struct tess_comm {
    const struct nccl_settings *settings;
    struct nccl_gpu gpu;
    int rank, size, index; /* index: the GPU's */
    int channels;          /* NCCL's channels, at most */
    atomic_int room;       /* multiprocessors of the GPU that are left for splits */
    atomic_int told_room;  /* 1: it has reported that none is left */
    char prefix[200];
    int64_t timeout_ns;  /* limit of one NCCL call */
    atomic_int stop;     /* give up whatever is waited for */
    atomic_int recorded; /* a graph refers to `comm`: NCCL's abort waits until it is destroyed */
    pthread_t abort;     /* aborts NCCL's communicator while this one continues */
    int aborts_in_thread;
    _Atomic(tess_status) why; /* status of the first abort, which may have to wait for the lock */
    struct nccl_gate gate;
    struct nccl_use use;
    struct nccl_said said;
    pthread_mutex_t failure_lock;
    tess_error failure; /* the first; nccl_failure */

    pthread_mutex_t lock;     /* guards what follows; held while NCCL or the driver queue something */
    _Atomic(ncclComm_t) comm; /* blocks; null once aborted or destroyed */
    struct nccl_chunk *chunks;
    tess_request *free, *head, *tail;
    uint64_t seq;
    int splits, finalized;

    pthread_mutex_t watch_lock; /* guards what follows; held for moments */
    pthread_cond_t work;
    int active, quit, watching; /* active: something is in flight, or about to be */
    pthread_t watcher;
};

/* A communicator without NCCL's: everything of its own. Give it NCCL's, then nccl_comm_begin. */
tess_status nccl_comm_create(const struct nccl_settings *, const tess_comm_config *, tess_comm **out, tess_error *);
/* Starts the watcher and says hello to the others. */
tess_status nccl_comm_begin(tess_comm *, tess_error *);
void nccl_comm_destroy(tess_comm *); /* null is fine */
tess_status nccl_comm_finalize(tess_comm *, int64_t timeout_ns, tess_error *);

tess_status nccl_comm_post(tess_comm *, const tess_collective *, uint32_t n, tess_request **out, tess_error *);
tess_status nccl_comm_wait(tess_request *, int64_t timeout_ns, tess_error *);
tess_status nccl_comm_wait_stream(tess_request *, const tess_stream *, tess_error *);
/* The first failure, TESS_OK while all is well; NCCL is asked, too. */
tess_status nccl_comm_health(tess_comm *, tess_error *);
void nccl_comm_release(tess_request *);

/* ---- room.c: how many channels a communicator may have, the same on every rank ------------------- */

/* A communicator that is split from no other takes its part of `multiprocessors`, the fewest of all ranks' GPUs. */
void nccl_room_begin(tess_comm *, int multiprocessors);
/* One that is split off takes its part, also on ranks that are in none of the groups, until the parent goes. With the
 * parent's lock. TESS_E_UNSUPPORTED, on every rank: there is none left. */
tess_status nccl_room_take(tess_comm *parent, tess_comm *or_null, int *channels, tess_error *);
/* Whether another one fits beside this one. Any thread; says once that none does. */
int nccl_room_left(tess_comm *);

/* ---- setup.c: NCCL's communicators, which block ------------------------------------------------- */

/* All ranks call it; each has opened its GPU. */
tess_status nccl_found(tess_comm *, tess_error *);
/* Call it with the parent's lock. `child` is null if this rank joins no group. */
tess_status nccl_divide(tess_comm *parent, int32_t color, int32_t key, tess_comm *child, tess_error *);
/* Call it with the lock, when every rank has arrived. */
tess_status nccl_dissolve(tess_comm *, int64_t late_ns, tess_error *);

enum { NCCL_PATIENCE_NS = 2000000000 }; /* how long memory that is freed waits for aborts and what they end */

/* ---- failure.c, any thread ----------------------------------------------------------------------- */

/* Joins the thread that aborts. Call it after nccl_watcher_stop. */
void nccl_abort_join(tess_comm *);
/* Whether the communicator's streams are idle by then. In the GPU's context. */
int nccl_wait_until_idle(const tess_comm *, int64_t late_ns);
/* Whether all aborts of the process have ended by then, and after a failure the streams are idle: only now may memory
 * be freed. Without the lock. */
int nccl_wait_until_aborted(const tess_comm *, int64_t late_ns);

/* The first failure, TESS_OK while all is well. */
tess_status nccl_failure(tess_comm *, tess_error *);
void nccl_keep_first(tess_comm *, const tess_error *);
void nccl_abort(tess_comm *);
/* Does what nccl_comm_fail does, for a caller that holds the lock. */
void nccl_fail_locked(tess_comm *, const tess_error *);

/* ---- watcher.c: failure, and calls that block ---------------------------------------------------- */

tess_status nccl_watcher_start(tess_comm *, tess_error *);
void nccl_watcher_stop(tess_comm *);
/* The first failure stays; NCCL's communicator is aborted, also while another thread is blocked in it. */
void nccl_comm_fail(tess_comm *, const tess_error *);
/* These enclose a blocking NCCL call: the watcher aborts it at `late_ns`, or when the run is ending. Entering fails
 * once the communicator must stop. */
tess_status nccl_gate_enter(tess_comm *, const char *call, int64_t late_ns, tess_error *);
/* Returns the status of the call, or why it was ended. */
tess_status nccl_gate_leave(tess_comm *, tess_status, tess_error *);
/* Checks the requests in flight and NCCL's asynchronous errors. Call it with the lock. */
void nccl_look(tess_comm *);
/* Returns the reason why the communicator must stop. */
tess_status nccl_stopped(tess_comm *, const char *call, tess_error *);

/* ---- compare.c: what ranks announce ------------------------------------------------------------- */

void nccl_said_note(tess_comm *, const kit_announcement *);
void nccl_said_ended(tess_comm *, uint64_t seq);
/* TESS_E_MISMATCH when a rank announced something else than this one; everybody's announcements are there. */
tess_status nccl_compare(tess_comm *, const tess_request *, tess_error *);
/* Compares when a request hangs: publishes this rank's oldest announcement in the key-value store and reads the
 * others'. */
tess_status nccl_compare_stalled(tess_comm *, tess_error *);

/* ---- requests.c, with the lock ------------------------------------------------------------------ */

tess_status nccl_request_take(tess_comm *, tess_request **out, tess_error *);
void nccl_request_give(tess_request *);
/* Ends what has come to its end, in order. In the GPU's context. */
void nccl_sweep(tess_comm *);
void nccl_free_chunks(tess_comm *);

/* ---- memory.c ----------------------------------------------------------------------------------- */

tess_status nccl_memory_obtain(tess_comm *, uint64_t bytes, tess_buffer *out, tess_error *);
void nccl_memory_release(tess_comm *, tess_buffer *);
/* TESS_E_UNSUPPORTED is no failure. */
tess_status nccl_memory_register(tess_comm *, void *at, uint64_t bytes, void **reg, tess_error *);
void nccl_memory_deregister(tess_comm *, void *reg);
/* Whether this communicator makes windows: by its settings and NCCL's version. */
int nccl_memory_shares(const tess_comm *);
/* Makes an NCCL window that lives as long as the registration. All ranks call it with equal sizes. */
tess_status nccl_memory_share(tess_comm *, const tess_buffer *, tess_error *);

/* ---- rendezvous.c: how ranks find each other ------------------------------------------------------- */

struct rank_record { /* each rank publishes one */
    int32_t version, apart, windows, engines, sums, multiprocessors;
    char uuid[16], bus_id[24], host[64];
};

/* Everybody is there, each on a GPU of its own: the same id for all, and the fewest multiprocessors that a GPU has. */
tess_status nccl_meet(const tess_comm *, ncclUniqueId *id, int *multiprocessors, int64_t late_ns, tess_error *);
#endif
