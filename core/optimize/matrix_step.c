/* SPDX-License-Identifier: BSD-3-Clause */
/* The step of matrices: each is worked on as a whole by the rank that owns it. */
#include "parts.h"

#include "base/crash.h"
#include "base/status.h"
#include "layout/matrices.h"
#include "plugin/open.h"

#include <string.h>

/* ---- what travels ---- */

/* Piece 0 is the update, piece 1 + k the state k where it travels. On one rank such a state stays where it rests. */
static float *piece_of(const tess__memory *m, int32_t g, int piece) {
    if (piece == 0 && tess__updates_in_place(&m->plan->setup, &m->plan->layout.groups[g]))
        return tess__grad_address(m, g);
    if (piece == 0 || m->plan->setup.shard_ranks > 1)
        return tess__address(m, TESS__UPDATE + piece, g);
    return tess__state_address(m, piece - 1, g);
}

static int has_piece(const tess__group *g, int piece) {
    return piece == 0 || tess__travels(g, piece - 1);
}

tess_status tess__update_make(const tess__step *step, const tess__memory *m, const tess__plugin *plugin, int32_t g,
                              tess__pool *pool) {
    const tess__group *group = &m->plan->layout.groups[g];
    TRY(tess__step_pieces(step, m, plugin, g, TESS_PHASE_BEFORE, pool));
    for (int k = 0; m->plan->setup.shard_ranks > 1 && k < (int)group->step.n_states; k++) {
        const float *state = tess__state_address(m, k, g);
        if (tess__travels(group, k) && tess__matrices_by_parts(&m->plan->setup))
            tess__parts_pack(step, g, state, tess__address(m, TESS__PARTS + 1 + k, g));
        else if (tess__travels(group, k))
            memcpy(piece_of(m, g, 1 + k) + (uint64_t)m->comms->shard_rank * group->shard_elems, state,
                   group->shard_elems * 4);
    }
    return TESS_OK;
}

/* ---- the work of an owner ---- */

enum { GRANULE = 64 }; /* a pool shares out multiples of it */

typedef struct {
    void (*fn)(void *user, uint64_t first, uint64_t n);
    void *user;
    const tess__crash_place *place; /* of the thread that shares */
} shared;

static void do_part(void *user, uint64_t first, uint64_t elems) {
    const shared *s = user;
    tess__crash_now = s->place;
    s->fn(s->user, first / GRANULE, elems / GRANULE);
    tess__crash_now = NULL;
}

static void share(void *pool, uint64_t n, void (*fn)(void *user, uint64_t first, uint64_t n), void *user) {
    shared s = { fn, user, tess__crash_now };
    if (n)
        tess__pool_run(pool, n * GRANULE, GRANULE, do_part, &s);
    tess__crash_now = s.place; /* this thread has done parts too */
}

/* The way back adds zeros, which makes 0 of -0. So it is made 0 where there is no way too. */
static void drop_signs_of_zero(float *x, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        x[i] += 0.0f;
}

/* at: where it lies in what has come together. */
static tess_status step_matrix(const tess__memory *m, const tess__plugin *plugin, const tess__matrix *of, uint64_t at,
                               tess_optimizer_matrix *x) {
    const tess__setup *s = &m->plan->setup;
    const tess__group *group = &m->plan->layout.groups[of->group];
    const tess_param_view view = tess__param_view_of(&m->plan->model.params[of->param]);
    const uint64_t elems = of->rows * of->cols;
    tess_error e = { .struct_size = sizeof e, .rank = -1 };
    x->param = &view;
    x->index = of->index;
    x->rows = of->rows;
    x->cols = of->cols;
    x->update = piece_of(m, of->group, 0) + at;
    for (int k = 0; k < TESS__MAX_STATES; k++)
        x->state[k] = tess__travels(group, k) ? piece_of(m, of->group, 1 + k) + at : NULL;
    const tess__crash_place place = { "optimizer", plugin->name, "matrix", view.name };
    tess__crash_now = &place;
    tess_status status = s->step->matrix(s->step_ctx, x, &e);
    tess__crash_now = NULL;
    if (status)
        return tess__plugin_failed(status, TESS_KIND_OPTIMIZER, plugin, &e);
    drop_signs_of_zero(x->update, elems);
    for (int k = 0; k < TESS__MAX_STATES; k++)
        if (x->state[k])
            drop_signs_of_zero(x->state[k], elems);
    return TESS_OK;
}

/* Leaves zeros wherever another rank's results or padding are. */
static void clear_others(const tess__memory *m, int32_t g, float *piece) {
    const tess__layout *l = &m->plan->layout;
    const tess__group *group = &l->groups[g];
    uint64_t from = 0;
    for (int32_t i = group->first_matrix; i < group->first_matrix + group->n_matrices; i++) {
        const tess__matrix *own = &l->matrices[i];
        if (own->owner != m->comms->shard_rank)
            continue;
        memset(piece + from, 0, (own->at - from) * 4);
        from = own->at + own->rows * own->cols;
    }
    memset(piece + from, 0, (group->flat_elems - from) * 4);
}

tess_status tess__matrices_step(const tess__step *step, const tess__memory *m, const tess__plugin *plugin, int32_t g,
                                tess__pool *pool) {
    const tess__layout *l = &m->plan->layout;
    const tess__group *group = &l->groups[g];
    tess_optimizer_matrix x = tess__numbers_said(step);
    uint64_t at = 0; /* in parts, matrices of one owner lie one behind the other */
    x.scratch = group->scratch_bytes ? tess__address(m, TESS__MATRIX_SCRATCH, g) : NULL;
    x.share = share;
    x.pool = pool;
    const int parts = tess__matrices_by_parts(&m->plan->setup);
    for (int32_t i = group->first_matrix; i < group->first_matrix + group->n_matrices; i++) {
        const tess__matrix *own = &l->matrices[i];
        if (own->owner != m->comms->shard_rank)
            continue;
        TRY(step_matrix(m, plugin, own, parts ? at : own->at, &x));
        at += own->rows * own->cols;
    }
    for (int piece = 0; m->plan->setup.shard_ranks > 1 && !parts && piece <= TESS__MAX_STATES; piece++)
        if (has_piece(group, piece))
            clear_others(m, g, piece_of(m, g, piece));
    return TESS_OK;
}
