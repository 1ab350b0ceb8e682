/* SPDX-License-Identifier: BSD-3-Clause */
/* Offsets, shards and pieces against their closed forms. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>

#include "tests/unit/no_steps.h"
#include "tests/unit/plan_fixture.h"

static const int64_t sizes[] = { 1, 63, 64, 65, 1000, 7 };
enum { N = 6 };

static void lay_out(plan *p, int32_t nranks, const char *strategy) {
    static const char *const names[N] = { "a.p0", "a.p1", "a.p2", "a.p3", "b.p0", "b.p1" };
    plan_init(p, nranks);
    assert_int_equal(tess__setup_strategy(&p->setup, strategy), TESS_OK);
    plan_scope(p, "a");
    plan_scope(p, "b");
    for (int i = 0; i < N; i++)
        assert_int_equal(plan_param(p, names[i], sizes[i], i == N - 1 ? TESS_FROZEN : 0), TESS_OK);
    plan_layout(p);
}

static void test_layout__offsets_and_shards_are_multiples_of_64(void **state) {
    (void)state;
    static const uint64_t offset[N] = { 0, 64, 128, 192, 0, 0 }, used[3] = { 257, 1000, 7 };
    for (int32_t w = 1; w <= 12; w++) {
        plan p;
        lay_out(&p, w, "full");
        assert_int_equal(p.layout.n_groups, 3); /* the frozen one is a group of its own */
        assert_int_equal(p.layout.param_elems, 1200);
        for (int i = 0; i < N; i++)
            assert_int_equal(p.model.params[i].offset, offset[i]);
        for (int g = 0; g < 3; g++) {
            uint64_t shard = (used[g] + (uint64_t)w * 64 - 1) / ((uint64_t)w * 64) * 64; /* ceil(used / 64w) * 64 */
            assert_int_equal(p.layout.groups[g].used_elems, used[g]);
            assert_int_equal(p.layout.groups[g].shard_elems, shard);
            assert_int_equal(p.layout.groups[g].flat_elems, shard * (uint64_t)w);
            assert_int_equal(p.layout.groups[g].trainable, g < 2);
        }
        plan_free(&p);
    }
}

/* Every element of every parameter is on one rank exactly once, where the flat buffer says. */
static void check_pieces(const plan *p, int32_t shard_ranks) {
    for (int i = 0; i < N; i++) {
        const tess__param *param = &p->model.params[i];
        uint64_t next = 0, shard = p->layout.groups[param->group].shard_elems;
        for (int32_t r = 0; r < shard_ranks; r++) {
            tess__piece piece = tess__layout_piece(&p->layout, param, r);
            if (!piece.elems)
                continue;
            assert_int_equal(piece.in_param, next);
            assert_int_equal(piece.in_shard + (uint64_t)r * shard, param->offset + piece.in_param);
            assert_true(piece.in_shard + piece.elems <= shard);
            next += piece.elems;
        }
        assert_int_equal(next, param->elems);
    }
}

static void test_layout__pieces_hold_every_element_once(void **state) {
    (void)state;
    for (int32_t w = 1; w <= 12; w++) {
        plan p;
        lay_out(&p, w, "full");
        check_pieces(&p, w);
        plan_free(&p);
        lay_out(&p, w, "none");
        assert_int_equal(p.setup.replicas, w);
        check_pieces(&p, 1);
        plan_free(&p);
    }
    plan p;
    lay_out(&p, 12, "hybrid:4");
    assert_int_equal(p.setup.shard_ranks, 4);
    assert_int_equal(p.setup.replicas, 3);
    check_pieces(&p, 4);
    plan_free(&p);
}

static void test_layout__only_a_whole_shard_is_read_in_place(void **state) {
    (void)state;
    plan p;
    lay_out(&p, 1, "full");
    assert_true(p.layout.groups[0].in_place && p.layout.groups[0].grad_in_place && !p.layout.groups[2].grad_in_place);
    plan_free(&p);
    lay_out(&p, 3, "none");
    assert_true(p.layout.groups[0].in_place && p.layout.groups[0].grad_in_place);
    plan_free(&p);
    lay_out(&p, 3, "grad_op");
    assert_true(!p.layout.groups[0].in_place && !p.layout.groups[0].grad_in_place);
    plan_free(&p);
}

