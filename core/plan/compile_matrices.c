/* SPDX-License-Identifier: BSD-3-Clause */
#include "compile_matrices.h"

#include "base/status.h"
#include "compile_states.h"
#include "emit.h"
#include "layout/matrices.h"

/* Piece 0 is the update, piece 1 + k the state k where it travels. */
static int has_piece(const tess__group *g, int piece) {
    return piece == 0 || tess__travels(g, piece - 1);
}

static uint8_t of_piece(int piece) {
    return (uint8_t)(piece << TESS__PIECE_SHIFT);
}

static int by_parts(const tess__compiler *b) {
    return tess__matrices_by_parts(b->setup);
}

/* In parts as long as they are, or else to all ranks: from four ranks on equal parts are as many bytes as that
 * (docs/plugins.md, "What travels"). */
static tess__planned_collective exchange(const tess__compiler *b, const tess__group *group, uint8_t op, uint8_t which) {
    return by_parts(b) ? tess__emit_collective(b, TESS_ALL_TO_ALL_V, which, TESS_F32, TESS_F32, tess__parts_most(group))
                       : tess__emit_collective(b, op, which, TESS_F32, TESS_F32, group->shard_elems);
}

static tess_status collect(tess__compiler *b, int32_t g, int piece) {
    const tess__group *group = &b->layout->groups[g];
    tess__planned_collective c = exchange(b, group, TESS_ALL_GATHER, TESS__SHARD);
    TRY(tess__emit_scratch(b, TESS__COLLECT_SCRATCH, g, group->unit, &c));
    return tess__emit_post(b, TESS__COLLECT, of_piece(piece), g, &c);
}

static tess_status collected(tess__compiler *b, int32_t g, int piece) {
    TRY(tess__emit_flagged(b, TESS__COLLECT_WAIT, of_piece(piece), g));
    TRY(tess__emit_free(b, TESS__PARTS + piece, g));
    return tess__emit_free(b, TESS__COLLECT_SCRATCH, g);
}

/* Where a rank's part of the update or of a state is made, or comes to, in the order of owners. */
static tess_status alloc_parts(tess__compiler *b, int32_t g, int piece) {
    const tess__group *group = &b->layout->groups[g];
    return tess__emit_alloc(b, TESS__PARTS + piece, g, TESS_CAT_OPTIMIZER_SCRATCH, group->unit, group->shard_elems * 4,
                            0);
}

/* To all ranks the way back is a sum to which every rank but the owner gives zeros: exact in any order. */
static tess_status give_back(tess__compiler *b, int32_t g, int piece) {
    const tess__group *group = &b->layout->groups[g];
    tess__planned_collective c = exchange(b, group, TESS_REDUCE_SCATTER, TESS__SHARD_SUMS);
    c.redop = by_parts(b) ? 0 : TESS_SUM;
    if (by_parts(b) && piece)
        TRY(alloc_parts(b, g, piece));
    TRY(tess__emit_scratch(b, TESS__RETURN_SCRATCH, g, group->unit, &c));
    return tess__emit_post(b, TESS__RETURN, of_piece(piece), g, &c);
}

static tess_status given_back(tess__compiler *b, int32_t g, int piece) {
    TRY(tess__emit_flagged(b, TESS__RETURN_WAIT, of_piece(piece), g));
    TRY(tess__emit_free(b, TESS__RETURN_SCRATCH, g));
    TRY(tess__emit_free(b, TESS__PARTS + piece, g));
    return tess__emit_free(b, TESS__UPDATE + piece, g);
}

static int is_sharded(const tess__compiler *b) {
    return b->setup->shard_ranks > 1;
}

/* It has room for the matrices of all ranks; in parts, for those of the rank that owns the most. */
static tess_status alloc_whole(tess__compiler *b, int32_t g, int piece) {
    const tess__group *group = &b->layout->groups[g];
    return tess__emit_alloc(b, TESS__UPDATE + piece, g, TESS_CAT_OPTIMIZER_SCRATCH, group->unit,
                            4 * (by_parts(b) ? group->owned_elems : group->flat_elems), 0);
}

static tess_status send_piece(tess__compiler *b, int32_t g, int piece) {
    if (by_parts(b))
        TRY(alloc_whole(b, g, piece));
    return collect(b, g, piece);
}

tess_status tess__matrices_begin(tess__compiler *b, int32_t g) {
    const tess__group *group = &b->layout->groups[g];
    TRY(tess__states_need(b, g));
    for (int piece = 0; piece <= TESS__MAX_STATES; piece++)
        if (piece == 0 ? !tess__updates_in_place(b->setup, group) : is_sharded(b) && has_piece(group, piece))
            TRY(by_parts(b) ? alloc_parts(b, g, piece) : alloc_whole(b, g, piece));
    TRY(tess__emit(b, TESS__UPDATE_MAKE, g));
    for (int piece = TESS__MAX_STATES; is_sharded(b) && piece > 0; piece--)
        if (has_piece(group, piece)) {
            TRY(send_piece(b, g, piece));
            TRY(collected(b, g, piece));
        }
    return is_sharded(b) ? send_piece(b, g, 0) : TESS_OK;
}

static tess_status work_matrices(tess__compiler *b, int32_t g) {
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

static tess_status end_matrices(tess__compiler *b, int32_t g) {
    if (is_sharded(b))
        TRY(given_back(b, g, 0));
    TRY(tess__emit(b, TESS__UPDATE_APPLY, g));
    TRY(tess__emit_free(b, TESS__UPDATE, g));
    TRY(tess__grad_free(b, g));
    return tess__states_store(b, g);
}

tess_status tess__matrices_alone(tess__compiler *b, int32_t g) {
    TRY(tess__matrices_begin(b, g));
    TRY(work_matrices(b, g));
    return end_matrices(b, g);
}

/* ---- one unit beside the next ---- */

typedef tess_status matrices_part(tess__compiler *, int32_t group);

static tess_status each_matrices(tess__compiler *b, int32_t u, matrices_part *part) {
    for (int32_t i = 0; u >= 0 && i < b->layout->units[u].n_groups; i++)
        if (tess__steps_matrices(&b->layout->groups[b->layout->units[u].first_group + i]))
            TRY(part(b, b->layout->units[u].first_group + i));
    return TESS_OK;
}

static tess_status end_unit(tess__compiler *b, int32_t u) {
    TRY(each_matrices(b, u, end_matrices));
    return u < 0 ? TESS_OK : tess__program_point(b->p, TESS_LEDGER_OPTIMIZER | TESS_LEDGER_AFTER, u);
}

tess_status tess__matrices_follow(tess__compiler *b) {
    if (b->begun < 0)
        return TESS_OK;
    TRY(each_matrices(b, b->coming, work_matrices));
    TRY(end_unit(b, b->going));
    b->going = b->coming;
    b->coming = b->begun;
    b->begun = -1;
    return TESS_OK;
}

tess_status tess__matrices_flush(tess__compiler *b) {
    TRY(tess__matrices_follow(b));
    TRY(each_matrices(b, b->coming, work_matrices));
    TRY(end_unit(b, b->going));
    TRY(end_unit(b, b->coming));
    b->coming = b->going = -1;
    return TESS_OK;
}
