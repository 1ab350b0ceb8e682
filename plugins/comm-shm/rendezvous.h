/* SPDX-License-Identifier: BSD-3-Clause */
/* At init the ranks of a group find each other and exchange descriptors. */
#ifndef SHM_RENDEZVOUS_H
#define SHM_RENDEZVOUS_H
#include "group.h"
#include "plugin_base.h"

/* Fills in the descriptors of all ranks. Collective; ends with the timeout, or when the host is aborting. */
tess_status shm_meet(const tess_host *, const tess_comm_config *, struct shm_group *, tess_error *);
#endif
