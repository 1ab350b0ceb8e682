/* SPDX-License-Identifier: BSD-3-Clause */
/* One thread keeps many blocks under way by io_uring, in place of a thread for each. */
#include "ring.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>

enum { PIECE = 1 << 29, MOST_PIECES = 1024 }; /* a registered buffer has at most 1 GiB, and old systems know so many */

struct disk_ring {
    struct io_uring uring;
    disk_queue *queue;
    char *memory;   /* registered in pieces, as long as it lasts; null: none. With the queue's lock, as bytes: */
    uint64_t bytes; /* threads that hand requests over register it */
    int fixed;      /* the file is registered */
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

/* ---- memory that is known ---- */

static void note_memory(disk_ring *r, char *memory, uint64_t bytes) {
    pthread_mutex_lock(&r->queue->lock);
    r->memory = memory;
    r->bytes = bytes;
    pthread_mutex_unlock(&r->queue->lock);
}

int disk_ring_register(disk_ring *r, void *memory, uint64_t bytes) {
    uint64_t n = (bytes + PIECE - 1) / PIECE;
    struct iovec *piece = n && n <= MOST_PIECES ? calloc(n, sizeof *piece) : NULL;
    if (!piece)
        return n && n <= MOST_PIECES ? ENOMEM : EOVERFLOW;
    for (uint64_t i = 0; i < n; i++)
        piece[i] = (struct iovec){ (char *)memory + i * PIECE, i + 1 < n ? PIECE : bytes - i * PIECE };
    int failed = -io_uring_register_buffers(&r->uring, piece, (unsigned)n);
    free(piece);
    if (!failed)
        note_memory(r, memory, bytes);
    return failed;
}

void disk_ring_deregister(disk_ring *r) {
    if (!r)
        return;
    note_memory(r, NULL, 0);
    io_uring_unregister_buffers(&r->uring);
}

/* The piece that holds all of these bytes, or -1. */
static int piece_of(disk_ring *r, const char *memory, uint64_t bytes) {
    pthread_mutex_lock(&r->queue->lock);
    uint64_t at = (uint64_t)((uintptr_t)memory - (uintptr_t)r->memory);
    int within = r->memory && at < r->bytes && bytes <= r->bytes - at && at / PIECE == (at + bytes - 1) / PIECE;
    pthread_mutex_unlock(&r->queue->lock);
    return within ? (int)(at / PIECE) : -1;
}

/* ---- blocks ---- */

static void prepare(disk_ring *r, struct io_uring_sqe *e, const disk_block *b, uint64_t done) {
    int fd = r->fixed ? 0 : r->queue->file->fd;
    unsigned bytes = (unsigned)(b->bytes - done);
    char *memory = b->memory + done;
    int piece = piece_of(r, memory, bytes), read = b->op == TESS_STORE_READ;
    if (piece >= 0 && read)
        io_uring_prep_read_fixed(e, fd, memory, bytes, b->at + done, piece);
    else if (piece >= 0)
        io_uring_prep_write_fixed(e, fd, memory, bytes, b->at + done, piece);
    else if (read)
        io_uring_prep_read(e, fd, memory, bytes, b->at + done);
    else
        io_uring_prep_write(e, fd, memory, bytes, b->at + done);
}

/* Asks for what is left of a block. There are as many entries as slots. */
static void ask(disk_ring *r, uint32_t slot) {
    struct io_uring_sqe *e = io_uring_get_sqe(&r->uring);
    prepare(r, e, &r->slots[slot].block, r->slots[slot].done);
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
