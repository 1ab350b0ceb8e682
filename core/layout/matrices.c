/* SPDX-License-Identifier: BSD-3-Clause */
#include "matrices.h"

#include "base/hash.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

double tess__matrix_work(const tess__matrix *m) {
    double short_side = (double)(m->rows < m->cols ? m->rows : m->cols);
    return (double)m->rows * (double)m->cols * short_side;
}

static int most_work_first(const void *a, const void *b) {
    const tess__matrix *x = *(tess__matrix *const *)a, *y = *(tess__matrix *const *)b;
    double one = tess__matrix_work(x), two = tess__matrix_work(y);
    return one != two ? (one < two ? 1 : -1) : (x > y) - (x < y);
}

static int32_t least_loaded(const double *load, int32_t ranks) {
    int32_t best = 0;
    for (int32_t r = 1; r < ranks; r++)
        if (load[r] < load[best])
            best = r;
    return best;
}

/* Loads go on from one unit to the next, so that a rank with little work in one has more in another. */
static tess_status choose_owners(tess__layout *l, int32_t ranks) {
    double *load = calloc((size_t)ranks, sizeof *load);
    tess__matrix **order = calloc((size_t)l->n_matrices + 1, sizeof(tess__matrix *));
    for (int32_t u = 0; load && order && u < l->n_units; u++) {
        int32_t n = 0;
        for (int32_t i = 0; i < l->n_matrices; i++)
            if (l->groups[l->matrices[i].group].unit == u)
                order[n++] = &l->matrices[i];
        qsort(order, (size_t)n, sizeof(tess__matrix *), most_work_first);
        for (int32_t i = 0; i < n; i++) {
            order[i]->owner = least_loaded(load, ranks);
            load[order[i]->owner] += tess__matrix_work(order[i]);
        }
    }
    tess_status s = load && order ? TESS_OK : tess__fail(TESS_E_NOMEM, "no memory for the owners of matrices");
    free(load);
    free(order);
    return s;
}

tess__piece tess__matrix_in_shard(const tess__group *g, const tess__matrix *m, int32_t shard_rank) {
    const uint64_t begin = (uint64_t)shard_rank * g->shard_elems, end = begin + g->shard_elems;
    const uint64_t last = m->at + m->rows * m->cols, first = m->at > begin ? m->at : begin;
    const uint64_t stop = last < end ? last : end;
    return stop > first ? (tess__piece){ first - m->at, first - begin, stop - first } : (tess__piece){ 0, 0, 0 };
}

typedef struct { /* by rank */
    uint64_t own, sent, got;
} load;

static void count_moves(const tess__layout *l, tess__group *g, load *of, int32_t ranks) {
    memset(of, 0, (size_t)ranks * sizeof *of);
    g->owned_elems = g->moved_elems = 0;
    for (int32_t i = g->first_matrix; i < g->first_matrix + g->n_matrices; i++) {
        const tess__matrix *m = &l->matrices[i];
        of[m->owner].own += m->rows * m->cols;
        for (int32_t r = (int32_t)(m->at / g->shard_elems); r < ranks; r++) {
            const uint64_t n = tess__matrix_in_shard(g, m, r).elems;
            if (!n)
                break;
            of[r].sent += r == m->owner ? 0 : n;
            of[m->owner].got += r == m->owner ? 0 : n;
        }
    }
    for (int32_t r = 0; r < ranks; r++) {
        const uint64_t moved = of[r].sent > of[r].got ? of[r].sent : of[r].got;
        g->owned_elems = of[r].own > g->owned_elems ? of[r].own : g->owned_elems;
        g->moved_elems = moved > g->moved_elems ? moved : g->moved_elems;
    }
}

static tess_status count_all_moves(tess__layout *l, int32_t ranks) {
    load *of = calloc((size_t)ranks, sizeof *of);
    if (!of)
        return tess__fail(TESS_E_NOMEM, "no memory for the matrices of %d ranks", (int)ranks);
    for (int32_t g = 0; g < l->n_groups; g++)
        if (l->groups[g].n_matrices)
            count_moves(l, &l->groups[g], of, ranks);
    free(of);
    return TESS_OK;
}

static uint64_t count_of(const tess__param *p) {
    return p->elems / (p->rows * p->cols);
}

static uint64_t count_all(const tess__model *m, const tess__layout *l) {
    uint64_t n = 0;
    for (int32_t i = 0; i < l->n_order; i++)
        if (tess__steps_matrices(&l->groups[m->params[l->order[i]].group]))
            n += count_of(&m->params[l->order[i]]);
    return n;
}

static void list_group(const tess__model *m, tess__layout *l, int32_t index) {
    tess__group *group = &l->groups[index];
    group->first_matrix = l->n_matrices;
    for (int32_t i = group->first_param; i < group->first_param + group->n_params; i++) {
        const tess__param *p = &m->params[l->order[i]];
        for (uint64_t k = 0; k < count_of(p); k++)
            l->matrices[l->n_matrices++] = (tess__matrix){ .param = l->order[i],
                                                           .group = index,
                                                           .index = k,
                                                           .at = p->offset + k * p->rows * p->cols,
                                                           .rows = p->rows,
                                                           .cols = p->cols,
                                                           .scratch_bytes = p->scratch_bytes };
        group->scratch_bytes = p->scratch_bytes > group->scratch_bytes ? p->scratch_bytes : group->scratch_bytes;
    }
    group->n_matrices = l->n_matrices - group->first_matrix;
}

tess_status tess__matrices_list(const tess__model *m, int32_t shard_ranks, tess__layout *l) {
    uint64_t n = count_all(m, l);
    if (!n)
        return TESS_OK;
    l->matrices = n < INT32_MAX ? calloc(n, sizeof *l->matrices) : NULL;
    if (!l->matrices)
        return tess__fail(TESS_E_NOMEM, "no memory for %llu matrices", (unsigned long long)n);
    for (int32_t g = 0; g < l->n_groups; g++)
        if (tess__steps_matrices(&l->groups[g]))
            list_group(m, l, g);
    TRY(choose_owners(l, shard_ranks));
    return count_all_moves(l, shard_ranks);
}

void tess__matrices_balance(const tess__layout *l, int32_t shard_ranks, int32_t group, double *most, double *all) {
    *most = *all = 0;
    for (int32_t r = 0; r < shard_ranks; r++) {
        double own = 0;
        for (int32_t i = 0; i < l->n_matrices; i++)
            if (l->matrices[i].owner == r && (group < 0 || l->matrices[i].group == group))
                own += tess__matrix_work(&l->matrices[i]);
        *most = own > *most ? own : *most;
        *all += own;
    }
}

uint64_t tess__matrices_hash(const tess__layout *l, int32_t group) {
    const tess__group *g = &l->groups[group];
    uint64_t h = tess__hash_u64(TESS__HASH_START, (uint64_t)g->n_matrices);
    for (int32_t i = g->first_matrix; i < g->first_matrix + g->n_matrices; i++) {
        h = tess__hash_u64(h, l->matrices[i].at);
        h = tess__hash_u64(h, l->matrices[i].rows);
        h = tess__hash_u64(h, (uint64_t)(uint32_t)l->matrices[i].owner);
    }
    return h;
}
