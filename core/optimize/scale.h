/* SPDX-License-Identifier: BSD-3-Clause */
/* Losses are multiplied by a scale, so that gradients do not vanish in a dtype of few exponents (Micikevicius et al.
 * 2018). The scale follows the rules of PyTorch's GradScaler, and is a power of two. */
#ifndef TESS_SCALE_H
#define TESS_SCALE_H
#include "base/loss_scale.h"
#include "plugin/plugin.h"

typedef struct {
    tess_loss_scaling how; /* init 0: the precision does not scale losses */
    tess__loss_scale now;
    tess__loss_scale imaged[2]; /* of the last two images, the newest first */
    int64_t imaged_step[2];
} tess__scaler;

/** Asks the precision how losses are scaled, and begins with its first scale. `name` is the precision, for messages.
 * TESS_E_INVALID: its scales are no powers of two. */
tess_status tess__scale_ask(tess__scaler *, const tess_precision_ops *, void *ctx, const char *name);
/** After gradients that are not finite. Returns 0 where the scale is at its least already. */
int tess__scale_back_off(tess__scaler *);
/** After gradients that are finite. */
void tess__scale_grow(tess__scaler *);
/** Goes on from a checkpoint's scale. A run without a scale keeps the number of steps left out, which bias corrections
 * do not count. */
void tess__scale_load(tess__scaler *, const tess__loss_scale *saved);
/** Remembers the scale of an image of `step`, which is whole; finds it again, or null. */
void tess__scale_imaged(tess__scaler *, int64_t step);
const tess__loss_scale *tess__scale_of_image(const tess__scaler *, int64_t step);
#endif
