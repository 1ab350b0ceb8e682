/* SPDX-License-Identifier: BSD-3-Clause */
/* One plugin file or built-in plugin, from its descriptor to a checked table: what the loader tries on each candidate.
 */
#ifndef TESS_PLUGIN_FILE_H
#define TESS_PLUGIN_FILE_H
#include "builtin/builtins.h"
#include "open.h"
#include "plugin_check.h"

/** Checks who can change the file, reads and judges the descriptor; runs nothing. real[4096] is the resolved path. */
tess_status tess__plugin_file_check(uint32_t kind, const char *path, char real[4096], tess_plugin_note *note,
                                    char reason[TESS_REASON_BYTES]);
/** That, and knows the plugin's options from then on; runs nothing. */
tess_status tess__plugin_file_options(uint32_t kind, const char *path, char reason[TESS_REASON_BYTES]);
/** All of it. None sets a message that lasts: the reason is the caller's to use. */
tess_status tess__plugin_file_open(uint32_t kind, const char *path, const char *args, const tess_host *services,
                                   tess__plugin **out, char reason[TESS_REASON_BYTES]);
tess_status tess__plugin_builtin_open(const tess__builtin *, const char *args, const tess_host *services,
                                      tess__plugin **out, char reason[TESS_REASON_BYTES]);
#endif
