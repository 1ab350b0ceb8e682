/* SPDX-License-Identifier: BSD-3-Clause */
/* The double of NCCL: ranks are processes of this host, connected by sockets of the user's own, in pairs. Collectives
 * run on the thread of the stream they were given to. As in NCCL: a communicator runs one thing after another, whatever
 * the streams; a communicator that does not block says ncclInProgress to every group and must be asked until it is
 * through, and in 2.26 it is never through now and then; one that blocks waits for its peers in the first group, and in
 * the first with sends; two threads in one communicator are a mistake, unless one aborts; who differs from the others
 * hangs until it is aborted. A group keeps a multiprocessor for each channel until it is done, and waits for as many.
 * Two communicators run beside each other, unless they share resources, and hang where ranks give them work in
 * different orders. */
#ifndef TESSERA_DOUBLE_NCCL_H
#define TESSERA_DOUBLE_NCCL_H
#include <nccl.h>

#include "driver.h"

enum { NCCL_ALL_GATHER = 1, NCCL_REDUCE_SCATTER, NCCL_ALL_REDUCE, NCCL_BROADCAST, NCCL_SEND, NCCL_RECV };
enum { NCCL_BY_RING = 1, NCCL_IN_PAIRS = 2 }; /* how ranks are connected */
enum { NCCL_CALLS = 1024, NCCL_RANKS = 64, NCCL_DATA = 0, NCCL_CONTROL, NCCL_CHANNELS };

typedef struct {
    int what, op, dtype, peer; /* peer: root of a broadcast */
    int recorded;              /* on all ranks, or on none */
    uint64_t order;            /* among the groups of all communicators of these ranks */
    uint8_t in_window;         /* where in a symmetric window, hashed; 0: in none */
    const void *send;
    void *recv;
    uint64_t count;
} nccl_call;

typedef struct nccl_group {
    struct nccl_group *next;
    struct ncclComm *comm;
    double_stream *stream;
    uint64_t turn;
    int begun; /* its turn has come */
    int n;
    nccl_call calls[NCCL_CALLS];
} nccl_group;

typedef struct ncclComm {
    int rank, nranks, device, blocking, users;
    char name[112];                              /* of its sockets, without the rank */
    char root[64];                               /* name of the first, of which it was split, */
    int members[NCCL_RANKS];                     /* and the ranks in that */
    struct ncclComm *line;                       /* whose turns it takes: its own, or those of one that shares */
    int channels;                                /* that a group of it takes on the device */
    int engines;                                 /* gathers in windows take copy engines */
    int shares;                                  /* splitShare: children are given its resources */
    int socket[NCCL_CHANNELS][NCCL_RANKS], wake; /* wake: readable once aborted */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    ncclResult_t state;
    int aborted, ended, finalized, splits, registrations;
    int busy;                        /* a task is being done */
    int in_graphs;                   /* how many things recorded refer to it: it does not end before */
    int starts, connected;           /* connected: NCCL_…, bits */
    uint64_t turns, done;            /* given out; passed */
    void (*task)(struct ncclComm *); /* for the helper thread; null: none */
    nccl_group *launch;              /* of the task */
    struct {
        int color, key;
        struct ncclComm *child, **out; /* out: the caller's */
    } split;
    struct { /* that is being made */
        uintptr_t at;
        uint64_t bytes, offset, made; /* made: so far */
        int flags;
        ncclWindow_t *out;
    } window;
    struct ncclComm *older; /* among those that were given back */
    void *room;             /* for contributions */
    uint64_t room_bytes;
} ncclComm;

/* ---- nccl_sockets.c ----------------------------------------------------------------------------- */

typedef struct {
    int peer;
    const void *send; /* one of the two */
    void *recv;
    uint64_t bytes, at;
    uint64_t head[2], head_at; /* what it is and how long: the other side must agree */
} nccl_move;

/** Connects with all ranks of comm->name. ncclSuccess, ncclInProgress when aborted, or an error. */
ncclResult_t nccl__connect(ncclComm *);
void nccl__disconnect(ncclComm *);
/** Does all moves, in order for each pair. `what`: both sides must name the same. When a peer is gone or disagrees:
 * sets the state of the communicator and waits for the abort. -1: aborted. */
int nccl__exchange(ncclComm *, int channel, uint64_t what, nccl_move *, int n);

/* ---- nccl_collectives.c ------------------------------------------------------------------------- */

uint64_t nccl__dtype_bytes(int dtype);
/** A group's calls, on the thread of the stream; -1: aborted. */
int nccl__run_calls(ncclComm *, const nccl_call *, int n);

/* ---- nccl_order.c -------------------------------------------------------------------------------- */

void nccl__line_up(nccl_group *); /* takes a turn */
void nccl__await_turn(const nccl_group *);
void nccl__take_room(const nccl_group *); /* on the device; given back at the end of the turn */
void nccl__hold_up(nccl_group *);         /* TESSERA_DOUBLE_OVERTAKE, …_END */
void nccl__end_turn(const nccl_group *);

/* ---- nccl_windows.c ------------------------------------------------------------------------------ */

/** Of memory that lies in a window of the communicator's, all of it; 0: it does not. */
uint64_t nccl__place_in_window(const ncclComm *, const void *, uint64_t bytes);
void nccl__drop_windows(ncclComm *);
void nccl__memory_goes(uintptr_t at, uint64_t bytes); /* which a window may have */

/* ---- nccl_comm.c -------------------------------------------------------------------------------- */

/** Fails a call by TESSERA_DOUBLE_FAIL; ncclSuccess to go on. */
ncclResult_t nccl__enter(const char *name, ncclResult_t usual, int since_version);
int nccl__is_aborted(ncclComm *);
void nccl__set_state(ncclComm *, ncclResult_t); /* an error stays */
void nccl__use(ncclComm *);
void nccl__unuse(ncclComm *);
/** Has the helper thread do `task`; the state is ncclInProgress until it is done. A blocking communicator does it now.
 * The call that nccl__enter named last may be one that is to hang. */
ncclResult_t nccl__start(ncclComm *, void (*task)(ncclComm *));
/** Waits for all ranks, with what `launch` needs of them. -1: aborted. */
int nccl__connect_for(ncclComm *, int how);
/** Whether calls may be made: ncclSuccess, ncclInvalidArgument while something is in progress, or its error. */
ncclResult_t nccl__ready(ncclComm *);
#endif
