/* SPDX-License-Identifier: BSD-3-Clause */
/* Layouts of models, dtypes, steps and places that are drawn by chance, against a reckoning from the declarations. It
 * says who shares a group, where each parameter lies, which questions the offload plugin gets, and what its answers
 * come to. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/hash.h"
#include "kit/norm_limbs.h"
#include "core/layout/dtypes.h"
#include "core/layout/matrices.h"
#include "tests/unit/drawn.h"
#include "tests/unit/no_steps.h"
#include "tests/unit/plan_fixture.h"

enum { PARAMS = 14, UNITS = 3, BLOCKS = 5, CHOICES = 5, MOST_REGIONS = 160 };

static int fails_at; /* which of the next allocations fails, from 1; 0: none */
static void *take_memory(size_t n, size_t size) {
    return fails_at && --fails_at == 0 ? NULL : calloc(n, size);
}
static char *copy_text(const char *text, size_t n) {
    return fails_at && --fails_at == 0 ? NULL : strndup(text, n);
}
#define calloc(n, size) take_memory(n, size)
#define strdup(text) copy_text(text, strlen(text))
#define strndup(text, n) copy_text(text, n)
#include "core/layout/layout.c"
#undef calloc

/* ---- plugins; a parameter's name says what each does with it: SCOPE.STEP CHOICE NUMBER ---- */

static const tess_precision_choice choices[CHOICES] = {
    { .master = TESS_F32,
      .compute = TESS_F32,
      .gather = TESS_F32,
      .grad_local = TESS_F32,
      .grad_wire = TESS_F32,
      .accumulate = TESS_F32 },
    { .master = TESS_F32,
      .compute = TESS_BF16,
      .gather = TESS_BF16,
      .grad_local = TESS_F32,
      .grad_wire = TESS_BF16,
      .accumulate = TESS_F32 },
    { .master = TESS_F32,
      .compute = TESS_BF16,
      .gather = TESS_Q8,
      .grad_local = TESS_F32,
      .grad_wire = TESS_F32,
      .accumulate = TESS_F32,
      .rounding = TESS_ROUND_STOCHASTIC },
    { .master = TESS_F32,
      .compute = TESS_F32,
      .gather = TESS_F32,
      .grad_local = TESS_F32,
      .grad_wire = TESS_Q8,
      .accumulate = TESS_F32 },
    { .master = TESS_F64,
      .compute = TESS_F64,
      .gather = TESS_F64,
      .grad_local = TESS_F64,
      .grad_wire = TESS_F64,
      .accumulate = TESS_F64,
      .rounding = TESS_ROUND_STOCHASTIC /* of nothing */ },
};

static char letter(const char *name, int k) {
    return strrchr(name, '.')[1 + k];
}
static const tess_precision_choice *choice_of(const char *name) {
    return &choices[letter(name, 1) - '0'];
}
static tess_status choose(void *ctx, const tess_param_view *v, tess_precision_choice *out, tess_error *e) {
    (void)ctx, (void)e;
    tess_precision_choice c = *choice_of(v->name);
    c.struct_size = out->struct_size;
    *out = c;
    return TESS_OK;
}
static const tess_precision_ops by_name = { .struct_size = sizeof by_name, .choose = choose };

/* e: elements; b: blocks of 256; r: rows, of all elements; m: matrices of eight rows, two of them. */
static tess_status describe(void *ctx, const tess_param_view *v, uint32_t flags, tess_grain *out, tess_error *e) {
    (void)ctx, (void)flags, (void)e;
    const uint32_t all = (uint32_t)v->elems;
    tess_grain g = { .grain = TESS_GRAIN_ELEMENT,
                     .n_states = 2,
                     .state = { { TESS_F32, 1, "m" }, { TESS_F32, 1, "v" } } };
    switch (letter(v->name, 0)) {
    case 'b':
        g = (tess_grain){ .grain = TESS_GRAIN_BLOCK,
                          .block = 256,
                          .n_states = 2,
                          .state = { { TESS_U8, 1, "m" }, { TESS_F32, 256, "v" } } };
        break;
    case 'r':
        g = (tess_grain){ .grain = TESS_GRAIN_ROW,
                          .n_states = 2,
                          .state = { { TESS_F32, 1, "m" }, { TESS_F32, all, "v" } } };
        break;
    case 'm':
        g = (tess_grain){ .grain = TESS_GRAIN_MATRIX,
                          .n_states = 1,
                          .state = { { TESS_F32, 1, "m" } },
                          .rows = 8,
                          .cols = v->elems / 16,
                          .scratch_bytes = 4 * v->elems };
    }
    g.struct_size = out->struct_size;
    *out = g;
    return TESS_OK;
}
static const tess_optimizer_ops stepping = {
    .struct_size = sizeof stepping, .describe = describe, .step = no_step, .matrix = no_matrix
};

