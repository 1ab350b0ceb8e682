/* SPDX-License-Identifier: BSD-3-Clause */
/* Finds and names values that are not finite and gradients far above the usual, and decides what follows. */
#ifndef TESS_FINITE_H
#define TESS_FINITE_H
#include "state.h"

/** [C] Judges the running step when the host knows its norm and nothing has stepped. TESS_OK, with step.skips when
 * the step is left out; TESS_E_NOT_FINITE. */
tess_status tess__judge_norm(tess *);
/** The place where the optimizer's kernel notes a step that left something not finite. */
int64_t *tess__note_of_step(tess *);
/** Stops or warns when a step that has run left something not finite, as far as the host knows by now. */
tess_status tess__look_at_steps(tess *);
/** Does the same for the last step, after a wait for the norm that the device has. */
tess_status tess__look_at_last_norm(tess *);
void tess__forget_steps(tess *); /* after a rank was lost */
#endif
