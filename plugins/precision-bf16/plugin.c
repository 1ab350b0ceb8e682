/* SPDX-License-Identifier: BSD-3-Clause */
/* precision-bf16: a choice of dtypes per parameter. The casts are the device's. */
#include "plugin_base.h"

#include <stdlib.h>

TESS_DESCRIPTOR(1u << TESS_KIND_PRECISION, "bf16", TESSERA_PLUGIN_VERSION, "BSD-3-Clause", "");

typedef struct {
    uint32_t wire, grad; /* dtypes of gradients: what travels, and what kernels add to */
    int keep;            /* keeps the declared dtype of parameters that the program cannot read in bf16 */
} settings;

enum { WIRE, GRAD, UNREADABLE, N_OPTIONS };
TESS_OPTIONS(options) = {
    { sizeof options[0], TESS_OPTION_CHOICE, 0, 0, "bf16-wire", "bf16", "bf16|fp32",
      "dtype of gradients between ranks" },
    { sizeof options[0], TESS_OPTION_CHOICE, 0, 0, "bf16-grad", "fp32", "fp32|bf16",
      "dtype that a rank adds its gradients up in" },
    { sizeof options[0], TESS_OPTION_CHOICE, 0, 0, "bf16-unreadable", "refuse", "refuse|keep",
      "fp32 parameters that the program cannot read in bf16: an error, or left in fp32" },
};
static const kit_options readable = { "precision bf16", "bf16-", options, N_OPTIONS, NULL };

static tess_status read_settings(const tess_host *host, settings *out, tess_error *error) {
    kit_option read[N_OPTIONS];
    tess_status status = kit_options_read(&readable, host, read, error);
    if (status < 0)
        return status;
    out->wire = read[WIRE].value.number ? TESS_F32 : TESS_BF16;
    out->grad = read[GRAD].value.number ? TESS_BF16 : TESS_F32;
    out->keep = (int)read[UNREADABLE].value.number;
    return TESS_OK;
}

static void bf16_close(void *ctx) {
    free(ctx);
}

static tess_status bf16_choose(void *ctx, const tess_param_view *param, tess_precision_choice *out, tess_error *error) {
    const settings *s = ctx;
    uint32_t dtype = param->dtype, readable = param->compute_mask ? param->compute_mask : 1u << dtype;
    int sixteen = dtype == TESS_F16 || dtype == TESS_BF16;
    tess_precision_choice choice = { .master = dtype,
                                     .compute = dtype,
                                     .gather = dtype,
                                     .grad_local = dtype,
                                     .grad_wire = dtype == TESS_F64 ? TESS_F32 : dtype,
                                     .accumulate = sixteen ? TESS_F32 : dtype };
    if (dtype == TESS_F32 && (readable >> TESS_BF16 & 1u)) {
        choice.compute = choice.gather = TESS_BF16;
        choice.grad_local = s->grad;
        choice.grad_wire = s->wire;
    } else if (dtype == TESS_F32 && !s->keep) {
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED,
                                "the program does not read it in bf16, which TESSERA_PRECISION=bf16 needs "
                                "(TESSERA_BF16_UNREADABLE=keep leaves such parameters in fp32)");
    } else if (dtype < 32 && !(readable >> dtype & 1u)) {
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "the program does not read its own dtype %u", dtype);
    }
    TESS_GIVE(out, &choice);
    return TESS_OK;
}

static const tess_precision_ops ops = {
    .struct_size = sizeof ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .close = bf16_close,
    .choose = bf16_choose,
};

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *error) {
    if (kind != TESS_KIND_PRECISION)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "plugin bf16 offers precision only");
    settings *s = calloc(1, sizeof *s);
    if (!s)
        return tess_plugin_fail(error, TESS_E_NOMEM, "precision bf16: no memory to open");
    tess_status status = read_settings(host, s, error);
    if (status < 0) {
        free(s);
        return status;
    }
    *out = &ops;
    *ctx = s;
    return TESS_OK;
}
