/* SPDX-License-Identifier: BSD-3-Clause */
#include "guard.h"

#include <tessera/plugin_helpers.h>
#include "base/status.h"
#include "state.h"

#include <stdlib.h>
#include <string.h>

enum { FENCE_BYTES = 4096 };
/* A parameter that is read late is NaN, which has all bits set in every float format. To a gradient that is added to
 * late anything shows but NaN, which would stay as it is. */
static const unsigned char closed[TESS__N_GUARDS] = { 0xff, 0 };

typedef struct {
    char *at; /* null: nothing to guard */
    uint64_t bytes;
    int32_t open;  /* nested begins */
    int32_t scope; /* that closed it last, or -1 */
} copy;

struct tess__guard {
    copy *copies; /* by parameter that holds storage */
    int32_t n;
};

static copy *copy_of(const tess *t, int32_t param, int kind) {
    return &t->pass.guard->copies[TESS__N_GUARDS * t->plan.model.params[param].tied_to + kind];
}

static uint64_t bytes_of(const tess *t, const tess__param *p, int kind) {
    const tess__group *g = &t->plan.layout.groups[p->group];
    return p->elems * tess_dtype_bytes(kind == TESS__GUARD_PARAM ? g->compute : g->grad_local);
}

static int make(const tess *t, tess__guard *g, int32_t i) {
    const tess__param *p = &t->plan.model.params[i];
    int kinds = p->tied_to != i || p->flags & TESS_BUFFER ? 0 : p->flags & TESS_FROZEN ? 1 : TESS__N_GUARDS;
    for (int k = 0; k < kinds; k++) {
        copy *c = &g->copies[TESS__N_GUARDS * i + k];
        *c = (copy){ .bytes = bytes_of(t, p, k), .scope = -1 };
        c->at = aligned_alloc(64, tess__round_up(c->bytes + FENCE_BYTES, 64));
        if (!c->at)
            return 0;
        memset(c->at, closed[k], c->bytes + FENCE_BYTES);
    }
    return 1;
}

tess_status tess__guard_create(tess *t, tess__guard **out) {
    if (!t->settings.strict || !tess__host_reads(&t->device))
        return TESS_OK;
    tess__guard *g = calloc(1, sizeof *g);
    int32_t n = t->plan.model.n_params;
    int ok = g && (g->copies = calloc(TESS__N_GUARDS * ((size_t)n + 1), sizeof *g->copies));
    if (ok)
        g->n = n;
    for (int32_t i = 0; ok && i < n; i++)
        ok = make(t, g, i);
    if (!ok) {
        tess__guard_destroy(g);
        return tess__fail(TESS_E_NOMEM, "no memory for the copies that TESSERA_STRICT=1 hands out");
    }
    *out = g;
    return TESS_OK;
}

void tess__guard_destroy(tess__guard *g) {
    for (int32_t i = 0; g && i < g->n; i++)
        for (int k = 0; k < TESS__N_GUARDS; k++)
            free(g->copies[TESS__N_GUARDS * i + k].at);
    if (g)
        free(g->copies);
    free(g);
}

/* ---- open and close ---- */

static int is_closed(const char *at, uint64_t bytes, int kind) {
    for (uint64_t i = 0; i < bytes; i++)
        if ((unsigned char)at[i] != closed[kind])
            return 0;
    return 1;
}

static const char *name_of(int kind) {
    return kind == TESS__GUARD_PARAM ? "parameter" : "gradient of";
}

/* The call, or the block's function, with which a pointer ends. */
static const char *end_of(const tess *t, int kind) {
    if (t->plan.model.n_blocks)
        return kind == TESS__GUARD_PARAM ? "forward or backward" : "backward";
    return kind == TESS__GUARD_PARAM ? "the end" : "tess_backward_end";
}

