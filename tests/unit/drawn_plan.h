/* SPDX-License-Identifier: BSD-3-Clause */
/* Plans of settings, plugins and models that are drawn by chance, the same each time. */
#ifndef TEST_DRAWN_PLAN_H
#define TEST_DRAWN_PLAN_H
#include <stdio.h>

#include "core/base/hash.h"
#include "core/plan/plan.h"
#include "tests/unit/drawn.h"
#include "tests/unit/no_steps.h"
#include "tests/unit/plan_fixture.h"

enum { DRAWN_BLOCKS = 4 };

/* ---- plugins that decide something for each unit ---- */

static tess_status choose_narrow(void *ctx, const tess_param_view *v, tess_precision_choice *out, tess_error *e) {
    (void)e;
    uint32_t sent = *(const int *)ctx == 1 ? TESS_Q8 : TESS_BF16;
    tess_precision_choice c = { .master = TESS_F32,
                                .compute = TESS_BF16,
                                .gather = sent,
                                .grad_local = *(const int *)ctx ? TESS_F32 : TESS_BF16,
                                .grad_wire = sent,
                                .accumulate = TESS_F32 };
    if (v->dtype == TESS_F64)
        c = (tess_precision_choice){ .master = TESS_F64,
                                     .compute = TESS_F64,
                                     .gather = TESS_F64,
                                     .grad_local = TESS_F64,
                                     .grad_wire = TESS_F64,
                                     .accumulate = TESS_F64 };
    TESS_GIVE(out, &c);
    return TESS_OK;
}
static const tess_precision_ops narrow = { .struct_size = sizeof narrow, .choose = choose_narrow };
static const int numbered[3] = { 0, 1, 2 };

/* Regions rest by turns on the device, on the host and, where the plugin has one, in a store. */
static tess_status place_by_turns(void *ctx, const tess_plan_env *env, const tess_region *regions, uint32_t n,
                                  tess_placement *out, tess_error *e) {
    static const uint32_t rests[] = { TESS_REST_HOST, TESS_REST_STORE, TESS_REST_DEVICE };
    (void)env, (void)e;
    for (uint32_t i = 0; i < n; i++) {
        int turn = *(const int *)ctx, activation = regions[i].region == TESS_REGION_ACTIVATION;
        uint32_t rest = activation || turn == 0 ? TESS_REST_HOST
                        : turn == 1             ? TESS_REST_STORE
                                                : rests[((uint32_t)regions[i].group + regions[i].region) % 3];
        uint64_t held = rest == TESS_REST_HOST ? regions[i].bytes : 0;
        out[i] = (tess_placement){
            .struct_size = sizeof *out, .rest = rest, .host_bytes = held, .pinned_bytes = held / 2, .align = 64
        };
    }
    return TESS_OK;
}
static const tess_offload_ops by_turns = { .struct_size = sizeof by_turns,
                                           .place = place_by_turns,
                                           .store_close = close_store };

/* Weights are matrices, whose first state travels where `ctx` says so. */
static tess_status describe(void *ctx, const tess_param_view *p, uint32_t flags, tess_grain *out, tess_error *e) {
    (void)flags, (void)e;
    tess_grain of_elements = { .grain = TESS_GRAIN_ELEMENT,
                               .kernel = TESS_OPT_ADAMW,
                               .n_states = 2,
                               .state = { { TESS_F32, 1, "m" }, { TESS_F32, 1, "v" } } };
    tess_grain whole = {
        .grain = TESS_GRAIN_MATRIX,
        .n_states = 4,
        .state = { { TESS_F32, 1, "m" }, { TESS_F32, 1, "v" }, { TESS_F32, 1, "x" }, { TESS_F32, 1, "y" } },
        .whole = *(const int *)ctx ? 11 : 0,
        .rows = 20,
        .cols = p->elems / 20,
        .scratch_bytes = 320
    };
    TESS_GIVE(out, strstr(p->name, ".w") ? &whole : &of_elements);
    return TESS_OK;
}

static const tess_optimizer_ops stepping = {
    .struct_size = sizeof stepping, .describe = describe, .step = no_step, .matrix = no_matrix
};

