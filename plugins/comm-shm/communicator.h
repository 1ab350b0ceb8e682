/* One communicator: requests in post order, and a worker thread that runs them. */
#ifndef SHM_COMMUNICATOR_H
#define SHM_COMMUNICATOR_H
#include "operations.h"

enum { SHM_INLINE_CALLS = 4, SHM_REQUESTS = 64 /* made at the start; more when more are outstanding */ };

/* One post: its collectives run one after another, and it ends when all have. */
struct tess_request {
    struct tess_comm *comm;
    struct tess_request *next;    /* in the queue, or among the free ones */
    struct tess_request *sibling; /* made later than those of the start: for the end */
    tess_collective inline_calls[SHM_INLINE_CALLS], *calls;
    uint32_t n, room;
    uint32_t own_op; /* an operation of ours instead of `calls` */
    _Atomic tess_status status;
    struct shm_failure failure;
};

struct tess_comm {
    const struct shm_settings *settings;
    struct shm_group *group;
    int rank, size, members[SHM_RANKS_MAX]; /* group rank of each rank */
    char prefix[256];
    struct shm_table table;
    struct shm_operations operations;

    pthread_t worker;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t work, done;
    struct tess_request pool[SHM_REQUESTS], *more, *free, *head, *tail;
    struct shm_failure cause; /* status TESS_OK while all is well; the first stays */
    int finalized, quit, worker_started;
};

/* The rank `members[rank]` of a group, whose table lies in the file of members[0]. Takes over the caller's hold on the
 * group, also when it fails. */
tess_status shm_comm_create(const struct shm_settings *, struct shm_group *, const int *members, int rank, int size,
                            const char *prefix, uint64_t table_offset, tess_comm **out, struct shm_failure *);
void shm_comm_destroy(tess_comm *);

tess_status shm_comm_post(tess_comm *, const tess_collective *, uint32_t n, tess_request **out, struct shm_failure *);
/* TESS_PENDING with timeout 0; TESS_E_TIMEOUT; else the request's end. */
tess_status shm_comm_wait(tess_request *, int64_t timeout_ns, struct shm_failure *);
void shm_comm_release(tess_request *);
tess_status shm_comm_finalize(tess_comm *, int64_t timeout_ns, struct shm_failure *);
void shm_comm_fail(tess_comm *, const struct shm_failure *); /* any thread */
tess_status shm_comm_health(tess_comm *, struct shm_failure *);
#endif
