/* SPDX-License-Identifier: BSD-3-Clause */
/* The ranks that met at init, and the memory they share: each has one memfd for arenas and one for tables, and holds
 * the descriptors of all. A memfd has no name in any directory; it is gone when the last holder is.
 *
 * A group belongs to the communicator that init made and to all that were split off from it. Any thread. */
#ifndef SHM_GROUP_H
#define SHM_GROUP_H
#include <tessera/plugin_helpers.h>
#include <pthread.h>
#include <stdatomic.h>

enum { SHM_RANKS_MAX = 64, SHM_OWN_REGIONS = 256 };

/* A piece of a rank's arena file, as ranks tell each other: bytes 0 is none. Offsets are never used twice. */
struct shm_region {
    uint64_t offset, bytes;
};
struct shm_own_region {
    struct shm_region region;
    unsigned char *at;
};
struct shm_peer_region { /* another rank's, mapped here for reading when first used */
    struct shm_region region;
    const unsigned char *at;
};

struct shm_group {
    atomic_int references;
    int rank, size;
    struct { /* index: rank */
        int arena_fd, table_fd;
        struct shm_peer_region *regions;
        uint32_t n_regions, room;
    } ranks[SHM_RANKS_MAX];
    pthread_mutex_t lock; /* guards the fields below and the regions above */
    uint64_t arena_end, table_end;
    struct shm_own_region own[SHM_OWN_REGIONS];
};

/* Makes this rank's files; the others' descriptors are then filled in by shm_meet. */
tess_status shm_group_create(int rank, int size, struct shm_group **out, tess_error *);
void shm_group_keep(struct shm_group *);
void shm_group_drop(struct shm_group *); /* the last one unmaps and closes all; null is fine */

/* From now on the other ranks can see if this process is alive. Call it when descriptors have been exchanged, because
 * closing any descriptor of the file ends the sign of life. */
tess_status shm_group_show_life(struct shm_group *, tess_error *);
int shm_group_alive(const struct shm_group *, int rank); /* for a rank in another process */
uint64_t shm_this_process(void);                         /* a number that no other process has */

/* Memory of this rank that all ranks can read. */
tess_status shm_arena_alloc(struct shm_group *, uint64_t bytes, uint64_t align, void **out, tess_error *);
void shm_arena_free(struct shm_group *, void *ptr);
/* Finds the region that holds all of [ptr, ptr + bytes) and ptr's offset in the file; returns 0 if none does. */
int shm_arena_find(struct shm_group *, const void *ptr, uint64_t bytes, struct shm_region *, uint64_t *offset);
/* `bytes` at a place in `rank`'s arena file, for reading here. What that rank says of it is checked against the file.
 * Null: they are not there, or cannot be mapped. */
const void *shm_arena_at(struct shm_group *, int rank, const struct shm_region *, uint64_t offset, uint64_t bytes);

/* A communicator's table, zeroed, in the file of the rank that is first in it; the others map it by its offset. */
tess_status shm_table_reserve(struct shm_group *, uint64_t bytes, uint64_t *offset, tess_error *);
tess_status shm_table_map(struct shm_group *, int rank, uint64_t offset, uint64_t bytes, void **out, tess_error *);
#endif
