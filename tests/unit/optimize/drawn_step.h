/* SPDX-License-Identifier: BSD-3-Clause */
/* Layouts drawn by chance, the memory of their ranks, and an optimizer plugin that writes down which elements it gets
 * and checks with whose numbers. After cmocka.h. */
#ifndef TEST_DRAWN_STEP_H
#define TEST_DRAWN_STEP_H
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/crash.h"
#include "core/base/status.h"
#include "core/layout/matrices.h"
#include "core/optimize/parts.h"
#include "tests/unit/drawn.h"

enum { GROUPS = 3, MOST_PARAMS = 6, MOST = GROUPS * MOST_PARAMS, RANKS = 4, PAD = 64, ROOM = 66048, SETTINGS = 3 };
enum { STATES = 4, LONG = 16384 /* of rows that are longer than a piece */ };
enum { BEFORE = 100000 /* of every array: what a wrong sign reaches is there, and wrong */ };

typedef struct { /* of one rank */
    float master[GROUPS][ROOM], grad[GROUPS][ROOM], state[GROUPS][STATES][ROOM];
    float update[GROUPS][STATES + 1][ROOM], parts[GROUPS][STATES + 1][ROOM];
    uint16_t narrow[GROUPS][ROOM], low[GROUPS][ROOM];
    unsigned char rows[GROUPS][ROOM / PAD];
    void *table[TESS__N_ROLES][GROUPS];
    tess__comms comms;
    tess__memory memory;
    tess__step step;
} rank;

static struct {
    tess__plan plan;
    tess__group groups[GROUPS];
    tess__param params[MOST];
    char names[MOST][8];
    int32_t order[MOST];
    int64_t shape[1];
    unsigned chance;
    int narrow, wrong;    /* gradients in bf16; the line of a check in the plugin that failed */
    int seen[MOST][ROOM]; /* how often the plugin got the element */
    int fails_at, calls, nan_at;
    float scale; /* of gradients */
    tess__pool *pool;
    const rank *now;
    uint32_t phase;
    uint64_t device_pieces;
} world;
static rank *ranks;
static const double lr_of[SETTINGS] = { 0.1, 0.05, 0.3 }, decay_of[SETTINGS] = { 0.1, 0, 0.01 };

#define CHECK(x) ((x) ? (void)0 : (void)(world.wrong = world.wrong ? world.wrong : __LINE__))

#define drawn(below) drawn32(&world.chance, below)

/* Element `at` of a group begins with these; all are whole, so that every dtype here has them. */
static float master_at(uint64_t at) {
    return (float)(at % 7);
}
static float grad_at(uint64_t at) {
    return (float)(at % 5) - 1;
}
static float state_at(uint64_t at) {
    return (float)(at % 3);
}

static uint16_t bf16_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)(bits >> 16);
}

/* ---- the plugin ---- */

static int param_of(const tess_optimizer_piece *p) {
    const int k = atoi(p->param->name + 1);
    CHECK(k >= 0 && k < world.plan.model.n_params && p->param->elems == world.params[k].elems);
    CHECK(p->param->group == world.params[k].optimizer_group);
    return k;
}

static void check_numbers(const tess_optimizer_piece *p, int k) {
    const int32_t of = world.params[k].optimizer_group;
    CHECK(p->struct_size == sizeof *p && p->step == 7 && p->phase == world.phase);
    CHECK(p->lr == lr_of[of] && p->weight_decay == decay_of[of]);
    CHECK(p->momentum == 0.7 && p->beta1 == 0 && p->beta2 == 0.95 && p->eps == 1e-5 && p->rho == 0.3);
}

static void check_place(const char *doing, const char *subject) {
    const tess__crash_place *at = tess__crash_now;
    CHECK(at && !strcmp(at->kind, "optimizer") && !strcmp(at->plugin, "fake") && !strcmp(at->doing, doing));
    CHECK(at && !strcmp(at->subject, subject));
}

