/* SPDX-License-Identifier: BSD-3-Clause */
/* The communicators of an engine, its place among the ranks and its control plane. What it posts, how it waits for
 * that, and what this rank is known to be doing. */
#ifndef TESS_COMMS_H
#define TESS_COMMS_H
#include "control/control_share.h"
#include "device.h"
#include "plan/program.h"

#include <pthread.h>

enum { TESS__RECENT_TAGS = 16, TESS__REGISTRATIONS = 32, TESS__ACTIVITY = 256, TESS__POSTED_TEXT = 128 };

typedef struct {
    const tess_comm_ops *ops;
    const tess__plugin *plugin;
    const tess__device *device; /* whose memory is sent */
    tess__world world;        /* in a group of ranks (tess_options.group) its rank and nranks are those of the group: */
    int32_t *members;         /* by number in the group, the rank of the process; null: the same */
    int32_t color, all_ranks; /* of the group; how many ranks the process's world has */
    char title[96];           /* for messages: "engine 2", "group tp (ranks 0, 1)" */
    tess__control *control;   /* null: one rank, or a plan only */
    tess__control_seat seat;
    int64_t timeout_ns;
    tess_comm *list[TESS__N_COMMS]; /* the same pointer where groups coincide */
    tess_comm *closing[TESS__N_COMMS];
    pthread_mutex_t lock; /* held while list[] changes or is aborted */
    int shard_rank, replica_rank, shard_ranks;
    int32_t copy_groups;              /* 0: nobody keeps images for another */
    tess_request *unowned_request;    /* of a collective that has no other home; set only until its end */
    char activity[2][TESS__ACTIVITY]; /* what this rank does, for messages; the second is being written */
    int activity_now;
    uint64_t n_collectives, exchange_count;
    uint64_t recent_tags[TESS__RECENT_TAGS]; /* of the collectives posted last, by number modulo; and their names: */
    char recent_what[TESS__RECENT_TAGS][TESS__POSTED_TEXT];
    uint64_t common;       /* a hash of the options of all steps: part of every tag */
    char common_text[192]; /* of the last step */
    uint32_t pass_kind;    /* of the running pass: part of every tag; 0: none */
    char absent[96];       /* ranks that do not wait with this one; "" none */
    int32_t lost_peer;     /* 1 + the rank that a failed collective names; 0 none */
    struct {
        const tess_comm *comm; /* null: free */
        const char *ptr;
        uint64_t bytes;
        void *reg;
    } registrations[TESS__REGISTRATIONS]; /* of memory that communicators allocated or were told of */
} tess__comms;

void tess__comms_use(tess__comms *, const tess__plugin *, const tess__device *); /* before all that needs the plugin */
tess_status tess__comms_caps(const tess__comms *, tess_comm_caps *out);
int tess__comms_waits_on_streams(const tess__comms *);
/** [C] Makes the world and, where the setup has them, the groups of shards and of replicas. If the plugin gains by
 * it, reductions of a shard group get another communicator. */
tess_status tess__comms_create(tess__comms *, const tess__setup *);
static inline int tess__comms_apart(const tess__comms *c) { /* whether reductions have one of their own */
    return c->list[TESS__SHARD_SUMS] != c->list[TESS__SHARD];
}
/** Ends what is under way on every communicator. Any thread. */
void tess__comms_abort(tess__comms *, tess_status why);
void tess__comms_lost(void *comms, int32_t rank, const char *why); /* tess__lost_fn */
/** Comes first at the end: from then on an abort does not reach the communicators. Then the memory that they
 * allocated is given back, because finalize may end what takes registrations back (NCCL's proxy). Then they are
 * destroyed. */
void tess__comms_withdraw(tess__comms *);
void tess__comms_destroy(tess__comms *, int orderly);

void tess__comms_skip(tess__comms *,
                      uint64_t number); /* sets the number of the next collective; those before it are not compared */
void tess__comms_reset(tess__comms *);  /* as on a rank that starts now, which has posted nothing */

