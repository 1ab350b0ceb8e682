/* The tree sum of inputs that come one after another, in rank or microbatch order, without holding them all: a binary
 * counter of partial sums. The same bits as one TREE_SUM over all of them. Where the partials lie and which device adds
 * is the caller's: this only fills in kernels to run.
 *
 *     tess__tree_init(&tree, TESS_F32, elems, n, scratch);   scratch: tess__tree_levels(n) * elems of the sum's dtype
 *     for each input but the last:  tess__tree_push(&tree, input, dtype, &kernel);  run kernel
 *     tess__tree_last(&tree, input, dtype, out, out_dtype, flags, scale, &kernel);  run kernel
 *
 * The kernels must run in that order, each before its input may change. `out` of the last may be any level. */
#ifndef TESS_TREE_H
#define TESS_TREE_H
#include <tessera/plugin.h>
#include <string.h>

enum { TESS__TREE_MOST_LEVELS = 32 };
typedef struct {
    uint64_t elems, pushed;
    void *level[TESS__TREE_MOST_LEVELS];        /* partial of 2^i inputs; valid where bit i of pushed is set */
    const void *in[TESS__TREE_MOST_LEVELS + 1]; /* what the kernel filled in last reads */
    uint32_t sum_dtype, reserved;
} tess__tree;

/** Levels of scratch for n inputs: ceil(log2 n), 0 for one input. */
static inline uint32_t tess__tree_levels(uint64_t n) {
    uint32_t levels = 0;
    while (levels < TESS__TREE_MOST_LEVELS && ((uint64_t)1 << levels) < n)
        levels++;
    return levels;
}

/** For `n` inputs at most. `scratch` holds the levels one behind the other, each `elems` elements of `sum_dtype`
 * (TESS_F32; TESS_F64 for f64 inputs, TESS_I32, TESS_I64). A caller whose levels lie apart sets tree->level[] itself
 * and passes null. */
static inline void tess__tree_init(tess__tree *tree, uint32_t sum_dtype, uint64_t elems, uint64_t n, void *scratch) {
    uint64_t bytes = elems * (sum_dtype == TESS_F64 || sum_dtype == TESS_I64 ? 8 : 4);
    uint32_t levels = scratch ? tess__tree_levels(n) : 0;
    memset(tree, 0, sizeof *tree);
    tree->elems = elems;
    tree->sum_dtype = sum_dtype;
    for (uint32_t i = 0; i < levels; i++)
        tree->level[i] = (char *)scratch + i * bytes;
}

/* in[]: the partials at the set bits of `bits`, largest first, then the input. */
static inline void tess__tree_kernel(tess__tree *tree, uint64_t bits, const void *in, uint32_t in_dtype,
                                     tess_kernel *out) {
    memset(out, 0, sizeof *out);
    out->struct_size = sizeof *out;
    out->kernel = TESS_K_TREE_SUM;
    out->flags = TESS_KERNEL_CHAIN;
    out->in_dtype = in_dtype;
    out->out_dtype = tree->sum_dtype;
    out->elems = tree->elems;
    out->in = tree->in;
    out->scale = 1;
    for (uint32_t i = TESS__TREE_MOST_LEVELS; i-- > 0;)
        if (bits >> i & 1)
            tree->in[out->n_in++] = tree->level[i];
    tree->in[out->n_in++] = in;
}

/** Fills in the kernel that takes one more input, when it is not the last. `*out` reads tree->in, so run it before the
 * next push. An input that stays alone at level 0 is copied there. */
static inline void tess__tree_push(tess__tree *tree, const void *in, uint32_t in_dtype, tess_kernel *out) {
    uint32_t top = (uint32_t)__builtin_ctzll(~tree->pushed);
    tess__tree_kernel(tree, ((uint64_t)1 << top) - 1, in, in_dtype, out);
    out->out = tree->level[top];
    tree->pushed++;
}

/** Fills in the kernel that takes the last input and ends the sum in `result`: flags TESS_KERNEL_ADD adds what is
 * there, then scale multiplies. The tree starts anew. */
static inline void tess__tree_last(tess__tree *tree, const void *in, uint32_t in_dtype, void *result,
                                   uint32_t result_dtype, uint32_t flags, double scale, tess_kernel *out) {
    tess__tree_kernel(tree, tree->pushed, in, in_dtype, out);
    out->out = result;
    out->out_dtype = result_dtype;
    out->flags |= flags & TESS_KERNEL_ADD;
    out->scale = scale;
    tree->pushed = 0;
}
#endif
