/* SPDX-License-Identifier: BSD-3-Clause */
/* Layer 2 of the kit: sums, minima and maxima of the ranks' contributions in the engine's tree order (docs/numbers.md,
 * "Tree"). Scalar and AVX2 loops give the same bits. Compiled into the plugin, no part of the ABI. */
#ifndef TESS_KIT_TREE_SUM_H
#define TESS_KIT_TREE_SUM_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    uint32_t redop, in, out; /* TESS_SUM …; dtypes that kit_check_call accepts */
    int add;                 /* what the output holds is added to the sum */
    int stream;              /* the output is large and not read soon */
    double scale;            /* multiplies the sum, in the accumulation type */
} kit_reduction;

/** Reduces leaves[n], one contribution per rank, in rank order. `out` may be one of the leaves. Any alignment. */
typedef void kit_tree_sum_fn(const kit_reduction *, const void *const *leaves, int n, void *out, uint64_t elems);
kit_tree_sum_fn kit_tree_sum;

/** The loop for one combination and instruction set; null when there is none. For tests. */
int kit_tree_sum_has_avx2(void);
kit_tree_sum_fn *kit_tree_sum_scalar(uint32_t in, uint32_t out, uint32_t redop);
kit_tree_sum_fn *kit_tree_sum_avx2(uint32_t in, uint32_t out, uint32_t redop);
#ifdef __cplusplus
}
#endif
#endif
