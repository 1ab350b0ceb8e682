/* SPDX-License-Identifier: BSD-3-Clause */
/* Symmetric windows. Making one waits for all ranks, who must give as much memory, of ncclMemAlloc, as far from the
 * beginning of its piece. A collective in windows must have the same place in the same one on every rank, or all ranks
 * are outside: who differs hangs. Giving one up is local, comes before its memory is freed and while nothing works. */
#include "nccl_double.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ncclWindow_vidmem {
    ncclComm *comm;
    uintptr_t at;
    uint64_t bytes, number; /* number: of this communicator's, the same on every rank */
    int freed;              /* its memory is gone */
    ncclWindow_t next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ncclWindow_t windows; /* of all communicators */

/* The window of `c` that has all of it; with the lock. */
static ncclWindow_t window_at(const ncclComm *c, uintptr_t at, uint64_t bytes) {
    for (ncclWindow_t w = windows; w; w = w->next)
        if (w->comm == c && at >= w->at && bytes <= w->bytes && at - w->at <= w->bytes - bytes)
            return w;
    return NULL;
}

uint64_t nccl__place_in_window(const ncclComm *c, const void *at, uint64_t bytes) {
    pthread_mutex_lock(&lock);
    ncclWindow_t w = window_at(c, (uintptr_t)at, bytes);
    uint64_t place = w ? (w->number << 48) + ((uintptr_t)at - w->at) + 1 : 0;
    pthread_mutex_unlock(&lock);
    return place;
}

static void add_window(ncclComm *c, ncclWindow_t w) {
    pthread_mutex_lock(&lock);
    w->number = ++c->window.made;
    w->next = windows;
    windows = w;
    pthread_mutex_unlock(&lock);
    double__live("NCCL windows", 1);
}

/* Takes it out of the list; null: there is none such. `which` null: any of the communicator's. */
static ncclWindow_t take_window(const ncclComm *c, ncclWindow_t which) {
    pthread_mutex_lock(&lock);
    ncclWindow_t *at = &windows;
    while (*at && ((*at)->comm != c || (which && *at != which)))
        at = &(*at)->next;
    ncclWindow_t found = *at;
    if (found)
        *at = found->next;
    pthread_mutex_unlock(&lock);
    if (found)
        double__live("NCCL windows", -1);
    return found;
}

void nccl__drop_windows(ncclComm *c) {
    for (ncclWindow_t w; (w = take_window(c, NULL)) != NULL;)
        free(w);
}

void nccl__memory_goes(uintptr_t at, uint64_t bytes) {
    pthread_mutex_lock(&lock);
    for (ncclWindow_t w = windows; w; w = w->next)
        w->freed |= w->at - at < bytes;
    pthread_mutex_unlock(&lock);
}

/* ---- made --------------------------------------------------------------------------------------- */

struct offer {
    uint64_t bytes, offset, flags;
};

static int all_alike(const ncclComm *c, const struct offer *all) {
    for (int i = 1; i < c->nranks; i++)
        if (memcmp(&all[i], &all[0], sizeof *all) != 0)
            return 0;
    return 1;
}

static void make_now(ncclComm *c) {
    struct offer all[NCCL_RANKS], mine = { c->window.bytes, c->window.offset, (uint64_t)c->window.flags };
    nccl_move moves[2 * NCCL_RANKS];
    int n = 0;
    all[c->rank] = mine;
    for (int i = 1; i < c->nranks; i++) {
        int to = (c->rank + i) % c->nranks, from = (c->rank + c->nranks - i) % c->nranks;
        moves[n++] = (nccl_move){ .peer = to, .send = &mine, .bytes = sizeof mine };
        moves[n++] = (nccl_move){ .peer = from, .recv = &all[from], .bytes = sizeof mine };
    }
    if (nccl__exchange(c, NCCL_CONTROL, 98, moves, n))
        return;
    if (!all_alike(c, all)) {
        nccl__set_state(c, ncclInvalidArgument);
        return;
    }
    const char *unreachable = double__variable("NCCL_WINDOWS");
    if (unreachable && strcmp(unreachable, "none") == 0)
        return;
    ncclWindow_t w = calloc(1, sizeof *w);
    if (!w)
        abort();
    *w = (struct ncclWindow_vidmem){ .comm = c, .at = c->window.at, .bytes = c->window.bytes };
    add_window(c, w);
    *c->window.out = w;
}

/* What one rank alone finds wrong, while the others wait for it. */
static ncclResult_t check_memory(ncclComm *c, void *at, size_t bytes, int flags) {
    double_piece piece;
    ncclResult_t ready = nccl__ready(c);
    if (ready != ncclSuccess)
        return ready;
    if (bytes == 0 || (flags & ~NCCL_WIN_COLL_SYMMETRIC))
        return ncclInvalidArgument;
    if (!double__piece_of(at, &piece) || !piece.nccl || piece.device != c->device || !double__range_ok(at, bytes, 0))
        return ncclUnhandledCudaError; /* it is not mapped from a handle that others can have */
    if (((uintptr_t)at - piece.at) % NCCL_WIN_REQUIRED_ALIGNMENT || bytes % NCCL_WIN_REQUIRED_ALIGNMENT ||
        nccl__place_in_window(c, at, 1))
        return ncclInvalidArgument;
    c->window.offset = (uintptr_t)at - piece.at;
    return ncclSuccess;
}

DOUBLE_API ncclResult_t ncclCommWindowRegister(ncclComm_t c, void *at, size_t bytes, ncclWindow_t *out, int flags) {
    ncclResult_t entered = nccl__enter("ncclCommWindowRegister", ncclSystemError, NCCL_VERSION(2, 27, 0));
    *out = NULL;
    if (entered == ncclSuccess)
        entered = check_memory(c, at, bytes, flags);
    if (entered != ncclSuccess)
        return entered;
    c->window.at = (uintptr_t)at;
    c->window.bytes = bytes;
    c->window.flags = flags;
    c->window.out = out;
    return nccl__start(c, make_now);
}

/* ---- given up ----------------------------------------------------------------------------------- */

DOUBLE_API ncclResult_t ncclCommWindowDeregister(ncclComm_t c, ncclWindow_t which) {
    ncclResult_t entered = nccl__enter("ncclCommWindowDeregister", ncclSystemError, NCCL_VERSION(2, 27, 0));
    if (!which)
        return entered;
    if (c->finalized)
        return ncclInternalError;
    ncclWindow_t w = take_window(c, which);
    if (!w)
        return ncclInvalidArgument;
    if (double__device_works(c->device)) /* peers may be reading it */
        double__spoil(c->device, -1);
    if (w->freed) {
        fprintf(stderr, "doubles: NCCL: memory was freed before its window was given up\n");
        double__live("windows without memory", 1);
    }
    free(w);
    return entered;
}
