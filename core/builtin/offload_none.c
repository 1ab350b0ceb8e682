/* SPDX-License-Identifier: BSD-3-Clause */
/* The built-in offload `none`: everything rests on the device, so nothing ever moves. */
#include "builtins.h"
#include <tessera/plugin_helpers.h>

static void none_close(void *ctx) {
    (void)ctx;
}

static tess_status none_place(void *ctx, const tess_plan_env *env, const tess_region *regions, uint32_t n,
                              tess_placement *out, tess_error *error) {
    (void)ctx, (void)env, (void)regions, (void)error;
    tess_placement placement = { .rest = TESS_REST_DEVICE, .align = 64 };
    uint32_t stride = n ? out->struct_size : 0;
    for (uint32_t i = 0; i < n; i++)
        tess_plugin_give((char *)out + (size_t)i * stride, stride, &placement, sizeof placement);
    return TESS_OK;
}

static const tess_offload_ops ops = { .struct_size = sizeof ops,
                                      .abi_major = TESS_ABI_MAJOR,
                                      .abi_minor = TESS_ABI_MINOR,
                                      .close = none_close,
                                      .place = none_place };

tess_status tess__offload_none_open(const tess_host *host, const void **out, void **ctx, tess_error *error) {
    if (host && host->args && *host->args)
        return tess_plugin_fail(error, TESS_E_INVALID, "offload none takes no arguments, found \"%s\"", host->args);
    *out = &ops;
    *ctx = NULL;
    return TESS_OK;
}
