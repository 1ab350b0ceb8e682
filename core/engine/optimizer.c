/* SPDX-License-Identifier: BSD-3-Clause */
/* The optimizer step on shards, the gradient norm, clipping. */
#include "finite.h"
#include "scaler.h"

#include "base/status.h"

#include <stdlib.h>

/* Lists the runs of one optimizer group in this rank's shards. Padding takes part, because zero stays zero in every
 * optimizer. */
tess_status tess__make_segments(tess *t) {
    const tess__layout *l = &t->plan.layout;
    t->step.segments = calloc((size_t)l->n_order + 1, sizeof *t->step.segments);
    t->step.segment_group = calloc((size_t)l->n_order + 1, sizeof *t->step.segment_group);
    t->step.first_segment = calloc((size_t)l->n_groups + 2, sizeof *t->step.first_segment);
    if (!t->step.segments || !t->step.segment_group || !t->step.first_segment)
        return tess__fail(TESS_E_NOMEM, "no memory for the optimizer's segments");
    int32_t n = 0;
    for (int32_t g = 0; g < l->n_groups; g++) {
        t->step.first_segment[g] = n;
        for (int32_t i = 0; i < l->groups[g].n_params; i++) {
            const tess__param *p = &t->plan.model.params[l->order[l->groups[g].first_param + i]];
            tess__piece piece = tess__layout_piece(l, p, t->comms.shard_rank);
            if (!piece.elems)
                continue;
            int same = n > t->step.first_segment[g] && t->step.segment_group[n - 1] == p->optimizer_group;
            tess_segment *s = &t->step.segments[same ? n - 1 : n];
            if (!same) {
                *s = (tess_segment){ .struct_size = sizeof *s, .first = piece.in_shard };
                t->step.segment_group[n++] = p->optimizer_group;
            }
            s->elems = piece.in_shard + piece.elems - s->first;
        }
    }
    t->step.first_segment[l->n_groups] = n;
    return TESS_OK;
}

#include <string.h>

tess_status tess__step_ready(tess *t, const char *call) {
    TRY(tess__pass_finish(t));
    if (t->pass.summoned)
        return tess__fail(TESS_E_INVALID, "%s while parameters are summoned", call);
    if (!t->pass.pending_grads || t->pass.microbatch < t->plan.setup.accum)
        return tess__fail(TESS_E_INVALID, "%s: %d of %d training passes have run since the last step%s", call,
                          t->pass.microbatch, t->plan.setup.accum, t->settings.accum_text);
    return tess__guard_check(t, call);
}

static void set_segments(tess *t, const tess_optimizer_options *o) {
    for (int32_t i = 0; i < t->step.first_segment[t->plan.layout.n_groups]; i++) {
        int32_t g = t->step.segment_group[i];
        tess_optimizer_group of = o->groups ? o->groups[g] : (tess_optimizer_group){ 0 };
        t->step.segments[i].lr = o->lr * (of.lr_scale != 0 ? of.lr_scale : 1.0f);
        t->step.segments[i].weight_decay = of.weight_decay;
        t->step.segments[i].momentum = o->momentum;
    }
}

/* PyTorch's defaults where a field is zero. */
static float or_else(float value, float fallback) {
    return value != 0 ? value : fallback;
}

void tess__step_destroy(tess *t) {
    free(t->step.segments);
    free(t->step.first_segment);
    free(t->step.segment_group);
    t->step.segments = NULL;
    t->step.first_segment = t->step.segment_group = NULL;
}

void tess__step_forget(tess *t) {
    t->step.options = NULL;
    t->step.norm_limbs = NULL;
}

