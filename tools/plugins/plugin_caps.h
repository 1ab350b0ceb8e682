/* SPDX-License-Identifier: BSD-3-Clause */
/* The capabilities of an open plugin, for `tessera plugins list` and `info`. */
#ifndef TOOL_PLUGIN_CAPS_H
#define TOOL_PLUGIN_CAPS_H
#include <tessera/tessera.h>

/** Calls `each` with a key ("operations", "dtypes", …) and its words; it omits keys that the plugin does not report. */
void plugin_capabilities(uint32_t kind, const void *ops, void *ctx,
                         void (*each)(void *user, const char *key, const char *const *words, int n), void *user);
#endif
