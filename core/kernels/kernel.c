/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks a tess_kernel as it comes from outside, then hands it to its loop. */
#include "kernels.h"
#include <tessera/plugin_helpers.h>

static int one_of(uint32_t dtype, uint32_t mask) {
    return dtype && dtype < 32 && (mask >> dtype & 1u);
}
enum {
    FLOATS = 1 << TESS_F16 | 1 << TESS_BF16 | 1 << TESS_F32 | 1 << TESS_F64,
    SUMMED = FLOATS | 1 << TESS_I32 | 1 << TESS_I64 | 1 << TESS_Q8 | 1 << TESS_Q8E4M3
};

static const char *kernel_name(uint32_t kernel) {
    static const char *const names[] = { "kernel 0", "cast", "tree sum", "scale", "square sum", "optimizer" };
    return kernel < sizeof names / sizeof names[0] ? names[kernel] : "unknown kernel";
}

/* A sum goes out in its own dtype, or from an f32 sum in a 16-bit float or in blocks. */
static int sum_goes_to(uint32_t in, uint32_t out) {
    int f32_sum = in == TESS_F32 || in == TESS_BF16 || in == TESS_F16 || tess_dtype_is_blocks(in);
    if (f32_sum)
        return one_of(out, 1 << TESS_F32 | 1 << TESS_BF16 | 1 << TESS_F16 | 1 << TESS_Q8 | 1 << TESS_Q8E4M3);
    return in == out;
}

static int dtypes_supported(const tess_kernel *k) {
    uint32_t in = k->in_dtype, out = k->out_dtype;
    switch (k->kernel) {
    case TESS_K_CAST: return tess__cast_find(in, out, 0) != NULL;
    case TESS_K_TREE_SUM: return one_of(in, SUMMED) && sum_goes_to(in, out);
    case TESS_K_SCALE: return in == out && one_of(in, 1 << TESS_F32 | 1 << TESS_F64);
    case TESS_K_SQUARE_SUM: return one_of(in, FLOATS) && in != TESS_F64 && (!out || out == TESS_I64);
    case TESS_K_OPTIMIZER: return out == TESS_F32 ? one_of(in, FLOATS) && in != TESS_F64 : out == TESS_F64 && in == out;
    default: return 0;
    }
}

tess_status tess__kernel_need(const tess_kernel *k, tess_need *out) {
    tess_need need = { .align = 64 };
    if (!dtypes_supported(k))
        return TESS_E_UNSUPPORTED;
    TESS_GIVE(out, &need);
    return TESS_OK;
}

static tess_status check_inputs(const tess_kernel *k, tess_error *error) {
    uint32_t n = k->kernel == TESS_K_TREE_SUM ? k->n_in : k->kernel == TESS_K_SCALE ? 0 : 1;
    if (k->kernel == TESS_K_TREE_SUM && !n)
        return tess_plugin_fail(error, TESS_E_INVALID, "a tree sum of no inputs");
    if (n && !k->in)
        return tess_plugin_fail(error, TESS_E_INVALID, "%s: no inputs given", kernel_name(k->kernel));
    for (uint32_t i = 0; i < n; i++)
        if (!k->in[i])
            return tess_plugin_fail(error, TESS_E_INVALID, "%s: input %u of %u is null", kernel_name(k->kernel), i, n);
    if (!k->out)
        return tess_plugin_fail(error, TESS_E_INVALID, "%s: the output is null", kernel_name(k->kernel));
    return TESS_OK;
}

static tess_status check_scale(const tess_kernel *k, tess_error *error) {
    int plain = k->scale == 0 || k->scale == 1;
    int sums = k->kernel == TESS_K_TREE_SUM, integers = sums && (k->in_dtype == TESS_I32 || k->in_dtype == TESS_I64);
    if (!plain && (k->kernel == TESS_K_CAST || integers || (sums && tess_dtype_is_blocks(k->out_dtype))))
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "%s of %s does not scale: scale is %g, expected 0 or 1",
                                kernel_name(k->kernel), tess_dtype_name(k->in_dtype), k->scale);
    return TESS_OK;
}