static struct {
    tess_region asked[MOST_REGIONS];
    tess_placement answer[MOST_REGIONS];
    uint32_t n, rest[UNITS * CHOICES * 4][4]; /* by group and kind of region */
    int whole;                                /* all is locked in memory */
} place;
static unsigned chance;
#define drawn(below) drawn32(&chance, below)

static tess_status answer(void *ctx, const tess_plan_env *env, const tess_region *r, uint32_t n, tess_placement *out,
                          tess_error *e) {
    (void)ctx, (void)env, (void)e;
    assert_true(n <= MOST_REGIONS);
    place.n = n;
    memcpy(place.asked, r, n * sizeof *r);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(out[i].struct_size, sizeof *out);
        out[i].rest = r[i].group < 0 ? TESS_REST_HOST : place.rest[r[i].group][r[i].region - 1];
        out[i].host_bytes = 1000 + i;
        out[i].pinned_bytes = r[i].bytes - (place.whole || drawn(4) ? 0 : 1);
        out[i].align = 64u << drawn(8);
    }
    memcpy(place.answer, out, n * sizeof *out);
    return TESS_OK;
}
static const tess_offload_ops by_draw = { .struct_size = sizeof by_draw, .place = answer };
static const tess_offload_ops with_store = { .struct_size = sizeof with_store,
                                             .place = answer,
                                             .store_close = close_store };

static tess_status any_kernel(void *ctx, const tess_kernel *k, tess_need *out) {
    (void)ctx, (void)k, (void)out;
    return TESS_OK;
}
static const tess_device_ops on_host = { .struct_size = sizeof on_host, .kernel_need = any_kernel };
static const tess_device_ops with_streams = { .struct_size = sizeof with_streams,
                                              .kernel_need = any_kernel,
                                              .stream_create = no_stream };

/* ---- a run ---- */

static void draw_setup(plan *p, int streams) {
    static const int32_t ranks[] = { 1, 2, 3, 4, 6, 8 };
    tess__setup *s = &p->setup;
    plan_init(p, ranks[drawn(6)]);
    s->shard_ranks = s->nranks % 2 || drawn(2) ? s->nranks : drawn(2) ? s->nranks / 2 : 1;
    s->replicas = s->nranks / s->shard_ranks;
    s->accum = drawn(2) ? 1 : 1 + (int32_t)drawn(9);
    s->sync_each = (int)drawn(2), s->deterministic = (int)drawn(2);
    s->step_in_pass = (int)drawn(4) > 0, s->no_clip = (int)drawn(3) > 0;
    s->low_copy = (int)drawn(2), s->late = (int)drawn(2);
    s->activations = drawn(2)   ? TESS__ACTIVATIONS_OFFLOAD
                     : drawn(2) ? TESS__ACTIVATIONS_SELECTIVE
                                : TESS__ACTIVATIONS_KEEP;
    s->input_bytes = 40;
    s->align = 64u << drawn(3);
    s->precision = &by_name;
    s->offload = streams ? &by_draw : &with_store, s->offload_name = "mine", s->offload_ctx = NULL;
    s->device = streams ? &with_streams : &on_host;
    s->env.mem = streams ? TESS_MEM_CUDA : TESS_MEM_HOST;
    int step = (int)drawn(streams ? 2 : 4);
    s->optimizer = step > 1 ? TESS__OPT_PLUGIN : step ? TESS_OPT_ADAMW : 0;
    s->n_states = step == 1 ? 2 : 0;
    s->step = step > 1 ? &stepping : NULL, s->step_name = "mine";
    for (size_t i = 0; i < sizeof place.rest / sizeof place.rest[0]; i++)
        for (int k = 0; k < 4; k++)
            place.rest[i][k] = 1 + drawn(streams ? 2 : 3);
    for (size_t i = 0; drawn(2) && i < sizeof place.rest / sizeof place.rest[0]; i++)
        memset(place.rest[i], 0, sizeof place.rest[i]), place.rest[i][0] = place.rest[i][1] = place.rest[i][2] = 1;
    place.whole = (int)drawn(2);
}

