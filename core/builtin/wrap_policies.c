/* SPDX-License-Identifier: BSD-3-Clause */
/* The built-in wrap policies: which parameters form a unit. */
#include "builtins.h"

#include <tessera/plugin_helpers.h>

#include <fnmatch.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { FLAG_TIED = 2 };

/* The request in the text after the colon. */
typedef struct {
    uint64_t size;   /* size:N */
    char **patterns; /* module:PATTERN,… with dots as slashes, so that * stays within one level */
    int32_t n_patterns;
} policy;

static tess_status no_memory(tess_error *e) {
    return tess_plugin_fail(e, TESS_E_NOMEM, "no memory to choose units");
}

/* Tied parameters form a unit of their own; `free_unit` and what is above it are not given out yet. Returns the count.
 */
static int32_t finish_units(const tess_model_view *v, int32_t *unit, int32_t free_unit) {
    for (uint32_t i = 0; i < v->n_params; i++)
        if (v->params[i].flags & FLAG_TIED)
            if (v->params[i].tied_to == (int32_t)i)
                unit[i] = free_unit++;
    for (uint32_t i = 0; i < v->n_params; i++)
        unit[i] = unit[v->params[i].tied_to];
    return tess_plugin_number_units(unit, v->n_params);
}

static tess_status assign_scopes(void *ctx, const tess_model_view *v, const tess_plan_env *env, int32_t *unit,
                                 int32_t *n_units,
                                 tess_status (*plan)(void *, const int32_t *, int32_t, tess_plan_result *), void *host,
                                 tess_error *e) {
    (void)ctx, (void)env, (void)plan, (void)host, (void)e;
    for (uint32_t i = 0; i < v->n_params; i++)
        unit[i] = v->params[i].scope;
    *n_units = finish_units(v, unit, (int32_t)v->n_modules);
    return TESS_OK;
}

static tess_status assign_none(void *ctx, const tess_model_view *v, const tess_plan_env *env, int32_t *unit,
                               int32_t *n_units,
                               tess_status (*plan)(void *, const int32_t *, int32_t, tess_plan_result *), void *host,
                               tess_error *e) {
    (void)ctx, (void)env, (void)plan, (void)host, (void)e;
    for (uint32_t i = 0; i < v->n_params; i++)
        unit[i] = 0;
    *n_units = 1;
    return TESS_OK;
}

/* Gives each parameter the unit of the nearest module above it that is one; the root always is. */
static void assign_nearest(const tess_model_view *v, const uint8_t *is_unit, int32_t *unit) {
    for (uint32_t m = 0; m < v->n_modules; m++) {
        int32_t at = (int32_t)m;
        while (at > 0 && !is_unit[at])
            at = v->modules[at].parent;
        for (int32_t i = 0; i < v->modules[m].n_params; i++)
            unit[v->modules[m].first_param + i] = at;
    }
}

/* Makes units of at least `size`: the rule of PyTorch's size_based_auto_wrap_policy. A module becomes a unit when
 * what is not yet in a unit below it reaches `size`. Modules come depth first, so a walk from the last to the first
 * sees children before parents. */
static tess_status assign_size(void *ctx, const tess_model_view *v, const tess_plan_env *env, int32_t *unit,
                               int32_t *n_units,
                               tess_status (*plan)(void *, const int32_t *, int32_t, tess_plan_result *), void *host,
                               tess_error *e) {
    (void)env, (void)plan, (void)host;
    const policy *p = ctx;
    uint64_t *left = calloc(v->n_modules, sizeof *left);
    uint8_t *is_unit = calloc(v->n_modules, 1);
    tess_status s = left && is_unit ? TESS_OK : no_memory(e);
    for (uint32_t m = v->n_modules; !s && m-- > 0;) {
        left[m] += v->modules[m].own_elems;
        is_unit[m] = left[m] >= p->size;
        if (!is_unit[m] && v->modules[m].parent >= 0)
            left[v->modules[m].parent] += left[m];
    }
    if (!s) {
        assign_nearest(v, is_unit, unit);
        *n_units = finish_units(v, unit, (int32_t)v->n_modules);
    }
    free(left);
    free(is_unit);
    return s;
}

static int matches(const policy *p, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s", name);
    for (char *c = path; *c; c++)
        if (*c == '.')
            *c = '/';
    for (int32_t i = 0; i < p->n_patterns; i++)
        if (fnmatch(p->patterns[i], path, FNM_PATHNAME) == 0)
            return 1;
    return 0;
}

