/* SPDX-License-Identifier: BSD-3-Clause */
/* Calls an optimizer plugin's step piece by piece in host memory. A piece is short, so the search for NaN and the
 * low-precision copy find it in the cache. */
#include "parts.h"

#include "base/crash.h"
#include "base/status.h"
#include "kit/formulas.h"
#include "kernels/kernels.h"
#include "layout/matrices.h"
#include "plugin/open.h"

#include <stdatomic.h>
#include <string.h>

enum { PIECE_ELEMS = TESS_BLOCK_MOST };

typedef struct {
    const tess__step *step;
    const tess__memory *memory;
    const tess__group *group;
    int32_t index;       /* the group's index */
    tess__cast_fn widen; /* null: the gradient is fp32 */
    tess__cast_fn low;   /* null: no low-precision copy */
    float grad_scale;
    int in_place;                /* updates take the place of the gradient */
    float *update;               /* of the shard's first element, or of the first that is sent; null: no matrix */
    tess_optimizer_piece common; /* fields that all pieces share */
    const char *plugin;          /* its name, where it may crash */
    atomic_int failed;
    tess_status status; /* the first failure; `error` has its message */
    tess_error error;
} stepping;

static void *at_value(const stepping *x, int role, uint32_t dtype, uint64_t value) {
    return (char *)tess__address(x->memory, role, x->index) + value * tess_dtype_bytes(dtype);
}

static void note_failure(stepping *x, tess_status status, const tess_error *e) {
    int none = 0;
    if (!atomic_compare_exchange_strong(&x->failed, &none, 1))
        return;
    x->status = status;
    x->error = *e;
}