static void draw_model(plan *p) {
    static const char *const scopes[BLOCKS] = { "a", "a.b", "c", "d", "d.e" };
    const int blocks = drawn(4) ? 1 + (int)drawn(BLOCKS) : 0;
    for (int k = 0; k < BLOCKS; k++) {
        tess_block_options o = { .struct_size = sizeof o,
                                 .flags = (drawn(4) ? 0 : TESS_BLOCK_KEEP) | (drawn(3) ? TESS_BLOCK_GRAD_IN_PLACE : 0),
                                 .name = scopes[k],
                                 .output_bytes = 100 + (drawn(4) ? 0 : drawn(1000)),
                                 .saved_bytes = drawn(1000),
                                 .selective_saved_bytes = drawn(3) ? 10 : 0,
                                 .forward = no_block,
                                 .backward = no_block };
        if (k < blocks)
            assert_int_equal(tess__model_add_block(&p->model, &o, NULL), TESS_OK);
        else
            plan_scope(p, scopes[k]);
    }
    for (int i = 0; i < PARAMS; i++) {
        char name[16];
        const uint32_t frozen = drawn(4) == 0 ? TESS_FROZEN : 0, flags = i % 7 == 6 ? TESS_BUFFER : frozen;
        const int choice = (int)drawn(flags == TESS_FROZEN || !p->setup.step ? CHOICES : CHOICES - 1);
        const int64_t pads = 1 + (int64_t)drawn(20);
        const int64_t elems = (const int64_t[]){ 16 * pads, 16 * pads, 64 * pads + 1, 70 * pads - 1, 70000 }[drawn(5)];
        const unsigned steps = elems % 16 ? 3 : 4; /* no matrix */
        snprintf(name, sizeof name, "%s.%c%d%d", scopes[drawn(BLOCKS)], "ebrm"[drawn(elems == 70000 ? 2 : steps)],
                 choice, i);
        tess_param_options o = { .struct_size = sizeof o,
                                 .dtype = choice == 4 ? TESS_F64 : TESS_F32,
                                 .flags = flags,
                                 .compute_dtypes = 1u << TESS_F32 | 1u << TESS_BF16 | 1u << TESS_F64,
                                 .name = name,
                                 .shape = &elems,
                                 .ndim = 1 };
        assert_int_equal(tess__model_add_param(&p->model, &o, NULL), TESS_OK);
        p->unit[i] = flags & TESS_BUFFER ? -1 : (int32_t)drawn(UNITS);
        p->unit[i] = i < UNITS ? i : p->unit[i]; /* no unit is empty */
    }
    assert_int_equal(tess__model_tie(&p->model, "c.tied", p->model.params[drawn(2)].name), TESS_OK);
    p->unit[PARAMS] = p->unit[p->model.params[PARAMS].tied_to];
    assert_int_equal(tess__model_finish(&p->model), TESS_OK);
    p->n_units = UNITS;
}

static tess_status build(plan *p) {
    return tess__layout_build(&p->model, &p->setup, p->unit, p->n_units, &p->layout);
}

/* ---- the reckoning ---- */

static int is_blocks(uint32_t dtype) {
    return dtype == TESS_Q8;
}

/* All by which parameters of a unit are told apart, as a text. */
static void kin_of(const plan *p, int32_t i, char *out) {
    const tess__param *x = &p->model.params[i];
    const tess_precision_choice *c = choice_of(x->name);
    const int frozen = (x->flags & TESS_FROZEN) != 0,
              draws = c->rounding && (is_blocks(c->gather) || is_blocks(c->grad_wire));
    out += sprintf(out, "unit %d frozen %d: %u %u %u %d", p->unit[i], frozen, c->master, c->compute, c->gather, draws);
    if (!frozen)
        out += sprintf(out, ", %u %u", c->grad_local, c->grad_wire);
    if (!frozen && p->setup.step)
        sprintf(out, ", %c %d", letter(x->name, 0), letter(x->name, 0) == 'r' ? (int)x->elems : 0);
}

static int has_place(const plan *p, int32_t i) {
    return p->model.params[i].tied_to == i && p->unit[i] >= 0;
}