static tess_status check_closed(const tess *t, int32_t param, int kind, const char *call) {
    const copy *c = copy_of(t, param, kind);
    const char *scope = c->scope >= 0 ? t->plan.model.scopes[c->scope].name : "?";
    if (is_closed(c->at, c->bytes + FENCE_BYTES, kind))
        return TESS_OK;
    return tess__fail(TESS_E_INVALID,
                      "%s \"%s\" was written after %s of scope \"%s\": its pointer held until then (seen in %s, "
                      "TESSERA_STRICT=1)",
                      name_of(kind), t->plan.model.params[param].name, end_of(t, kind), scope, call);
}

tess_status tess__guard_open(tess *t, int32_t param, int kind, void *real, void **out) {
    copy *c = t->pass.guard && real ? copy_of(t, param, kind) : NULL;
    *out = real;
    if (!c || !c->at)
        return TESS_OK;
    if (!c->open)
        TRY(check_closed(t, param, kind, "the next begin"));
    if (!c->open++)
        memcpy(c->at, real, c->bytes);
    *out = c->at;
    return TESS_OK;
}

static tess_status check_content(const tess *t, int32_t param, int kind, const void *real, const char *call,
                                 const char *scope) {
    const copy *c = copy_of(t, param, kind);
    const tess__param *p = &t->plan.model.params[param];
    if (!is_closed(c->at + c->bytes, FENCE_BYTES, kind))
        return tess__fail(TESS_E_INVALID,
                          "%s of scope \"%s\": the program wrote past the end of the %s \"%s\", which is declared with "
                          "%llu elements (TESSERA_STRICT=1)",
                          call, scope, name_of(kind), p->name, (unsigned long long)p->elems);
    if (kind == TESS__GUARD_PARAM && memcmp(c->at, real, c->bytes) != 0)
        return tess__fail(TESS_E_INVALID,
                          "%s of scope \"%s\": the program wrote to parameter \"%s\", which is read-only "
                          "(TESSERA_STRICT=1)",
                          call, scope, p->name);
    uint32_t dtype = t->plan.layout.groups[p->group].grad_local;
    if (kind == TESS__GUARD_GRAD && tess__guard_in(c->at, p->elems, dtype))
        return tess__fail(TESS_E_INVALID,
                          "%s of scope \"%s\": the gradient of \"%s\" holds the NaN that TESSERA_STRICT=1 leaves in "
                          "released memory: a pointer was used after its end, or past the end of a parameter",
                          call, scope, p->name);
    return TESS_OK;
}

tess_status tess__guard_close(tess *t, int32_t param, int kind, void *real, const char *call, int32_t scope) {
    copy *c = t->pass.guard && real ? copy_of(t, param, kind) : NULL;
    if (!c || !c->at || !c->open || --c->open)
        return TESS_OK;
    TRY(check_content(t, param, kind, real, call, t->plan.model.scopes[scope].name));
    c->scope = scope;
    if (kind == TESS__GUARD_GRAD)
        memcpy(real, c->at, c->bytes);
    memset(c->at, closed[kind], c->bytes);
    return TESS_OK;
}

tess_status tess__guard_check(const tess *t, const char *call) {
    const tess__guard *g = t->pass.guard;
    for (int32_t i = 0; g && i < g->n; i++)
        for (int k = 0; k < TESS__N_GUARDS; k++)
            if (g->copies[TESS__N_GUARDS * i + k].at && !g->copies[TESS__N_GUARDS * i + k].open)
                TRY(check_closed(t, i, k, call));
    return TESS_OK;
}

/* ---- the NaN ---- */

/* Arithmetic passes a NaN's payload on, and narrowing or widening keeps its upper bits. */
int tess__guard_in(const void *data, uint64_t elems, uint32_t dtype) {
    for (uint64_t i = 0; i < elems; i++) {
        uint32_t single;
        uint64_t wide;
        if (dtype == TESS_F32)
            memcpy(&single, (const char *)data + 4 * i, sizeof single);
        else if (dtype == TESS_F64)
            memcpy(&wide, (const char *)data + 8 * i, sizeof wide);
        else
            return 0;
        if (dtype == TESS_F32 ? single == UINT32_MAX : wide >> 29 == UINT64_MAX >> 29)
            return 1;
    }
    return 0;
}
