/* SPDX-License-Identifier: BSD-3-Clause */
/* wrap=auto:BYTES takes the fewest units with which the planned peak of device memory is within BYTES. If the
 * planner says how long a step takes, it takes the fastest of them. */
#include <tessera/plugin_options.h>
#include <tessera/tessera.h>
#include <tessera/plugin_helpers.h>
#include "builtins.h"

#include <inttypes.h>
#include <stdlib.h>

typedef tess_status (*plan_fn)(void *, const int32_t *, int32_t, tess_plan_result *);
typedef struct {
    const tess_model_view *view;
    const tess_plan_env *env;
    plan_fn plan;
    void *host;
    tess_error *error;
    uint64_t budget, least; /* least: peak so far */
    int32_t *unit, n;       /* the candidate at hand */
    int32_t *best, n_best;
    tess_plan_result best_result;
} unit_search;

static int is_better(const unit_search *s, const tess_plan_result *r) {
    const tess_plan_result *b = &s->best_result;
    if (!s->n_best)
        return 1;
    if (r->step_ns >= 0 && b->step_ns >= 0 && r->step_ns != b->step_ns)
        return r->step_ns < b->step_ns;
    return s->n != s->n_best ? s->n < s->n_best : r->peak_device_bytes < b->peak_device_bytes;
}

/* Plans one of the other policies' answers. */
static tess_status consider_policy(unit_search *s,
                                   tess_status (*open)(const tess_host *, const void **, void **, tess_error *),
                                   const char *args) {
    const tess_host host = { .struct_size = sizeof host, .args = args };
    const void *table;
    void *ctx;
    tess_plan_result r = { .struct_size = sizeof r, .step_ns = -1 };
    tess_status status = open(&host, &table, &ctx, s->error);
    if (status)
        return status;
    const tess_wrap_ops *ops = table;
    status = ops->assign(ctx, s->view, s->env, s->unit, &s->n, NULL, NULL, s->error);
    ops->close(ctx);
    if (!status && (status = s->plan(s->host, s->unit, s->n, &r)))
        tess_plugin_fail(s->error, status, "%s", tess_last_error());
    if (status)
        return status;
    if (r.peak_device_bytes < s->least)
        s->least = r.peak_device_bytes;
    if (r.peak_device_bytes > s->budget || !is_better(s, &r))
        return TESS_OK;
    memcpy(s->best, s->unit, s->view->n_params * sizeof *s->best);
    s->n_best = s->n;
    s->best_result = r;
    return TESS_OK;
}

static tess_status consider_all(unit_search *s) {
    uint64_t all = 0;
    tess_status status = consider_policy(s, tess__wrap_none_open, "");
    for (uint32_t m = 0; m < s->view->n_modules; m++)
        all += s->view->modules[m].own_elems;
    for (uint64_t size = all / 2; !status && size > 0; size /= 2) {
        char args[32];
        snprintf(args, sizeof args, "%" PRIu64, size);
        status = consider_policy(s, tess__wrap_size_open, args);
    }
    return status ? status : consider_policy(s, tess__wrap_scopes_open, "");
}

static tess_status assign_auto(void *ctx, const tess_model_view *v, const tess_plan_env *env, int32_t *unit,
                               int32_t *n_units, plan_fn plan, void *host, tess_error *e) {
    unit_search s = { .view = v, .env = env, .plan = plan, .host = host, .error = e };
    s.budget = *(const uint64_t *)ctx;
    s.least = UINT64_MAX;
    s.unit = unit;
    if (!plan)
        return tess_plugin_fail(e, TESS_E_UNSUPPORTED, "needs the planner, which is not at hand here");
    s.best = calloc((size_t)v->n_params + 1, sizeof *s.best);
    if (!s.best)
        return tess_plugin_fail(e, TESS_E_NOMEM, "no memory for the units of %u parameters", v->n_params);
    tess_status status = consider_all(&s);
    if (!status && !s.n_best)
        status = tess_plugin_fail(
            e, TESS_E_BUDGET, "no choice of units fits %" PRIu64 " bytes of device memory; the least takes %" PRIu64,
            s.budget, s.least);
    if (!status) {
        memcpy(unit, s.best, v->n_params * sizeof *unit);
        *n_units = s.n_best;
    }
    free(s.best);
    return status;
}

static const tess_wrap_ops auto_ops = { .struct_size = sizeof(tess_wrap_ops),
                                        .abi_major = TESS_ABI_MAJOR,
                                        .abi_minor = TESS_ABI_MINOR,
                                        .close = free,
                                        .assign = assign_auto };

tess_status tess__wrap_auto_open(const tess_host *h, const void **ops, void **ctx, tess_error *e) {
    uint64_t budget;
    if (!tess_option_parse_bytes(h->args, &budget) || !budget)
        return tess_plugin_fail(e, TESS_E_INVALID,
                                "expects bytes of device memory after the colon, as in auto:512MiB, got \"%s\"",
                                h->args);
    uint64_t *kept = malloc(sizeof *kept);
    if (!kept)
        return tess_plugin_fail(e, TESS_E_NOMEM, "no memory for the budget");
    *kept = budget;
    *ops = &auto_ops;
    *ctx = kept;
    return TESS_OK;
}
