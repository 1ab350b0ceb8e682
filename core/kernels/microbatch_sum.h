/* SPDX-License-Identifier: BSD-3-Clause */
/* Sums microbatches in order, or with TESSERA_DETERMINISTIC=1 in the tree of sums, by a binary counter of partial
 * sums. */
#ifndef TESS_MICROBATCH_SUM_H
#define TESS_MICROBATCH_SUM_H
#include <tessera/tessera.h>

typedef struct {
    float *level[16];
    int32_t n_levels;
    int in_order;   /* level 0 takes all, one after the other */
    uint32_t flags; /* of each sum of two in the tree: TESS_KERNEL_Q8 … */
    uint64_t elems;
} tess__microbatch_sum;
typedef tess_status (*tess__kernel_fn)(void *user, tess_kernel *);

/** Adds leaf number k, counted from 0. The leaf is left as it is. */
tess_status tess__microbatch_add(tess__microbatch_sum *, uint32_t k, const void *leaf, uint32_t dtype, tess__kernel_fn,
                                 void *user);
/** After `n` leaves: *sum is the level that holds the whole sum. */
tess_status tess__microbatch_total(tess__microbatch_sum *, uint32_t n, tess__kernel_fn, void *user, void **sum);
#endif
