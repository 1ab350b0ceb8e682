/* SPDX-License-Identifier: BSD-3-Clause */
/* tree_sum.h with AVX2 and F16C: same bits, wider loops. Called only where the CPU has both. */
#include "tree_sum.h"

#ifdef __AVX2__
#include "tree_sum_impl.h"

kit_tree_sum_fn *kit_tree_sum_avx2(uint32_t in, uint32_t out, uint32_t redop) {
    return tree_sum_find(in, out, redop);
}
#else
kit_tree_sum_fn *kit_tree_sum_avx2(uint32_t in, uint32_t out, uint32_t redop) {
    (void)in, (void)out, (void)redop;
    return 0; /* not compiled for it */
}
#endif
