/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads and writes by io_uring. Where liburing is not there, a kernel does not know it or a container forbids it,
 * threads do the work (store.c). */
#ifndef DISK_RING_H
#define DISK_RING_H
#include "queue.h"

typedef struct disk_ring disk_ring;
/** Makes a ring for `depth` blocks under way at once; returns the system's error, 0 for none. */
int disk_ring_open(disk_ring **, disk_queue *, uint32_t depth);
void disk_ring_work(disk_ring *);  /* on its own thread, until the store closes and all blocks have ended */
void disk_ring_close(disk_ring *); /* null is fine */
/** Registers memory, so that the system does not look its pages up for each block; returns the system's error, as where a
 * limit of locked memory is reached. Blocks elsewhere are moved as before. */
int disk_ring_register(disk_ring *, void *memory, uint64_t bytes);
void disk_ring_deregister(disk_ring *);
#endif