static tess_status any_kernel(void *ctx, const tess_kernel *k, tess_need *out) {
    (void)ctx;
    out->device_bytes = 16 * k->kernel;
    return TESS_OK;
}
static const tess_device_ops on_host = { .struct_size = sizeof on_host, .kernel_need = any_kernel };
static const tess_device_ops with_streams = { .struct_size = sizeof with_streams,
                                              .kernel_need = any_kernel,
                                              .stream_create = no_stream };

/* ---- settings by chance ---- */

static uint64_t chance;
#define draw(n) ((int)drawn64(&chance, (uint64_t)(n)))

static void draw_run(plan *f, char *text) {
    static const char *const strategies[] = { "full", "grad_op", "none", "hybrid:2", "hybrid_grad_op:2" };
    static const int32_t ranks[] = { 1, 2, 3, 4, 6, 8 };
    const char *strategy = strategies[draw(5)];
    plan_init(f, ranks[draw(6)]);
    if (strategy[0] == 'h' && f->setup.nranks % 2)
        strategy = "full";
    assert_int_equal(tess__setup_strategy(&f->setup, strategy), TESS_OK);
    tess__setup *s = &f->setup;
    s->prefetch = draw(4), s->prefetch_fixed = draw(2);
    s->accum = 1 + 3 * draw(2), s->sync_each = draw(2), s->deterministic = draw(2);
    s->activations = draw(3);
    s->activation_spec = (const char *const[]){ NULL,        NULL,          NULL,          "recompute:b,offload:d",
                                                "selective", "auto:120000", "auto,offload" }[draw(7)];
    s->step_in_pass = draw(2), s->no_clip = draw(2), s->norm_first = draw(4) == 0;
    s->late = draw(2), s->snapshot = draw(2), s->mirror = draw(2) && s->nranks > 1, s->ledger_every = draw(2),
    s->base_apart = draw(2);
    s->audit_every = draw(3) == 0, s->low_copy = draw(3) == 0, s->parts = draw(2);
    s->env.device_budget_bytes = draw(4) ? 0 : 100000;
    s->input_bytes = 40, s->common_bytes = 100, s->granularity = draw(2) ? 4096 : 1;
    sprintf(
        text,
        "%d ranks %s, prefetch %d%s, accum %d each %d det %d, act %d %s, pass %d clip %d norm %d budget %d, late %d "
        "%d%d%d%d%d%d%d",
        s->nranks, strategy, s->prefetch, s->prefetch_fixed ? "!" : "", s->accum, s->sync_each, s->deterministic,
        s->activations, s->activation_spec ? s->activation_spec : "-", s->step_in_pass, !s->no_clip, s->norm_first,
        s->env.device_budget_bytes != 0, s->late, s->snapshot, s->mirror, s->ledger_every, s->base_apart,
        s->audit_every, s->low_copy, s->parts);
}

static void draw_plugins(plan *f, char *text) {
    static const char *const steps[] = { "none", "sgd", "adamw", "whole", "whole states" };
    static const char *const widths[] = { "f32", "bf16", "blocks", "wide" }, *const rests[] = { "host", "store",
                                                                                                "turns", "device" };
    tess__setup *s = &f->setup;
    int step = draw(5), width = draw(4), rest = draw(6), streams = step < 3 && rest > 2 && draw(2);
    s->optimizer = step > 2 ? TESS__OPT_PLUGIN : (const uint32_t[]){ 0, TESS_OPT_SGD, TESS_OPT_ADAMW }[step];
    s->n_states = step == 2 ? 2 : 0, s->with_momentum = draw(2);
    if (step > 2)
        s->step = &stepping, s->step_ctx = (void *)(uintptr_t)&numbered[step - 3], s->step_name = "whole";
    if (width)
        s->precision = &narrow, s->precision_ctx = (void *)(uintptr_t)&numbered[width - 1];
    if (rest < 3)
        s->offload = &by_turns, s->offload_ctx = (void *)(uintptr_t)&numbered[rest];
    s->device = streams ? &with_streams : &on_host;
    s->env.mem = streams ? TESS_MEM_CUDA : TESS_MEM_HOST;
    s->offload_name = rest < 3 ? "turns" : "none";
    sprintf(text + strlen(text), ", %s %s %s%s", steps[step], widths[width], rests[rest < 3 ? rest : 3],
            streams ? " streams" : "");
}

