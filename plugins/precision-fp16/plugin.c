/* SPDX-License-Identifier: BSD-3-Clause */
/* precision-fp16: a choice of dtypes per parameter, and a scale of losses. The casts are the device's; the core has the
 * scale. */
#include "narrow.h"

TESS_DESCRIPTOR(1u << TESS_KIND_PRECISION, "fp16", TESSERA_PLUGIN_VERSION, "BSD-3-Clause", "");

typedef struct {
    kit_narrow narrow;
    tess_loss_scaling scaling;
} settings;

enum { SCALE = KIT_NARROW_OPTIONS, INIT, GROWTH, BACKOFF, EVERY, LEAST, N_OPTIONS };
_Static_assert((int)N_OPTIONS <= (int)KIT_NARROW_MOST, "kit_narrow_open reads all options");
TESS_OPTIONS(options) = {
    KIT_NARROW_SPECS("fp16"),
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

static void take_scaling(void *ctx, const kit_option *read) {
    settings *s = ctx;
    if (read[SCALE].value.number == 0)
        s->scaling = (tess_loss_scaling){ .every = (uint32_t)read[EVERY].value.integer,
                                          .init = (float)read[INIT].value.real,
                                          .growth = (float)read[GROWTH].value.real,
                                          .backoff = (float)read[BACKOFF].value.real,
                                          .least = (float)read[LEAST].value.real };
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
    .close = kit_narrow_close,
    .choose = kit_narrow_choose,
    .loss_scaling = fp16_loss_scaling,
};
static const kit_narrow_plugin self = {
    TESS_F16, "fp16", "TESSERA_FP16", &ops, &readable, sizeof(settings), take_scaling,
};

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *error) {
    return kit_narrow_open(&self, host, kind, out, ctx, error);
}
