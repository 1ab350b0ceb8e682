/* SPDX-License-Identifier: BSD-3-Clause */
/* One communicator: the kit's queue and worker over a table in shared memory. */
#ifndef SHM_COMMUNICATOR_H
#define SHM_COMMUNICATOR_H
#include "operations.h"
#include "requests.h"

struct tess_comm {
    kit_requests requests; /* first */
    struct shm_group *group;
    int rank, size, members[SHM_RANKS_MAX]; /* group rank of each rank */
    char prefix[256];
    struct shm_table table;
    struct shm_operations operations;
};

extern const kit_reach shm_reach;

/* Creates the communicator of rank `members[rank]` of a group; its table lies in the file of members[0]. It takes over
 * the caller's reference to the group, also when it fails. */
tess_status shm_comm_create(const tess_host *, struct shm_group *, const int *members, int rank, int size,
                            const char *prefix, uint64_t table_offset, tess_comm **out, tess_error *);
void shm_comm_destroy(tess_comm *);
#endif
