/* SPDX-License-Identifier: BSD-3-Clause */
/* The step compiler's tables: made once, for all programs. */
#include "compile.h"

#include "base/status.h"

#include <stdlib.h>

static tess_status list_scope_units(tess__compiler *b) {
    const tess__model *m = b->model;
    for (int32_t k = 0; k < m->n_scopes; k++) {
        const tess__scope *scope = &m->scopes[k];
        int32_t *list = malloc(((size_t)scope->n_params + 1) * sizeof *list), n = 0;
        if (!list)
            return tess__fail(TESS_E_NOMEM, "no memory for the units of scope \"%s\"", scope->name);
        for (int32_t i = 0; i < scope->n_params; i++) {
            int32_t u = m->params[scope->params[i]].unit;
            if (u < 0 || b->units[u].mark == k + 1)
                continue;
            b->units[u].mark = k + 1;
            list[n++] = u;
        }
        b->scope_units[k] = list;
        b->n_scope_units[k] = n;
    }
    return TESS_OK;
}

tess_status tess__compiler_create(tess__compiler *b, const tess__setup *s, const tess__model *m,
                                  const tess__layout *l) {
    *b = (tess__compiler){ .setup = s, .model = m, .layout = l, .reducing = -1, .replicating = -1, .on_host = -1 };
    b->stride = l->n_groups > m->n_blocks ? l->n_groups : m->n_blocks;
    b->stride += !b->stride;
    b->units = calloc((size_t)l->n_units + 1, sizeof *b->units);
    b->buffer_of = calloc((size_t)TESS__N_ROLES * (size_t)b->stride, sizeof *b->buffer_of);
    b->scope_units = calloc((size_t)m->n_scopes + 1, sizeof *b->scope_units);
    b->n_scope_units = calloc((size_t)m->n_scopes + 1, sizeof *b->n_scope_units);
    tess_status status = TESS_OK;
    if (!b->units || !b->buffer_of || !b->scope_units || !b->n_scope_units)
        status = tess__fail(TESS_E_NOMEM, "no memory for the step compiler");
    if (!status)
        status = list_scope_units(b);
    if (status)
        tess__compiler_free(b);
    return status;
}

void tess__compiler_free(tess__compiler *b) {
    for (int32_t k = 0; b->scope_units && b->model && k < b->model->n_scopes; k++)
        free(b->scope_units[k]);
    free(b->scope_units);
    free(b->n_scope_units);
    free(b->units);
    free(b->buffer_of);
    *b = (tess__compiler){ 0 };
}
