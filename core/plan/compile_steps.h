/* SPDX-License-Identifier: BSD-3-Clause */
/* The programs of a step apart from its passes: one group after the other, or matrices beside each other. */
#ifndef TESS_COMPILE_STEPS_H
#define TESS_COMPILE_STEPS_H
#include "compile.h"

/** The step of all groups. What is under way of one unit's matrices goes on beside the work on another's, unless
 * tess__compiler.in_turn. */
tess_status tess__compile_steps(tess__compiler *);
#endif