/* The least multiple of both. */
static uint64_t pad_for(const plan *p, int32_t i) {
    const tess__param *x = &p->model.params[i];
    const tess_precision_choice *c = choice_of(x->name);
    const int frozen = (x->flags & TESS_FROZEN) != 0;
    const uint64_t least = is_blocks(c->gather) || (!frozen && is_blocks(c->grad_wire)) ? TESS_Q8_BLOCK : 64;
    uint64_t pad = least, grain = frozen || !p->setup.step    ? 1
                                  : letter(x->name, 0) == 'b' ? 256
                                  : letter(x->name, 0) == 'r' ? x->elems
                                                              : 1;
    while (pad % grain)
        pad += least;
    return pad;
}

typedef struct {
    int32_t first[PARAMS], n; /* the first parameter of each group, in the groups' order */
    int32_t group[PARAMS];    /* by parameter */
} kinship;

static kinship group_params(const plan *p) {
    kinship k = { .n = 0 };
    char own[128], other[128];
    for (int32_t u = 0; u < UNITS; u++)
        for (int32_t i = 0; i < PARAMS; i++) {
            if (!has_place(p, i) || p->unit[i] != u)
                continue;
            k.group[i] = -1;
            kin_of(p, i, own);
            for (int32_t g = 0; g < k.n && k.group[i] < 0; g++) {
                kin_of(p, k.first[g], other);
                k.group[i] = strcmp(own, other) == 0 ? g : -1;
            }
            if (k.group[i] < 0)
                k.first[k.group[i] = k.n++] = i;
        }
    return k;
}

static uint64_t up(uint64_t n, uint64_t to) {
    while (n % to)
        n++;
    return n;
}

static void check_params(const plan *p, const kinship *k) {
    const tess__layout *l = &p->layout;
    uint64_t elems = 0, largest = 0, buffers = 0;
    int32_t listed = 0;
    for (int32_t g = 0; g < k->n; g++) {
        const tess__group *x = &l->groups[g];
        uint64_t used = 0;
        assert_int_equal(x->first_param, listed);
        for (int32_t i = 0; i < PARAMS; i++) {
            const tess__param *of = &p->model.params[i];
            if (!has_place(p, i) || k->group[i] != g)
                continue;
            assert_true(of->group == g && of->unit == p->unit[i] && l->order[listed++] == i);
            assert_int_equal(of->offset, up(used, pad_for(p, i)));
            used = of->offset + of->elems;
            elems += of->elems;
            largest = of->elems > largest ? of->elems : largest;
        }
        assert_true(x->n_params == listed - x->first_param && x->used_elems == used);
        assert_int_equal(x->pad, pad_for(p, k->first[g]));
        assert_int_equal(x->shard_elems % x->pad, 0);
        assert_int_equal(x->flat_elems, x->shard_elems * (uint64_t)p->setup.shard_ranks);
        assert_true(x->flat_elems >= used && (x->shard_elems - x->pad) * (uint64_t)p->setup.shard_ranks < used);
    }
    for (int32_t i = 6; i < PARAMS; i += 7) {
        const tess__param *of = &p->model.params[i];
        assert_true(of->unit == -1 && of->group == -1 && of->offset == buffers);
        buffers += up(of->elems * (of->dtype == TESS_F64 ? 8 : 4), p->setup.align);
    }
    const tess__param *tied = &p->model.params[PARAMS], *to = &p->model.params[tied->tied_to];
    assert_true(tied->unit == to->unit && tied->group == to->group && tied->offset == to->offset);
    assert_true(l->n_order == listed && l->param_elems == elems && l->buffer_bytes == buffers);
    assert_int_equal(l->chunk_elems, largest < 65536 ? largest : 65536);
}

static void check_units(const plan *p, const kinship *k) {
    const tess__layout *l = &p->layout;
    int32_t first = 0;
    assert_true(l->n_units == UNITS && l->n_groups == k->n);
    for (int32_t u = 0; u < UNITS; u++) {
        int trainable = 0;
        assert_int_equal(l->units[u].first_group, first);
        for (int32_t g = first; g < k->n && l->groups[g].unit == u; g++, first++)
            trainable |= l->groups[g].trainable;
        assert_true(l->units[u].n_groups == first - l->units[u].first_group && l->units[u].trainable == trainable);
    }
    assert_int_equal(first, k->n);
}

