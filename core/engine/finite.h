/* SPDX-License-Identifier: BSD-3-Clause */
/* Values that are not finite, and gradients far above the usual: found, named, and what is done about them. */
#ifndef TESS_FINITE_H
#define TESS_FINITE_H
#include "state.h"

/** [C] The norm of the running step is known to the host and nothing was stepped: TESS_OK, and step.skips where it is
 * left out; TESS_E_NOT_FINITE. */
tess_status tess__judge_norm(tess *);
/** Where the optimizer's kernel notes a step that left something not finite. */
int64_t *tess__note_of_step(tess *);
/** Stops or warns when a step that has run left something not finite, as far as the host knows by now. */
tess_status tess__look_at_steps(tess *);
/** The same of the last one, whose norm a device has, after a wait. */
tess_status tess__look_at_last_norm(tess *);
void tess__forget_steps(tess *); /* after a rank was lost */
#endif
