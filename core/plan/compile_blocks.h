/* SPDX-License-Identifier: BSD-3-Clause */
/* Emits what becomes of a block's activations in a pass: kept, offloaded and reloaded, or computed again. */
#ifndef TESS_COMPILE_BLOCKS_H
#define TESS_COMPILE_BLOCKS_H
#include "compile.h"

/** Emits what goes before and behind the block's event `type`, TESS__FORWARD_BEGIN and so on. */
tess_status tess__block_begin(tess__compiler *, uint8_t type, int32_t block);
tess_status tess__block_end(tess__compiler *, uint8_t type, int32_t block);
/** Whether backward computes the block's forward again, as an event of its own; `remakes`: within its backward. */
int tess__block_recomputes(const tess__compiler *, int32_t block);
int tess__block_remakes(const tess__compiler *, int32_t block);
#endif