static int has_blocks(const plan *p) {
    return p->model.n_blocks > 0;
}

/* Where a kind of a group's regions rests, by the answers. */
static void check_rest(int32_t g, uint32_t region, const tess__rest *rest, int passes_by) {
    int pageable = 0, any = 0;
    const uint32_t at = place.rest[g][region - 1];
    for (uint32_t i = 0; i < place.n; i++)
        if (place.asked[i].group == g && place.asked[i].region == region) {
            pageable |= at == TESS_REST_HOST && place.answer[i].pinned_bytes < place.asked[i].bytes;
            any = 1;
        }
    const int stored = any && at == TESS_REST_STORE && !passes_by;
    assert_int_equal(rest->domain, any && at != TESS_REST_DEVICE && !passes_by ? TESS_DOMAIN_HOST : TESS_DOMAIN_DEVICE);
    assert_int_equal(rest->stored, stored);
    assert_int_equal(rest->pageable, pageable);
}

static void expect_region(uint32_t *at, const tess__group *x, int32_t g, uint32_t region, uint32_t index,
                          uint32_t dtype, uint64_t every) {
    const tess_region *r = &place.asked[(*at)++];
    const uint64_t elems = (x->shard_elems + every - 1) / every;
    assert_true(r->struct_size == sizeof *r && r->region == region && r->index == index && r->dtype == dtype);
    assert_true(r->unit == x->unit && r->group == g && r->elems == elems &&
                r->bytes == elems * tess_dtype_bytes(dtype));
}

/* In this order; sums of microbatches lie in a counter of as many levels as it has bits. */
static void check_regions(const plan *p, const kinship *k) {
    const tess__setup *s = &p->setup;
    uint32_t at = 0, levels = 1;
    for (int32_t n = s->accum; s->sync_each && s->deterministic && n > 1; n /= 2)
        levels++;
    for (int32_t g = 0; g < k->n; g++) {
        const tess__group *x = &p->layout.groups[g];
        const tess_precision_choice *c = choice_of(p->model.params[k->first[g]].name);
        expect_region(&at, x, g, TESS_REGION_MASTER, 0, c->master, 1);
        if (s->low_copy && x->trainable && c->master == TESS_F32 && c->gather == TESS_BF16)
            expect_region(&at, x, g, TESS_REGION_MASTER, 1, TESS_BF16, 1);
        for (uint32_t i = 0; x->trainable && i < levels; i++)
            expect_region(&at, x, g, TESS_REGION_GRAD, i, TESS_F32, 1);
        for (uint32_t i = 0; i < x->step.n_states; i++)
            expect_region(&at, x, g, TESS_REGION_STATE, i, x->step.state[i].dtype, x->step.state[i].every);
    }
    uint64_t bytes = 0;
    for (int32_t b = 0; s->activations == TESS__ACTIVATIONS_OFFLOAD && b < p->model.n_blocks; b++) {
        const tess_block_options *o = &p->model.blocks[b].options;
        bytes += b < p->model.n_blocks - 3 ? up(o->output_bytes, s->align) : 0;
        bytes += b < p->model.n_blocks - 2 && !(o->flags & TESS_BLOCK_KEEP) ? up(o->saved_bytes, s->align) : 0;
    }
    if (bytes) {
        const tess_region *r = &place.asked[at++];
        assert_true(r->struct_size == sizeof *r && r->region == TESS_REGION_ACTIVATION && r->index == 0);
        assert_true(r->unit == -1 && r->group == -1 && r->elems == bytes && r->bytes == bytes && r->dtype == TESS_U8);
        const tess__rest *rest = &p->layout.activation_rest;
        assert_true(rest->domain == TESS_DOMAIN_HOST && !rest->stored);
        assert_int_equal(rest->pageable, place.answer[at - 1].pinned_bytes < bytes);
    }
    assert_int_equal(at, place.n);
}

