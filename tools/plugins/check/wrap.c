/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks a wrap policy on models of several shapes. Each parameter is in exactly one unit, tied ones share a unit, and
 * the answer never changes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/layout/module_tree.h"
#include "suites.h"

enum { MODELS = 4, MOST_PARAMS = 600 };

static const tess_wrap_ops *ops;
static void *ctx;
static struct {
    const char *name;
    tess__model model;
    tess__module_tree tree;
} models[MODELS];

/* ---- models ------------------------------------------------------------------------------------ */

static void param(check *c, tess__model *m, const char *name, int64_t rows, int64_t columns, uint32_t flags) {
    int64_t shape[2] = { rows, columns };
    tess_param_options o = { .struct_size = sizeof o,
                             .name = name,
                             .dtype = TESS_F32,
                             .ndim = columns ? 2 : 1,
                             .shape = shape,
                             .flags = flags };
    int32_t first;
    tess_status s = tess__model_add_param(m, &o, &first);
    check_that(c, s == TESS_OK, "no model to check with: %s", tess_last_error());
}

static void scope(check *c, tess__model *m, const char *name) {
    int32_t first;
    check_that(c, tess__model_add_scope(m, name, 0, &first) == TESS_OK, "no model to check with: %s",
               tess_last_error());
}

static void gpt(check *c, tess__model *m) {
    char name[64];
    scope(c, m, "wte");
    for (int i = 0; i < 12; i++) {
        snprintf(name, sizeof name, "h.%d", i);
        scope(c, m, name);
    }
    scope(c, m, "head");
    param(c, m, "wte.weight", 4096, 64, 0);
    for (int i = 0; i < 12; i++) {
        static const char *const parts[] = { "ln_1.weight", "attn.qkv.weight", "attn.proj.weight",
                                             "ln_2.weight", "mlp.fc.weight",   "mlp.proj.weight" };
        for (int k = 0; k < 6; k++) {
            snprintf(name, sizeof name, "h.%d.%s", i, parts[k]);
            param(c, m, name, 64, k % 3 ? 64 * (k == 1 ? 3 : 4) : 0, k == 5 && i < 2 ? TESS_FROZEN : 0);
        }
    }
    param(c, m, "head.norm", 64, 0, 0);
    check_that(c, tess__model_tie(m, "head.weight", "wte.weight") == TESS_OK, "no model: %s", tess_last_error());
}

static void one(check *c, tess__model *m) {
    scope(c, m, "");
    param(c, m, "w", 1, 0, 0);
}

/* All parameters lie directly below the root, without another scope. */
static void flat(check *c, tess__model *m) {
    char name[32];
    scope(c, m, "");
    for (int i = 0; i < 50; i++) {
        snprintf(name, sizeof name, "w%d", i);
        param(c, m, name, 1 + i * i, 0, 0);
    }
    check_that(c, tess__model_tie(m, "again", "w7") == TESS_OK, "no model: %s", tess_last_error());
    check_that(c, tess__model_tie(m, "once_more", "w7") == TESS_OK, "no model: %s", tess_last_error());
}

static void deep(check *c, tess__model *m) {
    char name[200] = "a";
    scope(c, m, "a");
    for (int i = 0; i < 30; i++) {
        char leaf[220];
        snprintf(leaf, sizeof leaf, "%s.w", name);
        param(c, m, leaf, 100, 7, i % 3 == 0 ? TESS_FROZEN : 0);
        snprintf(name + strlen(name), sizeof name - strlen(name), ".%c%d", 'a' + i % 26, i);
    }
}

static void make_models(check *c) {
    static void (*const makers[MODELS])(check *, tess__model *) = { gpt, one, flat, deep };
    static const char *const names[MODELS] = { "a GPT of 12 blocks", "a model of one parameter",
                                               "50 parameters without modules", "30 nested modules" };
    for (int i = 0; i < MODELS; i++) {
        models[i].name = names[i];
        makers[i](c, &models[i].model);
        check_that(c,
                   tess__model_finish(&models[i].model) == TESS_OK &&
                       tess__module_tree_build(&models[i].model, &models[i].tree) == TESS_OK,
                   "no model to check with: %s", tess_last_error());
    }
}

static void finish(check *c) {
    (void)c;
    for (int i = 0; i < MODELS; i++) {
        tess__module_tree_free(&models[i].tree);
        tess__model_free(&models[i].model);
    }
}

static void open_wrap(check *c) {
    ops = check_open(c);
    ctx = c->ctx;
    make_models(c);
    c->finish = finish;
}

