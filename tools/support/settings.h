/* SPDX-License-Identifier: BSD-3-Clause */
/* Options of the command line. They win over the environment in the command's own reads (options.h) and, through
 * tess_options, in its engines. Only the main thread uses them. */
#ifndef TOOL_SETTINGS_H
#define TOOL_SETTINGS_H
#include <stddef.h>
#include <tessera/tessera.h>

/** Adds a copy of a setting, which wins over earlier ones. The log level changes at once. Returns TESS_E_NOMEM without
 * memory. */
tess_status tool_settings_set(const char *key, const char *value);
/** A caller that plans with other settings takes a mark. tool_settings_back drops all settings made since. */
uint32_t tool_settings_mark(void);
void tool_settings_back(uint32_t mark);
/** Gives all settings to an engine about to be opened. */
void tool_settings_give(tess_options *);
/** Returns the environment with `extra` and every setting as variables, for another program, or null without memory. It
 * is never freed. */
char **tool_settings_environment(const tess_setting *extra, uint32_t n);
#endif
