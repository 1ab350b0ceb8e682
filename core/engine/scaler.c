/* SPDX-License-Identifier: BSD-3-Clause */
/* The scale of losses in a running engine (core/optimize/scale.h). The division by it is part of grad_scale, so no pass
 * over the gradients is needed. */
#include "scaler.h"

#include "base/log.h"
#include "base/status.h"

#include <stdlib.h>

tess_status tess__scaler_open(tess *t) {
    tess__setup *setup = &t->plan.setup;
    tess__scaler *s = &t->scaler;
    const char *precision = t->selection.text[TESS_KIND_PRECISION];
    TRY(tess__scale_ask(s, setup->precision, setup->precision_ctx, precision));
    if (s->how.init == 0 || !(setup->optimizer || setup->own_optimizer)) {
        s->how.init = 0; /* nothing is trained */
        s->now.scale = 0;
        return TESS_OK;
    }
    if (!(t->settings.options.flags & TESS_OPTIONS_LOSS_SCALE))
        return tess__fail(TESS_E_UNSUPPORTED,
                          "TESSERA_PRECISION=%s scales losses, and this program does not say that its backward does: "
                          "tess_options.flags with TESS_OPTIONS_LOSS_SCALE, and tess_loss_scale",
                          precision);
    setup->norm_first = 1;
    setup->no_clip = 0; /* every step has a norm, as with clipping */
    return TESS_OK;
}

float tess_loss_scale(const tess *t) {
    return t && t->scaler.now.scale > 0 ? (float)t->scaler.now.scale : 1;
}

float tess__unscale(const tess *t) {
    return 1 / tess_loss_scale(t);
}

static int leave_out(tess *t) {
    double before = t->scaler.now.scale;
    if (!tess__scale_back_off(&t->scaler))
        return 0;
    t->step.skips = 1;
    t->step.n_skipped++;
    if (t->comms.world.rank == 0)
        tess__log(TESS_LOG_INFO,
                  "step %llu: gradients overflow with losses times %.9g; it is left out, %.9g from here on",
                  (unsigned long long)(t->step.steps_done + 1), before, t->scaler.now.scale);
    return 1;
}

int tess__scaler_step(tess *t, int finite) {
    if (t->scaler.how.init == 0)
        return 0;
    if (!finite)
        return leave_out(t);
    tess__scale_grow(&t->scaler);
    return 0;
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
    const tess__loss_scale *imaged = tess__scale_of_image(s, step);
    if (imaged)
        mine = (recollection){ 1, *imaged };
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
