/* SPDX-License-Identifier: BSD-3-Clause */
/* The capabilities of an open plugin, for `tessera plugins list` and `info`. */
#ifndef TOOL_PLUGIN_CAPS_H
#define TOOL_PLUGIN_CAPS_H
#include <tessera/tessera.h>

/** Calls `each` with a key ("operations", "dtypes", …) and the words of what is in it; none when the plugin does not
 * say. */
void plugin_capabilities(uint32_t kind, const void *ops, void *ctx,
                         void (*each)(void *user, const char *key, const char *const *words, int n), void *user);
#endif