/* A step: the master takes the gradient and 1, one state keeps the gradient, the other counts rows. */
static void step_elements(const tess_optimizer_piece *p, int k) {
    float *kept = p->state[0];
    unsigned char *rows = p->state[1];
    for (uint64_t i = 0; i < p->elems; i++) {
        p->master[i] += p->grad[i] + 1;
        kept[i] = p->grad[i];
        rows[i / PAD] = (unsigned char)(rows[i / PAD] + (i % PAD == 0));
        __atomic_add_fetch(&world.seen[k][p->first + i], 1, __ATOMIC_RELAXED);
    }
    if (world.nan_at == k + 1)
        p->master[p->elems - 1] = NAN;
    if (world.nan_at == -k - 1)
        kept[p->elems - 1] = INFINITY;
}

/* Of matrices: what each element sends, and what it does with what comes back. */
static void step_around(const tess_optimizer_piece *p, int k) {
    for (uint64_t i = 0; i < p->elems; i++) {
        if (p->phase == TESS_PHASE_BEFORE)
            p->update[i] = p->grad[i] * 8 + p->master[i];
        else
            p->master[i] = p->update[i];
        world.seen[k][p->first + i]++;
    }
    CHECK((p->grad == NULL) == (p->phase == TESS_PHASE_AFTER) && p->grad != p->update);
}

static tess_status fake_step(void *ctx, const tess_optimizer_piece *p, tess_error *e) {
    const int k = param_of(p);
    CHECK(ctx == &world && e->struct_size == sizeof *e && e->rank == -1);
    check_numbers(p, k);
    check_place("step", world.params[k].name);
    CHECK(p->elems > 0 && p->first + p->elems <= world.params[k].elems);
    const uint64_t grain = world.groups[world.params[k].group].pad;
    CHECK(p->elems <= (grain > TESS_BLOCK_MOST ? grain : TESS_BLOCK_MOST) && p->first % grain == 0);
    const int call = __atomic_add_fetch(&world.calls, 1, __ATOMIC_RELAXED);
    if (call == world.fails_at) {
        p->master[0] = NAN; /* what a step that failed has left is not looked at */
        snprintf(e->message, sizeof e->message, "%s is bad", p->param->name);
        return TESS_E_INVALID;
    }
    CHECK((p->update != NULL) == (p->phase != TESS_PHASE_WHOLE));
    p->phase == TESS_PHASE_WHOLE ? step_elements(p, k) : step_around(p, k);
    return TESS_OK;
}

static int device_closed;
static void close_device(void *opened) {
    CHECK(opened == &device_closed);
    device_closed++;
}

static tess_status open_device(void *ctx, uint32_t mem, const tess_stream *stream, void **out, tess_error *e) {
    CHECK(ctx == &world && stream->mem == mem && e->struct_size == sizeof *e && e->rank == -1);
    *out = &device_closed;
    return mem == TESS_MEM_HOST ? tess_plugin_fail(e, TESS_E_UNSUPPORTED, "not in such memory") : TESS_OK;
}

static tess_status device_step(void *opened, const tess_device_piece *d, const tess_stream *stream, tess_error *e) {
    const int k = param_of(d->piece);
    CHECK(opened == &device_closed && d->struct_size == sizeof *d && stream->mem == TESS_MEM_CUDA && e->rank == -1);
    CHECK(d->clip == (const float *)&world && d->not_finite == (int64_t *)&world.plan && d->grad_scale == world.scale);
    check_numbers(d->piece, k);
    check_place("device_step", world.params[k].name);
    world.device_pieces++;
    if (world.fails_at == (int)world.device_pieces)
        return tess_plugin_fail(e, TESS_E_DEVICE, "%s is lost", d->piece->param->name);
    for (uint64_t i = 0; i < d->piece->elems; i++) { /* a device multiplies by the scale itself */
        float *grad = (float *)(uintptr_t)d->piece->grad;
        grad[i] *= world.scale;
    }
    step_elements(d->piece, k);
    return TESS_OK;
}

static void fill_shared(void *user, uint64_t first, uint64_t n) {
    const tess_optimizer_matrix *x = user;
    check_place("matrix", x->param->name);
    for (uint64_t r = first; r < first + n; r++)
        for (uint64_t c = 0; c < x->cols; c++)
            x->update[r * x->cols + c] += (float)(100 * (x->index + 1));
}

