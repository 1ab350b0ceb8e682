/* SPDX-License-Identifier: BSD-3-Clause */
#include "compile_matrices.h"

#include "base/status.h"
#include "compile_units.h"
#include "emit.h"
#include "matrices.h"

/* ---- one group ---- */

/* Piece 0 is the update, piece 1 + k the state k where it travels. */
static int has_piece(const tess__group *g, int piece) {
    return piece == 0 || tess__travels(g, piece - 1);
}

static uint8_t of_piece(int piece) {
    return (uint8_t)(piece << TESS__PIECE_SHIFT);
}

/* Updates travel to all ranks: a shard is rarely of one owner alone, and no plugin sends parts of several lengths. */
static tess_status collect(tess__compiler *b, int32_t g, int piece) {
    const tess__group *group = &b->layout->groups[g];
    tess__planned_collective c =
        tess__emit_collective(b, TESS_ALL_GATHER, TESS__SHARD, TESS_F32, TESS_F32, group->shard_elems);
    TRY(tess__emit_scratch(b, TESS__COLLECT_SCRATCH, g, group->unit, &c));
    return tess__emit_post(b, TESS__COLLECT, of_piece(piece), g, &c);
}

static tess_status collected(tess__compiler *b, int32_t g, int piece) {
    TRY(tess__emit_flagged(b, TESS__COLLECT_WAIT, of_piece(piece), g));
    return tess__emit_free(b, TESS__COLLECT_SCRATCH, g);
}

/* The way back is a sum to which every rank but the owner gives zeros: exact in any order. */
static tess_status give_back(tess__compiler *b, int32_t g, int piece) {
    const tess__group *group = &b->layout->groups[g];
    tess__planned_collective c =
        tess__emit_collective(b, TESS_REDUCE_SCATTER, TESS__SHARD_SUMS, TESS_F32, TESS_F32, group->shard_elems);
    c.redop = TESS_SUM;
    TRY(tess__emit_scratch(b, TESS__RETURN_SCRATCH, g, group->unit, &c));
    return tess__emit_post(b, TESS__RETURN, of_piece(piece), g, &c);
}

static tess_status given_back(tess__compiler *b, int32_t g, int piece) {
    TRY(tess__emit_flagged(b, TESS__RETURN_WAIT, of_piece(piece), g));
    TRY(tess__emit_free(b, TESS__RETURN_SCRATCH, g));
    return tess__emit_free(b, TESS__UPDATE + piece, g);
}

static int is_sharded(const tess__compiler *b) {
    return b->setup->shard_ranks > 1;
}

tess_status tess__matrices_begin(tess__compiler *b, int32_t g) {
    const tess__group *group = &b->layout->groups[g];
    for (int piece = 0; piece <= TESS__MAX_STATES; piece++)
        if (piece == 0 ? !tess__updates_in_place(b->setup, group) : is_sharded(b) && has_piece(group, piece))
            TRY(tess__emit_alloc(b, TESS__UPDATE + piece, g, TESS_CAT_OPTIMIZER_SCRATCH, group->unit,
                                 group->flat_elems * 4, 0));
    TRY(tess__emit(b, TESS__UPDATE_MAKE, g));
    for (int piece = TESS__MAX_STATES; is_sharded(b) && piece > 0; piece--)
        if (has_piece(group, piece)) {
            TRY(collect(b, g, piece));
            TRY(collected(b, g, piece));
        }
    return is_sharded(b) ? collect(b, g, 0) : TESS_OK;
}

tess_status tess__matrices_work(tess__compiler *b, int32_t g) {
    const tess__group *group = &b->layout->groups[g];
    if (is_sharded(b))
        TRY(collected(b, g, 0));
    TRY(tess__emit_alloc(b, TESS__MATRIX_SCRATCH, g, TESS_CAT_OPTIMIZER_SCRATCH, group->unit, group->scratch_bytes, 0));
    TRY(tess__program_instr(b->p, TESS__MATRIX, 0, g, -1, tess__matrices_hash(b->layout, g)));
    TRY(tess__emit_free(b, TESS__MATRIX_SCRATCH, g));
    for (int piece = TESS__MAX_STATES; is_sharded(b) && piece > 0; piece--)
        if (has_piece(group, piece)) {
            TRY(give_back(b, g, piece));
            TRY(given_back(b, g, piece));
        }
    return is_sharded(b) ? give_back(b, g, 0) : TESS_OK;
}

tess_status tess__matrices_end(tess__compiler *b, int32_t g) {
    if (is_sharded(b))
        TRY(given_back(b, g, 0));
    TRY(tess__emit(b, TESS__UPDATE_APPLY, g));
    TRY(tess__emit_free(b, TESS__UPDATE, g));
    return tess__emit_free(b, TESS__SHARD_GRAD, g);
}

/* ---- all groups ---- */

#define EACH_GROUP(g, u)                                                                                               \
    for (int32_t g = b->layout->units[u].first_group, g##_end = g + b->layout->units[u].n_groups; g < g##_end; g++)

/* The gradient lives since the pass before. */
static tess_status find_gradient(tess__compiler *b, int32_t g) {
    const tess__group *group = &b->layout->groups[g];
    tess__buffer live = { .role = TESS__SHARD_GRAD,
                          .domain = (uint8_t)group->grad_rest.domain,
                          .arena = TESS__RESIDENT,
                          .category = TESS_CAT_SHARD_GRAD,
                          .index = g,
                          .unit = group->unit,
                          .bytes = tess__round_up(tess__shard_grad_bytes(group), b->setup->align),
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

typedef tess_status matrices_part(tess__compiler *, int32_t group);

static tess_status each_matrices(tess__compiler *b, int32_t u, matrices_part *part) {
    if (u < 0)
        return TESS_OK;
    EACH_GROUP(g, u)
        if (tess__steps_matrices(&b->layout->groups[g]))
            TRY(part(b, g));
    return TESS_OK;
}

static tess_status end_unit(tess__compiler *b, int32_t u) {
    TRY(each_matrices(b, u, tess__matrices_end));
    return u < 0 ? TESS_OK : tess__program_point(b->p, TESS_LEDGER_OPTIMIZER | TESS_LEDGER_AFTER, u);
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
            TRY(tess__emit(b, TESS__OPTIMIZE, g));
            TRY(tess__emit_free(b, TESS__SHARD_GRAD, g));
        }
    }
    return *has_matrices ? TESS_OK : tess__program_point(b->p, TESS_LEDGER_OPTIMIZER | TESS_LEDGER_AFTER, u);
}

/* Three units are under way: the updates of one come together and the results of another go back while the owners work
 * on the one between. */
static tess_status overlapped(tess__compiler *b) {
    int32_t coming = -1, going = -1;
    int has_matrices;
    for (int32_t u = 0; u < b->layout->n_units; u++) {
        if (!b->layout->units[u].trainable)
            continue;
        TRY(begin_unit(b, u, &has_matrices));
        if (!has_matrices)
            continue;
        TRY(each_matrices(b, coming, tess__matrices_work));
        TRY(end_unit(b, going));
        going = coming;
        coming = u;
    }
    TRY(each_matrices(b, coming, tess__matrices_work));
    TRY(end_unit(b, going));
    return end_unit(b, coming);
}

tess_status tess__compile_steps(tess__compiler *b) {
    return b->layout->n_matrices && !b->in_turn ? overlapped(b) : in_turn(b);
}
