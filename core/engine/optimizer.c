/* SPDX-License-Identifier: BSD-3-Clause */
/* The optimizer step on shards, the gradient norm, clipping. */
#include "finite.h"
#include "scaler.h"

#include "base/status.h"

tess_status tess__step_ready(tess *t, const char *call) {
    TRY(tess__pass_finish(t));
    if (t->pass.summoned)
        return tess__fail(TESS_E_INVALID, "%s while parameters are summoned", call);
    if (!t->pass.pending_grads || t->pass.microbatch < t->plan.setup.accum)
        return tess__fail(TESS_E_INVALID, "%s: %d of %d training passes have run since the last step%s", call,
                          t->pass.microbatch, t->plan.setup.accum, t->settings.accum_text);
    return tess__guard_check(t, call);
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
    tess_optimizer_options unscaled = *o;
    unscaled.grad_scale = (o->grad_scale != 0 ? o->grad_scale : 1) * tess__unscale(t);
    unscaled.step = o->step ? o->step : t->step.steps_done + 1 - t->scaler.now.skipped;
    tess__step_numbers(&t->step, &t->plan.layout, &unscaled, tess__note_of_step(t));
    return TESS_OK;
}

tess_status tess__step_end(tess *t) {
    t->pass.pending_grads = 0;
    t->pass.microbatch = 0;
    t->step.steps_done++;
    t->step.options = NULL;
    return t->proof ? t->hooks->digest_step(t) : TESS_OK;
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
