/* SPDX-License-Identifier: BSD-3-Clause */
/* Module trees by chance, as wrap policies see them, and units as their definitions say. */
#ifndef TEST_DRAWN_VIEW_H
#define TEST_DRAWN_VIEW_H
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include <tessera/plugin.h>
#include "tests/unit/drawn.h"

enum { MODULES = 12, PARAMS = 24, TIED = 2, TIED_LABEL = 1000 };
typedef struct {
    tess_model_view view;
    tess_module_view modules[MODULES];
    tess_param_view params[PARAMS];
} drawn;

#define draw(seed, below) ((uint32_t)drawn64(seed, below))

/* Modules depth first, each below one that is still open; none to two parameters in each, of which some are tied. */
static inline void draw_view(drawn *d, uint64_t *seed) {
    memset(d, 0, sizeof *d);
    d->view = (tess_model_view){ sizeof d->view, 1 + draw(seed, MODULES), 0, d->modules, d->params };
    for (uint32_t m = 0; m < d->view.n_modules; m++) {
        tess_module_view *x = &d->modules[m];
        int32_t parent = (int32_t)m - 1;
        for (uint32_t up = draw(seed, 4); up > 0 && parent > 0; up--)
            parent = d->modules[parent].parent;
        *x = (tess_module_view){ .struct_size = sizeof *x, .name = "", .parent = parent };
        x->first_param = (int32_t)d->view.n_params;
        x->n_params = (int32_t)(m ? draw(seed, 3) : 1 + draw(seed, 2));
        for (int32_t i = 0; i < x->n_params; i++) {
            const int32_t at = (int32_t)d->view.n_params++;
            tess_param_view *p = &d->params[at];
            *p = (tess_param_view){ .struct_size = sizeof *p, .tied_to = at, .scope = (int32_t)draw(seed, m + 1) };
            p->elems = 1 + draw(seed, 100);
            if (at && draw(seed, 6) == 0) {
                p->tied_to = d->params[draw(seed, (uint32_t)at)].tied_to;
                p->flags = d->params[p->tied_to].flags = TIED;
            }
            x->own_elems += p->elems;
        }
    }
}

/* Units from a label of each parameter: those that are tied have one of their own, and numbers follow first use. */
static inline int32_t units_of(const drawn *d, const int32_t *label, int ties, int32_t *unit) {
    int32_t own[PARAMS], n = 0;
    for (uint32_t i = 0; i < d->view.n_params; i++) {
        own[i] = ties && d->params[i].flags & TIED ? TIED_LABEL + d->params[i].tied_to : label[i];
        unit[i] = -1;
        for (uint32_t k = 0; k < i && unit[i] < 0; k++)
            unit[i] = own[k] == own[i] ? unit[k] : -1;
        unit[i] = unit[i] < 0 ? n++ : unit[i];
    }
    return n;
}

/* The elements of a module's tree that are in no unit below it; and each parameter's unit, by the module that is one.
 */
static inline uint64_t gather_size(const drawn *d, int32_t m, uint64_t size, int is_unit[MODULES]) {
    uint64_t rest = d->modules[m].own_elems;
    for (int32_t c = m + 1; c < (int32_t)d->view.n_modules; c++)
        if (d->modules[c].parent == m)
            rest += gather_size(d, c, size, is_unit);
    is_unit[m] = rest >= size;
    return is_unit[m] ? 0 : rest;
}

static inline void label_modules(const drawn *d, const int is_unit[MODULES], int32_t *label) {
    for (int32_t m = 0; m < (int32_t)d->view.n_modules; m++)
        for (int32_t i = 0; i < d->modules[m].n_params; i++) {
            int32_t at = m;
            while (at > 0 && !is_unit[at])
                at = d->modules[at].parent;
            label[d->modules[m].first_param + i] = at;
        }
}

static inline int32_t units_by_size(const drawn *d, uint64_t size, int32_t *unit) {
    int is_unit[MODULES];
    int32_t label[PARAMS];
    gather_size(d, 0, size, is_unit);
    label_modules(d, is_unit, label);
    return units_of(d, label, 1, unit);
}

static inline int32_t units_by_scope(const drawn *d, int32_t *unit) {
    int32_t label[PARAMS];
    for (uint32_t i = 0; i < d->view.n_params; i++)
        label[i] = d->params[i].scope;
    return units_of(d, label, 1, unit);
}

static inline int32_t one_unit(const drawn *d, int32_t *unit) {
    static const int32_t none[PARAMS];
    return units_of(d, none, 0, unit);
}
#endif
