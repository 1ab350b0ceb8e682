/* SPDX-License-Identifier: BSD-3-Clause */
/* Calls a wrap policy, which says which parameters form a unit, and checks its answer. */
#ifndef TESS_WRAP_H
#define TESS_WRAP_H
#include "model.h"

/** Runs a policy on the model and writes unit_of_param[n_params] (buffers: -1), units renumbered in order of first use.
 * Checks that a policy gives every parameter a unit and keeps tied ones together. `plan` lays out and plans a
 * candidate, given as unit_of_param, for policies that ask; null: they cannot. */
typedef tess_status (*tess__wrap_plan_fn)(void *user, const int32_t *unit_of_param, int32_t n_units,
                                          tess_plan_result *);
tess_status tess__wrap_apply_planned(const tess__model *, const tess_wrap_ops *, void *ctx, const char *policy,
                                     const tess_plan_env *, tess__wrap_plan_fn plan, void *user, int32_t *unit_of_param,
                                     int32_t *n_units);
#endif
