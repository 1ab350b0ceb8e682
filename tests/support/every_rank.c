/* SPDX-License-Identifier: BSD-3-Clause */
#include "every_rank.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "core/engine/state.h"

/* What a run may take beside the plan and what backends state. A thread has a stack, of the limit's size, and a malloc
 * arena that glibc gives it (at most 1 MiB of it is used by our threads). Libraries that plugins load bring data of
 * their own: with libgloo, libstdc++ and libhwloc that is below 4 MiB. */
enum { MIB = 1 << 20, LIBRARY_MIB = 4, THREAD_ARENA_MIB = 1 };

static int64_t stack_bytes(void) {
    struct rlimit limit;
    return getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < (rlim_t)1 << 30 ? (int64_t)limit.rlim_cur
                                                                                    : (int64_t)8 * MIB;
}

/* What a program that runs this one takes in the same process: valgrind, its translations and shadows. */
static int64_t checker_mib(void) {
    const char *text = getenv("TESSERA_TEST_CHECKER_MIB");
    return text ? atoll(text) : 0;
}

static int64_t allowed(const every_rank *e, int64_t per_thread) {
    return e->value[EVERY_PLANNED] + e->value[EVERY_HOST_PLANNED] + e->value[EVERY_STATED] +
           e->value[EVERY_THREADS_GROWTH] * per_thread + ((int64_t)LIBRARY_MIB + checker_mib()) * MIB;
}

static int64_t stated(const tess *t) {
    const tess__setup *s = &t->plan.setup;
    tess_collective c = { .struct_size = sizeof c,
                          .op = TESS_ALL_GATHER,
                          .send_dtype = TESS_F32,
                          .recv_dtype = TESS_F32,
                          .send_mem = s->env.mem,
                          .recv_mem = s->env.mem,
                          .count = 4096,
                          .scale = 1 };
    tess_need need = { .struct_size = sizeof need };
    return s->comm->need(s->comm_ctx, &s->env, &c, &need) == TESS_OK ? (int64_t)need.backend_bytes : 0;
}

static int64_t grown(uint64_t now, uint64_t before) {
    return now > before ? (int64_t)(now - before) : 0;
}

void every_rank_witness(every_rank *mine, const tess *t, const tool_witness *before) {
    tool_witness now;
    tool_witness_read(&now);
    mine->value[EVERY_MAPPED_GROWTH] = grown(now.mapped_bytes, before->mapped_bytes);
    mine->value[EVERY_RESIDENT_GROWTH] = grown(now.resident_peak_bytes, before->resident_bytes);
    mine->value[EVERY_THREADS_GROWTH] = grown(now.threads, before->threads);
    mine->value[EVERY_STATED] = stated(t);
}

static int check(int32_t rank, const char *what, int64_t found, int64_t expected) {
    if (found == expected)
        return 1;
    fprintf(stderr, "rank %d: %s is %" PRId64 ", expected %" PRId64 "\n", rank, what, found, expected);
    return 0;
}

static int check_growth(int32_t rank, const char *what, int64_t found, int64_t most) {
    if (found <= most)
        return 1;
    fprintf(stderr, "rank %d: %s grew by %" PRId64 " bytes, at most %" PRId64 " are planned, stated and allowed\n",
            rank, what, found, most);
    return 0;
}

static int check_rank(int32_t rank, const every_rank *e, const every_rank *first, int mapped_exact, int with_growth) {
    const int64_t *v = e->value;
    int fine = check(rank, "the digest", v[EVERY_DIGEST], first->value[EVERY_DIGEST]);
    fine &= check(rank, "the device's peak", v[EVERY_PEAK], v[EVERY_PLANNED]);
    fine &= check(rank, "the host's peak", v[EVERY_HOST_PEAK], v[EVERY_HOST_PLANNED]);
    fine &= check(rank, "the plan of device memory", v[EVERY_PLANNED], first->value[EVERY_PLANNED]);
    fine &= check(rank, "the plan of host memory", v[EVERY_HOST_PLANNED], first->value[EVERY_HOST_PLANNED]);
    fine &= check(rank, "1 where books are as planned", v[EVERY_BOOKS], 1);
    fine &= check(rank, "1 where what is summoned is what was trained", v[EVERY_SUMMONED], 1);
    if (v[EVERY_ALLOCATIONS] >= 0)
        fine &= check(rank, "the number of allocations in steps", v[EVERY_ALLOCATIONS], 0);
    if (mapped_exact && v[EVERY_MAPPED] >= 0)
        fine &= check(rank, "mapped bytes", v[EVERY_MAPPED], v[EVERY_PLANNED] + v[EVERY_HOST_PLANNED]);
    if (with_growth) {
        fine &= check_growth(rank, "mapped memory", v[EVERY_MAPPED_GROWTH],
                             allowed(e, stack_bytes() + (int64_t)THREAD_ARENA_MIB * MIB));
        fine &= check_growth(rank, "resident memory", v[EVERY_RESIDENT_GROWTH],
                             allowed(e, (int64_t)THREAD_ARENA_MIB * MIB));
    }
    return fine;
}

int every_rank_agree(tess *t, const every_rank *mine, int mapped_exact, int with_growth) {
    int32_t n = tess_ranks(t), rank = tess_rank(t);
    every_rank *all = calloc((size_t)n, sizeof *all);
    if (!all)
        return 0;
    all[rank] = *mine;
    int fine = tess_all_reduce(t, all, (uint64_t)n * N_EVERY, TESS_I64, TESS_SUM) == TESS_OK;
    for (int32_t r = 0; fine && rank == 0 && r < n; r++)
        fine &= check_rank(r, &all[r], &all[0], mapped_exact, with_growth);
    free(all);
    return fine;
}
