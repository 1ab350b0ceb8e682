/* SPDX-License-Identifier: BSD-3-Clause */
#include "table.h"

#include "copy.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A waiting rank wakes this often to check that its peers are alive. */
enum { LOOK_MS = 50 };

static uint64_t slots_bytes(int size) {
    return ((uint64_t)size * sizeof(struct shm_slot) + 4095) / 4096 * 4096;
}

uint64_t shm_table_bytes(int size) {
    return slots_bytes(size) + (uint64_t)size * 2 * SHM_STAGE_BYTES;
}

/* Spinning pays where every rank has a CPU of its own. */
static int spins_for(int size) {
    return sysconf(_SC_NPROCESSORS_ONLN) >= size ? 2000 : 0;
}

void shm_table_open(struct shm_table *t, struct shm_group *group, const int *members, int rank, int size, void *memory,
                    tess_error *reason) {
    t->group = group;
    t->members = members;
    t->rank = rank;
    t->size = size;
    t->slots = memory;
    t->stages = (unsigned char *)memory + slots_bytes(size);
    t->bytes = shm_table_bytes(size);
    t->spins = spins_for(size);
    t->reason = reason;
    atomic_init(&t->stop, 0);
    t->slots[rank].process = shm_this_process();
    atomic_store(&t->slots[rank].state, SHM_HERE);
}

void shm_table_close(struct shm_table *t) {
    if (t->slots)
        munmap(t->slots, t->bytes);
    t->slots = NULL;
}

/* ---- bells ---------------------------------------------------------------------------------------- */

static void futex_wake(atomic_uint *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
static int futex_sleep(atomic_uint *word, unsigned seen) {
    struct timespec t = { .tv_nsec = LOOK_MS * 1000000L };
    return syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0) != 0 && errno == ETIMEDOUT;
}

static void wake_slot(struct shm_slot *slot) {
    atomic_fetch_add(&slot->wakeup, 1);
    futex_wake(&slot->wakeup);
}

/* A sleeper marks itself, checks once more and sleeps; a publisher increments, then looks for sleepers. Both use
 * sequentially consistent operations, so one of them always sees the other. */
static void wake_sleepers(struct shm_table *t) {
    atomic_thread_fence(memory_order_seq_cst);
    for (int rank = 0; rank < t->size; rank++)
        if (rank != t->rank && atomic_load_explicit(&t->slots[rank].sleeping, memory_order_relaxed))
            wake_slot(&t->slots[rank]);
}

void shm_publish(struct shm_table *t, enum shm_count what, uint64_t value) {
    shm_copy_end();
    atomic_store_explicit(&t->slots[t->rank].count[what], value, memory_order_release);
    wake_sleepers(t);
}

void shm_table_set_state(struct shm_table *t, int state) {
    int old = atomic_load(&t->slots[t->rank].state);
    while (old >= 0 && !atomic_compare_exchange_weak(&t->slots[t->rank].state, &old, state))
        ;
    wake_sleepers(t);
}

void shm_table_stop(struct shm_table *t) {
    atomic_store(&t->stop, 1);
    wake_slot(&t->slots[t->rank]);
}

/* ---- waiting -------------------------------------------------------------------------------------- */

static int missing_rank(const struct shm_table *t, enum shm_count what, int first, int last, uint64_t value) {
    for (int rank = first; rank < last; rank++)
        if (rank != t->rank && shm_count(t, rank, what) < value)
            return rank;
    return -1;
}

static int has_died(const struct shm_table *t, int rank) {
    const struct shm_slot *slot = &t->slots[rank];
    if (atomic_load(&slot->state) == SHM_JOINING || slot->process == shm_this_process())
        return 0;
    return !shm_group_alive(t->group, t->members[rank]);
}

/* Why there is no sense in waiting on. What a rank has published before its end counts. */
static tess_status fail_hopeless(struct shm_table *t, enum shm_count what, int first, int last, uint64_t value,
                                 int look, tess_error *e) {
    if (atomic_load(&t->stop)) {
        return tess_plugin_copy_error(e, t->reason);
    }
    for (int rank = first; rank < last; rank++) {
        if (rank == t->rank || shm_count(t, rank, what) >= value)
            continue;
        int state = atomic_load(&t->slots[rank].state), died = look && state >= 0 && has_died(t, rank);
        if ((state >= 0 && !died) || shm_count(t, rank, what) >= value)
            continue;
        return tess_plugin_fail_of(e, TESS_E_PEER, rank, "shm: rank %d %s", rank,
                                   died ? "has died" : "has given up its communicator");
    }
    return TESS_OK;
}

static void relax_core(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

tess_status shm_await(struct shm_table *t, enum shm_count what, int first, int last, uint64_t value, tess_error *e) {
    struct shm_slot *own = &t->slots[t->rank];
    for (int i = 0; i <= t->spins; i++) {
        if (missing_rank(t, what, first, last, value) < 0)
            return TESS_OK;
        relax_core();
    }
    for (int look = 0;;) {
        unsigned seen = atomic_load(&own->wakeup);
        atomic_store(&own->sleeping, 1);
        atomic_thread_fence(memory_order_seq_cst);
        int wait = missing_rank(t, what, first, last, value) >= 0;
        tess_status s = wait ? fail_hopeless(t, what, first, last, value, look, e) : TESS_OK;
        if (wait && s == TESS_OK)
            look = futex_sleep(&own->wakeup, seen);
        atomic_store(&own->sleeping, 0);
        if (!wait || s)
            return s;
    }
}

tess_status shm_still_here(struct shm_table *t, const unsigned char *read, tess_error *e) {
    atomic_thread_fence(memory_order_seq_cst);
    for (int rank = 0; rank < t->size; rank++)
        if (read[rank] && atomic_load(&t->slots[rank].state) < 0)
            return tess_plugin_fail_of(e, TESS_E_PEER, rank, "shm: rank %d has given up its communicator", rank);
    return TESS_OK;
}
