/* SPDX-License-Identifier: BSD-3-Clause */
#include "tree_sum_impl.h"

#ifdef __x86_64__
#include <cpuid.h>

/* clang 14 does not know __builtin_cpu_supports("f16c"); cpuid traps in a virtual machine, so it is asked once. */
int kit_tree_sum_has_avx2(void) {
    static int known; /* 0: not asked yet, 1: no, 2: yes; atomic */
    int has = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (!has) {
        unsigned a, b, c = 0, d;
        has = 1 + (__builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0);
        __atomic_store_n(&known, has, __ATOMIC_RELAXED);
    }
    return has == 2;
}
#else
int kit_tree_sum_has_avx2(void) {
    return 0;
}
#endif

kit_tree_sum_fn *kit_tree_sum_scalar(uint32_t in, uint32_t out, uint32_t redop) {
    return tree_sum_find(in, out, redop);
}

static kit_tree_sum_fn *find_best(const kit_reduction *r) {
    kit_tree_sum_fn *best = kit_tree_sum_has_avx2() ? kit_tree_sum_avx2(r->in, r->out, r->redop) : NULL;
    return best ? best : kit_tree_sum_scalar(r->in, r->out, r->redop);
}

void kit_tree_sum(const kit_reduction *r, const void *const *leaves, int n, void *out, uint64_t elems) {
    kit_reduction own = *r;
    own.stream = r->stream && (uintptr_t)out % tess_dtype_bytes(r->out) == 0; /* else no element begins a cache line */
    find_best(r)(&own, leaves, n, out, elems);
}
