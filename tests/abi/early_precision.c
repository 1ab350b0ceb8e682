/* SPDX-License-Identifier: BSD-3-Clause */
/* A precision plugin with an option, as it was written before ABI 1.2: the slot lists it after open, `fallback` of a
 * choice lists all, and the plugin judges the text. Built against plugin-1.0.h and never changed. */
#include <stdlib.h>
#include <tessera/plugin_helpers.h>

TESS_DESCRIPTOR(1u << TESS_KIND_PRECISION, "early", "0.1.0", "", "");

#define ME "early"

typedef struct {
    uint32_t wire; /* what gradients travel in */
} settings;

static tess_status early_options(void *ctx, const tess_option **out, uint32_t *n) {
    static const tess_option options[] = {
        { sizeof options[0], 5, "early-wire", "bf16|fp32", "dtype of gradients between ranks" },
    };
    (void)ctx;
    *out = options;
    *n = sizeof options / sizeof options[0];
    return TESS_OK;
}

/* Pure: from the parameter and the settings alone. */
static tess_status early_choose(void *ctx, const tess_param_view *param, tess_precision_choice *out,
                                tess_error *error) {
    const settings *s = ctx;
    const uint32_t dtype = param->dtype, readable = param->compute_mask ? param->compute_mask : 1u << dtype;
    const int half = dtype == TESS_F16 || dtype == TESS_BF16;
    tess_precision_choice choice = { .master = dtype,
                                     .compute = dtype,
                                     .gather = dtype,
                                     .grad_local = dtype,
                                     .grad_wire = dtype,
                                     .accumulate = half ? TESS_F32 : dtype,
                                     .block_elems = 1 };
    if (dtype == TESS_F32 && (readable >> TESS_BF16 & 1u)) {
        choice.compute = choice.gather = TESS_BF16;
        choice.grad_wire = s->wire;
    } else if (!(readable >> dtype & 1u)) {
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "the program does not read %s", tess_dtype_name(dtype));
    }
    TESS_GIVE(out, &choice);
    return TESS_OK;
}

static void early_close(void *ctx) {
    free(ctx);
}

static const tess_precision_ops ops = {
    .struct_size = sizeof ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .close = early_close,
    .options = early_options,
    .choose = early_choose,
};

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *error) {
    if (kind != TESS_KIND_PRECISION)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, ME " offers precision only");
    if (*host->args)
        return tess_plugin_fail(error, TESS_E_INVALID, "precision " ME " takes no arguments, found \"%.100s\"",
                                host->args);
    const char *wire = host->option(host->host, "early-wire"); /* null when unset */
    if (wire && strcmp(wire, "bf16") != 0 && strcmp(wire, "fp32") != 0)
        return tess_plugin_fail(error, TESS_E_INVALID, "precision " ME ": wire is \"%.40s\", expected bf16 or fp32",
                                wire);
    settings *s = malloc(sizeof *s);
    if (!s)
        return tess_plugin_fail(error, TESS_E_NOMEM, "precision " ME ": no memory");
    s->wire = wire && strcmp(wire, "fp32") == 0 ? TESS_F32 : TESS_BF16;
    *out = &ops;
    *ctx = s;
    return TESS_OK;
}
