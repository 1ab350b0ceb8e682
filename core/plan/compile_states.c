/* SPDX-License-Identifier: BSD-3-Clause */
#include "compile_states.h"

#include "base/status.h"
#include "emit.h"

static int is_stored(const tess__compiler *b, int32_t g) {
    const tess__group *group = &b->layout->groups[g];
    return group->trainable && (group->param_rest.stored || (group->state_rest.stored && group->step.n_states > 0));
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

static tess_status fetch(tess__compiler *b, int32_t g) {
    const tess__group *group = &b->layout->groups[g];
    if (!is_stored(b, g) || is_staged(b, g))
        return TESS_OK;
    for (int32_t k = 0; group->state_rest.stored && k < (int32_t)group->step.n_states; k++)
        TRY(tess__emit_alloc(b, TESS__STAGED0 + k, g, TESS_CAT_OPTIMIZER, group->unit,
                             tess__round_up(tess__state_bytes(group, k), b->layout->store_align), 0));
    TRY(tess__staged_param(b, g));
    return tess__emit(b, TESS__STATES_FETCH, g);
}

tess_status tess__states_ahead(tess__compiler *b, int32_t g) {
    return g >= 0 && b->setup->prefetch > 0 ? fetch(b, g) : TESS_OK;
}

tess_status tess__states_begin(tess__compiler *b) {
    return tess__states_ahead(b, next_stepped(b, -1));
}

/* Apart from passes, groups are stepped in their order. Within one, each comes when its gradient is reduced. */
tess_status tess__states_need(tess__compiler *b, int32_t g) {
    TRY(fetch(b, g));
    if (!b->fused)
        TRY(tess__states_ahead(b, next_stepped(b, g)));
    return is_stored(b, g) ? tess__emit(b, TESS__STATES_FETCH_WAIT, g) : TESS_OK;
}

tess_status tess__states_end(tess__compiler *b) {
    int32_t g = b->storing;
    b->storing = -1;
    if (g < 0)
        return TESS_OK;
    TRY(tess__emit(b, TESS__STATES_STORE_WAIT, g));
    for (int32_t k = 0; k < (int32_t)b->layout->groups[g].step.n_states; k++)
        TRY(tess__emit_free(b, TESS__STAGED0 + k, g));
    return tess__emit_free(b, TESS__STAGED_PARAM, g);
}

tess_status tess__states_store(tess__compiler *b, int32_t g) {
    if (!is_stored(b, g))
        return TESS_OK;
    TRY(tess__emit(b, TESS__STATES_STORE, g));
    TRY(tess__states_end(b));
    b->storing = g;
    return b->setup->prefetch > 0 ? TESS_OK : tess__states_end(b);
}
