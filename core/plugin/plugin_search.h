/* SPDX-License-Identifier: BSD-3-Clause */
/* Where plugins are looked for: TESSERA_PLUGIN_PATH, the build tree when the running program lies in it, the folder
 * beside the program or library when the installation was moved, then the install's. Never the working directory. */
#ifndef TESS_PLUGIN_SEARCH_H
#define TESS_PLUGIN_SEARCH_H
#include <tessera/tessera.h>

enum { TESS_SEARCH_MAX = 64 };
typedef struct {
    uint32_t n;
    struct {
        char *path;
        char *reason; /* why nothing is taken from it; null when it can be used */
    } dirs[TESS_SEARCH_MAX];
} tess__plugin_search;

/** Collects the directories in order and judges each. TESS_E_NOMEM or TESS_OK. */
tess_status tess__plugin_search_init(tess__plugin_search *);
void tess__plugin_search_finish(tess__plugin_search *);
/** Calls `file` for each file of the pattern libtessera-KIND-NAME.so, directory by directory, sorted by name. Stops
 * at the first status that is not 0 and returns it. */
tess_status tess__plugin_search_each(const tess__plugin_search *,
                                     tess_status (*file)(void *user, uint32_t kind, const char *name, const char *path),
                                     void *user);
#endif
