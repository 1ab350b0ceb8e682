/* SPDX-License-Identifier: BSD-3-Clause */
/* What the tests of layout and compiler share: a set-up for any number of ranks, without devices or peers. */
#ifndef PLAN_FIXTURE_H
#define PLAN_FIXTURE_H
#include <string.h>

#include "core/builtin/builtins.h"
#include "core/plan/compile.h"
#include "core/layout/module_tree.h"
#include "core/layout/wrap.h"

typedef struct {
    tess_host host;
    tess__setup setup;
    tess__model model;
    tess__layout layout;
    tess__compiler compiler;
    tess__program program;
    int32_t unit[256], n_units;
} plan;

/* A comm whose scratch differs by operation and grows with the count, so that a wrong one shows. */
static tess_status plan_need(void *ctx, const tess_plan_env *env, const tess_collective *c, tess_need *out) {
    (void)ctx;
    if (c->op == TESS_BROADCAST && env->nranks == 13)
        return TESS_E_UNSUPPORTED;
    out->device_bytes = c->op == TESS_ALL_GATHER ? 0 : 64 * c->op + c->count;
    return TESS_OK;
}
static const tess_comm_ops plan_comm = { .struct_size = sizeof plan_comm, .need = plan_need };

static inline tess_host plan_host(const char *args) {
    return (tess_host){ .struct_size = sizeof(tess_host), .args = args };
}

static inline void plan_init(plan *p, int32_t nranks) {
    memset(p, 0, sizeof *p);
    p->host = plan_host("");
    p->setup =
        (tess__setup){ .nranks = nranks, .prefetch = 1, .accum = 1, .sync_each = 1, .align = 64, .granularity = 1 };
    p->setup.env = (tess_plan_env){ .struct_size = sizeof p->setup.env, .mem = TESS_MEM_HOST, .nranks = nranks };
    p->setup.comm = &plan_comm;
    const void *ops;
    assert_int_equal(tess__precision_fp32_open(&p->host, &ops, &p->setup.precision_ctx, NULL), TESS_OK);
    p->setup.precision = ops;
    assert_int_equal(tess__offload_none_open(&p->host, &ops, &p->setup.offload_ctx, NULL), TESS_OK);
    p->setup.offload = ops;
    assert_int_equal(tess__setup_strategy(&p->setup, "full"), TESS_OK);
}

static inline tess_status plan_param(plan *p, const char *name, int64_t elems, uint32_t flags) {
    tess_param_options o = { .struct_size = sizeof o,
                             .dtype = TESS_F32,
                             .flags = flags,
                             .name = name,
                             .stack = strchr(name, '*') ? 3 : 0,
                             .shape = &elems,
                             .ndim = 1 };
    return tess__model_add_param(&p->model, &o, NULL);
}

static inline int32_t plan_scope(plan *p, const char *name) {
    int32_t first = -1;
    assert_int_equal(tess__model_add_scope(&p->model, name, strchr(name, '*') ? 3 : 0, &first), TESS_OK);
    return first;
}

typedef tess_status (*plan_wrap_open)(const tess_host *, const void **, void **, tess_error *);

/* Finishes the model and wraps it. */
static inline tess_status plan_wrap(plan *p, plan_wrap_open open, const char *args) {
    const void *ops;
    void *ctx;
    tess_error e = { .struct_size = sizeof e };
    tess_host host = plan_host(args);
    tess_status s = open(&host, &ops, &ctx, &e);
    if (s)
        return s;
    if (!p->model.finished)
        assert_int_equal(tess__model_finish(&p->model), TESS_OK);
    const tess_wrap_ops *table = ops;
    s = tess__wrap_apply_planned(&p->model, table, ctx, args[0] ? "size or module" : "plain", &p->setup.env, NULL, NULL,
                                 p->unit, &p->n_units);
    if (table->close)
        table->close(ctx);
    return s;
}

/* Wraps by scope, lays out and makes the compiler. */
static inline void plan_layout(plan *p) {
    assert_int_equal(plan_wrap(p, tess__wrap_scopes_open, ""), TESS_OK);
    assert_int_equal(tess__layout_build(&p->model, &p->setup, p->unit, p->n_units, &p->layout), TESS_OK);
    assert_int_equal(tess__compiler_create(&p->compiler, &p->setup, &p->model, &p->layout), TESS_OK);
}

static inline void plan_free(plan *p) {
    tess__program_free(&p->program);
    tess__compiler_free(&p->compiler);
    tess__layout_free(&p->layout);
    tess__model_free(&p->model);
}
#endif
