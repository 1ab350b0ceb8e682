/* SPDX-License-Identifier: BSD-3-Clause */
#include "compile_states.h"

#include "base/status.h"
#include "emit.h"

static int is_stored(const tess__compiler *b, int32_t g) {
    const tess__group *group = &b->layout->groups[g];
    return group->trainable && (group->param_rest.stored || (group->state_rest.stored && group->step.n_states > 0));
}

/* Whether a gradient goes to the store and comes from there. */
static int grad_travels(const tess__compiler *b, int32_t g) {
    return b->layout->groups[g].trainable && b->layout->groups[g].grad_rest.stored && !b->fused;
}

/* The next group that is stepped behind `g`, or -1. */
static int32_t next_stepped(const tess__compiler *b, int32_t g) {
    for (g++; g < b->layout->n_groups; g++)
        if (b->layout->groups[g].trainable)
            return g;
    return -1;
}

tess_status tess__staged_param(tess__compiler *b, int32_t g) {
    const tess__group *group = &b->layout->groups[g];
    uint64_t bytes = group->shard_elems * tess_dtype_bytes(group->master);
    return group->param_rest.stored ? tess__emit_alloc(b, TESS__STAGED_PARAM, g, TESS_CAT_SHARD_PARAM, group->unit,
                                                       tess__round_up(bytes, b->layout->store_align), 0)
                                    : TESS_OK;
}

static int is_staged(tess__compiler *b, int32_t g) {
    return *tess__emit_buffer_of(b, TESS__STAGED0, g) >= 0 || *tess__emit_buffer_of(b, TESS__STAGED_PARAM, g) >= 0;
}

static tess_status fetch_states(tess__compiler *b, int32_t g) {
    const tess__group *group = &b->layout->groups[g];
    if (!is_stored(b, g) || is_staged(b, g))
        return TESS_OK;
    for (int32_t k = 0; group->state_rest.stored && k < (int32_t)group->step.n_states; k++)
        TRY(tess__emit_alloc(b, TESS__STAGED0 + k, g, TESS_CAT_OPTIMIZER, group->unit,
                             tess__round_up(tess__state_bytes(group, k), b->layout->store_align), 0));
    TRY(tess__staged_param(b, g));
    return tess__emit(b, TESS__STATES_FETCH, g);
}

static tess_status fetch_grad(tess__compiler *b, int32_t g) {
    if (!grad_travels(b, g) || *tess__emit_buffer_of(b, TESS__STAGED_GRAD0, g) >= 0)
        return TESS_OK;
    TRY(tess__grad_memory(b, g));
    return tess__emit(b, TESS__GRAD_FETCH, g);
}

static tess_status fetch(tess__compiler *b, int32_t g) {
    TRY(fetch_states(b, g));
    return fetch_grad(b, g);
}

static int is_ahead(const tess__compiler *b, int32_t g) {
    return g >= 0 && b->setup->prefetch > 0;
}

tess_status tess__states_ahead(tess__compiler *b, int32_t g) {
    return is_ahead(b, g) ? fetch(b, g) : TESS_OK;
}

/* Not its gradient, which comes for the norm first. */
tess_status tess__states_begin(tess__compiler *b) {
    int32_t g = next_stepped(b, -1);
    return is_ahead(b, g) ? fetch_states(b, g) : TESS_OK;
}

/* Apart from passes, groups are stepped in their order. Within one, each comes when its gradient is reduced. */
tess_status tess__states_need(tess__compiler *b, int32_t g) {
    TRY(fetch(b, g));
    if (!b->fused)
        TRY(tess__states_ahead(b, next_stepped(b, g)));
    if (grad_travels(b, g))
        TRY(tess__emit(b, TESS__GRAD_FETCH_WAIT, g));
    return is_stored(b, g) ? tess__emit(b, TESS__STATES_FETCH_WAIT, g) : TESS_OK;
}

tess_status tess__states_stored(tess__compiler *b, int32_t g) {
    if (!is_stored(b, g))
        return TESS_OK;
    TRY(tess__emit(b, TESS__STATES_STORE_WAIT, g));
    for (int32_t k = 0; k < (int32_t)b->layout->groups[g].step.n_states; k++)
        TRY(tess__emit_free(b, TESS__STAGED0 + k, g));
    return tess__emit_free(b, TESS__STAGED_PARAM, g);
}

