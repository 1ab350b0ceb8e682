/* SPDX-License-Identifier: BSD-3-Clause */
/* Finds mistakes of a program that would otherwise pass in silence, or be blamed on another call. */
#include "state.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/status.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- scopes of a pass ---- */

static int scope_trains(const tess *t, int32_t scope) {
    const tess__scope *s = &t->plan.model.scopes[scope];
    for (int32_t i = 0; i < s->n_params; i++)
        if (!(t->plan.model.params[s->params[i]].flags & (TESS_FROZEN | TESS_BUFFER)))
            return 1;
    return 0;
}

void tess__missing_scope(const tess *t, char *out, size_t n) {
    int train = (t->pass.kind & 15) == TESS_PASS_TRAIN;
    out[0] = 0;
    for (int32_t k = 0; k < t->plan.model.n_scopes; k++) {
        const char *name = t->plan.model.scopes[k].name;
        if (!t->pass.begun[2 * k])
            snprintf(out, n, "scope \"%s\" was never entered: its tess_forward_begin is missing", name);
        else if (train && !t->pass.begun[2 * k + 1] && scope_trains(t, k))
            snprintf(out, n, "backward of scope \"%s\" was left out: its tess_backward_begin is missing", name);
        if (out[0])
            return;
    }
}

tess_status tess__check_backward(const tess *t) {
    int32_t entered = -1;
    if ((t->pass.kind & 15) != TESS_PASS_TRAIN || t->plan.model.n_blocks)
        return TESS_OK;
    for (int32_t k = 0; k < t->plan.model.n_scopes; k++) {
        if (t->pass.begun[2 * k + 1])
            return TESS_OK;
        entered = t->pass.begun[2 * k] ? k : entered;
    }
    if (entered < 0)
        return tess__fail(TESS_E_INVALID, "a training pass ends in which no scope was entered: tess_forward_begin and "
                                          "tess_backward_begin are missing");
    return tess__fail(TESS_E_INVALID,
                      "a training pass ends without any backward: tess_backward_begin of scope \"%s\" is missing, or "
                      "tess_pass was meant to be TESS_PASS_EVAL",
                      t->plan.model.scopes[entered].name);
}

/* ---- the step's options ---- */

static tess_status check_group_rates(const tess_optimizer_options *o) {
    if (!o->groups)
        return tess__fail(TESS_E_INVALID, "tess_step: group_lr is set, but groups is null");
    for (int32_t i = 0; i < o->n_groups; i++)
        if (!isfinite(o->group_lr[i]) || o->group_lr[i] < 0)
            return tess__fail(TESS_E_INVALID, "tess_step: group_lr[%d] is %g, expected a finite number from 0 up", i,
                              (double)o->group_lr[i]);
    return TESS_OK;
}

static tess_status check_rate(tess *t, const tess_optimizer_options *o) {
    if (o->group_lr)
        return check_group_rates(o);
    if (!isfinite(o->lr) || o->lr < 0)
        return tess__fail(TESS_E_INVALID, "tess_step: lr is %g, expected a finite number from 0 up", (double)o->lr);
    if (o->lr > 0)
        return TESS_OK;
    if (t->settings.strict)
        return tess__fail(TESS_E_INVALID, "tess_step: lr is 0, so no parameter would change: "
                                          "tess_optimizer_options.lr is missing (TESSERA_STRICT=1)");
    if (!t->step.warned_lr++ && t->comms.world.rank == 0)
        tess__log(TESS_LOG_WARNING,
                  "tess_step: lr is 0, so no parameter changes; is tess_optimizer_options.lr missing?");
    return TESS_OK;
}

static tess_status check_groups(const tess *t, const tess_optimizer_options *o) {
    for (int32_t i = 0; i < t->plan.model.n_params; i++) {
        const tess__param *p = &t->plan.model.params[i];
        if (p->flags & (TESS_FROZEN | TESS_BUFFER))
            continue;
        if (!o->groups && p->optimizer_group > 0)
            return tess__fail(TESS_E_INVALID,
                              "tess_step: parameter \"%s\" is in optimizer group %d, but "
                              "tess_optimizer_options.groups is null",
                              p->name, p->optimizer_group);
        if (o->groups && p->optimizer_group >= o->n_groups)
            return tess__fail(TESS_E_INVALID, "tess_step: parameter \"%s\" is in optimizer group %d, of %d given",
                              p->name, p->optimizer_group, o->n_groups);
    }
    return TESS_OK;
}

