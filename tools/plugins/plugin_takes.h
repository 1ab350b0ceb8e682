/* SPDX-License-Identifier: BSD-3-Clause */
/* Asks an optimizer plugin which of the program's numbers it takes. */
#ifndef TOOL_PLUGIN_TAKES_H
#define TOOL_PLUGIN_TAKES_H
#include <stdint.h>

/** Returns TESS_TAKES_…; 0 when the plugin does not say, or when `selection` (TESSERA_OPTIMIZER) opens none. */
uint64_t plugin_optimizer_takes(const char *selection);
#endif