/* ---- asking ------------------------------------------------------------------------------------ */

typedef tess_status (*plan_fn)(void *, const int32_t *, int32_t, tess_plan_result *);

static tess_plan_env environment(void) {
    return (tess_plan_env){
        .struct_size = sizeof(tess_plan_env), .mem = TESS_MEM_HOST, .nranks = 4, .ranks_per_host = 4, .in_flight = 2
    };
}

/* A planner for policies that ask one. It answers the same for every plan. */
static int n_planned, planning;
static check *planner;
static tess_status plan(void *host, const int32_t *unit, int32_t n, tess_plan_result *out) {
    (void)host, (void)unit;
    check_that(planner, planning, "assign's planner is called after assign");
    check_that(planner, n > 0, "assign plans %d units", n);
    n_planned++;
    if (out->struct_size >= sizeof *out) {
        out->peak_device_bytes = (uint64_t)1 << 20;
        out->peak_host_bytes = 0;
        out->step_ns = -1;
    }
    return TESS_OK;
}

/* Returns the policy's answer in an array that ends at a guard page. Returns 0 if the policy refuses this model. */
static int ask(check *c, const char *name, const tess_model_view *v, int garbage, plan_fn planned, int32_t **unit,
               int32_t *n) {
    tess_plan_env env = environment();
    tess_error e = { .struct_size = sizeof e };
    *unit = check_at_edge(c, v->n_params * sizeof **unit);
    memset(*unit, garbage, v->n_params * sizeof **unit);
    *n = -garbage;
    check_doing(c, "assign");
    planner = c;
    planning = 1;
    tess_status s = ops->assign(ctx, v, &env, *unit, n, planned, NULL, &e);
    planning = 0;
    check_doing(c, "");
    if (s == TESS_E_INVALID || s == TESS_E_BUDGET || s == TESS_E_UNSUPPORTED) {
        check_that(c, *e.message, "assign refuses %s without a message", name);
        check_note(c, "refuses %s: %.120s", name, e.message);
        return 0;
    }
    check_that(c, s == TESS_OK, "assign of %s gave %s: %s", name, check_status(s), e.message);
    return 1;
}

static void judge(check *c, const char *name, const tess_model_view *v, const int32_t *unit, int32_t n) {
    int32_t members[MOST_PARAMS] = { 0 };
    check_that(c, n >= 1 && n <= (int32_t)v->n_params + (int32_t)v->n_modules, "assign of %s gives %d units", name, n);
    for (uint32_t i = 0; i < v->n_params; i++) {
        check_that(c, unit[i] >= 0 && unit[i] < n, "assign of %s: parameter %s is in unit %d, of 0 to %d", name,
                   v->params[i].name, unit[i], n - 1);
        members[unit[i] < MOST_PARAMS ? unit[i] : 0]++;
    }
    for (int32_t u = 0; u < n; u++)
        check_that(c, u >= MOST_PARAMS || members[u], "assign of %s: unit %d of %d has no parameter", name, u, n);
    for (uint32_t i = 0, next = 0; i < v->n_params; i++) {
        check_that(c, unit[i] <= (int32_t)next,
                   "assign of %s: %s is in unit %d before any is in unit %u: units are "
                   "numbered in order of first use",
                   name, v->params[i].name, unit[i], next);
        next += unit[i] == (int32_t)next;
    }
    for (uint32_t i = 0; i < v->n_params; i++)
        check_that(c, unit[i] == unit[v->params[i].tied_to], "assign of %s: %s is in unit %d, %s, tied to it, in %d",
                   name, v->params[i].name, unit[i], v->params[v->params[i].tied_to].name, unit[v->params[i].tied_to]);
}

static void must_serve(check *c, int served) {
    if (!served)
        check_skip(c, "refuses every model; with other arguments (NAME:ARGS) it may not");
}

static void judge_all(check *c, plan_fn planned) {
    int served = 0;
    open_wrap(c);
    for (int i = 0; i < MODELS; i++) {
        int32_t *unit, n;
        if (!ask(c, models[i].name, &models[i].tree.view, 0xa5, planned, &unit, &n))
            continue;
        judge(c, models[i].name, &models[i].tree.view, unit, n);
        served++;
    }
    must_serve(c, served);
}

static void each_parameter_once(check *c) {
    judge_all(c, plan);
    if (n_planned)
        check_note(c, "%d candidates planned", n_planned);
}