/* Each matrix adds its number; all states but one travel and grow; what is -0 comes back as 0. */
static tess_status fake_matrix(void *ctx, const tess_optimizer_matrix *x, tess_error *e) {
    CHECK(ctx == &world && x->struct_size == sizeof *x && x->step == 7 && x->momentum == 0.7 && e->rank == -1);
    CHECK(x->beta2 == 0.95 && x->eps == 1e-5 && x->rho == 0.3 && x->beta1 == 0);
    check_place("matrix", x->param->name);
    if (world.fails_at)
        return tess_plugin_fail(e, TESS_E_INVALID, "%s is no matrix", x->param->name);
    CHECK(x->scratch == &world.chance && x->pool == world.pool && !x->state[1]);
    x->share(x->pool, 0, fill_shared, (void *)(uintptr_t)x); /* of nothing: not called */
    x->share(x->pool, x->rows, fill_shared, (void *)(uintptr_t)x);
    check_place("matrix", x->param->name);
    for (uint64_t i = 0; i < x->rows * x->cols; i++) {
        for (int k = 0; k < STATES; k++)
            if (k != 1)
                x->state[k][i] = x->state[k][i] == 2 ? -0.0f : x->state[k][i] + (float)(k + 1);
        x->update[i] = x->update[i] == 100 ? -0.0f : x->update[i];
    }
    return TESS_OK;
}

static const tess_optimizer_ops fake = { .struct_size = sizeof fake,
                                         .step = fake_step,
                                         .matrix = fake_matrix,
                                         .device_open = open_device,
                                         .device_step = device_step,
                                         .device_close = close_device };
static const tess__plugin plugin = { .name = "fake", .ops = &fake, .ctx = &world };

/* ---- a layout ---- */

static uint64_t draw_param(tess__param *p, const tess__group *g, int matrices) {
    static const uint64_t bounds[] = { 1, TESS_BLOCK_MOST - 1, TESS_BLOCK_MOST, TESS_BLOCK_MOST + 1 };
    const uint64_t rows = 1 + drawn(drawn(8) ? 9 : 100), cols = 64 * (1 + drawn(2));
    p->rows = matrices ? rows : 0;
    p->cols = matrices ? cols : 0;
    p->elems = matrices ? rows * cols * (1 + drawn(2)) : drawn(3) ? 1 + drawn(900) : bounds[drawn(drawn(3) ? 1 : 4)];
    p->elems = g->pad == LONG ? LONG - 1 + drawn(3) : p->elems;
    return (p->elems + g->pad - 1) / g->pad * g->pad;
}

static void draw_layout(unsigned seed, int32_t n_ranks, int matrices, int parts) {
    tess__plan *plan = &world.plan;
    int32_t n = 0;
    memset(&world, 0, sizeof world);
    world.chance = seed * 2654435761u + 1;
    plan->layout = (tess__layout){ .groups = world.groups, .n_groups = GROUPS, .order = world.order, .n_units = 1 };
    plan->model = (tess__model){ .params = world.params };
    plan->setup = (tess__setup){ .shard_ranks = n_ranks, .step = &fake, .step_ctx = &world, .parts = parts };
    world.narrow = !matrices && drawn(2);
    world.scale = drawn(2) ? 2 : 1;
    for (int32_t g = 0; g < GROUPS; g++) {
        tess__group *of = &world.groups[g];
        const uint64_t pad = !matrices && n_ranks < 3 && drawn(4) == 0 ? LONG : PAD;
        const int32_t params = 1 + (int32_t)drawn(pad == LONG ? 2 : MOST_PARAMS);
        *of = (tess__group){ .trainable = 1, .master = TESS_F32, .compute = TESS_BF16, .pad = pad, .first_param = n };
        of->grad_shard = world.narrow ? TESS_BF16 : TESS_F32;
        of->low_copy = !matrices && (int)drawn(2);
        of->step = (tess_grain){
            .grain = matrices ? TESS_GRAIN_MATRIX : TESS_GRAIN_BLOCK,
            .block = matrices ? 0 : (uint32_t)pad,
            .whole = matrices ? 13 : 0,
            .n_states = matrices ? STATES : 2,
            .state = { { TESS_F32, 1, "kept" }, { TESS_U8, PAD, "rows" }, { TESS_F32, 1, "c" }, { TESS_F32, 1, "d" } }
        };
        for (int32_t i = 0; i < params; i++, n++) {
            tess__param *p = &world.params[n];
            snprintf(world.names[n], sizeof world.names[n], "p%d", (int)n);
            *p = (tess__param){ .name = world.names[n], .group = g, .offset = of->used_elems, .tied_to = n };
            p->optimizer_group = (int32_t)drawn(SETTINGS);
            of->used_elems += draw_param(p, of, matrices);
            p->scratch_bytes = matrices ? 4 : 0;
            world.order[n] = n;
        }
        of->n_params = params;
        of->shard_elems = (of->used_elems + (uint64_t)n_ranks * pad - 1) / ((uint64_t)n_ranks * pad) * pad;
        of->flat_elems = of->shard_elems * (uint64_t)n_ranks;
        assert_true(of->flat_elems <= ROOM);
    }
    plan->layout.n_order = plan->model.n_params = n;
    if (matrices)
        assert_int_equal(tess__matrices_list(&plan->model, n_ranks, &plan->layout), TESS_OK);
}

