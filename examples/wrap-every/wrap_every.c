/* TESSERA_WRAP=every:K makes a unit of every K scopes in a row: a whole plugin, small enough to start from. */
#include <tessera/plugin.h>
#include <stdio.h>
#include <stdlib.h>

enum { DECLARED = 1, TIED = 2 }; /* bits of tess_module_view.flags and of tess_param_view.flags */
struct every {
    int32_t scopes_per_unit;
};

static tess_status fail(tess_error *err, tess_status code, const char *message) {
    err->code = code;
    snprintf(err->message, sizeof err->message, "%s", message);
    return code;
}

/* The declared scope that `module` is or lies in; the root when there is none. */
static int32_t scope_of(const tess_model_view *model, int32_t module) {
    const char *at = (const char *)model->modules;
    size_t stride = model->modules->struct_size; /* a newer core's structs may be longer than ours */
    for (;;) {
        const tess_module_view *view = (const void *)(at + stride * (size_t)module);
        if ((view->flags & DECLARED) || view->parent < 0)
            return view->order < 0 ? 0 : view->order;
        module = view->parent;
    }
}

static const tess_param_view *param_at(const tess_model_view *model, int32_t i) {
    return (const void *)((const char *)model->params + model->params->struct_size * (size_t)i);
}

/* Units are numbered in order of first use. Tied parameters are used far apart, so each tied set is a unit of its own.
 */
static tess_status every_assign(void *ctx, const tess_model_view *model, const tess_plan_env *env, int32_t *unit,
                                int32_t *n_units,
                                tess_status (*plan)(void *, const int32_t *, int32_t, tess_plan_result *), void *host,
                                tess_error *err) {
    const struct every *self = ctx;
    const int32_t n_params = (int32_t)model->n_params, n_places = (int32_t)model->n_modules + 1;
    int32_t next = 0;
    (void)env, (void)plan, (void)host, (void)err;
    for (int32_t i = 0; i < n_params; i++)
        unit[i] = -1;
    for (int32_t first = 0; first < n_places; first += self->scopes_per_unit)
        for (int32_t i = 0, here = -1; i < n_params; i++) {
            const tess_param_view *p = param_at(model, i);
            int32_t at = scope_of(model, p->scope), *mine = p->flags & TIED ? &unit[p->tied_to] : &here;
            if (at < first || at - first >= self->scopes_per_unit)
                continue;
            *mine = *mine < 0 ? next++ : *mine;
            unit[i] = *mine;
        }
    *n_units = next;
    return TESS_OK;
}

static void every_close(void *ctx) {
    free(ctx);
}

static const tess_wrap_ops ops = {
    .struct_size = sizeof ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .close = every_close,
    .assign = every_assign,
};

TESS_EXPORT const tess_plugin_note tess_plugin_note_v1 __attribute__((section(".tessera.plugin"), used)) = {
    .magic = "TESSPLG",
    .struct_size = sizeof(tess_plugin_note),
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .kinds = 1u << TESS_KIND_WRAP,
    .name = "every",
    .version = "1.0.0",
};

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out_ops, void **out_ctx,
                                tess_error *err) {
    if (kind != TESS_KIND_WRAP)
        return fail(err, TESS_E_UNSUPPORTED, "every is a wrap plugin");
    char *end;
    long k = strtol(host->args, &end, 10);
    if (end == host->args || *end || k < 1 || k > 1000000)
        return fail(err, TESS_E_INVALID, "wrap every: expected every:K, K scopes per unit, K from 1 to 1000000");
    struct every *self = malloc(sizeof *self);
    if (!self)
        return fail(err, TESS_E_NOMEM, "wrap every: no memory");
    self->scopes_per_unit = (int32_t)k;
    *out_ops = &ops;
    *out_ctx = self;
    return TESS_OK;
}