static void test_layout__aliases_share_and_buffers_lie_outside(void **state) {
    (void)state;
    plan p;
    plan_init(&p, 2);
    plan_scope(&p, "a");
    plan_scope(&p, "b");
    plan_param(&p, "a.w", 100, 0);
    plan_param(&p, "b.mean", 3, TESS_BUFFER);
    plan_param(&p, "b.count", 1, TESS_BUFFER);
    plan_param(&p, "b.v", 10, 0);
    assert_int_equal(tess__model_tie(&p.model, "b.w", "a.w"), TESS_OK);
    plan_layout(&p);
    const tess__param *m = p.model.params;
    assert_int_equal(p.layout.n_units, 2);
    assert_int_equal(m[4].unit, m[0].unit);
    assert_int_equal(m[4].group, m[0].group);
    assert_int_equal(m[4].offset, m[0].offset);
    assert_int_equal(m[1].unit, -1);
    assert_int_equal(m[2].offset, 64);
    assert_int_equal(p.layout.buffer_bytes, 128);
    assert_int_equal(p.layout.param_elems, 110);
    assert_int_equal(p.layout.n_order, 2);
    assert_string_equal(p.layout.units[m[0].unit].name, "a.w"); /* tied: by the parameter */
    assert_string_equal(p.layout.units[m[3].unit].name, "b");
    plan_free(&p);
}

static void test_layout__a_unit_is_named_by_what_its_scopes_share(void **state) {
    (void)state;
    static const struct {
        const char *one, *other, *name;
    } cases[] = { { "h.1", "h.1", "h.1" },   { "h.1", "h.10", "h" }, { "h.1.a", "h.1", "h.1" },
                  { "h.1", "h.1.a", "h.1" }, { "a", "b", "root" },   { "h.1.a", "h.10.a", "h" },
                  { "", "h", "root" } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        plan p;
        plan_init(&p, 1);
        plan_scope(&p, cases[i].one);
        if (strcmp(cases[i].one, cases[i].other))
            plan_scope(&p, cases[i].other);
        char name[32];
        snprintf(name, sizeof name, "%s%sw", cases[i].one, cases[i].one[0] ? "." : "");
        plan_param(&p, name, 5, 0);
        snprintf(name, sizeof name, "%s%sv", cases[i].other, cases[i].other[0] ? "." : "");
        plan_param(&p, name, 5, 0);
        assert_int_equal(plan_wrap(&p, tess__wrap_none_open, ""), TESS_OK);
        assert_int_equal(tess__layout_build(&p.model, &p.setup, p.unit, p.n_units, &p.layout), TESS_OK);
        assert_string_equal(p.layout.units[0].name, cases[i].name);
        plan_free(&p);
    }
}

static void test_layout__compute_dtypes_outside_the_programs_are_refused(void **state) {
    (void)state;
    plan p;
    plan_init(&p, 1);
    plan_scope(&p, "a");
    int64_t three = 3;
    tess_param_options o = { .struct_size = sizeof o,
                             .dtype = TESS_F32,
                             .compute_dtypes = 1u << TESS_BF16,
                             .name = "a.w",
                             .shape = &three,
                             .ndim = 1 };
    assert_int_equal(tess__model_add_param(&p.model, &o, NULL), TESS_OK);
    assert_int_equal(plan_wrap(&p, tess__wrap_scopes_open, ""), TESS_OK);
    assert_int_equal(tess__layout_build(&p.model, &p.setup, p.unit, p.n_units, &p.layout), TESS_E_UNSUPPORTED);
    assert_non_null(strstr(tess_last_error(), "a.w"));
    plan_free(&p);
}

