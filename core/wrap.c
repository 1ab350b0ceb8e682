#include "wrap.h"

#include "log.h"
#include "module_tree.h"
#include "status.h"

#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FLAG_FROZEN = 1, FLAG_TIED = 2 };

/* What the text after the colon asked for. */
typedef struct {
    uint64_t size;   /* size:N */
    char **patterns; /* module:PATTERN,… with dots as slashes, so that * stays within one level */
    int32_t n_patterns;
} policy;

static tess_status bad_args(tess_error *e, const char *format, const char *args) {
    if (e)
        snprintf(e->message, sizeof e->message, format, args);
    return TESS_E_INVALID;
}

/* ---- the policies ---- */

/* Tied parameters form a unit of their own, numbered after all others; returns the count. */
static int32_t split_tied(const tess_model_view *v, int32_t *unit, int32_t n_units) {
    for (uint32_t i = 0; i < v->n_params; i++)
        if (v->params[i].flags & FLAG_TIED)
            if (v->params[i].tied_to == (int32_t)i)
                unit[i] = n_units++;
    for (uint32_t i = 0; i < v->n_params; i++)
        unit[i] = unit[v->params[i].tied_to];
    return n_units;
}

static tess_status assign_scopes(void *ctx, const tess_model_view *v, const tess_plan_env *env, int32_t *unit,
                                 int32_t *n_units,
                                 tess_status (*plan)(void *, const int32_t *, int32_t, tess_plan_result *), void *host,
                                 tess_error *e) {
    (void)ctx, (void)env, (void)plan, (void)host, (void)e;
    for (uint32_t i = 0; i < v->n_params; i++)
        unit[i] = v->params[i].scope;
    *n_units = split_tied(v, unit, (int32_t)v->n_modules);
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

/* Modules come depth first, so a walk from the last to the first sees children before parents. A module becomes a
 * unit when what is not yet in a unit below it reaches `size`: the rule of PyTorch's size_based_auto_wrap_policy. */
static tess_status assign_size(void *ctx, const tess_model_view *v, const tess_plan_env *env, int32_t *unit,
                               int32_t *n_units,
                               tess_status (*plan)(void *, const int32_t *, int32_t, tess_plan_result *), void *host,
                               tess_error *e) {
    (void)env, (void)plan, (void)host;
    const policy *p = ctx;
    uint64_t *left = calloc(v->n_modules, sizeof *left);
    uint8_t *is_unit = calloc(v->n_modules, 1);
    tess_status s = left && is_unit ? TESS_OK : bad_args(e, "%s", "no memory for the module list");
    for (uint32_t m = v->n_modules; !s && m-- > 0;) {
        left[m] += v->modules[m].own_elems;
        is_unit[m] = left[m] >= p->size;
        if (!is_unit[m] && v->modules[m].parent >= 0)
            left[v->modules[m].parent] += left[m];
    }
    if (!s) {
        assign_nearest(v, is_unit, unit);
        *n_units = split_tied(v, unit, (int32_t)v->n_modules);
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
        return bad_args(e, "%s", "no memory for the module list");
    for (uint32_t m = 0; m < v->n_modules; m++)
        is_unit[m] = (uint8_t)matches(p, v->modules[m].name);
    assign_nearest(v, is_unit, unit);
    *n_units = split_tied(v, unit, (int32_t)v->n_modules);
    free(is_unit);
    return TESS_OK;
}

/* ---- opening them ---- */

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
        return bad_args(e, "takes nothing after the colon, got \"%s\"", h->args);
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
        return bad_args(e, "expects a number of elements after the colon, as in size:20000, got \"%s\"", h->args);
    policy *p = calloc(1, sizeof *p);
    if (!p)
        return TESS_E_NOMEM;
    p->size = size;
    *ops = &size_ops;
    *ctx = p;
    return TESS_OK;
}

static tess_status add_pattern(policy *p, const char *text, size_t n) {
    char **bigger = realloc(p->patterns, (size_t)(p->n_patterns + 1) * sizeof *bigger);
    if (!bigger)
        return TESS_E_NOMEM;
    p->patterns = bigger;
    char *pattern = strndup(text, n);
    if (!pattern)
        return TESS_E_NOMEM;
    for (char *c = pattern; *c; c++)
        if (*c == '.')
            *c = '/';
    p->patterns[p->n_patterns++] = pattern;
    return TESS_OK;
}

tess_status tess__wrap_module_open(const tess_host *h, const void **ops, void **ctx, tess_error *e) {
    policy *p = calloc(1, sizeof *p);
    tess_status s = p ? TESS_OK : TESS_E_NOMEM;
    for (const char *at = h->args; !s && *at;) {
        size_t n = strcspn(at, ",");
        s = n ? add_pattern(p, at, n) : bad_args(e, "has an empty pattern in \"%s\"", h->args);
        at += n + (at[n] == ',');
    }
    if (!s && p->n_patterns == 0)
        s = bad_args(e, "expects module names after the colon, as in module:h.*,head%s", "");
    if (s) {
        close_policy(p);
        return s;
    }
    *ops = &module_ops;
    *ctx = p;
    return TESS_OK;
}

/* ---- the call, with its checks ---- */

static tess_status check(const tess_model_view *v, const char *policy_name, const int32_t *unit, int32_t n_units) {
    for (uint32_t i = 0; i < v->n_params; i++) {
        if (unit[i] < 0 || unit[i] >= n_units)
            return tess__fail(TESS_E_INVALID, "wrap policy %s puts parameter \"%s\" in unit %d of %d", policy_name,
                              v->params[i].name, unit[i], n_units);
        if (unit[i] != unit[v->params[i].tied_to])
            return tess__fail(TESS_E_INVALID, "wrap policy %s parts the tied parameters \"%s\" and \"%s\"", policy_name,
                              v->params[i].name, v->params[v->params[i].tied_to].name);
    }
    return TESS_OK;
}

/* A policy that finds nothing to part leaves one unit beside the tied ones: legal, rarely meant. */
static void warn_if_nothing_selected(const tess_model_view *v, const char *policy_name, const int32_t *unit) {
    if (tess__log_rank() > 0 || (strncmp(policy_name, "size", 4) != 0 && strncmp(policy_name, "module", 6) != 0))
        return;
    for (uint32_t i = 0; i < v->n_params; i++)
        if (!(v->params[i].flags & FLAG_TIED) && unit[i] != 0)
            return;
    tess__log(TESS_LOG_WARNING, "wrap policy %s selects no module: all untied parameters form one unit", policy_name);
}

/* Units get numbers in the order in which a forward pass meets them. */
static tess_status renumber(const tess__model *m, int32_t *unit_of_param, int32_t n_units, int32_t *n_used) {
    int32_t *number = malloc((size_t)n_units * sizeof *number);
    if (!number)
        return tess__fail(TESS_E_NOMEM, "no memory for %d units", n_units);
    for (int32_t u = 0; u < n_units; u++)
        number[u] = -1;
    int32_t used = 0;
    for (int32_t k = 0; k < m->n_scopes; k++)
        for (int32_t i = 0; i < m->scopes[k].n_params; i++) {
            int32_t u = unit_of_param[m->scopes[k].params[i]];
            if (u >= 0 && number[u] < 0)
                number[u] = used++;
        }
    for (int32_t i = 0; i < m->n_params; i++)
        if (unit_of_param[i] >= 0)
            unit_of_param[i] = number[unit_of_param[i]];
    free(number);
    *n_used = used;
    return TESS_OK;
}

/* From the policy's order of parameters to the model's. */
static tess_status spread(const tess__model *m, const tess__module_tree *tree, const int32_t *unit, int32_t n,
                          int32_t *unit_of_param, int32_t *n_units) {
    for (int32_t i = 0; i < m->n_params; i++)
        unit_of_param[i] = -1;
    for (uint32_t i = 0; i < tree->view.n_params; i++)
        unit_of_param[tree->param[i]] = unit[i];
    return renumber(m, unit_of_param, n, n_units);
}

typedef struct { /* a planner as a policy sees it */
    const tess__model *model;
    const tess__module_tree *tree;
    const char *policy_name;
    int32_t *unit_of_param;
    tess__wrap_plan_fn plan;
    void *user;
} planner;

static tess_status plan_candidate(void *host, const int32_t *unit, int32_t n_units, tess_plan_result *out) {
    planner *p = host;
    int32_t n = 0;
    tess_status s = check(&p->tree->view, p->policy_name, unit, n_units);
    if (!s)
        s = spread(p->model, p->tree, unit, n_units, p->unit_of_param, &n);
    return s ? s : p->plan(p->user, p->unit_of_param, n, out);
}

tess_status tess__wrap_apply(const tess__model *m, const tess_wrap_ops *ops, void *ctx, const char *policy_name,
                             const tess_plan_env *env, int32_t *unit_of_param, int32_t *n_units) {
    return tess__wrap_apply_planned(m, ops, ctx, policy_name, env, NULL, NULL, unit_of_param, n_units);
}

tess_status tess__wrap_apply_planned(const tess__model *m, const tess_wrap_ops *ops, void *ctx, const char *policy_name,
                                     const tess_plan_env *env, tess__wrap_plan_fn plan, void *user,
                                     int32_t *unit_of_param, int32_t *n_units) {
    tess__module_tree tree;
    tess_status s = tess__module_tree_build(m, &tree);
    if (s)
        return s;
    int32_t *unit = calloc(tree.view.n_params + 1, sizeof *unit);
    if (!unit) {
        s = tess__fail(TESS_E_NOMEM, "no memory for the units of %u parameters", tree.view.n_params);
        goto out;
    }
    tess_error error = { .struct_size = sizeof error };
    int32_t n = 0;
    planner p = { m, &tree, policy_name, unit_of_param, plan, user };
    s = ops->assign(ctx, &tree.view, env, unit, &n, plan ? plan_candidate : NULL, plan ? &p : NULL, &error);
    if (s) {
        tess__fail(s, "wrap policy %s: %s", policy_name, error.message);
        goto out;
    }
    if ((s = check(&tree.view, policy_name, unit, n)))
        goto out;
    warn_if_nothing_selected(&tree.view, policy_name, unit);
    s = spread(m, &tree, unit, n, unit_of_param, n_units);
out:
    free(unit);
    tess__module_tree_free(&tree);
    return s;
}
