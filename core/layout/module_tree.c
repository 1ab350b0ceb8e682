/* SPDX-License-Identifier: BSD-3-Clause */
#include "module_tree.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

enum { MODULE_FROZEN = 2 };

/* A node while the tree grows: children are linked in order of first appearance. */
typedef struct {
    char *name;
    int32_t parent, first_child, last_child, next, number;
} node;

typedef struct {
    node *nodes;
    int32_t n, cap;
    tess__names index; /* nodes by name */
} builder;

static int32_t add_node(builder *b, const char *name, size_t n, int32_t parent) {
    if (b->n == b->cap) {
        int32_t cap = b->cap ? 2 * b->cap : 64;
        node *bigger = realloc(b->nodes, (size_t)cap * sizeof *bigger);
        if (!bigger)
            return -1;
        b->nodes = bigger;
        b->cap = cap;
    }
    char *copy = strndup(name, n);
    if (!copy || tess__names_add(&b->index, copy, b->n)) {
        free(copy);
        return -1;
    }
    b->nodes[b->n] = (node){ copy, parent, -1, -1, -1, -1 };
    if (parent >= 0) {
        node *p = &b->nodes[parent];
        if (p->last_child >= 0)
            b->nodes[p->last_child].next = b->n;
        else
            p->first_child = b->n;
        p->last_child = b->n;
    }
    return b->n++;
}

/* Finds the node of module name[0..n), or makes it with its ancestors; -1: no memory. */
static int32_t reach_module(builder *b, const char *name, size_t n) {
    int32_t at = 0;
    for (size_t end = 0; n && end < n;) {
        end += (end ? 1 : 0) + strcspn(name + end + (end ? 1 : 0), ".");
        if (end > n)
            end = n;
        int32_t child = tess__names_find(&b->index, name, end);
        if (child < 0 && (child = add_node(b, name, end, at)) < 0)
            return -1;
        at = child;
    }
    return at;
}

static size_t module_length(const char *param) {
    const char *dot = strrchr(param, '.');
    return dot ? (size_t)(dot - param) : 0;
}

static tess_status grow_tree(const tess__model *m, builder *b, int32_t *home) {
    int ok = add_node(b, "", 0, -1) == 0;
    for (int32_t k = 0; ok && k < m->n_scopes; k++)
        ok = reach_module(b, m->scopes[k].name, strlen(m->scopes[k].name)) >= 0;
    for (int32_t i = 0; ok && i < m->n_params; i++) {
        home[i] = reach_module(b, m->params[i].name, module_length(m->params[i].name));
        ok = home[i] >= 0;
    }
    return ok ? TESS_OK : tess__fail(TESS_E_NOMEM, "no memory for the module tree of %d parameters", m->n_params);
}

/* Numbers the nodes depth first and fills the modules in that order. */
static void number_modules(builder *b, tess_module_view *modules) {
    int32_t at = 0, next = 0;
    while (at >= 0) {
        node *here = &b->nodes[at];
        here->number = next;
        modules[next++] = (tess_module_view){ .struct_size = sizeof *modules,
                                              .name = here->name,
                                              .parent = here->parent < 0 ? -1 : b->nodes[here->parent].number,
                                              .order = -1 };
        here->name = NULL; /* the view owns it now */
        if (here->first_child >= 0) {
            at = here->first_child;
            continue;
        }
        while (at >= 0 && b->nodes[at].next < 0)
            at = b->nodes[at].parent;
        if (at >= 0)
            at = b->nodes[at].next;
    }
}

static void mark_scopes(const tess__model *m, const builder *b, tess__module_tree *t, int32_t *module_of_scope) {
    for (int32_t k = 0; k < m->n_scopes; k++) {
        const char *name = m->scopes[k].name;
        module_of_scope[k] = b->nodes[tess__names_find(&b->index, name, strlen(name))].number;
        tess_module_view *v = (tess_module_view *)&t->view.modules[module_of_scope[k]];
        v->flags |= 1;
        v->order = k;
    }
}

