/* The optimizer step on shards, the gradient norm, clipping. */
#include "engine.h"

#include "status.h"
#include "try.h"

#include <string.h>

static tess_status ready(tess *t, const char *call) {
    TRY(tess__pass_finish(t));
    if (t->summoned)
        return tess__fail(TESS_E_INVALID, "%s while parameters are summoned", call);
    if (!t->pending_grads || t->microbatch < t->setup.accum)
        return tess__fail(TESS_E_INVALID, "%s: %d of %d training passes have run since the last step", call,
                          t->microbatch, t->setup.accum);
    return TESS_OK;
}

static tess_status check_groups(const tess *t, const tess_optimizer_options *o) {
    for (int32_t i = 0; o->groups && i < t->model.n_params; i++)
        if (t->model.params[i].optimizer_group >= o->n_groups)
            return tess__fail(TESS_E_INVALID, "tess_step: parameter \"%s\" is in optimizer group %d, of %d given",
                              t->model.params[i].name, t->model.params[i].optimizer_group, o->n_groups);
    return TESS_OK;
}

static void set_segments(tess *t, const tess_optimizer_options *o) {
    for (int32_t i = 0; i < t->first_segment[t->layout.n_groups]; i++) {
        int32_t g = t->segment_group[i];
        tess_optimizer_group of = o->groups ? o->groups[g] : (tess_optimizer_group){ 0 };
        t->segments[i].lr = o->lr * (of.lr_scale != 0 ? of.lr_scale : 1.0f);
        t->segments[i].weight_decay = of.weight_decay;
        t->segments[i].momentum = o->momentum;
    }
}

/* PyTorch's defaults where a field is zero. */
static float or_else(float value, float fallback) {
    return value != 0 ? value : fallback;
}

tess_status tess__step_begin(tess *t, const tess_optimizer_options *o) {
    int adadelta = t->setup.optimizer == TESS_OPT_ADADELTA;
    if (!t->setup.optimizer)
        return tess__fail(TESS_E_INVALID, "tess_step: this engine was opened with optimizer \"none\"");
    if (t->setup.optimizer == TESS_OPT_SGD && o->momentum != 0 && !t->setup.n_states)
        return tess__fail(TESS_E_INVALID,
                          "tess_step: sgd with momentum %g was opened without (tess_options.momentum), "
                          "so no state was planned",
                          (double)o->momentum);
    TRY(check_groups(t, o));
    t->grad_scale = or_else(o->grad_scale, 1);
    t->step_kernel = (tess_optimizer){ .struct_size = sizeof t->step_kernel,
                                       .optimizer = t->setup.optimizer,
                                       .step = o->step ? o->step : t->steps_done + 1,
                                       .beta1 = or_else(o->beta1, 0.9f),
                                       .beta2 = or_else(o->beta2, 0.999f),
                                       .rho = or_else(o->rho, 0.9f),
                                       .eps = or_else(o->eps, adadelta ? 1e-6f : 1e-8f),
                                       .grad_scale = t->grad_scale };
    set_segments(t, o);
    return TESS_OK;
}

tess_status tess__step_end(tess *t) {
    t->pending_grads = 0;
    t->microbatch = 0;
    t->steps_done++;
    t->step_options = NULL;
    return TESS_OK;
}

tess_status tess__step(tess *t, const tess_optimizer_options *options) {
    tess_optimizer_options o;
    TRY(tess__take("tess_step", &o, sizeof o, options));
    TRY(ready(t, "tess_step"));
    TRY(tess__step_begin(t, &o));
    t->step_options = &o;
    tess_status s = tess__run_program(t, &t->programs[o.clip_norm > 0 ? TESS__P_CLIP : TESS__P_STEP]);
    t->step_options = NULL;
    return s ? s : tess__step_end(t);
}

static tess_status norm(tess *t, float *out) {
    if (!out)
        return tess__fail(TESS_E_INVALID, "tess_grad_norm: there is no place for the norm");
    TRY(ready(t, "tess_grad_norm"));
    t->grad_scale = 1;
    TRY(tess__run_program(t, &t->programs[TESS__P_NORM]));
    *out = (float)t->norm;
    return TESS_OK;
}

static tess_status drop(tess *t) {
    TRY(tess__pass_finish(t));
    for (int32_t i = 0; i < t->resident.n_buffers; i++) {
        const tess__buffer *b = &t->resident.buffers[i];
        if (b->role == TESS__SHARD_GRAD && t->booked[b->role][b->index])
            tess__unbook(t, b);
    }
    t->pending_grads = 0;
    t->microbatch = 0;
    return TESS_OK;
}

tess_status tess_step(tess *t, const tess_optimizer_options *o) {
    tess_status s = tess__engine_check(t);
    if (!s && (s = tess__step(t, o)))
        s = tess__engine_fail(t, s);
    return s;
}

tess_status tess_grad_norm(tess *t, float *out) {
    tess_status s = tess__engine_check(t);
    if (!s && (s = norm(t, out)))
        s = tess__engine_fail(t, s);
    return s;
}

tess_status tess_grad_drop(tess *t) {
    tess_status s = tess__engine_check(t);
    if (!s && (s = drop(t)))
        s = tess__engine_fail(t, s);
    return s;
}