static void compare(check *c, int model, const int32_t *a, int32_t na, const int32_t *b, int32_t nb, const char *how) {
    const tess_model_view *v = &models[model].tree.view;
    check_that(c, na == nb, "assign of %s %s gives %d units, before %d", models[model].name, how, nb, na);
    for (uint32_t i = 0; i < v->n_params; i++)
        check_that(c, a[i] == b[i], "assign of %s %s puts %s in unit %d, before in %d", models[model].name, how,
                   v->params[i].name, b[i], a[i]);
}

/* The answer must stay the same when asked again, after other models, with other garbage in the outputs and from
 * another instance. */
static void pure(check *c) {
    int32_t *first[MODELS], n[MODELS];
    int ok[MODELS], served = 0;
    open_wrap(c);
    for (int i = 0; i < MODELS; i++)
        served += ok[i] = ask(c, models[i].name, &models[i].tree.view, 0xa5, plan, &first[i], &n[i]);
    must_serve(c, served);
    for (int round = 0; round < 6; round++) {
        if (round == 3) { /* a new instance must answer the same */
            check_close(c);
            ops = check_open(c);
            ctx = c->ctx;
        }
        check_sleep_ms(round == 4 ? 1100 : 1); /* nor may the clock change the answer */
        for (int i = MODELS; i-- > 0;) {
            int32_t *again, m;
            int same = ask(c, models[i].name, &models[i].tree.view, 0x11 * round, plan, &again, &m);
            check_that(c, same == ok[i], "assign of %s is refused at times", models[i].name);
            if (same)
                compare(c, i, first[i], n[i], again, m, "again");
        }
    }
}

/* A newer core's structs are longer. The policy must step through arrays by the first element's struct_size. */
static void longer_structs(check *c) {
    struct {
        tess_module_view v;
        uint64_t later[3];
    } * modules;
    struct {
        tess_param_view v;
        uint64_t later[2];
    } * params;
    int served = 0;
    if (!*c->path)
        check_skip(c, "built in: its structs are the core's");
    open_wrap(c);
    for (int i = 0; i < MODELS; i++) {
        const tess_model_view *plain = &models[i].tree.view;
        tess_model_view longer = *plain;
        int32_t *a, *b, n, m;
        modules = check_at_edge(c, plain->n_modules * sizeof *modules);
        params = check_at_edge(c, plain->n_params * sizeof *params);
        memset(modules, 0x5a, plain->n_modules * sizeof *modules);
        memset(params, 0x5a, plain->n_params * sizeof *params);
        for (uint32_t k = 0; k < plain->n_modules; k++) {
            modules[k].v = plain->modules[k];
            modules[k].v.struct_size = sizeof *modules;
        }
        for (uint32_t k = 0; k < plain->n_params; k++) {
            params[k].v = plain->params[k];
            params[k].v.struct_size = sizeof *params;
        }
        longer.modules = &modules->v;
        longer.params = &params->v;
        if (!ask(c, models[i].name, plain, 0xa5, plan, &a, &n))
            continue;
        served++;
        check_that(c, ask(c, models[i].name, &longer, 0xa5, plan, &b, &m), "assign refuses %s in longer structs",
                   models[i].name);
        compare(c, i, a, n, b, m, "in longer structs (arrays are walked by struct_size)");
    }
    must_serve(c, served);
}

static void same_on_all_ranks(check *c) {
    uint64_t hash = 1469598103934665603u;
    int served = 0;
    open_wrap(c);
    for (int i = 0; i < MODELS; i++) {
        int32_t *unit, n;
        if (!ask(c, models[i].name, &models[i].tree.view, 0xa5, plan, &unit, &n))
            continue;
        served++;
        for (uint32_t k = 0; k < models[i].tree.view.n_params; k++)
            hash = (hash ^ (uint32_t)unit[k]) * 1099511628211u;
    }
    must_serve(c, served);
    check_flag_set(c, c->rank, (int64_t)(hash >> 1));
    check_meet(c);
    for (int r = 0; r < c->nranks; r++)
        check_that(c, check_flag_get(c, r) == (int64_t)(hash >> 1), "assign says something else on rank %d", r);
}

/* Without a planner the policy must still give a good answer, or refuse with a message. */
static void without_a_planner(check *c) {
    judge_all(c, NULL);
}

const check_case check_cases_wrap[] = {
    { "each_parameter_once", 1, each_parameter_once, 0, 0 }, { "pure", 1, pure, 0, 0 },
    { "longer_structs", 1, longer_structs, 0, 0 },           { "same_on_all_ranks", 3, same_on_all_ranks, 0, 0 },
    { "without_a_planner", 1, without_a_planner, 0, 0 },     { 0 },
};