/* Places the parameters behind their modules; view_of[i]: the place of the model's parameter i, or -1. */
static void fill_params(const tess__model *m, const builder *b, const int32_t *home, const int32_t *module_of_scope,
                        tess__module_tree *t, int32_t *view_of, int32_t *uses) {
    tess_module_view *modules = (tess_module_view *)t->view.modules;
    tess_param_view *params = (tess_param_view *)t->view.params;
    int32_t n = 0;
    for (int32_t i = 0; i < m->n_params; i++)
        uses[m->params[i].tied_to]++;
    /* A counting sort by module keeps declaration order within each. */
    for (int32_t i = 0; i < m->n_params; i++)
        if (!(m->params[i].flags & TESS_BUFFER))
            modules[b->nodes[home[i]].number].n_params++;
    for (uint32_t k = 0; k < t->view.n_modules; k++) {
        modules[k].first_param = n;
        n += modules[k].n_params;
        modules[k].n_params = 0;
    }
    for (int32_t i = 0; i < m->n_params; i++) {
        const tess__param *p = &m->params[i];
        view_of[i] = -1;
        if (p->flags & TESS_BUFFER)
            continue;
        tess_module_view *home_view = &modules[b->nodes[home[i]].number];
        int32_t at = view_of[i] = home_view->first_param + home_view->n_params++;
        t->param[at] = i;
        params[at] = (tess_param_view){ .struct_size = sizeof *params,
                                        .dtype = p->dtype,
                                        .compute_mask = p->compute_dtypes,
                                        .name = p->name,
                                        .elems = p->elems,
                                        .shape = p->shape,
                                        .ndim = p->ndim,
                                        .scope = module_of_scope[p->scope] };
        params[at].flags = (p->flags & TESS_FROZEN ? 1u : 0u) | (uses[p->tied_to] > 1 ? 2u : 0u);
        if (p->tied_to == i)
            home_view->own_elems += p->elems;
    }
    for (int32_t i = 0; i < m->n_params; i++)
        if (view_of[i] >= 0)
            params[view_of[i]].tied_to = view_of[m->params[i].tied_to];
}

/* A module is frozen throughout when all parameters in it and below are. */
static void mark_frozen(tess_module_view *modules, const tess_param_view *params, int32_t n) {
    for (int32_t k = 0; k < n; k++)
        for (int32_t up = modules[k].n_params ? k : -1; up >= 0; up = modules[up].parent)
            modules[up].flags |= MODULE_FROZEN;
    for (int32_t k = 0; k < n; k++)
        for (int32_t i = 0; i < modules[k].n_params; i++)
            for (int32_t up = params[modules[k].first_param + i].flags & 1 ? -1 : k; up >= 0; up = modules[up].parent)
                modules[up].flags &= ~(uint32_t)MODULE_FROZEN;
}

static void add_up(tess_module_view *modules, uint32_t n) {
    for (uint32_t k = n; k-- > 0;) {
        modules[k].subtree_elems += modules[k].own_elems;
        if (modules[k].parent >= 0)
            modules[modules[k].parent].subtree_elems += modules[k].subtree_elems;
    }
}

tess_status tess__module_tree_build(const tess__model *m, tess__module_tree *out) {
    builder b = { 0 };
    size_t n = (size_t)m->n_params + 1;
    int32_t *home = calloc(n, sizeof *home), *view_of = calloc(n, sizeof *view_of), *uses = calloc(n, sizeof *uses);
    int32_t *module_of_scope = calloc((size_t)m->n_scopes + 1, sizeof *module_of_scope);
    tess__module_tree t = { 0 };
    tess_status s = TESS_OK;
    if (!home || !view_of || !uses || !module_of_scope)
        s = tess__fail(TESS_E_NOMEM, "no memory for the module tree of %d parameters", m->n_params);
    if (s || (s = grow_tree(m, &b, home)))
        goto out;
    t.view = (tess_model_view){ .struct_size = sizeof t.view, .n_modules = (uint32_t)b.n };
    for (int32_t i = 0; i < m->n_params; i++)
        t.view.n_params += !(m->params[i].flags & TESS_BUFFER);
    tess_module_view *modules = calloc((size_t)b.n, sizeof *modules);
    t.view.modules = modules;
    t.view.params = calloc(n, sizeof *t.view.params);
    t.param = calloc(n, sizeof *t.param);
    if (!modules || !t.view.params || !t.param) {
        t.view.n_modules = 0;
        s = tess__fail(TESS_E_NOMEM, "no memory for the module tree of %d parameters", m->n_params);
        goto out;
    }
    number_modules(&b, modules);
    mark_scopes(m, &b, &t, module_of_scope);
    fill_params(m, &b, home, module_of_scope, &t, view_of, uses);
    mark_frozen(modules, t.view.params, b.n);
    add_up(modules, t.view.n_modules);
out:
    for (int32_t i = 0; i < b.n; i++)
        free(b.nodes[i].name);
    free(b.nodes);
    tess__names_free(&b.index);
    free(home);
    free(view_of);
    free(uses);
    free(module_of_scope);
    if (s)
        tess__module_tree_free(&t);
    else
        *out = t;
    return s;
}

void tess__module_tree_free(tess__module_tree *t) {
    for (uint32_t k = 0; k < t->view.n_modules; k++)
        free((char *)t->view.modules[k].name);
    free((void *)t->view.modules);
    free((void *)t->view.params);
    free(t->param);
    *t = (tess__module_tree){ 0 };
}
