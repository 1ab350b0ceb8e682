/* SPDX-License-Identifier: BSD-3-Clause */
#include "microbatch_sum.h"

#include "base/status.h"

/* Computes out = out + in, or out = in, in fp32; addition commutes to the bit. */
static tess_status add_leaf(const tess__microbatch_sum *c, float *out, const void *in, uint32_t dtype, int to,
                            tess__kernel_fn run, void *user) {
    const void *list[1] = { in };
    tess_kernel k = { .kernel = TESS_K_TREE_SUM,
                      .in_dtype = dtype,
                      .out_dtype = TESS_F32,
                      .n_in = 1,
                      .flags = to ? TESS_KERNEL_ADD | (c->in_order ? 0 : c->flags) : 0,
                      .in = list,
                      .out = out,
                      .elems = c->elems,
                      .scale = 1 };
    return run(user, &k);
}

tess_status tess__microbatch_add(tess__microbatch_sum *c, uint32_t k, const void *leaf, uint32_t dtype,
                                 tess__kernel_fn run, void *user) {
    if (c->in_order)
        return add_leaf(c, c->level[0], leaf, dtype, k > 0, run, user);
    int32_t l = 0;
    const void *carry = leaf;
    for (; k >> l & 1; l++) {
        TRY(add_leaf(c, c->level[l], carry, dtype, 1, run, user));
        carry = c->level[l];
        dtype = TESS_F32;
    }
    if (l >= c->n_levels)
        return tess__fail(TESS_E_INTERNAL, "more microbatches than were planned");
    return add_leaf(c, c->level[l], carry, dtype, 0, run, user);
}

tess_status tess__microbatch_total(tess__microbatch_sum *c, uint32_t n, tess__kernel_fn run, void *user, void **sum) {
    float *total = NULL;
    for (int32_t l = 0; !c->in_order && l < c->n_levels; l++) {
        if (!(n >> l & 1))
            continue;
        if (total)
            TRY(add_leaf(c, c->level[l], total, TESS_F32, 1, run, user));
        total = c->level[l];
    }
    *sum = c->in_order ? c->level[0] : total;
    return TESS_OK;
}
