/* SPDX-License-Identifier: BSD-3-Clause */
/* precision-fp16: a choice of dtypes per parameter, and a scale of losses. The casts are the device's; the core has the
 * scale. */
#include "plugin_base.h"

#include <stdlib.h>

TESS_DESCRIPTOR(1u << TESS_KIND_PRECISION, "fp16", TESSERA_PLUGIN_VERSION, "BSD-3-Clause", "");

typedef struct {
    uint32_t wire, grad; /* dtypes of gradients: what travels, and what kernels add to */
    int keep;            /* keeps the declared dtype of parameters that the program cannot read in fp16 */
    tess_loss_scaling scaling;
} settings;

enum { WIRE, GRAD, UNREADABLE, SCALE, INIT, GROWTH, BACKOFF, EVERY, LEAST, N_OPTIONS };
TESS_OPTIONS(options) = {
    { sizeof options[0], TESS_OPTION_CHOICE, 0, 0, "fp16-wire", "fp16", "fp16|fp32",
      "dtype of gradients between ranks" },
    { sizeof options[0], TESS_OPTION_CHOICE, 0, 0, "fp16-grad", "fp32", "fp32|fp16",
      "dtype that a rank adds its gradients up in" },
    { sizeof options[0], TESS_OPTION_CHOICE, 0, 0, "fp16-unreadable", "refuse", "refuse|keep",
      "fp32 parameters that the program cannot read in fp16: an error, or left in fp32" },
    { sizeof options[0], TESS_OPTION_CHOICE, 0, 0, "fp16-scale", "dynamic", "dynamic|off",
      "whether losses are scaled" },
    { sizeof options[0], TESS_OPTION_REAL, 0x1p-24, 0x1p126, "fp16-init", "65536", "",
      "the first loss scale, a power of two" },
    { sizeof options[0], TESS_OPTION_REAL, 2, 0x1p24, "fp16-growth", "2", "",
      "what the scale grows by, a power of two" },
    { sizeof options[0], TESS_OPTION_REAL, 0x1p-24, 0.5, "fp16-backoff", "0.5", "",
      "what a step whose gradients are not finite multiplies the scale by, a power of two" },
    { sizeof options[0], TESS_OPTION_INT, 0, 0x1p31, "fp16-every", "2000", "",
      "finite steps in a row after which the scale grows; 0: it does not" },
    { sizeof options[0], TESS_OPTION_REAL, 0x1p-24, 0x1p126, "fp16-least", "1", "",
      "the least loss scale, a power of two, at which TESSERA_ON_NAN decides" },
};
static const kit_options readable = { "precision fp16", "fp16-", options, N_OPTIONS, NULL };

static tess_status read_settings(const tess_host *host, settings *out, tess_error *error) {
    kit_option read[N_OPTIONS];
    tess_status status = kit_options_read(&readable, host, read, error);
    if (status < 0)
        return status;
    out->wire = read[WIRE].value.number ? TESS_F32 : TESS_F16;
    out->grad = read[GRAD].value.number ? TESS_F16 : TESS_F32;
    out->keep = (int)read[UNREADABLE].value.number;
    if (read[SCALE].value.number == 0)
        out->scaling = (tess_loss_scaling){ .every = (uint32_t)read[EVERY].value.integer,
                                            .init = (float)read[INIT].value.real,
                                            .growth = (float)read[GROWTH].value.real,
                                            .backoff = (float)read[BACKOFF].value.real,
                                            .least = (float)read[LEAST].value.real };
    return TESS_OK;
}

static void fp16_close(void *ctx) {
    free(ctx);
}

static tess_status fp16_choose(void *ctx, const tess_param_view *param, tess_precision_choice *out, tess_error *error) {
    const settings *s = ctx;
    uint32_t dtype = param->dtype, readable = param->compute_mask ? param->compute_mask : 1u << dtype;
    int sixteen = dtype == TESS_F16 || dtype == TESS_BF16;
    tess_precision_choice choice = { .master = dtype,
                                     .compute = dtype,
                                     .gather = dtype,
                                     .grad_local = dtype,
                                     .grad_wire = dtype == TESS_F64 ? TESS_F32 : dtype,
                                     .accumulate = sixteen ? TESS_F32 : dtype };
    if (dtype == TESS_F32 && (readable >> TESS_F16 & 1u)) {
        choice.compute = choice.gather = TESS_F16;
        choice.grad_local = s->grad;
        choice.grad_wire = s->wire;
    } else if (dtype == TESS_F32 && !s->keep) {
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED,
                                "the program does not read it in fp16, which TESSERA_PRECISION=fp16 needs "
                                "(TESSERA_FP16_UNREADABLE=keep leaves such parameters in fp32)");
    } else if (dtype < 32 && !(readable >> dtype & 1u)) {
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "the program does not read its own dtype %u", dtype);
    }
    TESS_GIVE(out, &choice);
    return TESS_OK;
}

static tess_status fp16_loss_scaling(void *ctx, tess_loss_scaling *out, tess_error *error) {
    const settings *s = ctx;
    (void)error;
    TESS_GIVE(out, &s->scaling);
    return TESS_OK;
}

static const tess_precision_ops ops = {
    .struct_size = sizeof ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .close = fp16_close,
    .choose = fp16_choose,
    .loss_scaling = fp16_loss_scaling,
};

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *error) {
    if (kind != TESS_KIND_PRECISION)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "plugin fp16 offers precision only");
    settings *s = calloc(1, sizeof *s);
    if (!s)
        return tess_plugin_fail(error, TESS_E_NOMEM, "precision fp16: no memory to open");
    tess_status status = read_settings(host, s, error);
    if (status < 0) {
        free(s);
        return status;
    }
    *out = &ops;
    *ctx = s;
    return TESS_OK;
}