/* A precision plugin that wants formats of its own; an offload plugin that places what it is given nowhere. */
static tess_precision_choice chosen;
static uint32_t rest, only; /* only: TESS_REGION_…, the others stay on the device; 0: all go */
static uint64_t align;
static tess_status choose(void *ctx, const tess_param_view *v, tess_precision_choice *out, tess_error *e) {
    (void)ctx, (void)e;
    assert_true(v->scope == 0 && v->tied_to == 0 && !(v->flags & 2)); /* those are a model's, for wrap */
    *out = chosen;
    return TESS_OK;
}
static tess_status place_nowhere(void *ctx, const tess_plan_env *env, const tess_region *r, uint32_t n,
                                 tess_placement *out, tess_error *e) {
    (void)ctx, (void)env, (void)e;
    for (uint32_t i = 0; i < n; i++) {
        out[i].rest = only && r[i].region != only ? TESS_REST_DEVICE : rest;
        out[i].align = align;
    }
    return TESS_OK;
}

static void refused(const tess_precision_ops *precision, const tess_offload_ops *offload, const char *text) {
    plan p;
    plan_init(&p, 2);
    plan_scope(&p, "a");
    plan_param(&p, "a.w", 100, 0);
    if (precision)
        p.setup.precision = precision;
    if (offload)
        p.setup.offload = offload, p.setup.offload_name = "mine";
    p.setup.optimizer = TESS_OPT_ADAMW;
    p.setup.n_states = 2;
    assert_int_equal(plan_wrap(&p, tess__wrap_scopes_open, ""), TESS_OK);
    tess_status s = tess__layout_build(&p.model, &p.setup, p.unit, p.n_units, &p.layout);
    assert_int_equal(s, text ? TESS_E_UNSUPPORTED : TESS_OK);
    if (text)
        assert_string_equal(tess_last_error(), text);
    plan_free(&p);
}

static void test_layout__formats_of_its_own_are_refused(void **state) {
    (void)state;
    const tess_precision_ops precision = { .struct_size = sizeof precision, .choose = choose };
    const tess_precision_choice plain = {
        sizeof plain, TESS_F32, TESS_F32, TESS_F32, TESS_F32, TESS_F32, TESS_F32, 0, 0
    };
    const char *text = "parameter \"a.w\": the precision plugin gathers in a format of its own";
    chosen = plain;
    refused(&precision, NULL, NULL);
    chosen.gather = TESS_BF16;
    refused(&precision, NULL, text);
    chosen = plain;
    chosen.accumulate = TESS_BF16;
    refused(&precision, NULL, "parameter \"a.w\": the precision plugin asks for sums in bf16, expected fp32");
    chosen = plain;
    chosen.products = TESS_F8E4M3;
    refused(&precision, NULL,
            "parameter \"a.w\": the precision plugin asks for products in f8e4m3, which this program's kernels do not "
            "round to");
}

static void test_layout__a_place_that_is_none_is_refused(void **state) {
    (void)state;
    const tess_offload_ops offload = { .struct_size = sizeof offload, .place = place_nowhere };
    rest = TESS_REST_DEVICE;
    refused(NULL, &offload, NULL);
    rest = 4;
    refused(NULL, &offload,
            "the offload plugin rests a region of unit 0 in 4, expected 1 (the device), 2 (the host) or 3 (its store)");
    rest = 0;
    refused(NULL, &offload,
            "the offload plugin rests a region of unit 0 in 0, expected 1 (the device), 2 (the host) or 3 (its store)");
}

static void close_none(tess_store *store) {
    (void)store;
}

static void test_layout__a_store_that_cannot_be_is_refused(void **state) {
    (void)state;
    tess_offload_ops offload = { .struct_size = offsetof(tess_offload_ops, store_open), .place = place_nowhere };
    rest = TESS_REST_STORE;
    only = TESS_REGION_STATE;
    align = 4096;
    refused(NULL, &offload, "offload mine rests a region of unit 0 in a store, and offers none");
    offload.struct_size = sizeof offload;
    offload.store_close = close_none;
    refused(NULL, &offload, NULL);
    align = 4095;
    refused(NULL, &offload, "offload mine: a store's align is 4095, expected a power of two up to 1048576");
    align = 4096;
    only = TESS_REGION_MASTER;
    refused(NULL, &offload, NULL);
    only = TESS_REGION_GRAD;
    refused(NULL, &offload, NULL);
}

