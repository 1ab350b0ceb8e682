/* SPDX-License-Identifier: BSD-3-Clause */
/* TESSERA_WRAP=transformer: each layer of a stack (h.0, h.1, …; layers.0, …) is a unit, and what lies outside them is
 * one, as FSDP users wrap by the class of a block. transformer:NAME takes the stack of that name only (NAME.0, …). */
#include <tessera/plugin_helpers.h>

TESS_DESCRIPTOR(1u << TESS_KIND_WRAP, "transformer", "1.0.0", "", "");

enum { TIED = 2 }; /* a bit of tess_param_view.flags */

/* Whether the module's name ends in ".NUMBER" or is one, behind `stack` when that is given. */
static int is_layer(const char *name, const char *stack) {
    const char *dot = strrchr(name, '.'), *number = dot ? dot + 1 : name;
    size_t length = dot ? (size_t)(dot - name) : 0;
    if (!*number || number[strspn(number, "0123456789")])
        return 0;
    return !*stack || (length == strlen(stack) && memcmp(name, stack, length) == 0);
}

/* The outermost layer that `module` is or lies in; -1 outside all. */
static int32_t layer_of(const tess_model_view *model, int32_t module, const char *stack) {
    int32_t found = -1;
    for (; module >= 0; module = TESS_AT(model->modules, module)->parent)
        if (is_layer(TESS_AT(model->modules, module)->name, stack))
            found = module;
    return found;
}

/* Units are numbered in order of first use: parameters come sorted by module, so each layer's come together. A tied
 * set, whose uses lie far apart, is a unit of its own. */
static tess_status assign(void *ctx, const tess_model_view *model, const tess_plan_env *env, int32_t *unit,
                          int32_t *n_units, tess_status (*plan)(void *, const int32_t *, int32_t, tess_plan_result *),
                          void *host, tess_error *error) {
    const char *stack = ctx;
    int32_t next = 0, outside = -1, layers = 0;
    (void)env, (void)plan, (void)host;
    for (int32_t i = 0; i < (int32_t)model->n_params; i++)
        unit[i] = -1;
    for (int32_t i = 0, before = -1, here = -1; i < (int32_t)model->n_params; i++) {
        const tess_param_view *p = TESS_AT(model->params, i);
        int32_t layer = layer_of(model, p->scope, stack), *mine = layer < 0 ? &outside : &here;
        if (layer >= 0 && layer != before)
            here = -1, layers++;
        before = layer >= 0 ? layer : before;
        if (p->flags & TIED)
            mine = &unit[p->tied_to];
        if (*mine < 0)
            *mine = next++;
        unit[i] = *mine;
    }
    if (!layers)
        return tess_plugin_fail(error, TESS_E_INVALID, "wrap transformer: no module is named %s%s0, %s%s1 and so on",
                                stack, *stack ? "." : "", stack, *stack ? "." : "");
    *n_units = tess_plugin_number_units(unit, model->n_params);
    return TESS_OK;
}

static const tess_wrap_ops ops = {
    .struct_size = sizeof ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .assign = assign,
};

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *error) {
    if (kind != TESS_KIND_WRAP)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "transformer offers wrap only");
    *out = &ops;
    *ctx = (void *)(uintptr_t)host->args; /* the name of the stack; the host table lives until close */
    return TESS_OK;
}
