/* SPDX-License-Identifier: BSD-3-Clause */
/* One thread keeps many blocks under way by io_uring, in place of a thread for each. */
#include "ring.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>

struct disk_ring {
    struct io_uring uring;
    disk_queue *queue;
    int fixed; /* the file is registered */
    uint32_t depth, in_flight;
    struct {
        disk_block block;
        uint64_t done;
        uint32_t next_free;
    } slots[];
};

/* Slot `depth` is none; the first free one is kept behind the last. */
static uint32_t first_free(const disk_ring *r) {
    return r->slots[r->depth].next_free;
}

int disk_ring_open(disk_ring **out, disk_queue *queue, uint32_t depth) {
    disk_ring *r = calloc(1, sizeof *r + (depth + 1) * sizeof *r->slots);
    if (!r)
        return ENOMEM;
    int failed = io_uring_queue_init(depth, &r->uring, 0);
    if (failed) {
        free(r);
        return -failed;
    }
    r->queue = queue;
    r->depth = depth;
    r->fixed = io_uring_register_files(&r->uring, &queue->file->fd, 1) == 0;
    for (uint32_t i = 0; i <= depth; i++)
        r->slots[i].next_free = i == depth ? 0 : i + 1;
    *out = r;
    return 0;
}

void disk_ring_close(disk_ring *r) {
    if (!r)
        return;
    io_uring_queue_exit(&r->uring);
    free(r);
}

/* Asks for what is left of a block. There are as many entries as slots. */
static void ask(disk_ring *r, uint32_t slot) {
    const disk_block *b = &r->slots[slot].block;
    uint64_t done = r->slots[slot].done;
    struct io_uring_sqe *e = io_uring_get_sqe(&r->uring);
    int fd = r->fixed ? 0 : r->queue->file->fd;
    unsigned bytes = (unsigned)(b->bytes - done);
    if (b->op == TESS_STORE_READ)
        io_uring_prep_read(e, fd, b->memory + done, bytes, b->at + done);
    else
        io_uring_prep_write(e, fd, b->memory + done, bytes, b->at + done);
    if (r->fixed)
        e->flags |= IOSQE_FIXED_FILE;
    e->user_data = slot;
}

static void begin(disk_ring *r, const disk_block *b) {
    uint32_t slot = first_free(r);
    r->slots[r->depth].next_free = r->slots[slot].next_free;
    r->slots[slot].block = *b;
    r->slots[slot].done = 0;
    r->in_flight++;
    disk_block_begins(r->queue, b);
    ask(r, slot);
}

static void end(disk_ring *r, uint32_t slot, tess_error *e) {
    disk_block_ends(r->queue, &r->slots[slot].block, e);
    r->slots[slot].next_free = first_free(r);
    r->slots[r->depth].next_free = slot;
    r->in_flight--;
}

/* A block may come in parts, as far as the system feels like. */
static void take_result(disk_ring *r, uint32_t slot, int result) {
    const disk_block *b = &r->slots[slot].block;
    tess_error e = { .struct_size = sizeof e };
    if (result > 0)
        r->slots[slot].done += (uint32_t)result;
    if (result <= 0 && result != -EINTR && result != -EAGAIN)
        disk_file_failed(r->queue->file, b->op, b->at + r->slots[slot].done, -result, &e);
    else if (r->slots[slot].done < b->bytes) {
        ask(r, slot);
        return;
    }
    end(r, slot, &e);
}

static void take_results(disk_ring *r) {
    struct io_uring_cqe *c;
    while (io_uring_peek_cqe(&r->uring, &c) == 0) {
        uint32_t slot = (uint32_t)c->user_data;
        int result = c->res;
        io_uring_cqe_seen(&r->uring, c);
        take_result(r, slot, result);
    }
}

void disk_ring_work(disk_ring *r) {
    disk_block b;
    for (;;) {
        while (r->in_flight < r->depth && disk_block_take(r->queue, &b, r->in_flight == 0))
            begin(r, &b);
        if (!r->in_flight)
            return; /* the store closes */
        io_uring_submit_and_wait(&r->uring, 1);
        take_results(r);
    }
}
