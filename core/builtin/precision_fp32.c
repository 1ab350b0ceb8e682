/* SPDX-License-Identifier: BSD-3-Clause */
/* The built-in precision `fp32`: every parameter in the dtype it was declared with; gradients of f64 travel in
 * fp32, as all sums are. */
#include "builtins.h"
#include <tessera/plugin_helpers.h>

static void fp32_close(void *ctx) {
    (void)ctx;
}

static tess_status fp32_choose(void *ctx, const tess_param_view *param, tess_precision_choice *out, tess_error *error) {
    (void)ctx;
    uint32_t dtype = param->dtype;
    if (!tess_dtype_bytes(dtype))
        return tess_plugin_fail(error, TESS_E_INVALID, "its dtype %u is unknown", dtype);
    if (param->compute_mask && !(param->compute_mask >> dtype & 1u))
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED,
                                "the program cannot read its own dtype %s, in which TESSERA_PRECISION=fp32 keeps it",
                                tess_dtype_name(dtype));
    int small_float = dtype == TESS_F16 || dtype == TESS_BF16 || dtype == TESS_F8E4M3 || dtype == TESS_F8E5M2;
    tess_precision_choice choice = { .master = dtype,
                                     .compute = dtype,
                                     .gather = dtype,
                                     .grad_local = dtype,
                                     .grad_wire = dtype == TESS_F64 ? TESS_F32 : dtype,
                                     .accumulate = small_float ? TESS_F32 : dtype };
    TESS_GIVE(out, &choice);
    return TESS_OK;
}

static const tess_precision_ops ops = { .struct_size = sizeof ops,
                                        .abi_major = TESS_ABI_MAJOR,
                                        .abi_minor = TESS_ABI_MINOR,
                                        .close = fp32_close,
                                        .choose = fp32_choose };

tess_status tess__precision_fp32_open(const tess_host *host, const void **out, void **ctx, tess_error *error) {
    if (host && host->args && *host->args)
        return tess_plugin_fail(error, TESS_E_INVALID, "precision fp32 takes no arguments, found \"%s\"", host->args);
    *out = &ops;
    *ctx = NULL;
    return TESS_OK;
}
