/* SPDX-License-Identifier: BSD-3-Clause */
/* Lists plugins and reads the descriptions in their files, before any of their code runs. */
#ifndef TOOL_PLUGIN_KNOWN_H
#define TOOL_PLUGIN_KNOWN_H
#include <tessera/tessera.h>

/** Returns "comm", "device" and so on, or null for an unknown kind. Kinds count from 1. */
const char *plugin_kind_word(uint32_t kind);
/** Calls `each` for every plugin: first the built-in ones with path "", then the files of the search path in its
 * order. */
void plugin_each_known(void (*each)(void *user, uint32_t kind, const char *name, const char *path), void *user);
/** The loader opens each of them in a process of its own. `reason` is null if the plugin can be used. */
typedef void plugin_tried_fn(void *user, uint32_t kind, const char *name, const char *path, const char *reason);
void plugin_each_tried(plugin_tried_fn *, void *user);

enum { PLUGIN_REASON_BYTES = 512 };
/* Each of these fails with one clause in `reason` and sets no message. */
/** Reads a file's descriptor. */
tess_status plugin_read_note(const char *path, tess_plugin_note *out, char reason[PLUGIN_REASON_BYTES]);
/** Succeeds if the loader takes the descriptor for a plugin of that kind. */
tess_status plugin_judge_note(const tess_plugin_note *, uint32_t kind, char reason[PLUGIN_REASON_BYTES]);
/** Reads the options that a file declares. The caller frees *out. */
tess_status plugin_read_options(const char *path, tess_option_spec **out, uint32_t *n,
                                char reason[PLUGIN_REASON_BYTES]);
/** Succeeds if only root and the effective user can change the file or directory. */
tess_status plugin_judge_file(const char *path, char reason[PLUGIN_REASON_BYTES]);
tess_status plugin_judge_directory(const char *path, char reason[PLUGIN_REASON_BYTES]);
#endif
