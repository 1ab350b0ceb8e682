/* SPDX-License-Identifier: BSD-3-Clause */
/* A communicator's shared memory: one slot per rank, and one staging buffer per rank for data that the others cannot
 * map. Only the rank itself writes its slot, except for the wakeup word. There is no lock in it: ranks publish by
 * counting up, so a rank that dies leaves nothing stuck. */
#ifndef SHM_TABLE_H
#define SHM_TABLE_H
#include "collective.h"
#include "group.h"

/* A half of a rank's stage; half 1 is filled while half 0 is being read. */
enum { SHM_STAGE_BYTES = 512 << 10 };

/* A buffer's place in this rank's arena file; region.bytes is 0 if it lies elsewhere. */
struct shm_place {
    struct shm_region region;
    uint64_t offset;
};
struct shm_announcement {
    kit_announcement call;
    struct shm_place send, recv; /* recv of a reduction: the place of this rank's shard of the result */
};

/* Counters only grow; each says how far this rank is. */
enum shm_count {
    SHM_ANNOUNCED, /* calls that announced[] holds or held */
    SHM_DONE,      /* calls after which this rank reads no other's memory */
    SHM_REDUCED,   /* all_reduce calls whose shard of the result is complete in this rank's recv */
    SHM_STAGED,    /* rounds that this rank's stage holds or held */
    SHM_TAKEN,     /* rounds in which this rank has read all stages it had to */
    SHM_COUNTS
};
enum { SHM_JOINING, SHM_HERE, SHM_LEFT }; /* a slot's state; below 0: the status it failed with */

struct shm_slot {
    _Alignas(64) atomic_uint wakeup;
    atomic_int sleeping;
    _Alignas(64) atomic_int state;
    uint64_t process; /* shm_this_process() of its owner */
    _Alignas(64) atomic_uint_fast64_t count[SHM_COUNTS];
    _Alignas(64) struct shm_announcement announced[2]; /* call n uses announced[n % 2] */
    uint64_t parts[2][SHM_RANKS_MAX]; /* the same, of an all_to_all_v: bytes before each reader's part; */
    uint64_t longest[2];              /* and bytes of the longest */
};

struct shm_table {
    struct shm_group *group;
    const int *members; /* group rank of each rank */
    int rank, size;
    struct shm_slot *slots;
    unsigned char *stages;
    uint64_t bytes;
    int spins;
    atomic_int stop;    /* set: this rank gives up waiting */
    tess_error *reason; /* valid once stop is set */
};

uint64_t shm_table_bytes(int size);
/* `memory` is the table as mapped; `members` and `reason` live as long as the table. */
void shm_table_open(struct shm_table *, struct shm_group *, const int *members, int rank, int size, void *memory,
                    tess_error *reason);
void shm_table_close(struct shm_table *);

static inline unsigned char *shm_stage(const struct shm_table *t, int rank, uint64_t round) {
    return t->stages + ((uint64_t)rank * 2 + (round & 1)) * SHM_STAGE_BYTES;
}
static inline uint64_t shm_count(const struct shm_table *t, int rank, enum shm_count what) {
    return atomic_load_explicit(&t->slots[rank].count[what], memory_order_acquire);
}

/* The communicator's worker only. Publish sets this rank's counter, for all who wait. */
void shm_publish(struct shm_table *, enum shm_count, uint64_t value);
/* Waits until ranks first … last - 1 have counted to `value`. Fails when this rank gives up, or one of those that are
 * missing has failed or died. */
tess_status shm_await(struct shm_table *, enum shm_count, int first, int last, uint64_t value, tess_error *);
/* Whether what was read from other ranks' memory was theirs: none of those in `read` has given up meanwhile. */
tess_status shm_still_here(struct shm_table *, const unsigned char *read, tess_error *);

/* Any thread. */
void shm_table_set_state(struct shm_table *, int state); /* the first failure stays */
void shm_table_stop(struct shm_table *);                 /* wakes the worker; reason is set before */
#endif
