/* SPDX-License-Identifier: BSD-3-Clause */
#include "parts.h"

#include "base/status.h"
#include "layout/matrices.h"

#include <stdlib.h>
#include <string.h>

/* By group: elements of this rank's shard that each rank owns, then of this rank's matrices that each rank's shard has.
 */
static uint64_t *held_of(const tess__step *s, int32_t group) {
    return &s->exchanged[2 * (size_t)group * (size_t)s->exchanging];
}
static uint64_t *owned_of(const tess__step *s, int32_t group) {
    return held_of(s, group) + s->exchanging;
}

static void count_exchanged(const tess__step *s, const tess__layout *l, int32_t group, int32_t rank) {
    const tess__group *g = &l->groups[group];
    for (int32_t i = g->first_matrix; i < g->first_matrix + g->n_matrices; i++) {
        const tess__matrix *m = &l->matrices[i];
        held_of(s, group)[m->owner] += tess__matrix_in_shard(g, m, rank).elems;
        for (int32_t r = 0; m->owner == rank && r < s->exchanging; r++)
            owned_of(s, group)[r] += tess__matrix_in_shard(g, m, r).elems;
    }
}

/* Elements that go to owners before this one, and to itself from parts so far. */
static uint64_t packed_at(const tess__step *s, int32_t group, int32_t owner, int32_t n) {
    uint64_t at = 0;
    for (int32_t r = 0; r < owner; r++)
        at += held_of(s, group)[r];
    for (int32_t i = s->first_part[group]; i < n; i++)
        at += s->parts[i].owner == owner ? s->parts[i].elems : 0;
    return at;
}

static int32_t list_parts(tess__step *s, const tess__layout *l, int32_t group, int32_t rank, int32_t n) {
    const tess__group *g = &l->groups[group];
    for (int32_t i = g->first_matrix; i < g->first_matrix + g->n_matrices; i++) {
        const tess__matrix *m = &l->matrices[i];
        const tess__piece in = tess__matrix_in_shard(g, m, rank);
        if (!in.elems)
            continue;
        s->parts[n] = (tess__part){ in.in_shard, in.elems, packed_at(s, group, m->owner, n), m->owner };
        n++;
    }
    return n;
}

tess_status tess__parts_make(tess__step *s, const tess__plan *plan, int32_t shard_rank) {
    const tess__layout *l = &plan->layout;
    int32_t n = 0;
    if (!l->n_matrices || !tess__matrices_by_parts(&plan->setup))
        return TESS_OK;
    s->exchanging = plan->setup.shard_ranks;
    s->exchanged = calloc(2 * (size_t)l->n_groups * (size_t)s->exchanging, sizeof *s->exchanged);
    s->parts = calloc((size_t)l->n_matrices, sizeof *s->parts);
    s->first_part = calloc((size_t)l->n_groups + 1, sizeof *s->first_part);
    if (!s->exchanged || !s->parts || !s->first_part)
        return tess__fail(TESS_E_NOMEM, "no memory for the parts of %d matrices", (int)l->n_matrices);
    for (int32_t g = 0; g < l->n_groups; g++) {
        s->first_part[g] = n;
        count_exchanged(s, l, g, shard_rank);
        n = list_parts(s, l, g, shard_rank, n);
    }
    s->first_part[l->n_groups] = n;
    return TESS_OK;
}

void tess__parts_free(tess__step *s) {
    free(s->exchanged);
    free(s->parts);
    free(s->first_part);
    s->exchanged = NULL;
    s->parts = NULL;
    s->first_part = NULL;
}

const tess__part *tess__part_at(const tess__step *s, const tess__setup *setup, int32_t group, uint64_t first) {
    if (!tess__matrices_by_parts(setup))
        return NULL;
    const tess__part *at = &s->parts[s->first_part[group]];
    while (first >= at->first + at->elems)
        at++;
    return at;
}

void tess__parts_exchanged(const tess__step *s, int32_t group, int back, const uint64_t **send, const uint64_t **recv) {
    *send = back ? owned_of(s, group) : held_of(s, group);
    *recv = back ? held_of(s, group) : owned_of(s, group);
}

void tess__parts_pack(const tess__step *s, int32_t group, const float *shard, float *packed) {
    for (int32_t i = s->first_part[group]; i < s->first_part[group + 1]; i++)
        memcpy(packed + s->parts[i].packed, shard + s->parts[i].first, s->parts[i].elems * sizeof *shard);
}

void tess__parts_unpack(const tess__step *s, int32_t group, const float *packed, float *shard) {
    for (int32_t i = s->first_part[group]; i < s->first_part[group + 1]; i++)
        memcpy(shard + s->parts[i].first, packed + s->parts[i].packed, s->parts[i].elems * sizeof *shard);
}
