/* How the ranks of a group find each other at init and get each other's descriptors. */
#ifndef SHM_MEETING_H
#define SHM_MEETING_H
#include "group.h"

/* Fills in the descriptors of all ranks. Collective; ends with the timeout, or when the host is aborting. */
tess_status shm_meet(const struct shm_settings *, const tess_comm_config *, struct shm_group *, struct shm_failure *);
#endif
