/* SPDX-License-Identifier: BSD-3-Clause */
#include "every_rank.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a run may take beside the plan and what backends state. LIBRARY: the data of libraries that plugins load, and
 * what the engine keeps on the heap; 712 were seen. THREAD: the malloc
 * arena that glibc gives a thread. FILES: pages of libraries that the peak counts; 6876 were seen. */
enum { KIB = 1 << 10, LIBRARY_KIB = 1024, THREAD_KIB = 136, FILES_KIB = 8192 };

/* What a program that runs this one takes in the same process: valgrind, its translations and shadows. */
static int64_t checker_kib(void) {
    const char *text = getenv("TESSERA_TEST_CHECKER_MIB");
    return text ? atoll(text) * KIB : 0;
}

static int64_t allowed(const every_rank *e) {
    return e->value[EVERY_PLANNED] + e->value[EVERY_HOST_PLANNED] + e->value[EVERY_STATED] +
           (LIBRARY_KIB + e->value[EVERY_THREADS_GROWTH] * THREAD_KIB + checker_kib()) * KIB;
}

static int64_t grown(uint64_t now, uint64_t before) {
    return now > before ? (int64_t)(now - before) : 0;
}

void every_rank_witness(every_rank *mine, const tool_witness *before) {
    tool_witness now;
    tool_witness_read(&now);
    mine->value[EVERY_MAPPED_GROWTH] = grown(now.mapped_bytes, before->mapped_bytes);
    mine->value[EVERY_RESIDENT_GROWTH] = grown(now.resident_peak_bytes, before->resident_bytes);
    mine->value[EVERY_ANONYMOUS_GROWTH] = grown(now.anonymous_bytes, before->anonymous_bytes);
    mine->value[EVERY_THREADS_GROWTH] = grown(now.threads, before->threads);
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
        fine &= check_growth(rank, "mapped memory", v[EVERY_MAPPED_GROWTH], allowed(e));
        fine &= check_growth(rank, "anonymous memory", v[EVERY_ANONYMOUS_GROWTH], allowed(e));
        fine &= check_growth(rank, "resident memory", v[EVERY_RESIDENT_GROWTH], allowed(e) + FILES_KIB * KIB);
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
