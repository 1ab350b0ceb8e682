/* SPDX-License-Identifier: BSD-3-Clause */
/* precision-bf16: a choice of dtypes per parameter. The casts are the device's. */
#include "narrow.h"

TESS_DESCRIPTOR(1u << TESS_KIND_PRECISION, "bf16", TESSERA_PLUGIN_VERSION, "BSD-3-Clause", "");

enum { PRODUCTS = KIT_NARROW_OPTIONS, N_OPTIONS };
TESS_OPTIONS(options) = {
    KIT_NARROW_SPECS("bf16"),
    { sizeof options[0], TESS_OPTION_CHOICE, 0, 0, "bf16-products", "bf16", "bf16|fp8",
      "what products round their factors to, where the program can" },
};
static const kit_options readable = { "precision bf16", "bf16-", options, N_OPTIONS, NULL };

static void take_products(void *ctx, const kit_option *read) {
    kit_narrow *s = ctx;
    s->products = read[PRODUCTS].value.number ? TESS_F8E4M3 : 0;
}

static const tess_precision_ops ops = {
    .struct_size = sizeof ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .close = kit_narrow_close,
    .choose = kit_narrow_choose,
};
static const kit_narrow_plugin self = { TESS_BF16,          "bf16",       "TESSERA_BF16", &ops, &readable,
                                        sizeof(kit_narrow), take_products };

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *error) {
    return kit_narrow_open(&self, host, kind, out, ctx, error);
}