/* Layout of four blocks, whose activations wait on the host, with one kind of regions in a store. */
static tess_status stored(uint32_t region, uint64_t its_align, uint32_t mem) {
    static const char *const names[] = { "a", "b", "c", "d" };
    const tess_offload_ops offload = { .struct_size = sizeof offload,
                                       .place = place_nowhere,
                                       .store_close = close_none };
    plan p;
    plan_init(&p, 2);
    for (int k = 0; k < 4; k++) {
        tess_block_options o = {
            .struct_size = sizeof o, .name = names[k], .output_bytes = 100, .forward = no_block, .backward = no_block
        };
        assert_int_equal(tess__model_add_block(&p.model, &o, NULL), TESS_OK);
    }
    plan_param(&p, "a.w", 100, 0);
    p.setup.offload = &offload, p.setup.offload_name = "mine";
    p.setup.optimizer = TESS_OPT_ADAMW, p.setup.n_states = 2;
    p.setup.activations = TESS__ACTIVATIONS_OFFLOAD;
    p.setup.env.mem = mem;
    rest = TESS_REST_STORE, only = region, align = its_align;
    assert_int_equal(plan_wrap(&p, tess__wrap_scopes_open, ""), TESS_OK);
    tess_status s = tess__layout_build(&p.model, &p.setup, p.unit, p.n_units, &p.layout);
    assert_true(s || p.layout.store_align == (align > 64 ? align : 64));
    plan_free(&p);
    return s;
}

/* The second of a group's states, or of its sums of microbatches, alone on the host. */
static tess_status place_apart(void *ctx, const tess_plan_env *env, const tess_region *r, uint32_t n,
                               tess_placement *out, tess_error *e) {
    (void)ctx, (void)env, (void)e;
    for (uint32_t i = 0; i < n; i++)
        out[i].rest = r[i].region == only && r[i].index == 1 ? rest : TESS_REST_DEVICE;
    return TESS_OK;
}

static void test_layout__what_belongs_together_rests_together(void **state) {
    (void)state;
    const tess_offload_ops offload = { .struct_size = sizeof offload, .place = place_apart, .store_close = close_none };
    only = TESS_REGION_STATE;
    for (rest = TESS_REST_DEVICE; rest <= TESS_REST_STORE; rest++)
        refused(NULL, &offload,
                rest == TESS_REST_DEVICE
                    ? NULL
                    : "the offload plugin parts what belongs together: regions of unit 0 rest in two places");
}

static void test_layout__a_store_takes_what_comes_back_to_host_memory(void **state) {
    (void)state;
    static const struct {
        uint64_t align;
        const char *text;
    } aligns[] = { { 1, NULL },           { 1 << 20, NULL }, { (1 << 20) + 1, "1048577" }, { 1 << 21, "2097152" },
                   { 3 << 18, "786432" }, { 3, "3" } };
    char want[128];
    for (size_t i = 0; i < sizeof aligns / sizeof aligns[0]; i++) {
        assert_int_equal(stored(TESS_REGION_STATE, aligns[i].align, TESS_MEM_HOST),
                         aligns[i].text ? TESS_E_UNSUPPORTED : TESS_OK);
        snprintf(want, sizeof want, "offload mine: a store's align is %s, expected a power of two up to 1048576",
                 aligns[i].text);
        assert_true(!aligns[i].text || strcmp(tess_last_error(), want) == 0);
    }
    assert_int_equal(stored(TESS_REGION_ACTIVATION, 64, TESS_MEM_HOST), TESS_E_UNSUPPORTED);
    assert_string_equal(tess_last_error(),
                        "offload mine rests activations in a store, which takes parameters, gradients "
                        "and optimizer states alone");
    assert_int_equal(stored(TESS_REGION_STATE, 64, TESS_MEM_CUDA), TESS_E_UNSUPPORTED);
    assert_string_equal(tess_last_error(),
                        "offload mine: what rests in a store comes to host memory, which this device does not step in: "
                        "TESSERA_OFFLOAD=cpu, or TESSERA_DEVICE=cpu");
}

/* On the host, locked in memory but for regions of one kind, which lack bytes. */
static struct {
    uint32_t region;
    uint64_t bytes;
} lack;
static tess_status place_short(void *ctx, const tess_plan_env *env, const tess_region *r, uint32_t n,
                               tess_placement *out, tess_error *e) {
    (void)ctx, (void)env, (void)e;
    for (uint32_t i = 0; i < n; i++) {
        out[i].rest = TESS_REST_HOST;
        out[i].pinned_bytes = r[i].bytes - (r[i].region == lack.region ? lack.bytes : 0);
    }
    return TESS_OK;
}

