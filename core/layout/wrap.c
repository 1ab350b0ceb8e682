/* SPDX-License-Identifier: BSD-3-Clause */
#include "wrap.h"

#include "base/log.h"
#include "module_tree.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

enum { FLAG_TIED = 2 };

static tess_status check_units(const tess_model_view *v, const char *policy_name, const int32_t *unit,
                               int32_t n_units) {
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

/* Warns when a policy selects nothing and leaves one unit beside the tied ones, which is legal and rarely meant. */
static void warn_if_nothing_selected(const tess_model_view *v, const char *policy_name, const int32_t *unit) {
    if (tess__log_rank() > 0 || (strncmp(policy_name, "size", 4) != 0 && strncmp(policy_name, "module", 6) != 0))
        return;
    for (uint32_t i = 0; i < v->n_params; i++)
        if (!(v->params[i].flags & FLAG_TIED) && unit[i] != 0)
            return;
    tess__log(TESS_LOG_WARNING, "wrap policy %s selects no module: all untied parameters form one unit", policy_name);
}

/* Units get numbers in the order in which a forward pass meets them. */
static tess_status renumber_units(const tess__model *m, int32_t *unit_of_param, int32_t n_units, int32_t *n_used) {
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

/* Spreads units from the policy's order of parameters to the model's. */
static tess_status spread_units(const tess__model *m, const tess__module_tree *tree, const int32_t *unit, int32_t n,
                                int32_t *unit_of_param, int32_t *n_units) {
    for (int32_t i = 0; i < m->n_params; i++)
        unit_of_param[i] = -1;
    for (uint32_t i = 0; i < tree->view.n_params; i++)
        unit_of_param[tree->param[i]] = unit[i];
    return renumber_units(m, unit_of_param, n, n_units);
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
    TRY(check_units(&p->tree->view, p->policy_name, unit, n_units));
    TRY(spread_units(p->model, p->tree, unit, n_units, p->unit_of_param, &n));
    return p->plan(p->user, p->unit_of_param, n, out);
}

tess_status tess__wrap_apply_planned(const tess__model *m, const tess_wrap_ops *ops, void *ctx, const char *policy_name,
                                     const tess_plan_env *env, tess__wrap_plan_fn plan, void *user,
                                     int32_t *unit_of_param, int32_t *n_units) {
    tess__module_tree tree;
    TRY(tess__module_tree_build(m, &tree));
    tess_status s = TESS_OK;
    tess_error error = { .struct_size = sizeof error };
    int32_t n = 0, *unit = calloc(tree.view.n_params + 1, sizeof *unit);
    if (!unit) {
        s = tess__fail(TESS_E_NOMEM, "no memory for the units of %u parameters", tree.view.n_params);
        goto out;
    }
    planner p = { m, &tree, policy_name, unit_of_param, plan, user };
    s = ops->assign(ctx, &tree.view, env, unit, &n, plan ? plan_candidate : NULL, plan ? &p : NULL, &error);
    if (s) {
        tess__fail(s, "wrap policy %s: %s", policy_name, error.message);
        goto out;
    }
    if ((s = check_units(&tree.view, policy_name, unit, n)))
        goto out;
    warn_if_nothing_selected(&tree.view, policy_name, unit);
    s = spread_units(m, &tree, unit, n, unit_of_param, n_units);
out:
    free(unit);
    tess__module_tree_free(&tree);
    return s;
}
