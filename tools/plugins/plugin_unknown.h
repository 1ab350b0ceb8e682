/* SPDX-License-Identifier: BSD-3-Clause */
/* `tessera plugins info` and `check` refuse a name that no plugin has. */
#ifndef TOOL_PLUGIN_UNKNOWN_H
#define TOOL_PLUGIN_UNKNOWN_H

/** Prints one line on standard error with the nearest known name. Returns the exit code. */
int plugin_unknown(const char *name);
#endif
