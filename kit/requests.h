/* SPDX-License-Identifier: BSD-3-Clause */
/* Layer 3 of the kit, for comm plugins without asynchronous collectives of their own: requests in post order, the
 * thread that runs them, waiting with a timeout, the sticky failure, abort and finalize.
 *
 * The plugin's struct tess_comm begins with a kit_requests; the kit_slot_… functions then go into tess_comm_ops as they
 * are. Compiled into the plugin, no part of the ABI. C11, and C++17 through the header. */
#ifndef TESS_KIT_REQUESTS_H
#define TESS_KIT_REQUESTS_H
#include "collective.h"
#include "plugin_base.h"
#ifdef __cplusplus
extern "C" {
#endif

/** The plugin's part of requests. `comm` is the communicator that begins with the kit_requests. */
typedef struct {
    const char *plugin, *thread; /* for messages; the thread's name */
    /* Whether the call can be done here. Any thread. */
    tess_status (*check)(tess_comm *comm, const tess_collective *, tess_error *);
    /* Runs n collectives in order, or the operation KIT_OP_…. The worker. Blocks until it is done or was interrupted.
     */
    tess_status (*run)(tess_comm *comm, const tess_collective *, uint32_t n, uint32_t own_op, tess_error *);
    /* The communicator has failed or was aborted: run returns soon. Any thread, repeatable. */
    void (*interrupt)(tess_comm *comm);
    /* Once, after the first failure, before any request ends with it: from here on the plugin touches no buffer of a
     * request. The worker. Null: nothing to do. */
    void (*drain)(tess_comm *comm, const tess_error *cause);
    /* The last call on the worker after a failure: the communicator was aborted, or is being destroyed. Null: nothing.
     */
    void (*leave)(tess_comm *comm, const tess_error *cause, int aborted);
} kit_requests_ops;

typedef struct kit_requests kit_requests;
enum { KIT_INLINE_CALLS = 4, KIT_REQUESTS = 64 /* made at the start; more when more are in flight */ };

struct tess_request { /* one post: its collectives run one after another, and it ends when all have */
    kit_requests *queue;
    struct tess_request *next;    /* in the queue, or among the free ones */
    struct tess_request *sibling; /* made after the start: for the end */
    tess_collective inline_calls[KIT_INLINE_CALLS], *calls;
    uint32_t n, room, own_op;
    tess_status status; /* atomic */
    tess_error error;
};

struct kit_requests {
    const kit_requests_ops *ops;
    const tess_host *host;
    pthread_t worker;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t posted, ended;
    struct tess_request pool[KIT_REQUESTS], *more, *free, *head, *tail, *running;
    tess_error cause;     /* code TESS_OK while all is well; the first failure stays */
    tess_error suspicion; /* becomes the cause unless the running request gives a better one */
    int finalized, aborted, quit, started;
};

/** Makes the queue; no thread yet. */
void kit_requests_init(kit_requests *, const kit_requests_ops *, const tess_host *);
/** Starts the worker. */
tess_status kit_requests_start(kit_requests *, tess_error *);
/** Ends the worker. What is in flight ends with TESS_E_ABORTED, unless the communicator was finalized. */
void kit_requests_stop(kit_requests *);
/** Frees the queue, behind kit_requests_stop. */
void kit_requests_finish(kit_requests *);

/** Fails the communicator: the first cause stays. Any thread. */
void kit_requests_fail(kit_requests *, const tess_error *cause);
/** The same with what is seen from outside, such as the end of a connection: the running request ends first, and its
 * own failure says more. Any thread. */
void kit_requests_suspect(kit_requests *, const tess_error *cause);
/** Posts KIT_OP_… behind everything posted before. */
tess_status kit_requests_post_own(kit_requests *, uint32_t own_op, tess_request **out, tess_error *);
/** Posts KIT_OP_… and waits. After TESS_E_TIMEOUT the request stays in flight until the communicator's end. */
tess_status kit_requests_meet(kit_requests *, uint32_t own_op, int64_t timeout_ns, tess_error *);
/** Every rank's choice, in `all`, by an all_gather on the queue. On a timeout the communicator fails. */
tess_status kit_requests_choices(kit_requests *, const kit_choice *mine, kit_choice *all, int64_t timeout_ns,
                                 tess_error *);
/** The worker, within run: the collective behind the running request, null when none is known yet. */
const tess_collective *kit_requests_next(kit_requests *);

/* Slots of tess_comm_ops, all of them as KIT_REQUEST_SLOTS. */
tess_status kit_slot_finalize(tess_comm *, int64_t timeout_ns, tess_error *);
tess_status kit_slot_abort(tess_comm *, tess_status why);
tess_status kit_slot_health(tess_comm *, tess_error *);
tess_status kit_slot_post(tess_comm *, const tess_collective *, uint32_t n, tess_request **out, tess_error *);
tess_status kit_slot_test(tess_request *, tess_error *);
tess_status kit_slot_wait(tess_request *, int64_t timeout_ns, tess_error *);
tess_status kit_slot_wait_stream(tess_request *, const tess_stream *, tess_error *); /* host memory: waits */
void kit_slot_request_free(tess_request *);
#define KIT_REQUEST_SLOTS                                                                                              \
    .finalize = kit_slot_finalize, .abort = kit_slot_abort, .health = kit_slot_health, .post = kit_slot_post,          \
    .test = kit_slot_test, .wait = kit_slot_wait, .wait_stream = kit_slot_wait_stream,                                 \
    .request_free = kit_slot_request_free
#ifdef __cplusplus
}
#endif
#endif