/* Names the options that the program gave, without its zeros. */
static void say_step(const tess_optimizer_options *o, uint64_t step, char *out, size_t n) {
    const struct {
        const char *name;
        float value;
    } rest[] = { { "beta1", o->beta1 }, { "beta2", o->beta2 },       { "eps", o->eps },
                 { "rho", o->rho },     { "momentum", o->momentum }, { "grad_scale", o->grad_scale } };
    size_t at = (size_t)snprintf(out, n, "tess_step %llu with lr %.9g, clip_norm %g", (unsigned long long)step,
                                 (double)o->lr, (double)o->clip_norm);
    for (size_t i = 0; i < sizeof rest / sizeof rest[0] && at < n; i++)
        if (rest[i].value != 0)
            at += (size_t)snprintf(out + at, n - at, ", %s %g", rest[i].name, (double)rest[i].value);
    for (int32_t i = 0; o->groups && i < o->n_groups && at < n; i++) {
        if (o->groups[i].weight_decay != 0)
            at += (size_t)snprintf(out + at, n - at, ", weight_decay %g", (double)o->groups[i].weight_decay);
        if (o->groups[i].lr_scale != 0 && at < n)
            at += (size_t)snprintf(out + at, n - at, ", lr_scale %g", (double)o->groups[i].lr_scale);
    }
    for (int32_t i = 0; o->group_lr && i < o->n_groups && at < n; i++)
        at += (size_t)snprintf(out + at, n - at, ", group_lr %.9g", (double)o->group_lr[i]);
}

static uint64_t hash_floats(uint64_t h, const float *values, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        h = tess__hash_u64(h, bits);
    }
    return h;
}

/* All ranks step alike: the tags of all later collectives depend on the options, and a difference is named there. */
static void remember_step(tess *t, const tess_optimizer_options *o) {
    const float values[] = { o->lr, o->beta1, o->beta2, o->eps, o->rho, o->momentum, o->grad_scale, o->clip_norm };
    uint64_t h = hash_floats(tess__hash_u64(t->comms.common, o->step), values, sizeof values / sizeof values[0]);
    for (int32_t i = 0; o->groups && i < o->n_groups; i++)
        h = hash_floats(h, (float[]){ o->groups[i].weight_decay, o->groups[i].lr_scale }, 2);
    h = hash_floats(h, o->group_lr, o->group_lr ? (size_t)o->n_groups : 0);
    t->comms.common = h;
    if (t->comms.world.nranks > 1) /* one rank has no other to differ from */
        say_step(o, o->step ? o->step : t->step.steps_done + 1, t->comms.common_text, sizeof t->comms.common_text);
}

tess_status tess__check_step_options(tess *t, const tess_optimizer_options *o) {
    TRY(check_rate(t, o));
    if (!isfinite(o->clip_norm) || o->clip_norm < 0)
        return tess__fail(TESS_E_INVALID,
                          "tess_step: clip_norm is %g, expected 0 (no clipping) or a finite number above",
                          (double)o->clip_norm);
    if (!isfinite(o->grad_scale))
        return tess__fail(TESS_E_INVALID, "tess_step: grad_scale is %g, expected a finite number",
                          (double)o->grad_scale);
    TRY(check_groups(t, o));
    remember_step(t, o);
    return TESS_OK;
}

/* ---- declarations ---- */

static int keeps_all(const tess *t) {
    return strcmp(t->settings.activations, "keep") == 0;
}

void tess__say_unused(const tess *t) {
    char activations[120] = "", optimizer[160] = "";
    const char *own = t->settings.options.optimizer, *set = tess__given_text(NULL, "optimizer");
    if (!t->plan.model.n_blocks && !keeps_all(t))
        snprintf(activations, sizeof activations, "activations=%s has no effect without blocks",
                 t->settings.activations);
    if (set && strcmp(t->settings.optimizer, set) == 0 && strcmp(set, own ? own : "adamw") != 0)
        snprintf(optimizer, sizeof optimizer, "TESSERA_OPTIMIZER=%s takes the place of the program's %s", set,
                 own ? own : "adamw");
    if (activations[0] || optimizer[0])
        tess__log(TESS_LOG_WARNING, "%s%s%s", activations, activations[0] && optimizer[0] ? "; " : "", optimizer);
}

tess_status tess__check_activations(const tess *t) {
    if (!t->settings.strict || t->plan.model.n_blocks || keeps_all(t))
        return TESS_OK;
    return tess__fail(TESS_E_INVALID,
                      "tess_shard: TESSERA_ACTIVATIONS=%s has no effect, because this program declares no blocks "
                      "(tess_block_add): its activations are its own (TESSERA_STRICT=1)",
                      t->settings.activations);
}

static tess_status overwrite_loses(const char *name, const char *why) {
    return tess__fail(TESS_E_INVALID,
                      "tess_shard: parameter \"%s\" is declared with TESS_GRAD_OVERWRITE, but %s: its kernels must add",
                      name, why);
}

/* A store in place of a sum would lose what came before it. Blocks have an order, so there the first gradient is known.
 */
tess_status tess__check_overwrite(const tess__plan *plan) {
    const tess__model *m = &plan->model;
    int at_end = plan->setup.accum > 1 && !plan->setup.sync_each;
    for (int32_t i = 0; i < m->n_params; i++) {
        const tess__param *p = &m->params[i];
        if (m->params[p->tied_to].flags & TESS_GRAD_OVERWRITE && p->tied_to != i && !m->n_blocks)
            return overwrite_loses(m->params[p->tied_to].name, "another name is tied to it, which has a gradient too");
        if (p->flags & TESS_GRAD_OVERWRITE && at_end)
            return overwrite_loses(p->name, "with sync=end several microbatches add up in one gradient");
    }
    return TESS_OK;
}
