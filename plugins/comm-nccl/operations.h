/* SPDX-License-Identifier: BSD-3-Clause */
/* Runs a collective: one call of NCCL, or pieces that are sent in pairs and summed by our kernel. */
#ifndef NCCL_OPERATIONS_H
#define NCCL_OPERATIONS_H
#include "collective.h"
#include "cuda_driver.h"
#include "kernels.h"
#include "library.h"
#include "settings.h"
#include "use.h"

#define TRY(x)                                                                                                         \
    do {                                                                                                               \
        tess_status status_ = (x);                                                                                     \
        if (status_)                                                                                                   \
            return status_;                                                                                            \
    } while (0)

/* ---- check.c: the same on every rank ------------------------------------------------------------ */

enum {
    NCCL_NOTHING = 0,
    NCCL_PLAIN,                 /* one call */
    NCCL_PAIRS,                 /* a send and a receive for each other rank */
    NCCL_ALONE,                 /* one rank: our kernel */
    NCCL_THEN_FINISHED,         /* one call, then added to recv, cast or multiplied by our kernel */
    NCCL_WIDENED,               /* the same of fp32 that our kernel makes of 16 bits, in pieces */
    NCCL_SCATTERED,             /* each rank receives its part of all contributions and sums it */
    NCCL_ALL_EVERYWHERE,        /* every rank receives all contributions and sums them */
    NCCL_SCATTERED_AND_GATHERED /* scattered, then each rank sends its block to the others */
};
struct nccl_way {
    int how;
    uint64_t block, piece;                /* elements of one rank's part, and how many go at once */
    uint64_t stride_bytes, scratch_bytes; /* between contributions in the scratch; all of it, with room for two pieces
                                             where there are several */
};
struct nccl_way nccl_way_of(const tess_collective *, int size, int sums); /* sums: enum nccl_summing */

/* Checks the call on `rank` of `size`. When planning, rank is -1 and pointers are not checked. */
tess_status nccl_check(const tess_collective *, int rank, int size, int sums, tess_error *);

/* ---- launch.c ----------------------------------------------------------------------------------- */

/* Gathered in the first group of a request, so that comparing costs no group of its own. */
struct nccl_words {
    const void *own; /* GPU address; null: none, or gathered already */
    void *all;
    uint64_t bytes;
};

struct nccl_sums { /* sums one piece while the next one arrives, or widens one while NCCL sums the last */
    CUstream stream;
    CUevent came, summed[2]; /* summed: by half of the scratch */
};

struct nccl_kernels {
    CUfunction reduce, widen, finish;
};

/* The arguments of all calls, in the device's context. */
struct nccl_launch {
    const tess_cuda *cu;
    const struct nccl_library *lib;
    ncclComm_t comm;
    CUstream stream;
    const struct nccl_sums *sums;
    const struct nccl_kernels *kernels;
    int rank, size, how_sums; /* how_sums: enum nccl_summing */
    struct nccl_words *words;
    struct nccl_use *use;
    const atomic_int *stop; /* once set, no group begins */
};

/* A group of NCCL's, which takes the words with it. Within it a failure is noted, and told at its end. */
tess_status nccl_group_begin(const struct nccl_launch *, tess_error *);
void nccl_group_note(const struct nccl_launch *, ncclResult_t, const char *call, tess_error *);
tess_status nccl_group_end(const struct nccl_launch *, tess_error *);
/* recv from `at` on = (n elements at `from` [+ recv]) * scale, in the launch's stream. */
tess_status nccl_finish(const struct nccl_launch *, const tess_collective *, const void *from, uint32_t dtype,
                        uint64_t at, uint64_t n, tess_error *);
/* One call of our kernel's for each of `items`. */
tess_status nccl_kernel(const struct nccl_launch *, CUfunction, CUstream, void *args, uint64_t items, tess_error *);
tess_status nccl_record(const struct nccl_launch *, CUevent, CUstream, tess_error *);
tess_status nccl_await(const struct nccl_launch *, CUstream, CUevent, tess_error *);

/** TESS_OK, or the failure of a call of CUDA. */
tess_status nccl_cuda_ok(CUresult, const char *call, tess_error *);

/* ---- widened.c ---------------------------------------------------------------------------------- */

/* NCCL_WIDENED. */
tess_status nccl_sum_widened(const struct nccl_launch *, const tess_collective *, const struct nccl_way *,
                             tess_error *);

/* ---- operations.c ------------------------------------------------------------------------------- */

/* Puts the words and n checked calls into the launch's stream, in order; as one group where none depends on another.
 * All of it comes before later work of that stream. After a failure the sums' stream may have work that nobody awaits.
 * Blocks as NCCL does: until all is queued, and for peers that it has to connect with first. */
tess_status nccl_run_calls(const struct nccl_launch *, const tess_collective *, uint32_t n, tess_error *);
#endif
