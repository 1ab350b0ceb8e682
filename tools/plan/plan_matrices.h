/* SPDX-License-Identifier: BSD-3-Clause */
/* The matrices that a plan's optimizer steps whole, the ranks that own them, and the padding of the shards. */
#ifndef TOOL_PLAN_MATRICES_H
#define TOOL_PLAN_MATRICES_H
#include <stdio.h>

#include "core/plan/plan.h"
#include "tools/support/json_out.h"

/** The line of the matrices, where there are any, and the line of the padding. */
void plan_matrices_print(FILE *, const tess__plan *);
/** The members "padding_elements", "matrices" and "most_work", the last two where there are matrices. */
void plan_matrices_json(json_out *, const tess__plan *);
/** The member "owners": the ranks that step the unit's whole matrices, one by one. Nothing where there are none. */
void plan_matrices_owners(json_out *, const tess *, int32_t unit);
#endif