static void test_layout__what_is_not_wholly_locked_in_memory_is_pageable(void **state) {
    (void)state;
    static const uint32_t kinds[] = { TESS_REGION_MASTER, TESS_REGION_GRAD, TESS_REGION_STATE };
    const tess_offload_ops offload = { .struct_size = sizeof offload, .place = place_short };
    for (int k = 0; k < 3; k++)
        for (lack.bytes = 0; lack.bytes < 3; lack.bytes++) {
            plan p;
            lack.region = kinds[k];
            plan_init(&p, 2);
            plan_scope(&p, "a");
            plan_param(&p, "a.w", 100, 0);
            p.setup.optimizer = TESS_OPT_ADAMW, p.setup.n_states = 2;
            p.setup.offload = &offload;
            assert_int_equal(plan_wrap(&p, tess__wrap_scopes_open, ""), TESS_OK);
            assert_int_equal(tess__layout_build(&p.model, &p.setup, p.unit, p.n_units, &p.layout), TESS_OK);
            const tess__group *g = &p.layout.groups[0];
            const tess__rest *rests[] = { &g->param_rest, &g->grad_rest, &g->state_rest };
            for (int i = 0; i < 3; i++) {
                assert_int_equal(rests[i]->domain, TESS_DOMAIN_HOST);
                assert_int_equal(rests[i]->pageable, i == k && lack.bytes > 0);
            }
            plan_free(&p);
        }
}

static void test_setup__strategies_that_cannot_be_are_refused_by_name(void **state) {
    (void)state;
    static const char *const bad[] = {
        "",         "fully",     "hybrid",    "hybrid:",           "hybrid:5",
        "hybrid:0", "hybrid:-2", "hybrid:2x", "hybrid_grad_op:24", "hybrid:99999999999999999999"
    };
    tess__setup s = { .nranks = 12 };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(tess__setup_strategy(&s, bad[i]), TESS_E_INVALID);
        assert_non_null(strstr(tess_last_error(), "TESSERA_STRATEGY="));
        assert_non_null(strstr(tess_last_error(), bad[i]));
    }
    assert_int_equal(tess__setup_strategy(&s, "hybrid_grad_op:6"), TESS_OK);
    assert_true(s.keep_forward && s.shard_ranks == 6 && s.replicas == 2);
}

/* ---- how an optimizer plugin steps ---- */

static tess_grain grain;
static int row_states;  /* one of each element, and one of each row */
static int small_apart; /* parameters of less than 200 elements have one fp32 state of each element */
static tess_status describe(void *ctx, const tess_param_view *p, uint32_t flags, tess_grain *out, tess_error *e) {
    (void)ctx, (void)flags, (void)e;
    *out = grain;
    if (row_states)
        *out =
            (tess_grain){ .grain = TESS_GRAIN_ROW,
                          .n_states = 2,
                          .state = { { TESS_F32, 1, "code" }, { TESS_F32, (uint32_t)p->shape[p->ndim - 1], "most" } } };
    if (small_apart && p->elems < 200)
        *out = (tess_grain){ .grain = TESS_GRAIN_ELEMENT, .n_states = 1, .state = { { TESS_F32, 1, "code" } } };
    return TESS_OK;
}
static tess_optimizer_ops stepping = { .struct_size = sizeof stepping, .describe = describe, .step = no_step };
static const tess_grain blocks = {
    .grain = TESS_GRAIN_BLOCK,
    .block = 256,
    .n_states = 2,
    .state = { { TESS_U8, 1, "code" }, { TESS_F32, 256, "most" } },
};

static tess_status layout_by_plugin(plan *p) {
    p->setup.optimizer = TESS__OPT_PLUGIN;
    p->setup.step = &stepping;
    p->setup.step_name = "odd";
    assert_int_equal(plan_wrap(p, tess__wrap_scopes_open, ""), TESS_OK);
    return tess__layout_build(&p->model, &p->setup, p->unit, p->n_units, &p->layout);
}

