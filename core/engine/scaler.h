/* SPDX-License-Identifier: BSD-3-Clause */
/* The scale of losses, where the precision asks for one. */
#ifndef TESS_SCALER_H
#define TESS_SCALER_H
#include "state.h"

/** Asks the precision how losses are scaled. TESS_E_UNSUPPORTED when they are, and the program does not say that its
 * backward does it. */
tess_status tess__scaler_open(tess *);
float tess__unscale(const tess *); /* gradients times that are those of the loss; 1 without a scale */
/** The gradients of the running step are finite or not, which every rank knows alike. 1: the step is left out, and the
 * next one has a smaller scale. */
int tess__scaler_step(tess *, int finite);
/** [C] Takes all ranks back to the scale of that image, of which one rank knows. */
tess_status tess__scaler_go_back(tess *, int64_t step);
#endif