tess_status tess__states_end(tess__compiler *b) {
    int32_t g = b->storing;
    b->storing = -1;
    return g < 0 ? TESS_OK : tess__states_stored(b, g);
}

tess_status tess__states_store_behind(tess__compiler *b, int32_t g) {
    return is_stored(b, g) ? tess__emit_flagged(b, TESS__STATES_STORE, TESS__ASYNC, g) : TESS_OK;
}

tess_status tess__states_store(tess__compiler *b, int32_t g) {
    if (!is_stored(b, g))
        return TESS_OK;
    TRY(tess__emit(b, TESS__STATES_STORE, g));
    TRY(tess__states_end(b));
    b->storing = g;
    return b->setup->prefetch > 0 ? TESS_OK : tess__states_end(b);
}

/* ---- gradients ---- */

/* Sums that wait between microbatches: of a pass, where each adds its shard. */
static int32_t sums_of(const tess__compiler *b) {
    int adds = (b->p->kind & 15) == TESS_PASS_TRAIN && b->setup->accum > 1 && b->setup->sync_each;
    return adds ? tess__sum_levels(b->setup) : 1;
}

tess_status tess__grad_memory(tess__compiler *b, int32_t g) {
    const tess__group *group = &b->layout->groups[g];
    if (!group->grad_rest.stored || *tess__emit_buffer_of(b, TESS__STAGED_GRAD0, g) >= 0)
        return TESS_OK;
    for (int32_t k = 0; k < sums_of(b); k++)
        TRY(tess__emit_alloc(b, TESS__STAGED_GRAD0 + k, g, TESS_CAT_SHARD_GRAD, group->unit,
                             tess__round_up(tess__shard_grad_bytes(group), b->layout->store_align), 0));
    return TESS_OK;
}

static tess_status free_grad_memory(tess__compiler *b, int32_t g) {
    for (int role = TESS__STAGED_GRAD0; role <= TESS__STAGED_GRAD_LAST; role++)
        TRY(tess__emit_free(b, role, g));
    return TESS_OK;
}

tess_status tess__grad_ahead(tess__compiler *b, int32_t g) {
    return is_ahead(b, g) ? fetch_grad(b, g) : TESS_OK;
}

tess_status tess__grad_need(tess__compiler *b, int32_t g) {
    if (!grad_travels(b, g))
        return TESS_OK;
    TRY(fetch_grad(b, g));
    if ((b->p->kind & 15) != TESS_PASS_TRAIN)
        TRY(tess__grad_ahead(b, next_stepped(b, g)));
    return tess__emit(b, TESS__GRAD_FETCH_WAIT, g);
}

tess_status tess__grad_stored(tess__compiler *b, int32_t g) {
    if (!grad_travels(b, g))
        return TESS_OK;
    TRY(tess__emit(b, TESS__GRAD_STORE_WAIT, g));
    return free_grad_memory(b, g);
}

tess_status tess__grad_end(tess__compiler *b) {
    int32_t g = b->storing_grad;
    b->storing_grad = -1;
    return g < 0 ? TESS_OK : tess__grad_stored(b, g);
}

tess_status tess__grad_store_behind(tess__compiler *b, int32_t g) {
    return grad_travels(b, g) ? tess__emit_flagged(b, TESS__GRAD_STORE, TESS__ASYNC, g) : TESS_OK;
}

tess_status tess__grad_going(tess__compiler *b, int32_t g) {
    if (!grad_travels(b, g))
        return TESS_OK;
    TRY(tess__grad_end(b));
    b->storing_grad = g;
    return b->setup->prefetch > 0 ? TESS_OK : tess__grad_end(b);
}

tess_status tess__grad_store(tess__compiler *b, int32_t g) {
    if (grad_travels(b, g))
        TRY(tess__emit(b, TESS__GRAD_STORE, g));
    return tess__grad_going(b, g);
}

tess_status tess__grad_free(tess__compiler *b, int32_t g) {
    TRY(free_grad_memory(b, g));
    return tess__emit_free(b, TESS__SHARD_GRAD, g);
}
