/* SPDX-License-Identifier: BSD-3-Clause */
/* A part of disk_faults.so: what goes wrong with reads and writes by io_uring, which DISK_FAULT_OF calls "ring_read"
 * and "ring_write". A request is cut before the system gets it; or its completion is changed before the program sees
 * it. "ring_fixed" counts those in registered memory, and "ring_register" is the registration. */
#define _GNU_SOURCE
#include "disk_faults.h"

#include <dlfcn.h>
#include <liburing.h>
#include <string.h>
#include <unistd.h>

typedef int (*submit_fn)(struct io_uring *, unsigned);
typedef int (*register_fn)(struct io_uring *, const struct iovec *, unsigned);

static const char *call_of(const struct io_uring_sqe *e) {
    return e->opcode == IORING_OP_READ || e->opcode == IORING_OP_READ_FIXED     ? "ring_read"
           : e->opcode == IORING_OP_WRITE || e->opcode == IORING_OP_WRITE_FIXED ? "ring_write"
                                                                                : "ring";
}

/* Counts what is about to be submitted. The one whose completion is to be changed, if there is one: */
static const char *find_fault(struct io_uring *ring, __u64 *of) {
    const char *found = NULL;
    for (unsigned i = ring->sq.sqe_head; i != ring->sq.sqe_tail; i++) {
        struct io_uring_sqe *e = &ring->sq.sqes[i & ring->sq.ring_mask];
        const char *fault = disk_fault_of(call_of(e));
        if (e->opcode == IORING_OP_READ_FIXED || e->opcode == IORING_OP_WRITE_FIXED)
            disk_fault_of("ring_fixed");
        if (fault && strcmp(fault, "short") == 0) {
            e->len = e->len / 2 / DISK_SECTOR * DISK_SECTOR;
        } else if (fault) {
            found = fault;
            *of = e->user_data;
        }
    }
    return found;
}

static struct io_uring_cqe *completion_of(struct io_uring *ring, __u64 user_data) {
    unsigned tail = __atomic_load_n(ring->cq.ktail, __ATOMIC_ACQUIRE);
    for (unsigned i = *ring->cq.khead; i != tail; i++)
        if (ring->cq.cqes[i & ring->cq.ring_mask].user_data == user_data)
            return &ring->cq.cqes[i & ring->cq.ring_mask];
    return NULL;
}

/* The plugin's library is not in the global scope, where RTLD_NEXT would look. */
static void *in_liburing(const char *name) {
    return dlsym(dlopen("liburing.so.2", RTLD_NOW | RTLD_NOLOAD), name);
}

__attribute__((visibility("default"))) int io_uring_register_buffers(struct io_uring *ring, const struct iovec *of,
                                                                     unsigned n) {
    static register_fn next;
    const char *fault = disk_fault_of("ring_register");
    if (!next)
        *(void **)&next = in_liburing("io_uring_register_buffers");
    return fault ? -disk_fault_errno(fault) : next(ring, of, n);
}

__attribute__((visibility("default"))) int io_uring_submit_and_wait(struct io_uring *ring, unsigned n) {
    static submit_fn next;
    if (!next)
        *(void **)&next = in_liburing("io_uring_submit_and_wait");
    __u64 of = 0;
    const char *fault = find_fault(ring, &of);
    int result = next(ring, n);
    struct io_uring_cqe *c = NULL;
    while (fault && !(c = completion_of(ring, of)))
        usleep(100);
    if (c)
        c->res = -disk_fault_errno(fault);
    return result;
}
