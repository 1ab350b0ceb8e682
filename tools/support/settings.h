/* SPDX-License-Identifier: BSD-3-Clause */
/* Options of the command line. They win over the environment, in this command's own reads (options.h) and,
 * through tess_options, in the engines that it opens. For the main thread. */
#ifndef TOOL_SETTINGS_H
#define TOOL_SETTINGS_H
#include <stddef.h>
#include <tessera/tessera.h>

/** Adds one, in front of what was set before; copies. The log level takes effect at once. TESS_E_NOMEM. */
tess_status tool_settings_set(const char *key, const char *value);
/** A caller that plans with other settings takes a mark; going back drops all settings made since then. */
uint32_t tool_settings_mark(void);
void tool_settings_back(uint32_t mark);
/** Gives all of them to an engine about to be opened. */
void tool_settings_give(tess_options *);
/** The environment with `extra` and every setting as its variable, for a program that is not ours; null without memory.
 * Freed by the process's end. */
char **tool_settings_environment(const tess_setting *extra, uint32_t n);
#endif
