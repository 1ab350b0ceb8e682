/* SPDX-License-Identifier: BSD-3-Clause */
#include "scale.h"

#include "base/status.h"

#include <math.h>

static int is_power_of_two(float x) { /* of 0, infinity and NaN frexpf gives these */
    int exponent;
    return frexpf(x, &exponent) == 0.5f;
}

static tess_status check(const tess_loss_scaling *h, const char *name) {
    int good = is_power_of_two(h->init) && is_power_of_two(h->least) && h->least <= h->init &&
               is_power_of_two(h->growth) && h->growth > 1 && is_power_of_two(h->backoff) && h->backoff < 1;
    if (good)
        return TESS_OK;
    return tess__fail(
        TESS_E_INVALID,
        "TESSERA_PRECISION=%s: a loss scale from %.9g, times %.9g or %.9g, at least %.9g: expected powers of "
        "two, and init >= least > 0, growth > 1 > backoff > 0",
        name, (double)h->init, (double)h->growth, (double)h->backoff, (double)h->least);
}

tess_status tess__scale_ask(tess__scaler *s, const tess_precision_ops *ops, void *ctx, const char *name) {
    tess_error error = { .struct_size = sizeof error, .rank = -1 };
    *s = (tess__scaler){ .how = { .struct_size = sizeof s->how }, .imaged_step = { -1, -1 } };
    if (!TESS_CAN(tess_precision_ops, ops, loss_scaling))
        return TESS_OK;
    tess_status status = ops->loss_scaling(ctx, &s->how, &error);
    if (status)
        return tess__fail(status, "TESSERA_PRECISION=%s: %s", name, error.message);
    s->now.scale = (double)s->how.init;
    return s->how.init == 0 ? TESS_OK : check(&s->how, name);
}

int tess__scale_back_off(tess__scaler *s) {
    double least = (double)s->how.least;
    s->now.good = 0;
    if (s->now.scale <= least)
        return 0;
    s->now.scale *= (double)s->how.backoff;
    s->now.scale = s->now.scale < least ? least : s->now.scale;
    s->now.skipped++;
    return 1;
}

/* The scale stays a float, and so does its inverse. */
void tess__scale_grow(tess__scaler *s) {
    double most = 0x1p126;
    s->now.good++;
    if (!s->how.every || s->now.good < s->how.every)
        return;
    s->now.good = 0;
    if (s->now.scale * (double)s->how.growth <= most)
        s->now.scale *= (double)s->how.growth;
}

void tess__scale_load(tess__scaler *s, const tess__loss_scale *saved) {
    s->now = (tess__loss_scale){ .scale = (double)s->how.init, .skipped = saved->skipped };
    if (s->how.init == 0 || !(saved->scale > 0))
        return;
    s->now.scale = saved->scale < (double)s->how.least ? (double)s->how.least : saved->scale;
    s->now.good = saved->good;
}

void tess__scale_imaged(tess__scaler *s, int64_t step) {
    s->imaged[1] = s->imaged[0];
    s->imaged_step[1] = s->imaged_step[0];
    s->imaged[0] = s->now;
    s->imaged_step[0] = step;
}

const tess__loss_scale *tess__scale_of_image(const tess__scaler *s, int64_t step) {
    for (int i = 0; i < 2; i++)
        if (s->imaged_step[i] == step)
            return &s->imaged[i];
    return NULL;
}