static void add_param(plan *f, const char *name, int64_t elems, uint32_t dtype, uint32_t flags) {
    tess_param_options o = { .struct_size = sizeof o,
                             .dtype = dtype,
                             .flags = flags,
                             .compute_dtypes = flags & TESS_BUFFER ? 0 : 1u << dtype | 1u << TESS_BF16,
                             .name = name,
                             .shape = &elems,
                             .ndim = 1 };
    assert_int_equal(tess__model_add_param(&f->model, &o, NULL), TESS_OK);
}

static void add_block(plan *f, int k) {
    static const char *const names[DRAWN_BLOCKS] = { "a", "b", "c", "d" };
    static const uint32_t flags[] = { 0, 0, TESS_BLOCK_KEEP, TESS_BLOCK_DROP_OUTPUT, TESS_BLOCK_GRAD_IN_PLACE };
    uint32_t own = flags[draw(5)] | TESS_BLOCK_AUDIT;
    if (k == DRAWN_BLOCKS - 1 && draw(2))
        own = TESS_BLOCK_LATE_RESULT;
    tess_block_options o = { .struct_size = sizeof o,
                             .flags = own,
                             .name = names[k],
                             .output_bytes = 1000 + 64 * (uint64_t)draw(40),
                             .saved_bytes = 64 * (uint64_t)draw(60),
                             .forward_scratch_bytes = 300,
                             .backward_scratch_bytes = 600,
                             .selective_saved_bytes = 200,
                             .selective_scratch_bytes = 700,
                             .forward = no_block,
                             .backward = no_block };
    char name[16];
    assert_int_equal(tess__model_add_block(&f->model, &o, NULL), TESS_OK);
    snprintf(name, sizeof name, "%s.w", names[k]);
    add_param(f, name, 400 * (k + 1), TESS_F32, draw(6) ? 0 : TESS_FROZEN);
    snprintf(name, sizeof name, "%s.b", names[k]);
    add_param(f, name, 70, TESS_F32, draw(3) ? 0 : TESS_FROZEN);
}

static void draw_model(plan *f, tess__plan *p, char *text) {
    int blocks = draw(5), tied = draw(3) == 0;
    for (int k = 0; k < DRAWN_BLOCKS && blocks; k++)
        add_block(f, k);
    for (int k = 0; k < 2 && !blocks; k++) {
        plan_scope(f, k ? "y" : "x");
        add_param(f, k ? "y.w" : "x.w", 6000, TESS_F32, 0);
    }
    if (blocks && draw(3) == 0) /* which no precision narrows */
        add_param(f, "b.d", 50, TESS_F64, 0);
    if (tied && blocks)
        assert_int_equal(tess__model_tie(&f->model, "d.t", "a.w"), TESS_OK);
    add_param(f, blocks ? "a.z" : "x.z", 30, TESS_F32, TESS_BUFFER);
    const void *ops;
    void *ctx;
    tess_error e = { .struct_size = sizeof e };
    tess_host host = plan_host("");
    assert_int_equal(tess__wrap_scopes_open(&host, &ops, &ctx, &e), TESS_OK);
    *p = (tess__plan){ .setup = f->setup, .model = f->model, .wrap = { ops, ctx, "scopes" } };
    p->n_user = draw(2), p->user_bytes[0] = 640, p->holds = draw(4) == 0;
    sprintf(text + strlen(text), "%s%s%s", blocks ? "" : ", scopes", tied ? ", tied" : "", p->holds ? ", holds" : "");
}

static void (*bend_plan)(int n, tess__plan *); /* null, or what changes the n-th before it is made */

/* The n-th; `text` says of what. A plan that fails has a message. */
static inline tess_status plan_drawn(int n, plan *f, tess__plan *p, char *text) {
    chance = tess__hash_u64(TESS__HASH_START, (uint64_t)n);
    sprintf(text, "%d. ", n + 1);
    draw_run(f, text + strlen(text));
    draw_plugins(f, text);
    draw_model(f, p, text);
    if (bend_plan)
        bend_plan(n, p);
    return tess__plan_make(p);
}
#endif
