/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TOOL_PLAN_AUDIT_H
#define TOOL_PLAN_AUDIT_H
#include "core/readers/planned.h"
#include "plan.h"

/** Which blocks TESSERA_AUDIT has repeated: a line, or the members "audit_every" and "not_audited". Nothing without
 * audits. */
void plan_audit_print(FILE *, const tess__plan *);
void plan_audit_json(json_out *, const tess__plan *);
#endif
