/* SPDX-License-Identifier: BSD-3-Clause */
/* How the optimizer steps a parameter, as its plugin says and the core has checked. */
#ifndef TESS_GRAIN_H
#define TESS_GRAIN_H
#include "model.h"
#include "setup.h"

/** A parameter as the plugins see it; the names stay the model's. */
tess_param_view tess__param_view_of(const tess__param *);
tess_status tess__param_step(const tess__setup *, const tess__param *, tess_grain *out);
/** TESS_E_UNSUPPORTED: `what` the optimizer says of a parameter cannot be. */
tess_status tess__grain_refused(const tess__setup *, const tess__param *, const char *what);
#endif
