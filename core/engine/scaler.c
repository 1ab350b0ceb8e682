/* SPDX-License-Identifier: BSD-3-Clause */
/* Losses are multiplied by a scale, so that gradients do not vanish in a dtype of few exponents (Micikevicius et al.
 * 2018). The scale follows the rules of PyTorch's GradScaler. It is a power of two, and the division is part of
 * grad_scale, so no pass over the gradients is needed. */
#include "scaler.h"

#include "base/log.h"
#include "base/status.h"

#include <math.h>
#include <stdlib.h>

/* ---- how ----------------------------------------------------------------------------------------- */

static int is_power_of_two(float x) {
    int exponent;
    return isfinite(x) && x > 0 && frexpf(x, &exponent) == 0.5f;
}

static tess_status check(const tess *t, const tess_loss_scaling *h) {
    int good = is_power_of_two(h->init) && is_power_of_two(h->least) && h->least <= h->init &&
               is_power_of_two(h->growth) && h->growth > 1 && is_power_of_two(h->backoff) && h->backoff < 1;
    if (!good)
        return tess__fail(
            TESS_E_INVALID,
            "TESSERA_PRECISION=%s: a loss scale from %.9g, times %.9g or %.9g, at least %.9g: expected powers of "
            "two, and init >= least > 0, growth > 1 > backoff > 0",
            t->selection.text[TESS_KIND_PRECISION], (double)h->init, (double)h->growth, (double)h->backoff,
            (double)h->least);
    if (!(t->settings.options.flags & TESS_OPTIONS_LOSS_SCALE))
        return tess__fail(TESS_E_UNSUPPORTED,
                          "TESSERA_PRECISION=%s scales losses, and this program does not say that its backward does: "
                          "tess_options.flags with TESS_OPTIONS_LOSS_SCALE, and tess_loss_scale",
                          t->selection.text[TESS_KIND_PRECISION]);
    return TESS_OK;
}

static tess_status ask(const tess *t, tess_loss_scaling *out) {
    const tess__setup *s = &t->plan.setup;
    tess_error error = { .struct_size = sizeof error, .rank = -1 };
    *out = (tess_loss_scaling){ .struct_size = sizeof *out };
    if (!TESS_CAN(tess_precision_ops, s->precision, loss_scaling))
        return TESS_OK;
    tess_status status = s->precision->loss_scaling(s->precision_ctx, out, &error);
    return status
               ? tess__fail(status, "TESSERA_PRECISION=%s: %s", t->selection.text[TESS_KIND_PRECISION], error.message)
               : TESS_OK;
}

tess_status tess__scaler_open(tess *t) {
    tess__scaler *s = &t->scaler;
    s->imaged_step[0] = s->imaged_step[1] = -1;
    TRY(ask(t, &s->how));
    if (s->how.init == 0 || !(t->plan.setup.optimizer || t->plan.setup.own_optimizer)) {
        s->how.init = 0; /* nothing is trained */
        return TESS_OK;
    }
    TRY(check(t, &s->how));
    s->now.scale = (double)s->how.init;
    t->plan.setup.norm_first = 1;
    t->plan.setup.no_clip = 0; /* every step has a norm, as with clipping */
    return TESS_OK;
}

/* ---- the scale ----------------------------------------------------------------------------------- */

float tess_loss_scale(const tess *t) {
    return t && t->scaler.now.scale > 0 ? (float)t->scaler.now.scale : 1;
}

float tess__unscale(const tess *t) {
    return 1 / tess_loss_scale(t);
}

static int back_off(tess *t) {
    tess__loss_scale *now = &t->scaler.now;
    double least = (double)t->scaler.how.least, before = now->scale;
    now->good = 0;
    if (before <= least)
        return 0;
    now->scale *= (double)t->scaler.how.backoff;
    now->scale = now->scale < least ? least : now->scale;
    now->skipped++;
    t->step.skips = 1;
    t->step.n_skipped++;
    if (t->comms.world.rank == 0)
        tess__log(TESS_LOG_INFO,
                  "step %llu: gradients overflow with losses times %.9g; it is left out, %.9g from here on",
                  (unsigned long long)(t->step.steps_done + 1), before, now->scale);
    return 1;
}

/* The scale stays a float, and so does its inverse. */
static void grow(tess__scaler *s) {
    double most = 0x1p126;
    s->now.good++;
    if (!s->how.every || s->now.good < s->how.every)
        return;
    s->now.good = 0;
    if (s->now.scale * (double)s->how.growth <= most)
        s->now.scale *= (double)s->how.growth;
}

int tess__scaler_step(tess *t, int finite) {
    if (t->scaler.how.init == 0)
        return 0;
    if (!finite)
        return back_off(t);
    grow(&t->scaler);
    return 0;
}

/* ---- kept ---------------------------------------------------------------------------------------- */

/* Without a scale of its own the run still needs to know which steps bias corrections do not count. */
void tess__scaler_load(tess *t, const tess__loss_scale *saved) {
    tess__scaler *s = &t->scaler;
    s->now = (tess__loss_scale){ .scale = (double)s->how.init, .skipped = saved->skipped };
    if (s->how.init == 0 || !(saved->scale > 0))
        return;
    s->now.scale = saved->scale < (double)s->how.least ? (double)s->how.least : saved->scale;
    s->now.good = saved->good;
}

void tess__scaler_imaged(tess *t, int64_t step) {
    tess__scaler *s = &t->scaler;
    s->imaged[1] = s->imaged[0];
    s->imaged_step[1] = s->imaged_step[0];
    s->imaged[0] = s->now;
    s->imaged_step[0] = step;
}

typedef struct {
    int64_t known;
    tess__loss_scale scale;
} recollection;

tess_status tess__scaler_go_back(tess *t, int64_t step) {
    tess__scaler *s = &t->scaler;
    int32_t n = t->comms.world.nranks, r = 0;
    recollection mine = { .known = 0 }, *all = calloc((size_t)n, sizeof *all);
    if (!all)
        return tess__fail(TESS_E_NOMEM, "no memory to compare %d ranks", n);
    for (int i = 1; i >= 0; i--)
        if (s->imaged_step[i] == step)
            mine = (recollection){ 1, s->imaged[i] };
    tess_status status = tess__comms_exchange(&t->comms, "the scale of losses", &mine, sizeof mine, all);
    while (!status && r < n && !all[r].known)
        r++;
    if (!status && r == n)
        status = tess__fail(TESS_E_INTERNAL, "no rank knows the loss scale of step %lld", (long long)step);
    if (!status)
        s->now = all[r].scale;
    free(all);
    return status;
}
