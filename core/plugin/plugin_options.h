/* SPDX-License-Identifier: BSD-3-Clause */
/* The options of one plugin: read from its file before open. */
#ifndef TESS_PLUGIN_OPTIONS_ROOM_H
#define TESS_PLUGIN_OPTIONS_ROOM_H
#include "open.h"
#include "plugin_check.h"

/** Reads the options that the file declares for this kind, makes them known, and checks what the user set of them. It
 * runs none of the plugin's code. p->path, name, kind and the descriptor are there. */
tess_status tess__plugin_options(tess__plugin *, const tess_plugin_note *, char reason[TESS_REASON_BYTES]);
#endif
