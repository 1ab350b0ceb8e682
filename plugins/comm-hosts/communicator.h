/* SPDX-License-Identifier: BSD-3-Clause */
/* A communicator over communicators of the plugins below: all ranks, those of this host, and one of every host (a
 * rail). */
#ifndef HOSTS_COMMUNICATOR_H
#define HOSTS_COMMUNICATOR_H
#include "layout.h"
#include "requests.h"

typedef struct { /* a communication plugin that this one calls */
    const tess_comm_ops *ops;
    void *ctx, *handle;
} hosts_under;

typedef struct {
    const tess_host *host;
    hosts_under within, between;
    char names[2][32];
    int32_t pretend; /* TESSERA_HOSTS_RANKS: treats so many neighbours as a host; 0: uses the real hosts */
} hosts_plugin;

enum { HOSTS_WHOLE, HOSTS_LOCAL, HOSTS_RAIL /* the rail of round 0; those of later rounds follow */ };
typedef struct {
    const tess_comm_ops *ops;
    tess_comm *comm; /* null: there is none */
} hosts_part;

struct tess_comm {
    kit_requests requests;
    const hosts_plugin *plugin;
    int32_t rank, size;
    uint64_t *ids; /* [size]: hosts */
    hosts_layout layout;
    char prefix[200];
    pthread_mutex_t lock; /* guards `parts` against an abort */
    hosts_part *parts;
    int32_t n_parts;
    int aborted;                 /* under the lock: parts added later abort at once */
    kit_announcement *heard;     /* [size] */
    tess_collective *broadcasts; /* [hosts]: of a rail on which the last host has no block */
    uint64_t seq;
};

/* communicator.c */
tess_status hosts_comm_new(const hosts_plugin *, int32_t rank, int32_t size, const uint64_t *ids, const char *prefix,
                           tess_comm **out, tess_error *);
/** Takes a part. Not OK: the communicator was aborted meanwhile. */
tess_status hosts_comm_take(tess_comm *, int which, const hosts_under *, tess_comm *part, tess_error *);
/** Starts the worker, when all parts are there. */
tess_status hosts_comm_start(tess_comm *, tess_error *);
void hosts_comm_destroy(tess_comm *);

/* two_steps.c */
enum { HOSTS_SMALL_BYTES = 64 << 10, HOSTS_CHUNK_BYTES = 1 << 20 }; /* limits in bytes of one rank's block */
typedef struct {
    uint64_t own, under; /* bytes of scratch: ours in front, then that of the plugin between hosts */
} hosts_scratch;
/** The scratch of a call in two steps, on n ranks, `each` on a host. `own` is 0 when it goes in one step. */
hosts_scratch hosts_scratch_of(const hosts_plugin *, const tess_plan_env *, const tess_collective *, int32_t n,
                               int32_t each);
/** Runs a call that hosts_scratch_of has two steps for. The worker. */
tess_status hosts_run_two_steps(tess_comm *, const tess_collective *, const hosts_scratch *, tess_error *);
/** A rank of a part as one of all; -1 stays. */
int32_t hosts_rank_of(const tess_comm *, int which, int32_t);
/** Runs a call as it is on one part. */
tess_status hosts_run_on(tess_comm *, int which, const tess_collective *, tess_error *);
#endif