tess_status tess__step_begin(tess *t, const tess_optimizer_options *o) {
    uint32_t kernel = t->plan.layout.kernel;
    if (!t->plan.setup.optimizer)
        return tess__fail(TESS_E_INVALID, "tess_step: this engine was opened with optimizer \"%s\"%s",
                          t->settings.optimizer, t->plan.setup.own_optimizer ? "; tess_update runs it" : "");
    if (kernel == TESS_OPT_SGD && o->momentum != 0 && !t->plan.layout.n_states)
        return tess__fail(TESS_E_INVALID,
                          "tess_step: sgd with momentum %g was opened without (tess_options.momentum), "
                          "so no state was planned",
                          (double)o->momentum);
    TRY(tess__check_step_options(t, o));
    if (!t->graphs.recording) { /* while a graph is recorded nothing may be asked of the device */
        TRY(tess__look_at_last_norm(t));
        TRY(tess__look_at_steps(t));
    }
    t->step.grad_scale = or_else(o->grad_scale, 1) * tess__unscale(t);
    t->step.skips = t->step.has_norm = 0;
    t->step.norm_limbs = NULL;
    t->step.said = *o;
    t->step.kernel = (tess_optimizer){ .struct_size = sizeof t->step.kernel,
                                       .optimizer = kernel,
                                       .step = o->step ? o->step : t->step.steps_done + 1 - t->scaler.now.skipped,
                                       .beta1 = or_else(o->beta1, 0.9f),
                                       .beta2 = or_else(o->beta2, 0.999f),
                                       .rho = or_else(o->rho, 0.9f),
                                       .eps = or_else(o->eps, kernel == TESS_OPT_ADADELTA ? 1e-6f : 1e-8f),
                                       .grad_scale = t->step.grad_scale,
                                       .not_finite = tess__note_of_step(t) };
    set_segments(t, o);
    return TESS_OK;
}

tess_status tess__step_end(tess *t) {
    t->pass.pending_grads = 0;
    t->pass.microbatch = 0;
    t->step.steps_done++;
    t->step.options = NULL;
    return TESS_OK;
}

int tess__step_needs_norm(const tess *t, const tess_optimizer_options *o) {
    return o->clip_norm > 0 || t->plan.setup.norm_first;
}

tess_status tess__step_run(tess *t, const tess_optimizer_options *options) {
    tess_optimizer_options o;
    TRY(tess__copy_options("tess_step", &o, sizeof o, TESS__UP_TO(tess_optimizer_options, step), options));
    TRY(tess__step_ready(t, "tess_step"));
    TRY(tess__step_begin(t, &o));
    t->step.options = &o;
    tess_status s = tess__run_program(t, &t->plan.programs[tess__step_needs_norm(t, &o) ? TESS__P_CLIP : TESS__P_STEP]);
    t->step.options = NULL;
    return s ? s : tess__step_end(t);
}

static tess_status get_grad_norm(tess *t, float *out) {
    if (!out)
        return tess__fail(TESS_E_INVALID, "tess_grad_norm: there is no place for the norm");
    TRY(tess__step_ready(t, "tess_grad_norm"));
    t->step.grad_scale = tess__unscale(t);
    TRY(tess__run_program(t, &t->plan.programs[TESS__P_NORM]));
    *out = (float)t->step.norm;
    return TESS_OK;
}

tess_status tess__grad_release(tess *t) {
    for (int32_t i = 0; i < t->plan.resident.n_buffers; i++) {
        const tess__buffer *b = &t->plan.resident.buffers[i];
        if (b->role == TESS__SHARD_GRAD && t->memory.booked[b->role][b->index])
            tess__unbook(&t->memory, b);
    }
    return TESS_OK;
}

static tess_status drop_gradients(tess *t) {
    TRY(tess__pass_finish(t));
    TRY(tess__grad_release(t));
    t->pass.pending_grads = 0;
    t->pass.microbatch = 0;
    return TESS_OK;
}

static tess_status step(tess *t, const tess_optimizer_options *o) {
    if (t->streams.late)
        return tess__fail(TESS_E_INVALID,
                          "tess_step, and tess_options.flags has TESS_OPTIONS_LATE: a step comes with a "
                          "tess_run");
    TRY(tess__step_run(t, o));
    return tess__look_at_steps(t);
}

tess_status tess_step(tess *t, const tess_optimizer_options *o) {
    TESS__PUBLIC(t, step(t, o));
}

tess_status tess_grad_norm(tess *t, float *out) {
    TESS__PUBLIC(t, get_grad_norm(t, out));
}

tess_status tess_grad_drop(tess *t) {
    TESS__PUBLIC(t, drop_gradients(t));
}
