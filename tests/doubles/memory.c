/* SPDX-License-Identifier: BSD-3-Clause */
/* Device memory: addresses nobody may touch, with the contents elsewhere; and what is known of the host's. */
#include "races.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PIECES = 4096, ALIGN = 512, GAP = 4096, UNTOUCHED = 0xcb, SOME = 64 << 10 /* of a large piece: its two ends */ };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static double_piece pieces[PIECES]; /* by address */
static int n_pieces;
static uintptr_t window, window_bytes;
static uint64_t capacity, used[DOUBLE_DEVICES], locked;
ptrdiff_t double__shift;

static void map_window(void) {
    capacity = (uint64_t)double__number("MEMORY", INT64_C(1) << 30);
    uint64_t span = (capacity * 2 + (1 << 21) - 1) >> 21 << 21; /* room for gaps */
    window_bytes = span * DOUBLE_DEVICES;
    void *front = double__map(window_bytes, PROT_NONE), *back = double__map(window_bytes, PROT_READ | PROT_WRITE);
    if (!front || !back) {
        fprintf(stderr, "doubles: no address space for device memory\n");
        capacity = window_bytes = 0;
        return;
    }
    window = (uintptr_t)front;
    double__shift = (ptrdiff_t)((uintptr_t)back - (uintptr_t)front);
}

static uintptr_t device_base(int device) {
    return window + (uintptr_t)device * (window_bytes / DOUBLE_DEVICES);
}

uint64_t double__capacity(void) {
    pthread_once(&once, map_window);
    return capacity;
}

int double__is_device(const void *at) {
    return (uintptr_t)at - window < window_bytes;
}

void *double_host(const void *device) {
    return double__is_device(device) ? (char *)(uintptr_t)device + double__shift : (char *)(uintptr_t)device;
}

