/* SPDX-License-Identifier: BSD-3-Clause */
#include "plugin_caps.h"

#include <tessera/plugin_helpers.h>

typedef void (*each_fn)(void *user, const char *key, const char *const *words, int n);

/* Passes on the words of the bits that are set. Bit i has the word words[i]. */
static void tell(each_fn each, void *user, const char *key, uint32_t mask, const char *const *words, int most) {
    const char *set[32];
    int n = 0;
    for (int i = 0; i < most && i < 32; i++)
        if ((mask >> i & 1) && words[i])
            set[n++] = words[i];
    each(user, key, set, n);
}
#define TELL(key, mask, words) tell(each, user, key, mask, words, (int)(sizeof(words) / sizeof(words)[0]))

static const char *const memories[] = { NULL, "host", "pinned", "cuda", "shm" };

static void tell_dtypes(each_fn each, void *user, uint32_t mask) {
    const char *names[16] = { NULL };
    for (uint32_t i = 1; i < 16 && tess_dtype_bytes(i); i++)
        names[i] = tess_dtype_name(i);
    TELL("dtypes", mask, names);
}

static void tell_comm(const tess_comm_ops *ops, void *ctx, each_fn each, void *user) {
    static const char *const flags[] = { "thread_multiple", "stream_ordered", "abort", "split", NULL,
                                         "batch",           "tree_order" };
    static const char *const operations[] = { NULL,        "all_gather", "reduce_scatter", "all_reduce",
                                              "broadcast", "all_to_all", "barrier",        "all_to_all_v" };
    static const char *const reductions[] = { NULL, "sum", "min", "max" };
    tess_comm_caps caps = { .struct_size = sizeof caps };
    if (ops->query(ctx, NULL, &caps) != TESS_OK)
        return;
    TELL("flags", caps.caps, flags);
    TELL("operations", caps.op_mask, operations);
    TELL("reductions", caps.redop_mask, reductions);
    tell_dtypes(each, user, caps.dtype_mask);
    TELL("memory", caps.mem_mask, memories);
}

static void tell_device(const tess_device_ops *ops, void *ctx, each_fn each, void *user) {
    static const char *const kernels[] = { NULL, "cast", "tree_sum", "scale", "square_sum", "optimizer" };
    tess_device_info info = { .struct_size = sizeof info };
    tess_error e = { .struct_size = sizeof e };
    if (ops->describe(ctx, -1, &info, &e) != TESS_OK)
        return;
    TELL("kernels", info.kernel_mask, kernels);
    tell_dtypes(each, user, info.dtype_mask);
    TELL("memory", info.mem_mask, memories);
}

/* Describes a matrix that every plugin takes for a large one, because small ones may get another grain. */
static void tell_optimizer(const tess_optimizer_ops *ops, void *ctx, each_fn each, void *user) {
    static const int64_t shape[2] = { 4096, 4096 };
    static const char *const grains[] = { NULL, "element", "block", "matrix", "row" };
    const tess_param_view param = { .struct_size = sizeof param,
                                    .dtype = TESS_F32,
                                    .name = "weight",
                                    .elems = 4096 * 4096,
                                    .shape = shape,
                                    .ndim = 2 };
    tess_grain grain = { .struct_size = sizeof grain };
    const char *states[TESS_STATES_MOST];
    tess_error e = { .struct_size = sizeof e };
    if (ops->describe(ctx, &param, TESS_STEPS_MOMENTUM, &grain, &e) != TESS_OK || grain.grain > TESS_GRAIN_ROW ||
        grain.n_states > TESS_STATES_MOST)
        return;
    for (uint32_t k = 0; k < grain.n_states; k++) {
        states[k] = grain.state[k].name;
        grain.state[k].name[sizeof grain.state[k].name - 1] = 0; /* a faulty plugin's name may have no null byte */
    }
    TELL("grain", 1u << grain.grain, grains);
    each(user, "states", states, (int)grain.n_states);
}

void plugin_capabilities(uint32_t kind, const void *ops, void *ctx, each_fn each, void *user) {
    switch (kind) {
    case TESS_KIND_COMM: tell_comm(ops, ctx, each, user); break;
    case TESS_KIND_DEVICE: tell_device(ops, ctx, each, user); break;
    case TESS_KIND_OPTIMIZER: tell_optimizer(ops, ctx, each, user); break;
    default: break; /* plugins of other kinds have no capabilities */
    }
}
