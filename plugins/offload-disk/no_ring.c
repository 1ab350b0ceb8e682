/* SPDX-License-Identifier: BSD-3-Clause */
/* In place of ring.c where there is no liburing. */
#include "ring.h"

#include <errno.h>

int disk_ring_open(disk_ring **out, disk_queue *queue, uint32_t depth) {
    (void)out, (void)queue, (void)depth;
    return ENOSYS;
}

void disk_ring_work(disk_ring *r) {
    (void)r;
}

int disk_ring_register(disk_ring *r, void *memory, uint64_t bytes) {
    (void)r, (void)memory, (void)bytes;
    return ENOSYS;
}

void disk_ring_deregister(disk_ring *r) {
    (void)r;
}

void disk_ring_close(disk_ring *r) {
    (void)r;
}
