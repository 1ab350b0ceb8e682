/* SPDX-License-Identifier: BSD-3-Clause */
/* precision-wire8: a choice of dtypes per parameter. Blocks of 8 bits are made and read by the device. */
#include "plugin_base.h"

#include <stdlib.h>

TESS_DESCRIPTOR(1u << TESS_KIND_PRECISION, "wire8", TESSERA_PLUGIN_VERSION, "BSD-3-Clause", "");

typedef struct {
    uint32_t compute, blocks; /* what kernels read; what travels */
    int params, grads, draws;
} settings;

enum { FORMAT, COMPUTE, SENDS, ROUNDING, N_OPTIONS };
TESS_OPTIONS(options) = {
    { sizeof options[0], TESS_OPTION_LIST, 0, 0, "wire8-format", "int8", "int8|fp8",
      "numbers of a block: integers, or floats with 3 bits of mantissa" },
    { sizeof options[0], TESS_OPTION_CHOICE, 0, 0, "wire8-compute", "fp32", "fp32|bf16",
      "dtype that gathered parameters are widened to, and computed with" },
    { sizeof options[0], TESS_OPTION_CHOICE, 0, 0, "wire8-sends", "all", "all|parameters|gradients",
      "what travels in blocks of 8 bits; the rest as in fp32, or in the compute dtype" },
    { sizeof options[0], TESS_OPTION_CHOICE, 0, 0, "wire8-rounding", "nearest", "nearest|stochastic",
      "how parameters and leaves of gradients are rounded; sums to nearest" },
};
static const kit_options readable = { "precision wire8", "wire8-", options, N_OPTIONS, NULL };

static tess_status read_settings(const tess_host *host, settings *out, tess_error *error) {
    kit_option read[N_OPTIONS];
    tess_status status = kit_options_read(&readable, host, read, error);
    if (status < 0)
        return status;
    if (read[FORMAT].value.number == 3)
        return tess_plugin_fail(error, TESS_E_INVALID, "precision wire8: both int8 and fp8, expected one of them");
    out->blocks = read[FORMAT].value.number == 2 ? TESS_Q8E4M3 : TESS_Q8;
    out->compute = read[COMPUTE].value.number ? TESS_BF16 : TESS_F32;
    out->draws = read[ROUNDING].value.number == 1;
    out->params = read[SENDS].value.number != 2;
    out->grads = read[SENDS].value.number != 1;
    return TESS_OK;
}

static void wire8_close(void *ctx) {
    free(ctx);
}

/* Blocks hold fp32; what is declared in another dtype travels as it is. */
static tess_status wire8_choose(void *ctx, const tess_param_view *param, tess_precision_choice *out,
                                tess_error *error) {
    const settings *s = ctx;
    uint32_t dtype = param->dtype, readable_in = param->compute_mask ? param->compute_mask : 1u << dtype;
    uint32_t compute = dtype == TESS_F32 ? s->compute : dtype;
    int sixteen = dtype == TESS_F16 || dtype == TESS_BF16;
    tess_precision_choice choice = { .master = dtype,
                                     .compute = compute,
                                     .gather = compute,
                                     .grad_local = dtype,
                                     .grad_wire = dtype == TESS_F64 ? TESS_F32 : dtype,
                                     .accumulate = sixteen ? TESS_F32 : dtype,
                                     .rounding = s->draws ? TESS_ROUND_STOCHASTIC : TESS_ROUND_NEAREST };
    if (compute < 32 && !(readable_in >> compute & 1u))
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "the program does not read it in %s%s",
                                tess_dtype_name(compute),
                                compute == dtype ? "" : ", which TESSERA_WIRE8_COMPUTE=bf16 needs");
    if (dtype == TESS_F32 && s->params)
        choice.gather = s->blocks;
    if (dtype == TESS_F32 && s->grads)
        choice.grad_wire = s->blocks;
    TESS_GIVE(out, &choice);
    return TESS_OK;
}

static const tess_precision_ops ops = {
    .struct_size = sizeof ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .close = wire8_close,
    .choose = wire8_choose,
};

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *error) {
    if (kind != TESS_KIND_PRECISION)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "plugin wire8 offers precision only");
    settings *s = calloc(1, sizeof *s);
    if (!s)
        return tess_plugin_fail(error, TESS_E_NOMEM, "precision wire8: no memory to open");
    tess_status status = read_settings(host, s, error);
    if (status < 0) {
        free(s);
        return status;
    }
    *out = &ops;
    *ctx = s;
    return TESS_OK;
}
