/* SPDX-License-Identifier: BSD-3-Clause */
#include "lion.h"

/* The user's setting wins over the program's number, which wins over the usual value. */
static double beta_of(const kit_option *o, double said) {
    return !o->is_set && said != 0 ? said : o->value.real;
}

tess_status lion_numbers_of(const void *ctx, const tess_optimizer_piece *p, lion_numbers *out, tess_error *error) {
    const lion_settings *s = ctx;
    const double beta1 = beta_of(&s->beta[BETA1], p->beta1), beta2 = beta_of(&s->beta[BETA2], p->beta2);
    if (!(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1))
        return tess_plugin_fail(error, TESS_E_INVALID,
                                "optimizer lion: beta1 %g and beta2 %g, expected 0 or more and less than 1", beta1,
                                beta2);
    *out = (lion_numbers){ .b1 = (float)beta1,
                           .c1 = (float)(1 - beta1),
                           .b2 = (float)beta2,
                           .c2 = (float)(1 - beta2),
                           .shrink = (float)(1 - p->lr * p->weight_decay),
                           .lr = (float)p->lr };
    return TESS_OK;
}
