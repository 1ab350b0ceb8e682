/* SPDX-License-Identifier: BSD-3-Clause */
/* A thread's use of NCCL's communicator, for the thread that aborts it: ncclCommAbort gives the communicator back, and
 * may come while a call blocks in it, not while one is about to begin. */
#ifndef NCCL_USE_H
#define NCCL_USE_H
#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    NCCL_UNUSED = 0, /* no thread is in NCCL */
    NCCL_USED,       /* a thread is in a nonblocking call, or about to enter one */
    NCCL_BLOCKS      /* a thread is in a blocking call, or about to enter it */
};

struct nccl_use { /* one thread at a time, which holds the communicator's lock */
    atomic_int state;
    _Atomic(pid_t) thread;
    _Atomic(uint64_t) number; /* blocking calls so far */
};

struct nccl_seen { /* the aborting thread's last observation */
    uint64_t number, ticks;
};

/* 0: `stop` is set, and the communicator may be gone. Else nobody takes it away before the end of the use, or before
 * NCCL has it in a call that blocks. */
int nccl_use_begin(struct nccl_use *, const atomic_int *stop);
/* The next call may block. */
void nccl_use_blocks(struct nccl_use *);
void nccl_use_end(struct nccl_use *);
/* Whether NCCL's communicator may be aborted now, although its lock is held; after `stop` was set. `seen` begins as
 * zeros and is kept from look to look. */
int nccl_use_may_abort(struct nccl_use *, struct nccl_seen *);
#endif
