/* SPDX-License-Identifier: BSD-3-Clause */
/* The instructions of a step with whole matrices (core/optimize): where they are, and what goes there and back. */
#include "state.h"

static int piece_of(const tess__instr *in) {
    return in->flags >> TESS__PIECE_SHIFT;
}

static tess_status collect(tess *t, const tess__instr *in) {
    float *all = tess__address_of(t, TESS__UPDATE + piece_of(in), in->index);
    return tess__post_planned(t, in, all + (uint64_t)t->comms.shard_rank * t->plan.layout.groups[in->index].shard_elems,
                              all);
}

/* The results take the place of the gradient, which no one needs any more, and states their own. */
static tess_status give_back(tess *t, const tess__instr *in) {
    int piece = piece_of(in), role = piece ? TESS__STATE0 + piece - 1 : TESS__SHARD_GRAD;
    return tess__post_planned(t, in, tess__address_of(t, TESS__UPDATE + piece, in->index),
                              tess__address_of(t, role, in->index));
}

tess_status tess__matrices_instr(tess *t, const tess__instr *in) {
    const tess__plugin *plugin = t->selection.plugins[TESS_KIND_OPTIMIZER];
    tess__pool *pool = t->transfers.host_pool;
    switch (in->op) {
    case TESS__UPDATE_MAKE: return tess__update_make(&t->step, &t->memory, plugin, in->index, pool);
    case TESS__COLLECT: return collect(t, in);
    case TESS__MATRIX: return tess__matrices_step(&t->step, &t->memory, plugin, in->index, pool);
    case TESS__RETURN: return give_back(t, in);
    case TESS__UPDATE_APPLY: return tess__step_pieces(&t->step, &t->memory, plugin, in->index, TESS_PHASE_AFTER, pool);
    default: return tess__end_planned(t, in);
    }
}