static void fill_rank(rank *x, int32_t g, int32_t r) {
    const tess__group *of = &world.groups[g];
    for (uint64_t i = 0; i < ROOM; i++) {
        const uint64_t at = i + (uint64_t)r * of->shard_elems;
        const int own = i < of->shard_elems;
        x->master[g][i] = own ? master_at(at) : BEFORE;
        x->grad[g][i] = own ? grad_at(at) : BEFORE;
        x->narrow[g][i] = bf16_of(x->grad[g][i]);
        for (int k = 0; k < STATES; k++)
            x->state[g][k][i] = own ? state_at(at) : BEFORE;
    }
}

static void make_rank(int32_t r) {
    static const tess_optimizer_group settings[SETTINGS] = { { .weight_decay = 0.1f },
                                                             { .lr_scale = 0.5f },
                                                             { .weight_decay = 0.01f, .lr_scale = 3 } };
    const tess_optimizer_options o = { .struct_size = sizeof o,
                                       .lr = 0.1f,
                                       .momentum = 0.7f,
                                       .beta2 = 0.95f,
                                       .eps = 1e-5f,
                                       .rho = 0.3f,
                                       .grad_scale = world.scale,
                                       .n_groups = SETTINGS,
                                       .groups = settings };
    rank *x = &ranks[r];
    memset(x, 0, sizeof *x);
    for (int32_t g = 0; g < GROUPS; g++) {
        fill_rank(x, g, r);
        x->table[TESS__MASTER][g] = x->master[g];
        x->table[TESS__SHARD_GRAD][g] = world.narrow ? (void *)x->narrow[g] : x->grad[g];
        for (int k = 0; k < STATES; k++)
            x->table[TESS__STATE0 + k][g] = k == 1 ? (void *)x->rows[g] : x->state[g][k];
        x->table[TESS__LOW_COPY][g] = x->low[g];
        x->table[TESS__MATRIX_SCRATCH][g] = &world.chance;
        for (int k = 0; k <= STATES; k++) {
            x->table[TESS__UPDATE + k][g] = x->update[g][k];
            x->table[TESS__PARTS + k][g] = x->parts[g][k];
        }
    }
    for (int role = 0; role < TESS__N_ROLES; role++)
        x->memory.address[role] = x->table[role];
    x->memory.plan = &world.plan;
    x->memory.comms = &x->comms;
    x->comms.shard_rank = r;
    x->step.steps_done = 6;
    assert_int_equal(tess__segments_make(&x->step, &world.plan, r), TESS_OK);
    tess__step_numbers(&x->step, &world.plan.layout, &o, &x->step.noted);
}

static void forget(int32_t n_ranks) {
    for (int32_t r = 0; r < n_ranks; r++) {
        const tess__step *s = &ranks[r].step;
        tess__segments_free(&ranks[r].step);
        assert_true(!s->segments && !s->first_segment && !s->segment_group && !s->parts && !s->first_part);
        assert_null(s->exchanged);
    }
    free(world.plan.layout.matrices);
    assert_int_equal(world.wrong, 0);
}

/* The parameter that has element `at` of the group, or null: padding. */
static const tess__param *owner_of(int32_t g, uint64_t at) {
    for (int32_t i = 0; i < world.groups[g].n_params; i++) {
        const tess__param *p = &world.params[world.groups[g].first_param + i];
        if (at >= p->offset && at < p->offset + p->elems)
            return p;
    }
    return NULL;
}

static float scaled(uint64_t at) {
    return world.scale * grad_at(at);
}
#endif
