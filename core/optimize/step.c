/* SPDX-License-Identifier: BSD-3-Clause */
#include "parts.h"

#include "base/status.h"
#include "kit/formulas.h"

#include <stdlib.h>
#include <string.h>

tess_status tess__segments_make(tess__step *s, const tess__plan *plan, int32_t shard_rank) {
    const tess__layout *l = &plan->layout;
    s->segments = calloc((size_t)l->n_order + 1, sizeof *s->segments);
    s->segment_group = calloc((size_t)l->n_order + 1, sizeof *s->segment_group);
    s->first_segment = calloc((size_t)l->n_groups + 1, sizeof *s->first_segment);
    if (!s->segments || !s->segment_group || !s->first_segment)
        return tess__fail(TESS_E_NOMEM, "no memory for the optimizer's segments");
    int32_t n = 0;
    for (int32_t g = 0; g < l->n_groups; g++) {
        s->first_segment[g] = n;
        for (int32_t i = 0; i < l->groups[g].n_params; i++) {
            const tess__param *p = &plan->model.params[l->order[l->groups[g].first_param + i]];
            tess__piece piece = tess__layout_piece(l, p, shard_rank);
            if (!piece.elems)
                continue;
            int same = n > s->first_segment[g] && s->segment_group[n - 1] == p->optimizer_group;
            tess_segment *at = &s->segments[same ? n - 1 : n];
            if (!same) {
                *at = (tess_segment){ .struct_size = sizeof *at, .first = piece.in_shard };
                s->segment_group[n++] = p->optimizer_group;
            }
            at->elems = piece.in_shard + piece.elems - at->first;
        }
    }
    s->first_segment[l->n_groups] = n;
    return tess__parts_make(s, plan, shard_rank);
}

void tess__segments_free(tess__step *s) {
    free(s->segments);
    free(s->first_segment);
    free(s->segment_group);
    tess__parts_free(s);
    s->segments = NULL;
    s->first_segment = s->segment_group = NULL;
}

void tess__segments_of(const tess__step *s, const tess__layout *l, int32_t group, tess_optimizer *out) {
    int32_t first = group < 0 ? 0 : s->first_segment[group];
    out->segments = &s->segments[first];
    out->n_segments = (uint32_t)(s->first_segment[group < 0 ? l->n_groups : group + 1] - first);
}

static float or_else(float value, float fallback) {
    return value != 0 ? value : fallback;
}

static void set_segments(tess__step *s, const tess__layout *l, const tess_optimizer_options *o) {
    for (int32_t i = 0; i < s->first_segment[l->n_groups]; i++) {
        tess_optimizer_group of = o->groups ? o->groups[s->segment_group[i]] : (tess_optimizer_group){ 0 };
        s->segments[i].lr = o->group_lr ? o->group_lr[s->segment_group[i]] : o->lr * or_else(of.lr_scale, 1);
        s->segments[i].weight_decay = of.weight_decay;
        s->segments[i].momentum = o->momentum;
    }
}

void tess__step_numbers(tess__step *s, const tess__layout *l, const tess_optimizer_options *o, int64_t *note) {
    s->grad_scale = or_else(o->grad_scale, 1);
    s->skips = s->has_norm = 0;
    s->norm_limbs = NULL;
    s->said = *o;
    s->kernel = (tess_optimizer){ .struct_size = sizeof s->kernel,
                                  .optimizer = l->kernel,
                                  .step = o->step ? o->step : s->steps_done + 1,
                                  .beta1 = or_else(o->beta1, 0.9f),
                                  .beta2 = or_else(o->beta2, 0.999f),
                                  .rho = or_else(o->rho, 0.9f),
                                  .eps = or_else(o->eps, l->kernel == TESS_OPT_ADADELTA ? 1e-6f : 1e-8f),
                                  .grad_scale = s->grad_scale,
                                  .not_finite = note };
    set_segments(s, l, o);
}

tess_optimizer_matrix tess__numbers_said(const tess__step *s) {
    return (tess_optimizer_matrix){ .struct_size = sizeof(tess_optimizer_matrix),
                                    .step = s->kernel.step,
                                    .momentum = tess_decimal_of_f32(s->said.momentum),
                                    .beta1 = tess_decimal_of_f32(s->said.beta1),
                                    .beta2 = tess_decimal_of_f32(s->said.beta2),
                                    .eps = tess_decimal_of_f32(s->said.eps),
                                    .rho = tess_decimal_of_f32(s->said.rho) };
}

/* ---- the usual norm ---- */

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const tess__step *s) {
    double sorted[TESS__NORMS];
    uint64_t n = s->n_norms < TESS__NORMS ? s->n_norms : TESS__NORMS;
    if (n < TESS__NORMS / 2)
        return 0;
    memcpy(sorted, s->norms, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, ascending);
    return sorted[n / 2];
}

double tess__usual_norm(tess__step *s, double norm) {
    double usual = median(s);
    s->norms[s->n_norms++ % TESS__NORMS] = norm;
    return usual;
}