static void check_places(const plan *p, const kinship *k) {
    const int by_unit =
        p->setup.no_clip && p->setup.step_in_pass && has_blocks(p) && p->setup.accum == 1 && p->setup.optimizer;
    uint64_t bytes = 0, align = 0;
    for (uint32_t i = 0; i < place.n; i++) {
        const tess_region *r = &place.asked[i];
        if (r->group < 0 || place.rest[r->group][r->region - 1] != TESS_REST_STORE)
            continue;
        const int stays = !(r->region == TESS_REGION_GRAD && by_unit); /* else its step follows at once */
        if (r->region == TESS_REGION_MASTER && r->index)
            continue; /* no copy rests: a shard is cast as it comes */
        bytes += place.answer[i].host_bytes;
        align = stays && place.answer[i].align > align ? place.answer[i].align : align;
    }
    assert_int_equal(p->layout.store_align, align ? up(align, p->setup.align) : 0);
    assert_int_equal(p->layout.store_bytes, align ? bytes : 0);
    for (int32_t g = 0; g < k->n; g++) {
        const tess__group *x = &p->layout.groups[g];
        check_rest(g, TESS_REGION_MASTER, &x->param_rest, 0);
        check_rest(g, TESS_REGION_GRAD, &x->grad_rest, by_unit && place.rest[g][1] == TESS_REST_STORE);
        check_rest(g, TESS_REGION_STATE, &x->state_rest, 0);
    }
}

/* Which of the ways around a gather, a cast or a sum a group may take. */
static void check_ways(const plan *p, const kinship *k) {
    const tess__setup *s = &p->setup;
    for (int32_t g = 0; g < k->n; g++) {
        const tess__group *x = &p->layout.groups[g];
        const tess_precision_choice *c = choice_of(p->model.params[k->first[g]].name);
        const int copy = s->low_copy && x->trainable && c == &choices[1] && place.rest[g][0] != TESS_REST_STORE;
        const int on_device = x->param_rest.domain == TESS_DOMAIN_DEVICE, alone = s->shard_ranks == 1;
        const int leaf = x->trainable && s->nranks == 1 && c == &choices[1] && on_device &&
                         s->env.mem == TESS_MEM_HOST && x->grad_rest.domain == TESS_DOMAIN_DEVICE &&
                         x->state_rest.domain == TESS_DOMAIN_DEVICE && has_blocks(p) && s->step_in_pass &&
                         s->accum == 1 && s->optimizer;
        assert_int_equal(x->low_copy, copy);
        assert_int_equal(x->grad_shard, leaf ? TESS_BF16 : TESS_F32);
        assert_int_equal(x->in_place,
                         alone && on_device && (c == &choices[0] || c == &choices[3] || c == &choices[4] || copy));
        assert_int_equal(x->grad_in_place, x->trainable && alone && s->accum == 1 &&
                                               (c == &choices[0] || c == &choices[2]) &&
                                               x->grad_rest.domain == TESS_DOMAIN_DEVICE);
        assert_true(x->master == c->master && x->compute == c->compute && x->gather == c->gather);
        assert_true(x->grad_local == c->grad_local && x->grad_wire == c->grad_wire);
        assert_int_equal(x->draws, c == &choices[2]);
        assert_int_equal(tess__shard_grad_bytes(x), x->shard_elems * (leaf ? 2 : 4));
        assert_int_equal(x->n_matrices > 0, tess__steps_matrices(x));
    }
}

static void check_results(const plan *p) {
    const tess__setup *s = &p->setup;
    const tess__layout *l = &p->layout;
    const int streams = s->env.mem == TESS_MEM_CUDA, late = streams && s->late && has_blocks(p);
    assert_int_equal(l->passes, late ? 2 : 1);
    assert_int_equal(l->batch_bytes, late ? 40 : 0);
    assert_int_equal(l->values_bytes, late && s->nranks > 1 ? 64 : 0);
    assert_int_equal(l->prepared_bytes, 0); /* no device here records */
    assert_int_equal(l->result_bytes,
                     streams && has_blocks(p) ? p->model.blocks[p->model.n_blocks - 1].options.output_bytes : 0);
    assert_int_equal(l->norm_result_bytes, streams && s->optimizer ? 8 * (TESS__NORM_LIMBS + 1) : 0);
    assert_int_equal(l->n_states, s->optimizer ? 2 : 0);
}

/* Whether a block's backward takes the room of its output's gradient for that of its input. */
static int takes_room(const tess__model *m, int32_t b) {
    return b >= 1 && b <= m->n_blocks - 2 && (m->blocks[b].options.flags & TESS_BLOCK_GRAD_IN_PLACE) &&
           m->blocks[b].options.output_bytes == m->blocks[b - 1].options.output_bytes;
}

