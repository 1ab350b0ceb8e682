/* SPDX-License-Identifier: BSD-3-Clause */
#include "use.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The state is set before `stop` is read, and `stop` before the state is read: one of the two threads sees the other.
 */
int nccl_use_begin(struct nccl_use *u, const atomic_int *stop) {
    atomic_store(&u->state, NCCL_USED);
    if (!atomic_load(stop))
        return 1;
    atomic_store(&u->state, NCCL_UNUSED);
    return 0;
}

void nccl_use_blocks(struct nccl_use *u) {
    atomic_store(&u->thread, (pid_t)syscall(SYS_gettid));
    atomic_fetch_add(&u->number, 1);
    atomic_store(&u->state, NCCL_BLOCKS);
}

void nccl_use_end(struct nccl_use *u) {
    atomic_store(&u->state, NCCL_UNUSED);
}

/* Whether the thread sleeps, and the processor time that it has had, in the kernel's ticks. 0: unknown. */
static int look_at(pid_t thread, int *sleeps, uint64_t *ticks) {
    char path[64], text[512], state;
    uint64_t user, system;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)thread);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = 0;
    const char *behind = strrchr(text, ')'); /* the name in parentheses may contain any character */
    if (!behind || sscanf(behind + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %" SCNu64 " %" SCNu64, &state, &user,
                          &system) != 3)
        return 0;
    *sleeps = state == 'S';
    *ticks = user + system;
    return 1;
}

/* A thread that sleeps, or has run for a tick since it was marked, is inside NCCL. One that does neither may be
 * preempted just before the call. */
int nccl_use_may_abort(struct nccl_use *u, struct nccl_seen *seen) {
    int state = atomic_load(&u->state), sleeps = 0;
    uint64_t number = atomic_load(&u->number), ticks = 0;
    if (state != NCCL_BLOCKS)
        return state == NCCL_UNUSED;
    if (!look_at(atomic_load(&u->thread), &sleeps, &ticks))
        return 0;
    int ran = seen->number == number && ticks > seen->ticks;
    *seen = (struct nccl_seen){ number, ticks };
    return sleeps || ran;
}
