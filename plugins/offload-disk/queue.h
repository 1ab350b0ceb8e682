/* SPDX-License-Identifier: BSD-3-Clause */
/* Requests wait in a queue; whoever reads and writes takes blocks from its head, so that one large request keeps all
 * busy. */
#ifndef DISK_QUEUE_H
#define DISK_QUEUE_H
#include "store.h"

typedef struct {
    const disk_file *file;
    const disk_sums *sums;
    pthread_mutex_t lock; /* of all that follows */
    pthread_cond_t more, ended;
    tess_request *requests, *free, *first, *last;
    int stop;
} disk_queue;

/** For `n` requests under way at once. */
tess_status disk_queue_init(disk_queue *, uint32_t n, tess_error *);
void disk_queue_stop(disk_queue *);   /* no request comes any more */
void disk_queue_finish(disk_queue *); /* none is under way */

tess_request *disk_request_take(disk_queue *, const tess_store_io *); /* null: too many are under way */
void disk_request_append(disk_queue *, tess_request *);               /* to be done in blocks; or it is done: */
void disk_request_end(tess_request *, const tess_error *);            /* code 0: without a failure */
tess_status disk_request_wait(disk_queue *, tess_request *, tess_error *);

/** The next block. With `wait`, waits for one, and 0 is the end. */
int disk_block_take(disk_queue *, disk_block *, int wait);
void disk_block_begins(const disk_queue *, const disk_block *);                /* before it is read or written */
void disk_block_compare(const disk_queue *, const disk_block *, tess_error *); /* what was read, with its sums */
void disk_block_ends(disk_queue *, const disk_block *, tess_error *);          /* with code 0: it was moved whole */
#endif