static tess_status layout_of(plan *p) {
    plan_init(p, 3);
    plan_scope(p, "a");
    plan_param(p, "a.w", 1000, 0);
    plan_param(p, "a.b", 100, 0);
    plan_param(p, "a.v", 300, 0);
    plan_param(p, "a.frozen", 100, TESS_FROZEN);
    return layout_by_plugin(p);
}

static void test_layout__shards_end_on_an_optimizers_blocks(void **state) {
    (void)state;
    plan p;
    grain = blocks;
    small_apart = 0;
    assert_int_equal(layout_of(&p), TESS_OK);
    const tess__group *g = &p.layout.groups[0], *frozen = &p.layout.groups[1];
    assert_int_equal(p.layout.n_groups, 2);
    assert_int_equal(p.model.params[1].offset, 1024);
    assert_int_equal(p.model.params[2].offset, 1280);
    assert_int_equal(g->shard_elems, 768); /* 1580 on three ranks, in blocks of 256 */
    assert_int_equal(tess__state_bytes(g, 0), 768);
    assert_int_equal(tess__state_bytes(g, 1), 3 * 4);
    assert_int_equal(tess__states_of(g, 256), 256 + 4);
    assert_int_equal(tess__replica_part(g, 1, 2).first, 256);
    assert_int_equal(frozen->shard_elems, 64);
    assert_int_equal(frozen->step.n_states, 0);
    plan_free(&p);
}

/* Rows of 100, 250 and 1000 elements are whole on a rank, and a group each, of which none divides by 64. */
static void test_layout__shards_end_on_an_optimizers_rows(void **state) {
    (void)state;
    static const int64_t wide[] = { 4, 250 };
    static const uint64_t rows[] = { 1000, 100, 250 };
    plan p;
    tess_param_options two = { .struct_size = sizeof two, .dtype = TESS_F32, .name = "a.m", .shape = wide, .ndim = 2 };
    row_states = 1;
    plan_init(&p, 3);
    plan_scope(&p, "a");
    plan_param(&p, "a.w", 1000, 0);
    plan_param(&p, "a.b", 100, 0);
    assert_int_equal(tess__model_add_param(&p.model, &two, NULL), TESS_OK);
    assert_int_equal(layout_by_plugin(&p), TESS_OK);
    row_states = 0;
    assert_int_equal(p.layout.n_groups, 3);
    for (int i = 0; i < 3; i++) {
        const tess__group *g = &p.layout.groups[p.model.params[i].group];
        assert_int_equal(g->pad % rows[i] + g->pad % 64, 0);
        assert_int_equal(g->shard_elems % g->pad, 0);
        assert_int_equal(tess__state_bytes(g, 0), g->shard_elems * 4);
        assert_int_equal(tess__state_bytes(g, 1), g->shard_elems / rows[i] * 4);
    }
    assert_int_equal(p.layout.groups[p.model.params[1].group].pad, 1600);
    plan_free(&p);
}

static void test_layout__a_row_longer_than_a_piece_can_be_is_refused(void **state) {
    (void)state;
    for (int64_t more = 0; more < 2; more++) {
        plan p;
        row_states = 1;
        plan_init(&p, 2);
        plan_scope(&p, "a");
        plan_param(&p, "a.w", TESS_ROW_MOST + more, 0);
        assert_int_equal(layout_by_plugin(&p), more ? TESS_E_UNSUPPORTED : TESS_OK);
        assert_true(!more || strstr(tess_last_error(), "has rows of more than 65536 elements"));
        row_states = 0;
        plan_free(&p);
    }
}

static void test_layout__parameters_stepped_otherwise_are_a_group(void **state) {
    (void)state;
    plan p;
    grain = blocks;
    small_apart = 1;
    assert_int_equal(layout_of(&p), TESS_OK);
    assert_int_equal(p.layout.n_groups, 3);
    assert_int_equal(p.layout.n_states, 2);
    assert_int_equal(p.model.params[0].group, p.model.params[2].group);
    const tess__group *small = &p.layout.groups[p.model.params[1].group];
    assert_int_equal(small->shard_elems, 64);
    assert_int_equal(tess__state_bytes(small, 0), 256);
    plan_free(&p);
}

