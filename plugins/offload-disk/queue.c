/* SPDX-License-Identifier: BSD-3-Clause */
#include "queue.h"

#include <stdlib.h>

struct tess_request {
    tess_store_io io;
    uint64_t taken, ended; /* bytes of blocks that were taken, and that have ended */
    tess_error error;      /* the first one; code 0: none */
    tess_request *next;    /* in the queue, or among the free ones */
};

tess_status disk_queue_init(disk_queue *q, uint32_t n, tess_error *error) {
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->more, NULL);
    pthread_cond_init(&q->ended, NULL);
    q->requests = calloc(n, sizeof *q->requests);
    if (!q->requests)
        return tess_plugin_fail(error, TESS_E_NOMEM, "no memory for %u requests", n);
    for (uint32_t i = 0; i < n; i++) {
        q->requests[i].next = q->free;
        q->free = &q->requests[i];
    }
    return TESS_OK;
}

void disk_queue_stop(disk_queue *q) {
    pthread_mutex_lock(&q->lock);
    q->stop = 1;
    pthread_cond_broadcast(&q->more);
    pthread_mutex_unlock(&q->lock);
}

void disk_queue_finish(disk_queue *q) {
    pthread_cond_destroy(&q->more);
    pthread_cond_destroy(&q->ended);
    pthread_mutex_destroy(&q->lock);
    free(q->requests);
}

/* ---- requests ---------------------------------------------------------------------------------- */

tess_request *disk_request_take(disk_queue *q, const tess_store_io *io) {
    pthread_mutex_lock(&q->lock);
    tess_request *r = q->free;
    if (r) {
        q->free = r->next;
        *r = (tess_request){ .io = *io, .error = { .struct_size = sizeof r->error } };
    }
    pthread_mutex_unlock(&q->lock);
    return r;
}

void disk_request_append(disk_queue *q, tess_request *r) {
    pthread_mutex_lock(&q->lock);
    if (q->first)
        q->last->next = r;
    else
        q->first = r;
    q->last = r;
    pthread_cond_broadcast(&q->more);
    pthread_mutex_unlock(&q->lock);
}

void disk_request_end(tess_request *r, const tess_error *e) {
    r->error = *e;
    r->ended = r->io.bytes;
}

tess_status disk_request_wait(disk_queue *q, tess_request *r, tess_error *error) {
    pthread_mutex_lock(&q->lock);
    while (r->ended < r->io.bytes)
        pthread_cond_wait(&q->ended, &q->lock);
    tess_status status = r->error.code ? tess_plugin_copy_error(error, &r->error) : TESS_OK;
    r->next = q->free;
    q->free = r;
    pthread_mutex_unlock(&q->lock);
    return status;
}

/* ---- blocks ------------------------------------------------------------------------------------ */

/* Takes the next block off the queue's first request. With the lock. */
static disk_block take_block(disk_queue *q) {
    tess_request *r = q->first;
    uint64_t left = r->io.bytes - r->taken, bytes = left < DISK_BLOCK ? left : DISK_BLOCK;
    disk_block b = { .op = r->io.op,
                     .at = r->io.at + r->taken,
                     .bytes = bytes,
                     .memory = (char *)r->io.memory + r->taken,
                     .request = r };
    r->taken += bytes;
    if (r->taken == r->io.bytes)
        q->first = r->next;
    return b;
}

int disk_block_take(disk_queue *q, disk_block *out, int wait) {
    pthread_mutex_lock(&q->lock);
    while (wait && !q->first && !q->stop)
        pthread_cond_wait(&q->more, &q->lock);
    int any = q->first != NULL;
    if (any)
        *out = take_block(q);
    pthread_mutex_unlock(&q->lock);
    return any;
}

void disk_block_begins(const disk_queue *q, const disk_block *b) {
    if (b->op == TESS_STORE_WRITE)
        disk_sums_note(q->sums, b);
}

void disk_block_compare(const disk_queue *q, const disk_block *b, tess_error *e) {
    if (!e->code && b->op == TESS_STORE_READ)
        disk_sums_check(q->sums, q->file, b, e);
}

void disk_block_ends(disk_queue *q, const disk_block *b, tess_error *e) {
    disk_block_compare(q, b, e);
    pthread_mutex_lock(&q->lock);
    if (e->code && !b->request->error.code)
        b->request->error = *e;
    b->request->ended += b->bytes;
    if (b->request->ended == b->request->io.bytes)
        pthread_cond_broadcast(&q->ended);
    pthread_mutex_unlock(&q->lock);
}
