/* SPDX-License-Identifier: BSD-3-Clause */
#include "plan_matrices.h"

#include <inttypes.h>

#include "core/layout/matrices.h"
#include "core/readers/planned.h"

/* The work of the rank that has the most, beside an even share. */
static double most_work(const tess__plan *p) {
    double most, all;
    tess__matrices_balance(&p->layout, p->setup.shard_ranks, -1, &most, &all);
    return most * p->setup.shard_ranks / all;
}

/* Elements of the flat buffers that are no parameter's: behind parameters and behind the last one. */
static uint64_t padding_of(const tess__plan *p) {
    uint64_t padding = 0;
    for (int32_t i = 0; i < p->layout.n_groups; i++) {
        const tess__group *g = &p->layout.groups[i];
        padding += g->flat_elems;
        for (int32_t k = g->first_param; k < g->first_param + g->n_params; k++)
            padding -= p->model.params[p->layout.order[k]].elems;
    }
    return padding;
}

void plan_matrices_print(FILE *out, const tess__plan *p) {
    const tess__layout *l = &p->layout;
    if (l->n_matrices > 0)
        fprintf(out,
                "whole matrices: %d, each on one of %d rank%s; the one with the most work has %.4f of an even share\n",
                l->n_matrices, p->setup.shard_ranks, p->setup.shard_ranks == 1 ? "" : "s", most_work(p));
    fprintf(out, "padding: %" PRIu64 " elements, of all shards\n", padding_of(p));
}

void plan_matrices_json(json_out *j, const tess__plan *p) {
    const tess__layout *l = &p->layout;
    json_uint(j, "padding_elements", padding_of(p));
    if (l->n_matrices == 0)
        return;
    json_array_begin(j, "matrices");
    for (int32_t i = 0; i < l->n_matrices; i++) {
        const tess__matrix *m = &l->matrices[i];
        json_object_begin(j, NULL);
        json_string(j, "parameter", p->model.params[m->param].name);
        json_uint(j, "index", m->index);
        json_uint(j, "rows", m->rows);
        json_uint(j, "cols", m->cols);
        json_int(j, "owner", m->owner);
        json_object_end(j);
    }
    json_array_end(j);
    json_double(j, "most_work", most_work(p));
}

void plan_matrices_owners(json_out *j, const tess *t, int32_t unit) {
    const tess__layout *l = &tess__plan_of(t)->layout;
    int any = 0;
    for (int32_t i = 0; i < l->n_matrices; i++) {
        if (l->groups[l->matrices[i].group].unit != unit)
            continue;
        if (!any++)
            json_array_begin(j, "owners");
        json_int(j, NULL, l->matrices[i].owner);
    }
    if (any)
        json_array_end(j);
}