static void check_blocks(const plan *p) {
    for (int32_t b = 0; b < p->model.n_blocks; b++) {
        const tess_block_options *o = &p->model.blocks[b].options;
        const int last = b == p->model.n_blocks - 1, selects = p->setup.activations == TESS__ACTIVATIONS_SELECTIVE;
        int32_t place = b;
        assert_int_equal(tess__saves_selectively(&p->model, &p->setup, b),
                         selects && !last && o->selective_saved_bytes == 10 && !(o->flags & TESS_BLOCK_KEEP));
        while (takes_room(&p->model, place + 1))
            place++;
        assert_int_equal(tess__grad_in_place(&p->model, b), takes_room(&p->model, b));
        assert_int_equal(tess__grad_place(&p->model, b), place);
    }
}

static void check_states(const plan *p) {
    for (int32_t g = 0; g < p->layout.n_groups; g++) {
        const tess__group *x = &p->layout.groups[g];
        uint64_t all = 0;
        for (uint32_t k = 0; k < x->step.n_states; k++) {
            const uint64_t every = x->step.state[k].every, bytes = x->step.state[k].dtype == TESS_U8 ? 1 : 4;
            assert_int_equal(tess__state_bytes(x, (int32_t)k), (x->shard_elems + every - 1) / every * bytes);
            all += (3 * x->pad + every - 1) / every * bytes;
        }
        assert_int_equal(tess__states_of(x, 3 * x->pad), all);
    }
}

static void test_layout_drawn__is_as_the_declarations_say(void **state) {
    (void)state;
    for (unsigned seed = 0; seed < 400; seed++) {
        plan p;
        chance = seed * 2654435761u + 7;
        draw_setup(&p, seed % 4 == 0);
        draw_model(&p);
        tess_status s = build(&p);
        if (s)
            fail_msg("%u: %s", seed, tess_last_error());
        const kinship k = group_params(&p);
        check_units(&p, &k);
        check_params(&p, &k);
        check_regions(&p, &k);
        check_places(&p, &k);
        check_ways(&p, &k);
        check_results(&p);
        check_blocks(&p);
        check_states(&p);
        plan_free(&p);
    }
}

/* ---- a device that has its own memory ---- */

static int opens, records;
static tess_status open_step(void *ctx, uint32_t mem, const tess_stream *stream, void **out, tess_error *e) {
    assert_true(!ctx && mem == TESS_MEM_CUDA && !stream && !out && e->struct_size == sizeof *e);
    return opens ? TESS_OK : TESS_E_UNSUPPORTED;
}
static void close_step(void *x) {
    (void)x;
}
static tess_status query(void *ctx, tess_comm *c, tess_comm_caps *out) {
    assert_true(!ctx && !c && out->struct_size == sizeof *out);
    out->caps = records ? TESS_COMM_RECORDS : 0;
    return TESS_OK;
}
static tess_status begin_record(tess_device *d, const tess_stream *s, tess_error *e) {
    (void)d, (void)s, (void)e;
    return TESS_OK;
}
static tess_status prepare(void *ctx, const tess_optimizer *o, void *out) {
    (void)ctx, (void)o, (void)out;
    return TESS_OK;
}

static void begin_far(plan *p, const char *name, int32_t ranks) {
    static const int64_t elems = 160;
    tess_param_options o = { .struct_size = sizeof o, .dtype = TESS_F32, .name = name, .shape = &elems, .ndim = 1 };
    tess_block_options b = { .struct_size = sizeof b, .name = "a", .forward = no_block, .backward = no_block };
    plan_init(p, ranks);
    assert_int_equal(tess__model_add_block(&p->model, &b, NULL), TESS_OK);
    assert_int_equal(tess__model_add_param(&p->model, &o, NULL), TESS_OK);
    assert_int_equal(tess__model_finish(&p->model), TESS_OK);
    p->n_units = 1, p->unit[0] = 0;
    p->setup.precision = &by_name, p->setup.offload = &by_draw, p->setup.offload_ctx = NULL;
    p->setup.device = &with_streams, p->setup.env.mem = TESS_MEM_CUDA;
    for (int k = 0; k < 4; k++)
        place.rest[0][k] = TESS_REST_DEVICE;
}

