/* SPDX-License-Identifier: BSD-3-Clause */
/* Layer `narrow` of the kit, for precision plugins of 16 bits: fp32 masters, and one 16-bit dtype to gather and compute
 * in. Options, the choice for a parameter, opening. The casts are the device's. */
#ifndef TESS_KIT_NARROW_H
#define TESS_KIT_NARROW_H
#include "plugin_base.h"
#ifdef __cplusplus
extern "C" {
#endif

/** The first options of such a plugin, for TESS_OPTIONS; `name` is a literal, "bf16". Others follow. */
enum { KIT_NARROW_WIRE, KIT_NARROW_GRAD, KIT_NARROW_UNREADABLE, KIT_NARROW_OPTIONS, KIT_NARROW_MOST = 16 };
#define KIT_NARROW_SPEC(key, choices, help)                                                                            \
    { sizeof(tess_option_spec), TESS_OPTION_CHOICE, 0, 0, key, choices, help }
#define KIT_NARROW_TWO(first, second) first, first "|" second
#define KIT_NARROW_SPECS(name)                                                                                         \
    KIT_NARROW_SPEC(name "-wire", KIT_NARROW_TWO(name, "fp32"), "dtype of gradients between ranks"),                   \
        KIT_NARROW_SPEC(name "-grad", KIT_NARROW_TWO("fp32", name), "dtype that a rank adds its gradients up in"),     \
        KIT_NARROW_SPEC(name "-unreadable", KIT_NARROW_TWO("refuse", "keep"),                                          \
                        "fp32 parameters that the program cannot read in " name ": an error, or left in fp32")

typedef struct {
    uint32_t dtype;                                  /* TESS_BF16 or TESS_F16 */
    const char *name, *variables;                    /* "bf16", and how its variables begin: "TESSERA_BF16" */
    const tess_precision_ops *ops;                   /* choose and close are those below */
    const kit_options *options;                      /* the three above first; at most KIT_NARROW_MOST */
    size_t bytes;                                    /* of the context, which begins with a kit_narrow */
    void (*take)(void *ctx, const kit_option *read); /* what else was read; null: nothing */
} kit_narrow_plugin;

typedef struct {
    const kit_narrow_plugin *plugin;
    uint32_t wire, grad; /* dtypes of gradients: what travels, and what kernels add to */
    int keep;            /* keeps fp32 for parameters that the program cannot read in the plugin's dtype */
    uint32_t products;   /* TESS_F8E4M3: of parameters that the program can multiply in it; 0: none */
} kit_narrow;

/** For tess_plugin_open_v1. */
tess_status kit_narrow_open(const kit_narrow_plugin *, const tess_host *, uint32_t kind, const void **out, void **ctx,
                            tess_error *);
/* Slots of tess_precision_ops. */
tess_status kit_narrow_choose(void *ctx, const tess_param_view *, tess_precision_choice *out, tess_error *);
void kit_narrow_close(void *ctx);
#ifdef __cplusplus
}
#endif
#endif
