/* SPDX-License-Identifier: BSD-3-Clause */
/* precision-bf16: a choice of dtypes per parameter. The casts are the device's. */
#include "narrow.h"

TESS_DESCRIPTOR(1u << TESS_KIND_PRECISION, "bf16", TESSERA_PLUGIN_VERSION, "BSD-3-Clause", "");

TESS_OPTIONS(options) = { KIT_NARROW_SPECS("bf16") };
static const kit_options readable = { "precision bf16", "bf16-", options, KIT_NARROW_OPTIONS, NULL };

static const tess_precision_ops ops = {
    .struct_size = sizeof ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .close = kit_narrow_close,
    .choose = kit_narrow_choose,
};
static const kit_narrow_plugin self = { TESS_BF16, "bf16", "TESSERA_BF16", &ops, &readable, sizeof(kit_narrow), NULL };

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *error) {
    return kit_narrow_open(&self, host, kind, out, ctx, error);
}
