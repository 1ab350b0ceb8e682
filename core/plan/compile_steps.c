/* SPDX-License-Identifier: BSD-3-Clause */
#include "compile_steps.h"

#include "base/status.h"
#include "compile_matrices.h"
#include "compile_states.h"
#include "compile_units.h"
#include "emit.h"
#include "layout/matrices.h"

#define EACH_GROUP(g, u)                                                                                               \
    for (int32_t g = b->layout->units[u].first_group, g##_end = g + b->layout->units[u].n_groups; g < g##_end; g++)

/* The gradient lives since the pass before. */
static tess_status find_gradient(tess__compiler *b, int32_t g) {
    const tess__group *group = &b->layout->groups[g];
    tess__buffer live = { .role = TESS__SHARD_GRAD,
                          .domain = (uint8_t)tess__rest_domain(&group->grad_rest),
                          .arena = TESS__RESIDENT,
                          .category = TESS_CAT_SHARD_GRAD,
                          .index = g,
                          .unit = group->unit,
                          .bytes =
                              tess__round_up(tess__shard_grad_bytes(group), tess__grad_align(b->setup, b->layout, g)),
                          .last = INT32_MAX };
    return tess__program_buffer(b->p, &live, tess__emit_buffer_of(b, TESS__SHARD_GRAD, g));
}

static tess_status in_turn(tess__compiler *b) {
    for (int32_t g = 0; g < b->layout->n_groups; g++)
        if (b->layout->groups[g].trainable) {
            TRY(find_gradient(b, g));
            TRY(tess__group_optimize(b, g));
        }
    return TESS_OK;
}

/* Begins a unit; returns whether it has matrices, which are then under way. */
static tess_status begin_unit(tess__compiler *b, int32_t u, int *has_matrices) {
    *has_matrices = 0;
    TRY(tess__program_point(b->p, TESS_LEDGER_OPTIMIZER, u));
    EACH_GROUP(g, u) {
        if (!b->layout->groups[g].trainable)
            continue;
        TRY(find_gradient(b, g));
        if (tess__steps_matrices(&b->layout->groups[g])) {
            *has_matrices = 1;
            TRY(tess__matrices_begin(b, g));
        } else {
            TRY(tess__states_need(b, g));
            TRY(tess__emit(b, TESS__OPTIMIZE, g));
            TRY(tess__grad_free(b, g));
            TRY(tess__states_store(b, g));
        }
    }
    return *has_matrices ? TESS_OK : tess__program_point(b->p, TESS_LEDGER_OPTIMIZER | TESS_LEDGER_AFTER, u);
}

static tess_status overlapped(tess__compiler *b) {
    int has_matrices;
    for (int32_t u = 0; u < b->layout->n_units; u++) {
        if (!b->layout->units[u].trainable)
            continue;
        TRY(begin_unit(b, u, &has_matrices));
        b->begun = has_matrices ? u : -1;
        TRY(tess__matrices_follow(b));
    }
    return tess__matrices_flush(b);
}

tess_status tess__compile_steps(tess__compiler *b) {
    TRY(b->layout->n_matrices && b->in_turn != TESS__IN_TURN_ALWAYS ? overlapped(b) : in_turn(b));
    return tess__states_end(b);
}