static tess_status assign_module(void *ctx, const tess_model_view *v, const tess_plan_env *env, int32_t *unit,
                                 int32_t *n_units,
                                 tess_status (*plan)(void *, const int32_t *, int32_t, tess_plan_result *), void *host,
                                 tess_error *e) {
    (void)env, (void)plan, (void)host;
    const policy *p = ctx;
    uint8_t *is_unit = calloc(v->n_modules, 1);
    if (!is_unit)
        return no_memory(e);
    for (uint32_t m = 0; m < v->n_modules; m++)
        is_unit[m] = (uint8_t)matches(p, v->modules[m].name);
    assign_nearest(v, is_unit, unit);
    *n_units = finish_units(v, unit, (int32_t)v->n_modules);
    free(is_unit);
    return TESS_OK;
}

static void close_policy(void *ctx) {
    policy *p = ctx;
    if (!p)
        return;
    for (int32_t i = 0; i < p->n_patterns; i++)
        free(p->patterns[i]);
    free(p->patterns);
    free(p);
}

#define WRAP_OPS(assign_fn)                                                                                            \
    {                                                                                                                  \
        .struct_size = sizeof(tess_wrap_ops), .abi_major = TESS_ABI_MAJOR, .abi_minor = TESS_ABI_MINOR,                \
        .close = close_policy, .assign = assign_fn                                                                     \
    }
static const tess_wrap_ops scopes_ops = WRAP_OPS(assign_scopes);
static const tess_wrap_ops none_ops = WRAP_OPS(assign_none);
static const tess_wrap_ops size_ops = WRAP_OPS(assign_size);
static const tess_wrap_ops module_ops = WRAP_OPS(assign_module);

static tess_status open_plain(const tess_host *h, const tess_wrap_ops *table, const void **ops, void **ctx,
                              tess_error *e) {
    if (h->args[0])
        return tess_plugin_fail(e, TESS_E_INVALID, "takes nothing after the colon, got \"%s\"", h->args);
    *ops = table;
    *ctx = NULL;
    return TESS_OK;
}

tess_status tess__wrap_scopes_open(const tess_host *h, const void **ops, void **ctx, tess_error *e) {
    return open_plain(h, &scopes_ops, ops, ctx, e);
}

tess_status tess__wrap_none_open(const tess_host *h, const void **ops, void **ctx, tess_error *e) {
    return open_plain(h, &none_ops, ops, ctx, e);
}

tess_status tess__wrap_size_open(const tess_host *h, const void **ops, void **ctx, tess_error *e) {
    char *end;
    unsigned long long size = strtoull(h->args, &end, 10);
    if (h->args[0] < '0' || h->args[0] > '9' || *end || size == 0 || size == ULLONG_MAX)
        return tess_plugin_fail(e, TESS_E_INVALID,
                                "expects a number of elements after the colon, as in size:20000, got \"%s\"", h->args);
    policy *p = calloc(1, sizeof *p);
    if (!p)
        return no_memory(e);
    p->size = size;
    *ops = &size_ops;
    *ctx = p;
    return TESS_OK;
}

static tess_status add_pattern(policy *p, const char *text, size_t n, tess_error *e) {
    char **bigger = realloc(p->patterns, (size_t)(p->n_patterns + 1) * sizeof *bigger);
    if (!bigger)
        return no_memory(e);
    p->patterns = bigger;
    char *pattern = strndup(text, n);
    if (!pattern)
        return no_memory(e);
    for (char *c = pattern; *c; c++)
        if (*c == '.')
            *c = '/';
    p->patterns[p->n_patterns++] = pattern;
    return TESS_OK;
}

tess_status tess__wrap_module_open(const tess_host *h, const void **ops, void **ctx, tess_error *e) {
    policy *p = calloc(1, sizeof *p);
    tess_status s = p ? TESS_OK : no_memory(e);
    for (const char *at = h->args; !s && *at;) {
        size_t n = strcspn(at, ",");
        s = n ? add_pattern(p, at, n, e)
              : tess_plugin_fail(e, TESS_E_INVALID, "has an empty pattern in \"%s\"", h->args);
        at += n + (at[n] == ',');
    }
    if (!s && p->n_patterns == 0)
        s = tess_plugin_fail(e, TESS_E_INVALID, "expects module names after the colon, as in module:h.*,head");
    if (s) {
        close_policy(p);
        return s;
    }
    *ops = &module_ops;
    *ctx = p;
    return TESS_OK;
}
