/* SPDX-License-Identifier: BSD-3-Clause */
/* Emits the audit of a block (TESSERA_AUDIT): every rank has the input of every other before the block runs, and
 * compares what another makes of it behind it. */
#ifndef TESS_COMPILE_AUDIT_H
#define TESS_COMPILE_AUDIT_H
#include "compile.h"

/** Emits what goes before and behind the block's event `type`, TESS__FORWARD_BEGIN and so on. */
tess_status tess__audit_begin(tess__compiler *, uint8_t type, int32_t block);
tess_status tess__audit_end(tess__compiler *, uint8_t type, int32_t block);
#endif
