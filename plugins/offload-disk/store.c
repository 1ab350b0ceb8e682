/* SPDX-License-Identifier: BSD-3-Clause */
/* Requests wait in a queue; threads take blocks from its head, so that one large request keeps all of them busy. */
#include "ring.h"

#include <errno.h>
#include <stdlib.h>

struct tess_request {
    tess_store_io io;
    uint64_t taken, ended; /* bytes of blocks that a thread has taken, and that have ended */
    tess_error error;      /* the first one; code 0: none */
    tess_request *next;    /* in the queue, or among the free ones */
};

struct tess_store {
    disk_file file;
    disk_sums sums;
    disk_ring *ring; /* null: threads work without */
    uint64_t bytes;  /* that requests may reach */
    char *bounce;
    pthread_mutex_t bouncing; /* one request at a time goes there */
    pthread_mutex_t lock;     /* of all that follows */
    pthread_cond_t more, ended;
    tess_request *requests, *free, *first, *last;
    int stop;
    uint32_t n_threads;
    pthread_t thread[];
};

/* ---- blocks ------------------------------------------------------------------------------------ */

/* Takes the next block off the queue's first request. With the lock. */
static disk_block take_block(tess_store *x) {
    tess_request *r = x->first;
    uint64_t left = r->io.bytes - r->taken, bytes = left < DISK_BLOCK ? left : DISK_BLOCK;
    disk_block b = { .op = r->io.op,
                     .at = r->io.at + r->taken,
                     .bytes = bytes,
                     .memory = (char *)r->io.memory + r->taken,
                     .request = r };
    r->taken += bytes;
    if (r->taken == r->io.bytes)
        x->first = r->next;
    return b;
}

int disk_block_take(tess_store *x, disk_block *out, int wait) {
    pthread_mutex_lock(&x->lock);
    while (wait && !x->first && !x->stop)
        pthread_cond_wait(&x->more, &x->lock);
    int any = x->first != NULL;
    if (any)
        *out = take_block(x);
    pthread_mutex_unlock(&x->lock);
    return any;
}

void disk_block_begins(const tess_store *x, const disk_block *b) {
    if (b->op == TESS_STORE_WRITE)
        disk_sums_note(&x->sums, b);
}

static void check_block(const tess_store *x, const disk_block *b, tess_error *e) {
    if (!e->code && b->op == TESS_STORE_READ)
        disk_sums_check(&x->sums, &x->file, b, e);
}

void disk_block_ends(tess_store *x, const disk_block *b, tess_error *e) {
    check_block(x, b, e);
    pthread_mutex_lock(&x->lock);
    if (e->code && !b->request->error.code)
        b->request->error = *e;
    b->request->ended += b->bytes;
    if (b->request->ended == b->request->io.bytes)
        pthread_cond_broadcast(&x->ended);
    pthread_mutex_unlock(&x->lock);
}

static void work(void *store) {
    disk_block b;
    while (disk_block_take(store, &b, 1)) {
        tess_error e = { .struct_size = sizeof e };
        disk_block_begins(store, &b);
        disk_file_move(&((tess_store *)store)->file, &b, &e);
        disk_block_ends(store, &b, &e);
    }
}

static void work_ring(void *store) {
    disk_ring_work(((tess_store *)store)->ring);
}

/* ---- requests that lie anywhere ---------------------------------------------------------------- */

/* Moves bytes [at, at + n), which lie within whole pieces [from, from + bytes), by way of the store's own memory. */
static void bounce_part(tess_store *x, const tess_store_io *io, uint64_t done, uint64_t n, tess_error *e) {
    uint64_t at = io->at + done, from = at / DISK_ALIGN * DISK_ALIGN;
    uint64_t end = (at + n + DISK_ALIGN - 1) / DISK_ALIGN * DISK_ALIGN;
    disk_block b = { .op = TESS_STORE_READ, .at = from, .bytes = end - from, .memory = x->bounce };
    int whole = at == from && at + n == end;
    if (io->op == TESS_STORE_READ || !whole) {
        disk_file_move(&x->file, &b, e);
        check_block(x, &b, e);
    }
    if (e->code)
        return;
    if (io->op == TESS_STORE_READ) {
        memcpy((char *)io->memory + done, x->bounce + (at - from), n);
        return;
    }
    memcpy(x->bounce + (at - from), (const char *)io->memory + done, n);
    b.op = TESS_STORE_WRITE;
    disk_block_begins(x, &b);
    disk_file_move(&x->file, &b, e);
}

static void bounce(tess_store *x, tess_request *r) {
    const tess_store_io *io = &r->io;
    pthread_mutex_lock(&x->bouncing);
    for (uint64_t done = 0; done < io->bytes && !r->error.code;) {
        uint64_t room = DISK_BOUNCE - (io->at + done) % DISK_ALIGN, left = io->bytes - done;
        uint64_t n = left < room ? left : room;
        bounce_part(x, io, done, n, &r->error);
        done += n;
    }
    pthread_mutex_unlock(&x->bouncing);
    r->ended = io->bytes;
}

static int is_aligned(const tess_store_io *io) {
    return (io->at | io->bytes | (uint64_t)(uintptr_t)io->memory) % DISK_ALIGN == 0;
}

/* ---- the slots --------------------------------------------------------------------------------- */

static tess_request *take_request(tess_store *x, const tess_store_io *io) {
    pthread_mutex_lock(&x->lock);
    tess_request *r = x->free;
    if (r) {
        x->free = r->next;
        *r = (tess_request){ .io = *io, .error = { .struct_size = sizeof r->error } };
    }
    pthread_mutex_unlock(&x->lock);
    return r;
}

