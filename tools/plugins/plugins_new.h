/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera plugins new: writes a plugin's project from tools/plugins/templates/. */
#ifndef TESSERA_PLUGINS_NEW_H
#define TESSERA_PLUGINS_NEW_H

typedef struct {
    const char *folder, *name, *text; /* folder: a kind's, or "shared" */
} plugin_template;
extern const plugin_template tool_plugin_templates[]; /* generated; ends with nulls */

/** argv holds "new", KIND, NAME, DIR, and --grain anywhere. Returns the exit code. */
int plugins_new(int argc, char **argv);
#endif
