/* SPDX-License-Identifier: BSD-3-Clause */
/* The built-in optimizers. Each is one of the kernels that every device has, and has no step of its own. */
#include "builtins.h"
#include <tessera/plugin_helpers.h>

#include <stdio.h>

typedef struct {
    const char *name, *states[2];
    uint32_t kernel;
} optimizer;

static const optimizer table[] = {
    { "sgd", { "momentum_buffer", NULL }, TESS_OPT_SGD }, /* with a momentum only */
    { "adam", { "exp_avg", "exp_avg_sq" }, TESS_OPT_ADAM },
    { "adamw", { "exp_avg", "exp_avg_sq" }, TESS_OPT_ADAMW },
    { "adadelta", { "square_avg", "acc_delta" }, TESS_OPT_ADADELTA },
};

static tess_status describe(void *ctx, const tess_param_view *param, uint32_t flags, tess_grain *out,
                            tess_error *error) {
    const optimizer *o = ctx;
    tess_grain grain = { .grain = TESS_GRAIN_ELEMENT, .kernel = o->kernel };
    (void)param, (void)error;
    while (grain.n_states < 2 && o->states[grain.n_states]) {
        tess_state *state = &grain.state[grain.n_states];
        if (o->kernel == TESS_OPT_SGD && !(flags & TESS_STEPS_MOMENTUM))
            break;
        state->dtype = TESS_F32;
        state->every = 1;
        snprintf(state->name, sizeof state->name, "%s", o->states[grain.n_states++]);
    }
    TESS_GIVE(out, &grain);
    return TESS_OK;
}

static void close_one(void *ctx) {
    (void)ctx;
}

static const tess_optimizer_ops ops = { .struct_size = sizeof ops,
                                        .abi_major = TESS_ABI_MAJOR,
                                        .abi_minor = TESS_ABI_MINOR,
                                        .close = close_one,
                                        .describe = describe };

static tess_status open_one(const tess_host *host, const optimizer *o, const void **out, void **ctx,
                            tess_error *error) {
    if (host && host->args && *host->args)
        return tess_plugin_fail(error, TESS_E_INVALID, "optimizer %s takes no arguments, found \"%s\"", o->name,
                                host->args);
    *out = &ops;
    *ctx = (void *)o;
    return TESS_OK;
}

tess_status tess__optimizer_sgd_open(const tess_host *host, const void **out, void **ctx, tess_error *error) {
    return open_one(host, &table[0], out, ctx, error);
}
tess_status tess__optimizer_adam_open(const tess_host *host, const void **out, void **ctx, tess_error *error) {
    return open_one(host, &table[1], out, ctx, error);
}
tess_status tess__optimizer_adamw_open(const tess_host *host, const void **out, void **ctx, tess_error *error) {
    return open_one(host, &table[2], out, ctx, error);
}
tess_status tess__optimizer_adadelta_open(const tess_host *host, const void **out, void **ctx, tess_error *error) {
    return open_one(host, &table[3], out, ctx, error);
}
