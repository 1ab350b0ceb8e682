/* SPDX-License-Identifier: BSD-3-Clause */
/* A wrap policy: two modules' parameters at a time, tied ones apart. */
#include <stdlib.h>

#include "faulty.h"
#include <tessera/plugin_helpers.h>

FAULTY_NOTE(TESS_KIND_WRAP);

static const tess_param_view *param_at(const tess_model_view *v, uint32_t i) {
#ifdef FAULT_WALKS_BY_SIZEOF
    return &v->params[i];
#else
    return (const void *)((const char *)v->params + (size_t)i * v->params->struct_size);
#endif
}

static tess_status assign(void *ctx, const tess_model_view *v, const tess_plan_env *env, int32_t *unit,
                          int32_t *n_units, tess_status (*plan)(void *, const int32_t *, int32_t, tess_plan_result *),
                          void *host, tess_error *e) {
    int32_t per = 4, n = 0;
    (void)ctx, (void)env, (void)plan, (void)host, (void)e;
#ifdef FAULT_DEPENDS_ON_RANK
    const char *rank = getenv("RANK");
    per += rank && *rank == '2';
#endif
#ifdef FAULT_IMPURE
    static int calls;
    per += calls++ % 5 == 4;
#endif
    for (uint32_t i = 0; i < v->n_params; i++) {
        unit[i] = (int32_t)i / per;
        n = unit[i] + 1;
    }
#ifdef FAULT_WRITES_PAST_END
    unit[v->n_params] = 0;
#endif
#ifndef FAULT_SPLITS_TIED
    for (uint32_t i = 0; i < v->n_params; i++)
        if ((param_at(v, i)->flags & 2) && param_at(v, i)->tied_to == (int32_t)i)
            unit[i] = n++;
    for (uint32_t i = 0; i < v->n_params; i++)
        if (param_at(v, i)->flags & 2)
            unit[i] = unit[param_at(v, i)->tied_to];
#endif
    *n_units = tess_plugin_number_units(unit, v->n_params);
#ifdef FAULT_DROPS_A_PARAMETER
    unit[v->n_params / 2] = -1;
#endif
#ifdef FAULT_EMPTY_UNIT
    ++*n_units;
#endif
#ifdef FAULT_REVERSES
    for (uint32_t i = 0; i < v->n_params; i++)
        unit[i] = *n_units - 1 - unit[i];
#endif
    return TESS_OK;
}

static const tess_wrap_ops ops = {
    .struct_size = sizeof ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .assign = assign,
};

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *e) {
    if (kind != TESS_KIND_WRAP)
        return failed(e, TESS_E_UNSUPPORTED, "faulty offers wrap only");
    take_at_open(host);
    *out = &ops;
    *ctx = NULL;
    return TESS_OK;
}