static void step_refused(const char *text) {
    plan p;
    assert_int_equal(layout_of(&p), TESS_E_UNSUPPORTED);
    if (!strstr(tess_last_error(), text))
        fail_msg("'%s' has no '%s'", tess_last_error(), text);
    plan_free(&p);
    grain = blocks;
}

static void test_layout__what_no_step_can_be_is_refused(void **state) {
    (void)state;
    small_apart = 0;
    grain = blocks, grain.grain = 0, step_refused("parameter \"a.w\": optimizer odd states no grain that is known");
    grain.block = 0, step_refused("a block that is no power of two");
    grain.block = 192, step_refused("a block that is no power of two");
    grain.block = 2 * TESS_BLOCK_MOST, step_refused("a block that is no power of two");
    grain.grain = TESS_GRAIN_ELEMENT, step_refused("or one beside another grain");
    grain.n_states = 5, step_refused("more than 4 states");
    grain.state[0].dtype = 99, step_refused("without a known dtype");
    grain.state[1].every = 128, step_refused("another `every` than 1 and its block or row");
    grain.state[0].name[0] = 0, step_refused("a name of [a-z0-9_]");
    grain.kernel = 9, step_refused("a kernel that no device has");
    grain.kernel = TESS_OPT_ADAMW, step_refused("other states than the kernel's"); /* a byte, and one for a block */
    grain.kernel = TESS_OPT_ADAMW, grain.n_states = 0, step_refused("other states than the kernel's");
    grain.kernel = TESS_OPT_SGD, grain.n_states = 1, grain.state[0].dtype = TESS_F32;
    step_refused("other states than the kernel's"); /* the program has no momentum */
    stepping.step = NULL, step_refused("has no step, and names no kernel"), stepping.step = no_step;
    grain = (tess_grain){ .grain = TESS_GRAIN_ROW, .n_states = 1, .state = { { TESS_F32, 999, "most" } } };
    step_refused("another `every` than 1 and its block or row");
    grain.grain = TESS_GRAIN_ROW, grain.n_states = 0, grain.block = 64, step_refused("or one beside another grain");
    grain = (tess_grain){ .grain = TESS_GRAIN_MATRIX,
                          .n_states = 1,
                          .state = { { TESS_F32, 100, "most" } },
                          .rows = 10,
                          .cols = 100,
                          .whole = 1 };
    step_refused("in `whole` a state that it does not have, or one that is not fp32 for each element");
    small_apart = 1;
    snprintf(grain.state[0].name, sizeof grain.state[0].name, "other"), step_refused("another state than for");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout__offsets_and_shards_are_multiples_of_64),
        cmocka_unit_test(test_layout__shards_end_on_an_optimizers_blocks),
        cmocka_unit_test(test_layout__shards_end_on_an_optimizers_rows),
        cmocka_unit_test(test_layout__a_row_longer_than_a_piece_can_be_is_refused),
        cmocka_unit_test(test_layout__parameters_stepped_otherwise_are_a_group),
        cmocka_unit_test(test_layout__what_no_step_can_be_is_refused),
        cmocka_unit_test(test_layout__pieces_hold_every_element_once),
        cmocka_unit_test(test_layout__only_a_whole_shard_is_read_in_place),
        cmocka_unit_test(test_layout__aliases_share_and_buffers_lie_outside),
        cmocka_unit_test(test_layout__a_unit_is_named_by_what_its_scopes_share),
        cmocka_unit_test(test_layout__compute_dtypes_outside_the_programs_are_refused),
        cmocka_unit_test(test_layout__formats_of_its_own_are_refused),
        cmocka_unit_test(test_layout__a_place_that_is_none_is_refused),
        cmocka_unit_test(test_layout__a_store_that_cannot_be_is_refused),
        cmocka_unit_test(test_layout__what_belongs_together_rests_together),
        cmocka_unit_test(test_layout__a_store_takes_what_comes_back_to_host_memory),
        cmocka_unit_test(test_layout__what_is_not_wholly_locked_in_memory_is_pageable),
        cmocka_unit_test(test_setup__strategies_that_cannot_be_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
