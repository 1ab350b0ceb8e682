/* SPDX-License-Identifier: BSD-3-Clause */
/* The matrices of an optimizer whose grain is the whole matrix, and which rank of a shard group owns each. */
#ifndef TESS_MATRICES_H
#define TESS_MATRICES_H
#include "layout.h"

/** Lists the matrices of all groups and gives each an owner. A pure function of the layout, so the same on every rank:
 * unit by unit, the most work first, to the rank that has the least so far. */
tess_status tess__matrices_list(const tess__model *, int32_t shard_ranks, tess__layout *);
/** The multiplications of a matrix, up to a factor: those of its product with its own transpose. */
double tess__matrix_work(const tess__matrix *);
/** The work of the rank that has the most, in one group or with group -1 in all, and that of all ranks. */
void tess__matrices_balance(const tess__layout *, int32_t shard_ranks, int32_t group, double *most, double *all);
/** A hash of a group's matrices and their owners, for the program. */
uint64_t tess__matrices_hash(const tess__layout *, int32_t group);
/** Values that travel with the update of a group: bit k of them is state k. */
static inline int tess__travels(const tess__group *g, int32_t state) {
    return (int)(g->step.whole >> state & 1);
}
/** Whether the updates take the place of the gradient, piece by piece, because a rank has all of both. */
static inline int tess__updates_in_place(const tess__setup *s, const tess__group *g) {
    return s->shard_ranks == 1 && g->grad_shard == TESS_F32;
}
/** Whether updates travel in parts as long as they are, between the shards and the owners alone. */
static inline int tess__matrices_by_parts(const tess__setup *s) {
    return s->parts && s->shard_ranks > 1;
}
/** The elements of a matrix that a rank's shard has: in_param counts from the matrix's first. */
tess__piece tess__matrix_in_shard(const tess__group *, const tess__matrix *, int32_t shard_rank);
/** The most elements that a rank has in such an exchange of the group: it is the collective's count. */
static inline uint64_t tess__parts_most(const tess__group *g) {
    return g->owned_elems > g->shard_elems ? g->owned_elems : g->shard_elems;
}
static inline int tess__steps_matrices(const tess__group *g) {
    return g->trainable && g->step.grain == TESS_GRAIN_MATRIX;
}
#endif
