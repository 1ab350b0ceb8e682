/* SPDX-License-Identifier: BSD-3-Clause */
/* optimizer-lion: Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, algorithm 2. */
#include "lion.h"

#include <stdlib.h>

TESS_DESCRIPTOR(1u << TESS_KIND_OPTIMIZER, "lion", TESSERA_PLUGIN_VERSION, "BSD-3-Clause", "");

TESS_OPTIONS(options) = {
    { sizeof options[0], TESS_OPTION_REAL, 0, 0.999999, "lion-beta1", "0.9", "",
      "share of the momentum in the update" },
    { sizeof options[0], TESS_OPTION_REAL, 0, 0.999999, "lion-beta2", "0.99", "", "share that the momentum keeps" },
};
static const kit_options readable = { "optimizer lion", "lion-", options, N_OPTIONS, NULL };

static void lion_close(void *ctx) {
    free(ctx);
}

static tess_status lion_describe(void *ctx, const tess_param_view *param, uint32_t flags, tess_grain *out,
                                 tess_error *error) {
    (void)ctx, (void)param, (void)flags, (void)error;
    const tess_grain grain = { .grain = TESS_GRAIN_ELEMENT, .n_states = 1, .state = { { TESS_F32, 1, "exp_avg" } } };
    TESS_GIVE(out, &grain);
    return TESS_OK;
}

static tess_status lion_step(void *ctx, const tess_optimizer_piece *p, tess_error *error) {
    lion_numbers n = { 0 };
    const float *restrict g = p->grad;
    float *restrict x = p->master, *restrict m = p->state[0];
    tess_status s = lion_numbers_of(ctx, p, &n, error);
    if (s)
        return s;
    for (uint64_t i = 0; i < p->elems; i++)
        lion_f32(&n, g[i], &x[i], &m[i]);
    return TESS_OK;
}

static const tess_optimizer_ops ops = {
    .struct_size = sizeof ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .close = lion_close,
    .describe = lion_describe,
    .step = lion_step,
#if defined(LION_CUDA)
    .device_open = lion_device_open,
    .device_step = lion_device_step,
    .device_close = lion_device_close,
#endif
    .takes = TESS_TAKES_LR | TESS_TAKES_BETA1 | TESS_TAKES_BETA2,
};

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *error) {
    if (kind != TESS_KIND_OPTIMIZER)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "plugin lion offers optimizer only");
    lion_settings *s = calloc(1, sizeof *s);
    if (!s)
        return tess_plugin_fail(error, TESS_E_NOMEM, "optimizer lion: no memory to open");
    tess_status status = kit_options_read(&readable, host, s->beta, error);
    if (status < 0) {
        free(s);
        return status;
    }
    *out = &ops;
    *ctx = s;
    return TESS_OK;
}