/* An optimizer's own step reaches the host's memory, and a device's where it says so; of matrices that never. */
static void test_layout_drawn__a_step_reaches_what_it_steps(void **state) {
    (void)state;
    tess_optimizer_ops ops = stepping;
    ops.device_open = open_step;
    for (int way = 0; way < 128; way++) {
        plan p;
        const int can_open = way >> 3 & 1, is_matrix = way >> 4 & 1, near = way >> 5 & 1, by_kernel = way >> 6 & 1;
        begin_far(&p, is_matrix ? "a.m00" : "a.e00", 2);
        for (int k = 0; k < 3; k++)
            place.rest[0][k] = way >> k & 1 ? TESS_REST_HOST : TESS_REST_DEVICE;
        p.setup.env.mem = near ? TESS_MEM_HOST : TESS_MEM_CUDA;
        p.setup.optimizer = by_kernel ? TESS_OPT_ADAMW : TESS__OPT_PLUGIN, p.setup.n_states = by_kernel ? 2 : 0;
        p.setup.step = by_kernel ? NULL : &ops, p.setup.step_name = "mine";
        opens = can_open;
        ops.device_close = can_open ? close_step : NULL;
        const int refused = !near && !by_kernel && (is_matrix || ((way & 7) != 7 && !can_open));
        assert_int_equal(build(&p), refused ? TESS_E_UNSUPPORTED : TESS_OK);
        if (refused)
            assert_string_equal(tess_last_error(),
                                is_matrix ? "optimizer mine steps whole matrices in host memory, which the collectives "
                                            "of this device do not reach: TESSERA_DEVICE=cpu"
                                          : "optimizer mine steps in host memory, and unit a does not rest there: "
                                            "TESSERA_OFFLOAD=cpu");
        plan_free(&p);
    }
    plan p;
    begin_far(&p, "a.e00", 2);
    p.setup.optimizer = TESS__OPT_PLUGIN, p.setup.step = &ops, p.setup.step_name = "mine";
    opens = 0, ops.device_close = close_step; /* it has one, and not for this memory */
    assert_int_equal(build(&p), TESS_E_UNSUPPORTED);
    plan_free(&p);
}

/* Numbers of a step are prepared for one that was recorded, for which device and comm have to record. */
static void test_layout_drawn__numbers_are_prepared_for_a_recorded_step(void **state) {
    (void)state;
    tess_device_ops device = with_streams;
    tess_comm_ops comm = plan_comm;
    comm.query = query;
    for (int way = 0; way < 128; way++) {
        plan p;
        begin_far(&p, "a.e00", way & 1 ? 2 : 1);
        device.record_begin = way & 2 ? begin_record : NULL;
        device.optimizer_prepare = way & 2 ? prepare : NULL;
        p.setup.device = &device, p.setup.comm = &comm, p.setup.comm_ctx = NULL;
        records = way >> 2 & 1;
        p.setup.late = way >> 3 & 1, p.setup.repeats = way >> 4 & 1, p.setup.graphs = way >> 5 & 1;
        p.setup.optimizer = way & 64 ? TESS_OPT_ADAMW : 0, p.setup.n_states = way & 64 ? 2 : 0;
        const int all = (way & (2 | 8 | 16 | 32 | 64)) == (2 | 8 | 16 | 32 | 64) && (records || !(way & 1));
        assert_int_equal(build(&p), TESS_OK);
        assert_int_equal(p.layout.prepared_bytes, all ? TESS_PREPARED_BYTES : 0);
        plan_free(&p);
    }
}

static void test_layout_drawn__without_memory_nothing_stays(void **state) {
    (void)state;
    plan p;
    int failed = 0;
    for (int n = 1;; n++, failed++) {
        chance = 99;
        draw_setup(&p, 0);
        draw_model(&p);
        fails_at = n;
        tess_status s = build(&p);
        fails_at = 0;
        if (!s)
            break;
        assert_int_equal(s, TESS_E_NOMEM);
        assert_non_null(strstr(tess_last_error(), "no memory "));
        assert_true(!p.layout.units && !p.layout.groups && !p.layout.order && !p.layout.n_units);
        plan_free(&p);
    }
    plan_free(&p);
    assert_int_equal(failed, 3 + 3 + 1 + UNITS + 2); /* while it sorts, the layout, names in common, names, regions */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout_drawn__is_as_the_declarations_say),
        cmocka_unit_test(test_layout_drawn__a_step_reaches_what_it_steps),
        cmocka_unit_test(test_layout_drawn__numbers_are_prepared_for_a_recorded_step),
        cmocka_unit_test(test_layout_drawn__without_memory_nothing_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