/** The communicator that allocates the device's memory, so that it reaches it best. Null: the device allocates. */
tess_comm *tess__comms_allocator(const tess__comms *);
tess_status tess__comms_alloc(tess__comms *, tess_comm *, const tess_alloc_request *, tess_buffer *out);
/** Registers memory that `owner` allocated with the communicator of another group; returns that one, null where it is
 * the same or cannot. */
tess_comm *tess__comms_register(tess__comms *, int which, const tess_comm *owner, tess_buffer *);
/** Whether communicators let their ranks reach each other's memory; the same on all ranks. */
int tess__comms_share_memory(const tess__comms *);
/** [C] Shares memory that is registered with that communicator and as large on every rank. TESS_E_UNSUPPORTED, on
 * all ranks, sets no message. */
tess_status tess__comms_share(tess__comms *, tess_comm *, tess_buffer *);
void tess__comms_deregister(tess__comms *, tess_comm *, tess_buffer *);
void tess__comms_free(tess__comms *, tess_comm *, tess_buffer *);

/** Sets this rank's activity, which other ranks name if it is lost in it. */
const char *tess__comms_doing(tess__comms *, const char *text);
void tess__comms_idle(tess__comms *);
const char *tess__comms_activity(const tess__comms *); /* "": nothing */

/** Posts the collective; fills in memory kinds, stream and number. */
tess_status tess__comm_post(tess__comms *, int which, tess_collective *, tess_request **);
/** Blocks until the request has ended, while it listens for lost ranks. */
tess_status tess__comm_wait(tess__comms *, int which, tess_request *, uint64_t seq);
/** Checks whether collectives of the device's graphs, which have no request, can still end after so long a wait. */
tess_status tess__comms_listen(tess__comms *, int64_t waited_ns);
/** Posts, waits and frees. */
tess_status tess__comm_run(tess__comms *, int which, const tess_collective *, const char *doing);
int tess__comm_has_ended(const tess__comms *, tess_request *);
tess_status tess__comm_wait_on_stream(const tess__comms *, tess_request *, const tess_stream *);
void tess__comm_free(const tess__comms *, tess_request *);
void tess__comm_drop(const tess__comms *, tess_request *); /* waits a while; frees it unless it is still under way */

/** The rank of the process, as launchers and messages count, that has number `rank` here; -1 for -1. */
static inline int32_t tess__comms_rank(const tess__comms *c, int32_t rank) {
    return c->members && rank >= 0 ? c->members[rank] : rank;
}
/** How many ranks a communicator has, and the number, here, of its i-th. */
int32_t tess__comms_size(const tess__comms *, int which);
int32_t tess__comms_member(const tess__comms *, int which, int32_t i);
/** [C] over all ranks of the process's world: makes those that give the same color the world of this engine, in the
 * order of their keys, then ranks. `outside` 1: the color is negative, and this rank takes no part. */
tess_status tess__comms_join_group(tess__comms *, const tess_group_options *, int *outside);
void tess__comms_leave_group(tess__comms *);

/** A key that no other engine of this process uses. */
void tess__comms_key(const tess__comms *, const char *key, char *out, size_t n);
void tess__comms_rank_key(const tess__comms *, const char *what, int32_t rank, char *out, size_t n); /* one per rank */
/** [C] Exchanges `bytes` with all ranks under a key that no other exchange has. */
tess_status tess__comms_exchange(tess__comms *, const char *what, const void *mine, uint64_t bytes, void *out);
/** [C] The same in a step that all ranks have just agreed on: takes no memory, and says nowhere that this rank waits.
 */
tess_status tess__comms_exchange_in_step(tess__comms *, const char *what, const void *mine, uint64_t bytes, void *out);

/** For comms.c and comms_memory.c. The first makes a plugin's error the engine's. The second tells whether
 * list[which] has the first place of a communicator that stands for several groups. The third finds the registration
 * that holds `at`, or null. */
tess_status tess__comms_failed(const tess__comms *, tess_status, const tess_error *);
int tess__comms_stands_first(tess_comm *const *list, int which);
void *tess__comms_registration(const tess__comms *, const tess_comm *, const void *at);
#endif
