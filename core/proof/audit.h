/* SPDX-License-Identifier: BSD-3-Clause */
/* Audits (TESSERA_AUDIT): hooks of the engine. The bytes that they need are in plan/audit.h. */
#ifndef TESS_PROOF_AUDIT_H
#define TESS_PROOF_AUDIT_H
#include "engine/state.h"

/** [C] Of a block whose turn has come: AUDIT_SEND gives its inputs to all ranks; at AUDIT another rank makes the same
 * of them, and all compare. */
tess_status tess__audit_instr(tess *, const tess__instr *);
/** Whether audits can be done here; says which blocks are left out. */
tess_status tess__audit_check(const tess *);
#endif