void double__translate(void *args, size_t bytes) {
    for (size_t at = 0; at + sizeof(void *) <= bytes; at += sizeof(void *)) {
        void *word;
        memcpy(&word, (char *)args + at, sizeof word);
        word = double_host(word);
        memcpy((char *)args + at, &word, sizeof word);
    }
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

/* The number of pieces that begin at or before `at`. */
static int up_to(uintptr_t at) {
    int low = 0, high = n_pieces;
    while (low < high) {
        int middle = (low + high) / 2;
        if (pieces[middle].at <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int insert(double_piece piece) {
    int i = up_to(piece.at);
    if (n_pieces == PIECES || (i && pieces[i - 1].at + pieces[i - 1].bytes > piece.at) ||
        (i < n_pieces && pieces[i].at < piece.at + piece.bytes))
        return -1;
    memmove(&pieces[i + 1], &pieces[i], (size_t)(n_pieces - i) * sizeof *pieces);
    pieces[i] = piece;
    n_pieces++;
    return 0;
}

/* The lowest address of a device with room for `bytes`. */
static uintptr_t room(int device, uint64_t bytes) {
    uintptr_t at = device_base(device), end = at + window_bytes / DOUBLE_DEVICES;
    for (int i = up_to(at - 1); i < n_pieces && pieces[i].at < end; i++) {
        if (at + bytes + GAP <= pieces[i].at)
            return at;
        at = (pieces[i].at + pieces[i].bytes + GAP + ALIGN - 1) / ALIGN * ALIGN;
    }
    return at + bytes <= end ? at : 0;
}

int double__take(int device, uint64_t bytes, int nccl, uintptr_t *out) {
    pthread_once(&once, map_window);
    pthread_mutex_lock(&lock);
    uintptr_t at = bytes <= capacity - used[device] ? room(device, bytes) : 0;
    int failed =
        !at ||
        insert((double_piece){ .at = at, .bytes = bytes, .kind = DOUBLE_MEM_DEVICE, .device = device, .nccl = nccl });
    if (!failed)
        used[device] += bytes;
    uint64_t now = used[device];
    pthread_mutex_unlock(&lock);
    if (failed)
        return -1;
    double__peak("device-bytes", now);
    char *begin = double_host((void *)at), *end = begin + bytes;
    uint64_t some = bytes < SOME ? bytes : SOME;
    memset(begin, UNTOUCHED, some);
    memset(end - some, UNTOUCHED, some);
    double__live("allocations of device memory", 1);
    *out = at;
    return 0;
}

static const char *name_of(int kind) {
    return kind == DOUBLE_MEM_DEVICE       ? "allocations of device memory"
           : kind == DOUBLE_MEM_PINNED     ? "allocations of pinned memory"
           : kind == DOUBLE_MEM_REGISTERED ? "registrations of host memory"
                                           : "allocations of managed memory";
}

static int note(uintptr_t at, uint64_t bytes, int kind, int device) {
    pthread_mutex_lock(&lock);
    int failed = insert((double_piece){ .at = at, .bytes = bytes, .kind = kind, .device = device });
    pthread_mutex_unlock(&lock);
    if (!failed)
        double__live(name_of(kind), 1);
    return failed;
}

static uint64_t pages(uint64_t bytes) {
    return (bytes + 4095) / 4096 * 4096;
}

int double__take_host(uint64_t bytes, int kind, int device, uintptr_t *out) {
    void *at = double__map(pages(bytes), PROT_READ | PROT_WRITE);
    if (!at || note((uintptr_t)at, bytes, kind, device))
        return -1;
    if (kind == DOUBLE_MEM_PINNED) {
        pthread_mutex_lock(&lock);
        uint64_t now = locked += bytes;
        pthread_mutex_unlock(&lock);
        double__peak("pinned-bytes", now);
    }
    memset(at, UNTOUCHED, bytes);
    *out = (uintptr_t)at;
    return 0;
}

int double__note_host(void *at, uint64_t bytes, int device) {
    return note((uintptr_t)at, bytes, DOUBLE_MEM_REGISTERED, device);
}

int double__give(uintptr_t at, int kind) {
    pthread_mutex_lock(&lock);
    int i = up_to(at) - 1;
    int found = i >= 0 && pieces[i].at == at && pieces[i].kind == kind;
    double_piece piece = found ? pieces[i] : (double_piece){ 0 };
    if (found) {
        memmove(&pieces[i], &pieces[i + 1], (size_t)(n_pieces - i - 1) * sizeof *pieces);
        n_pieces--;
        if (kind == DOUBLE_MEM_DEVICE)
            used[piece.device] -= piece.bytes;
        if (kind == DOUBLE_MEM_PINNED)
            locked -= piece.bytes;
    }
    pthread_mutex_unlock(&lock);
    if (!found)
        return -1;
    double__races_forget((void *)at, piece.bytes);
    if (kind == DOUBLE_MEM_PINNED || kind == DOUBLE_MEM_MANAGED)
        double__unmap((void *)at, pages(piece.bytes));
    double__live(name_of(kind), -1);
    return 0;
}

int double__piece_of(const void *at, double_piece *out) {
    pthread_mutex_lock(&lock);
    int i = up_to((uintptr_t)at) - 1;
    int found = i >= 0 && (uintptr_t)at - pieces[i].at < pieces[i].bytes;
    if (found)
        *out = pieces[i];
    pthread_mutex_unlock(&lock);
    return found;
}

int double__range_ok(const void *at, uint64_t bytes, int or_host) {
    double_piece piece;
    if (double__piece_of(at, &piece))
        return bytes <= piece.at + piece.bytes - (uintptr_t)at || (or_host && piece.kind == DOUBLE_MEM_REGISTERED);
    return or_host && !double__is_device(at);
}

int double__is_locked(const void *at) {
    double_piece piece;
    return double__piece_of(at, &piece) && piece.kind != DOUBLE_MEM_DEVICE;
}

uint64_t double__used(int device) {
    pthread_mutex_lock(&lock);
    uint64_t bytes = used[device];
    pthread_mutex_unlock(&lock);
    return bytes;
}