static void append(tess_store *x, tess_request *r) {
    pthread_mutex_lock(&x->lock);
    if (x->first)
        x->last->next = r;
    else
        x->first = r;
    x->last = r;
    pthread_cond_broadcast(&x->more);
    pthread_mutex_unlock(&x->lock);
}

tess_status disk_store_post(tess_store *x, const tess_store_io *given, tess_request **out, tess_error *error) {
    tess_store_io io = { .struct_size = sizeof io };
    tess_plugin_give(&io, sizeof io, given, given->struct_size);
    if (io.bytes > x->bytes || io.at > x->bytes - io.bytes)
        return tess_plugin_fail(error, TESS_E_INVALID, "%llu bytes at offset %llu of a store of %llu",
                                (unsigned long long)io.bytes, (unsigned long long)io.at, (unsigned long long)x->bytes);
    tess_request *r = take_request(x, &io);
    if (!r)
        return tess_plugin_fail(error, TESS_E_INVALID, "more requests are under way than were announced");
    if (io.bytes && is_aligned(&io))
        append(x, r);
    else
        bounce(x, r);
    *out = r;
    return TESS_OK;
}

tess_status disk_store_wait(tess_store *x, tess_request *r, tess_error *error) {
    pthread_mutex_lock(&x->lock);
    while (r->ended < r->io.bytes)
        pthread_cond_wait(&x->ended, &x->lock);
    tess_status status = r->error.code ? tess_plugin_copy_error(error, &r->error) : TESS_OK;
    r->next = x->free;
    x->free = r;
    pthread_mutex_unlock(&x->lock);
    return status;
}

/* Divides the memory that place asked for: first for what bounces, then for sums. No request reaches bytes beyond the
 * regions. */
static tess_status use_memory(tess_store *x, const disk_settings *s, const tess_store_config *c, tess_error *error) {
    if (c->memory_bytes < DISK_BOUNCE)
        return tess_plugin_fail(error, TESS_E_INVALID, "a store needs %d bytes of memory, and %llu are given",
                                DISK_BOUNCE, (unsigned long long)c->memory_bytes);
    x->bytes = c->bytes;
    x->bounce = c->memory;
    if (!s->verify)
        return TESS_OK;
    x->sums.of = (uint32_t *)(void *)(x->bounce + DISK_BOUNCE);
    x->sums.n = (c->memory_bytes - DISK_BOUNCE) / sizeof(uint32_t);
    memset(x->sums.of, 0, x->sums.n * sizeof(uint32_t));
    if (x->bytes > x->sums.n * DISK_ALIGN)
        x->bytes = x->sums.n * DISK_ALIGN;
    return TESS_OK;
}

static tess_status start_threads(tess_store *x, const disk_settings *s, tess_error *error) {
    tess_status status = TESS_OK;
    uint32_t n = x->ring ? 1 : s->threads;
    for (; !status && x->n_threads < n; x->n_threads += !status)
        status = kit_thread_start(&x->thread[x->n_threads], s->host, "offload disk", "tess-disk",
                                  x->ring ? work_ring : work, x, error);
    return status;
}

/* A build without liburing has nothing to say, unless io_uring is asked for by name. */
static void try_ring(tess_store *x, const disk_settings *s, const tess_store_config *c) {
    int failed = s->io == DISK_IO_THREADS ? 0 : disk_ring_open(&x->ring, x, &x->file, s->depth);
    if (failed && c->local_rank == 0)
        kit_log(s->host, failed == ENOSYS && s->io == DISK_IO_AUTO ? 2 : 1, "offload disk",
                "no io_uring here (%s): %u threads of a rank read and write", strerror(failed), s->threads);
}

static tess_status start(tess_store *x, const disk_settings *s, const tess_store_config *c, uint64_t *obtained,
                         tess_error *error) {
    x->requests = calloc(c->most_posted, sizeof *x->requests);
    if (!x->requests)
        return tess_plugin_fail(error, TESS_E_NOMEM, "no memory for %u requests", c->most_posted);
    for (uint32_t i = 0; i < c->most_posted; i++) {
        x->requests[i].next = x->free;
        x->free = &x->requests[i];
    }
    tess_status status = use_memory(x, s, c, error);
    if (!status)
        status = disk_file_open(&x->file, s, c, obtained, error);
    if (status)
        return status;
    try_ring(x, s, c);
    return start_threads(x, s, error);
}

tess_status disk_store_open(const disk_settings *s, const tess_store_config *c, tess_store **out, uint64_t *obtained,
                            tess_error *error) {
    tess_store *x = calloc(1, sizeof *x + s->threads * sizeof *x->thread);
    if (!x)
        return tess_plugin_fail(error, TESS_E_NOMEM, "no memory for a store");
    x->file.fd = -1;
    pthread_mutex_init(&x->lock, NULL);
    pthread_mutex_init(&x->bouncing, NULL);
    pthread_cond_init(&x->more, NULL);
    pthread_cond_init(&x->ended, NULL);
    tess_status status = start(x, s, c, obtained, error);
    if (status)
        disk_store_close(x);
    else
        *out = x;
    return status;
}

void disk_store_close(tess_store *x) {
    pthread_mutex_lock(&x->lock);
    x->stop = 1;
    pthread_cond_broadcast(&x->more);
    pthread_mutex_unlock(&x->lock);
    for (uint32_t i = 0; i < x->n_threads; i++)
        pthread_join(x->thread[i], NULL);
    disk_ring_close(x->ring);
    disk_file_close(&x->file);
    pthread_cond_destroy(&x->more);
    pthread_cond_destroy(&x->ended);
    pthread_mutex_destroy(&x->lock);
    pthread_mutex_destroy(&x->bouncing);
    free(x->requests);
    free(x);
}