/* Sums go through blocks only if they are f32 from their beginning; draws make blocks of f32. */
static tess_status check_rounding(const tess_kernel *k, tess_error *error) {
    uint32_t both = TESS_KERNEL_Q8 | TESS_KERNEL_Q8E4M3, flags = k->flags & both;
    int f32_sum = k->in_dtype != TESS_F64 && k->in_dtype != TESS_I32 && k->in_dtype != TESS_I64;
    if (tess__kernel_draws(k) && (k->in_dtype != TESS_F32 || !tess_dtype_is_blocks(k->out_dtype) ||
                                  k->rounding->first % TESS_Q8_BLOCK || (k->rounding->n_runs && !k->rounding->runs)))
        return tess_plugin_fail(error, TESS_E_INVALID, "cast from %s to %s by draws: from f32 to blocks, whole ones",
                                tess_dtype_name(k->in_dtype), tess_dtype_name(k->out_dtype));
    if (k->kernel != TESS_K_TREE_SUM || !flags)
        return TESS_OK;
    if (flags == both || k->flags & TESS_KERNEL_CHAIN || !f32_sum)
        return tess_plugin_fail(error, TESS_E_INVALID,
                                "tree sum of %s with flags %u: blocks are of one kind, of f32, "
                                "and of no chain",
                                tess_dtype_name(k->in_dtype), k->flags);
    return TESS_OK;
}

/* Segments ascend, do not overlap and stay inside the shard. */
static tess_status check_segments(const tess_kernel *k, int *momentum, tess_error *error) {
    const tess_optimizer *o = k->optimizer;
    uint64_t end = 0;
    for (uint32_t i = 0; i < o->n_segments; i++) {
        const tess_segment *s =
            (const tess_segment *)((const char *)o->segments + (size_t)i * o->segments->struct_size);
        if (s->first < end || s->first > k->elems || s->elems > k->elems - s->first)
            return tess_plugin_fail(error, TESS_E_INVALID,
                                    "optimizer: segment %u is %llu elements from %llu; expected ascending, disjoint, "
                                    "within %llu",
                                    i, (unsigned long long)s->elems, (unsigned long long)s->first,
                                    (unsigned long long)k->elems);
        end = s->first + s->elems;
        *momentum |= s->momentum != 0;
    }
    return TESS_OK;
}

static tess_status check_optimizer(const tess_kernel *k, tess_error *error) {
    const tess_optimizer *o = k->optimizer;
    int momentum = 0;
    if (!o || (o->n_segments && !o->segments))
        return tess_plugin_fail(error, TESS_E_INVALID, "optimizer: its settings are null");
    if (o->optimizer < TESS_OPT_SGD || o->optimizer > TESS_OPT_ADADELTA)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "optimizer %u is unknown, expected 1 to 4", o->optimizer);
    if (!o->step)
        return tess_plugin_fail(error, TESS_E_INVALID, "optimizer: the step is 0, it counts from 1");
    tess_status status = check_segments(k, &momentum, error);
    if (status < 0)
        return status;
    uint32_t states = o->optimizer == TESS_OPT_SGD ? (momentum ? 1 : 0) : 2;
    for (uint32_t i = 0; i < states; i++)
        if (!k->state[i])
            return tess_plugin_fail(error, TESS_E_INVALID, "optimizer %u: state %u is null", o->optimizer, i);
    return TESS_OK;
}

tess_status tess__kernel_run(const tess_kernel *k, tess__pool *pool, tess_error *error) {
    if (!dtypes_supported(k))
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "%s from %s to %s is not offered", kernel_name(k->kernel),
                                tess_dtype_name(k->in_dtype), tess_dtype_name(k->out_dtype));
    tess_status status = TESS_OK;
    if (k->elems || k->kernel == TESS_K_SQUARE_SUM)
        status = check_inputs(k, error);
    if (status == TESS_OK)
        status = check_scale(k, error);
    if (status == TESS_OK)
        status = check_rounding(k, error);
    if (status == TESS_OK && k->kernel == TESS_K_OPTIMIZER)
        status = check_optimizer(k, error);
    if (status < 0)
        return status;
    switch (k->kernel) {
    case TESS_K_CAST: tess__kernel_cast(k, pool); break;
    case TESS_K_TREE_SUM: tess__kernel_tree_sum(k, pool); break;
    case TESS_K_SCALE: tess__kernel_scale(k, pool); break;
    case TESS_K_SQUARE_SUM: tess__kernel_square_sum(k, pool); break;
    default: tess__kernel_optimizer(k, pool); break;
    }
    return TESS_OK;
}