/* Keeps the number of the first step that left a NaN or an infinity, as the device's kernels do. */
static void note_not_finite(const stepping *x, const tess_optimizer_piece *p) {
    const tess_grain *g = &x->group->step;
    int64_t none = 0, *at = x->step->kernel.not_finite;
    int finite = tess__all_finite(p->master, TESS_F32, p->elems);
    for (uint32_t k = 0; finite && k < g->n_states; k++)
        finite = tess__all_finite(p->state[k], g->state[k].dtype, tess__values_of(p->elems, g->state[k].every));
    if (at && !finite)
        __atomic_compare_exchange_n(at, &none, (int64_t)p->step, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

static const float *gradient(const stepping *x, uint64_t first, uint64_t elems, float *room) {
    const char *grad = tess__grad_address(x->memory, x->index);
    const float *from = (const float *)(const void *)(grad + first * tess_dtype_bytes(x->group->grad_shard));
    if (!x->widen && x->grad_scale == 1.0f && !x->in_place)
        return from;
    if (x->widen) {
        x->widen(from, room, elems);
        from = room;
    }
    for (uint64_t i = 0; i < elems; i++)
        room[i] = from[i] * x->grad_scale;
    return room;
}

/* Steps elements [first, first + p->elems) of the shard. */
static void step_piece(stepping *x, tess_optimizer_piece *p, uint64_t first, float *room) {
    const tess__setup *s = &x->memory->plan->setup;
    const tess_grain *g = &x->group->step;
    tess_error e = { .struct_size = sizeof e, .rank = -1 };
    p->master = (float *)tess__master_address(x->memory, x->index) + first;
    p->grad = p->phase == TESS_PHASE_AFTER ? NULL : gradient(x, first, p->elems, room);
    for (uint32_t k = 0; k < g->n_states; k++)
        p->state[k] = (char *)tess__state_address(x->memory, (int)k, x->index) +
                      first / g->state[k].every * tess_dtype_bytes(g->state[k].dtype);
    const tess__crash_place place = { "optimizer", x->plugin, "step", p->param->name };
    tess__crash_now = &place;
    tess_status status = s->step->step(s->step_ctx, p, &e);
    tess__crash_now = NULL;
    if (status) {
        note_failure(x, status, &e);
        return;
    }
    if (p->phase == TESS_PHASE_BEFORE)
        return; /* values are looked at when the step is done */
    note_not_finite(x, p);
    if (x->low)
        x->low(p->master, at_value(x, TESS__LOW_COPY, x->group->compute, first), p->elems);
}

void tess__piece_settings(const tess__step *s, int32_t group, uint64_t in_shard, tess_optimizer_piece *out) {
    const tess_segment *at = &s->segments[s->first_segment[group]];
    while (in_shard >= at->first + at->elems)
        at++;
    out->lr = tess_decimal_of_f32(at->lr);
    out->weight_decay = tess_decimal_of_f32(at->weight_decay);
}

/* Whole blocks or rows, as many as a piece has, and at least one. */
static uint64_t piece_elems(const tess_grain *g) {
    const uint64_t grain = g->block ? g->block : 1;
    return grain < PIECE_ELEMS ? PIECE_ELEMS / grain * grain : grain;
}

/* Places the update of the piece, which then ends no further than the part that it is in. */
static void place_update(const stepping *x, uint64_t first, tess_optimizer_piece *p) {
    const tess__part *part = tess__part_at(x->step, &x->memory->plan->setup, x->index, first);
    p->update = x->update + (part ? part->packed + (first - part->first) : first);
    if (part && p->elems > part->first + part->elems - first)
        p->elems = part->first + part->elems - first;
}

/* Steps the elements of [first, end) in the shard that belong to one parameter. */
static void step_param(stepping *x, const tess__param *p, const tess__piece *own, uint64_t first, uint64_t end,
                       float *room) {
    const tess_param_view view = tess__param_view_of(p);
    tess_optimizer_piece of_param = x->common;
    of_param.param = &view;
    tess__piece_settings(x->step, x->index, own->in_shard, &of_param);
    uint64_t from = first > own->in_shard ? first : own->in_shard;
    uint64_t to = own->in_shard + own->elems < end ? own->in_shard + own->elems : end;
    const uint64_t most = piece_elems(&x->group->step);
    while (from < to && !atomic_load(&x->failed)) {
        tess_optimizer_piece piece = of_param;
        piece.first = own->in_param + (from - own->in_shard);
        piece.elems = to - from < most ? to - from : most;
        if (x->update)
            place_update(x, from, &piece);
        step_piece(x, &piece, from, room);
        from += piece.elems;
    }
}

/* A part is a whole number of pads, so that no grain is cut. */
static void step_pads(stepping *x, uint64_t first, uint64_t pads, float *room) {
    const tess__plan *plan = x->memory->plan;
    uint64_t from = first * x->group->pad, end = from + pads * x->group->pad;
    for (int32_t i = 0; i < x->group->n_params; i++) {
        const tess__param *p = &plan->model.params[plan->layout.order[x->group->first_param + i]];
        tess__piece own = tess__layout_piece(&plan->layout, p, x->memory->comms->shard_rank);
        if (own.elems)
            step_param(x, p, &own, from, end, room);
    }
}

static void step_part(void *user, uint64_t first, uint64_t pads) {
    _Alignas(64) float room[PIECE_ELEMS];
    step_pads(user, first, pads, room);
}

static void step_part_of_long_rows(void *user, uint64_t first, uint64_t pads) {
    _Alignas(64) float room[TESS_ROW_MOST];
    step_pads(user, first, pads, room);
}

tess_optimizer_piece tess__piece_of_step(const tess__step *s, uint32_t phase) {
    const tess_optimizer_matrix said = tess__numbers_said(s);
    return (tess_optimizer_piece){ .struct_size = sizeof(tess_optimizer_piece),
                                   .phase = phase,
                                   .step = said.step,
                                   .momentum = said.momentum,
                                   .beta1 = said.beta1,
                                   .beta2 = said.beta2,
                                   .eps = said.eps,
                                   .rho = said.rho };
}

static float *update_of(const tess__memory *m, int32_t g, uint32_t phase) {
    const tess__group *group = &m->plan->layout.groups[g];
    if (tess__updates_in_place(&m->plan->setup, group) || (phase == TESS_PHASE_AFTER && m->plan->setup.shard_ranks > 1))
        return tess__grad_address(m, g); /* to where results came back, too */
    if (tess__matrices_by_parts(&m->plan->setup))
        return tess__address(m, TESS__PARTS, g);
    return (float *)tess__address(m, TESS__UPDATE, g) + (uint64_t)m->comms->shard_rank * group->shard_elems;
}

tess_status tess__step_pieces(const tess__step *step, const tess__memory *memory, const tess__plugin *plugin, int32_t g,
                              uint32_t phase, tess__pool *pool) {
    const tess__group *group = &memory->plan->layout.groups[g];
    stepping x = { .step = step,
                   .memory = memory,
                   .group = group,
                   .index = g,
                   .widen = group->grad_shard == TESS_F32 ? NULL : tess__cast_find(group->grad_shard, TESS_F32, 0),
                   .low = group->low_copy ? tess__cast_find(TESS_F32, group->compute, 0) : NULL,
                   .grad_scale = step->kernel.grad_scale,
                   .in_place = phase != TESS_PHASE_WHOLE && tess__updates_in_place(&memory->plan->setup, group),
                   .update = phase == TESS_PHASE_WHOLE ? NULL : update_of(memory, g, phase),
                   .common = tess__piece_of_step(step, phase),
                   .plugin = plugin->name };
    tess__pool_run(pool, group->shard_elems / group->pad, (TESS__KERNEL_LEAST_ELEMS + group->pad - 1) / group->pad,
                   piece_elems(&group->step) > PIECE_ELEMS ? step_part_of_long_rows : step_part, &x);
    return x.status ? tess__plugin_failed(x.status, TESS_KIND_OPTIMIZER, plugin, &x.error) : TESS_OK;
}
