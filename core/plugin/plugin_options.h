/* SPDX-License-Identifier: BSD-3-Clause */
/* The options of one plugin: read from its file before open, or, of one before ABI 1.2, asked of it after open. */
#ifndef TESS_PLUGIN_OPTIONS_ROOM_H
#define TESS_PLUGIN_OPTIONS_ROOM_H
#include "open.h"
#include "plugin_check.h"

/** Reads the options that the file declares for this kind, makes them known, and checks what the user set of them. It
 * runs none of the plugin's code. p->path, name, kind and the descriptor are there. p->options_declared: there is a
 * section. */
tess_status tess__plugin_options_declared(tess__plugin *, const tess_plugin_note *, char reason[TESS_REASON_BYTES]);
/** The same with what the slot `options` gives, after open; nothing to do when they were declared. */
tess_status tess__plugin_options_asked(tess__plugin *, char reason[TESS_REASON_BYTES]);
#endif
