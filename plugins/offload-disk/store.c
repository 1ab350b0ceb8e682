/* SPDX-License-Identifier: BSD-3-Clause */
#include "ring.h"

#include <errno.h>
#include <stdlib.h>

struct tess_store {
    disk_file file;
    disk_sums sums;
    disk_queue queue;
    disk_ring *ring; /* null: threads work without */
    uint64_t bytes;  /* that requests may reach */
    char *bounce;
    pthread_mutex_t bouncing; /* one request at a time goes there */
    const tess_host *host;
    int says; /* whether this rank speaks for those of its host */
    uint32_t n_threads;
    pthread_t thread[];
};

/* ---- who reads and writes ---------------------------------------------------------------------- */

static void work(void *store) {
    tess_store *x = store;
    disk_block b;
    while (disk_block_take(&x->queue, &b, 1)) {
        tess_error e = { .struct_size = sizeof e };
        disk_block_begins(&x->queue, &b);
        disk_file_move(&x->file, &b, &e);
        disk_block_ends(&x->queue, &b, &e);
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
        disk_block_compare(&x->queue, &b, e);
    }
    if (e->code)
        return;
    if (io->op == TESS_STORE_READ) {
        memcpy((char *)io->memory + done, x->bounce + (at - from), n);
        return;
    }
    memcpy(x->bounce + (at - from), (const char *)io->memory + done, n);
    b.op = TESS_STORE_WRITE;
    disk_block_begins(&x->queue, &b);
    disk_file_move(&x->file, &b, e);
}

static void bounce(tess_store *x, const tess_store_io *io, tess_error *e) {
    pthread_mutex_lock(&x->bouncing);
    for (uint64_t done = 0; done < io->bytes && !e->code;) {
        uint64_t room = DISK_BOUNCE - (io->at + done) % DISK_ALIGN, left = io->bytes - done;
        uint64_t n = left < room ? left : room;
        bounce_part(x, io, done, n, e);
        done += n;
    }
    pthread_mutex_unlock(&x->bouncing);
}

static int is_aligned(const tess_store_io *io) {
    return (io->at | io->bytes | (uint64_t)(uintptr_t)io->memory) % DISK_ALIGN == 0;
}

/* ---- the slots --------------------------------------------------------------------------------- */

tess_status disk_store_post(tess_store *x, const tess_store_io *given, tess_request **out, tess_error *error) {
    tess_store_io io = { .struct_size = sizeof io };
    tess_plugin_give(&io, sizeof io, given, given->struct_size);
    if (io.bytes > x->bytes || io.at > x->bytes - io.bytes)
        return tess_plugin_fail(error, TESS_E_INVALID, "%llu bytes at offset %llu of a store of %llu",
                                (unsigned long long)io.bytes, (unsigned long long)io.at, (unsigned long long)x->bytes);
    tess_request *r = disk_request_take(&x->queue, &io);
    if (!r)
        return tess_plugin_fail(error, TESS_E_INVALID, "more requests are under way than were announced");
    if (io.bytes && is_aligned(&io)) {
        disk_request_append(&x->queue, r);
    } else {
        tess_error e = { .struct_size = sizeof e };
        bounce(x, &io, &e);
        disk_request_end(r, &e);
    }
    *out = r;
    return TESS_OK;
}

tess_status disk_store_wait(tess_store *x, tess_request *r, tess_error *error) {
    return disk_request_wait(&x->queue, r, error);
}

tess_status disk_store_register(tess_store *x, void *memory, uint64_t bytes, tess_error *error) {
    int failed = x->ring ? disk_ring_register(x->ring, memory, bytes) : ENOSYS;
    if (failed && x->ring && x->says)
        kit_log(x->host, 2, "offload disk", "memory of %llu bytes is not registered with io_uring: %s",
                (unsigned long long)bytes, strerror(failed));
    x->says &= !failed || !x->ring; /* once */
    return failed ? tess_plugin_fail(error, TESS_E_UNSUPPORTED, "the memory is not registered: %s", strerror(failed))
                  : TESS_OK;
}

void disk_store_deregister(tess_store *x) {
    disk_ring_deregister(x->ring);
}

/* Divides the memory that place asked for: first for what bounces, then for sums. No request reaches bytes beyond the
 * regions. */
static tess_status use_memory(tess_store *x, const disk_settings *s, const tess_store_config *c, tess_error *error) {
    if (c->memory_bytes < DISK_BOUNCE)
        return tess_plugin_fail(error, TESS_E_INVALID, "a store needs %d bytes of memory, and %llu are given",
                                DISK_BOUNCE, (unsigned long long)c->memory_bytes);
    x->host = s->host;
    x->says = c->local_rank == 0;
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
    int failed = s->io == DISK_IO_THREADS ? 0 : disk_ring_open(&x->ring, &x->queue, s->depth);
    if (failed && c->local_rank == 0)
        kit_log(s->host, failed == ENOSYS && s->io == DISK_IO_AUTO ? 2 : 1, "offload disk",
                "no io_uring here (%s): %u threads of a rank read and write", strerror(failed), s->threads);
}

static tess_status start(tess_store *x, const disk_settings *s, const tess_store_config *c, uint64_t *obtained,
                         tess_error *error) {
    tess_status status = disk_queue_init(&x->queue, c->most_posted, error);
    if (!status)
        status = use_memory(x, s, c, error);
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
    x->queue.file = &x->file;
    x->queue.sums = &x->sums;
    pthread_mutex_init(&x->bouncing, NULL);
    tess_status status = start(x, s, c, obtained, error);
    if (status)
        disk_store_close(x);
    else
        *out = x;
    return status;
}

void disk_store_close(tess_store *x) {
    disk_queue_stop(&x->queue);
    for (uint32_t i = 0; i < x->n_threads; i++)
        pthread_join(x->thread[i], NULL);
    disk_ring_close(x->ring);
    disk_file_close(&x->file);
    disk_queue_finish(&x->queue);
    pthread_mutex_destroy(&x->bouncing);
    free(x);
}
