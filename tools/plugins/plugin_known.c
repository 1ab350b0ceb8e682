/* SPDX-License-Identifier: BSD-3-Clause */
#include "plugin_known.h"

#include "core/builtin/builtins.h"
#include "core/plugin/elf_note.h"
#include "core/plugin/open.h"
#include "core/plugin/plugin_check.h"
#include "core/plugin/plugin_search.h"
#include "core/plugin/trusted_path.h"

_Static_assert((int)PLUGIN_REASON_BYTES == (int)TESS_REASON_BYTES, "as the loader has it");

const char *plugin_kind_word(uint32_t kind) {
    return tess__kind_name(kind);
}

typedef struct {
    void (*each)(void *user, uint32_t kind, const char *name, const char *path);
    void *user;
} listener;

static tess_status tell(void *user, uint32_t kind, const char *name, const char *path) {
    const listener *l = user;
    l->each(l->user, kind, name, path);
    return TESS_OK;
}

void plugin_each_known(void (*each)(void *user, uint32_t kind, const char *name, const char *path), void *user) {
    listener l = { each, user };
    tess__plugin_search dirs;
    for (const tess__builtin *b = tess__builtins; b->kind; b++)
        each(user, b->kind, b->name, "");
    if (tess__plugin_search_init(&dirs) == TESS_OK) {
        tess__plugin_search_each(&dirs, tell, &l);
        tess__plugin_search_finish(&dirs);
    }
}

typedef struct {
    plugin_tried_fn *each;
    void *user;
} tried_listener;

static tess_status tell_tried(void *user, const tess__plugin_row *row, tess__plugin **opened) {
    const tried_listener *l = user;
    (void)opened;
    l->each(l->user, row->kind, row->name, row->path, row->usable ? NULL : row->reason);
    return TESS_OK;
}

void plugin_each_tried(plugin_tried_fn *each, void *user) {
    tried_listener l = { each, user };
    tess__plugin_list(0, NULL, tell_tried, &l);
}

tess_status plugin_read_note(const char *path, tess_plugin_note *out, char reason[PLUGIN_REASON_BYTES]) {
    return tess__elf_note_file(path, out, reason, PLUGIN_REASON_BYTES);
}

tess_status plugin_judge_note(const tess_plugin_note *note, uint32_t kind, char reason[PLUGIN_REASON_BYTES]) {
    return tess__note_check(note, kind, reason);
}

tess_status plugin_read_options(const char *path, tess_option_spec **out, uint32_t *n,
                                char reason[PLUGIN_REASON_BYTES]) {
    return tess__elf_options_file(path, out, n, reason, PLUGIN_REASON_BYTES);
}

static tess_status judge(const char *path, uint32_t want, char reason[PLUGIN_REASON_BYTES]) {
    char real[4096];
    return tess__trusted_path(path, want, real, reason, PLUGIN_REASON_BYTES);
}

tess_status plugin_judge_file(const char *path, char reason[PLUGIN_REASON_BYTES]) {
    return judge(path, TESS_PATH_FILE, reason);
}

tess_status plugin_judge_directory(const char *path, char reason[PLUGIN_REASON_BYTES]) {
    return judge(path, TESS_PATH_DIRECTORY, reason);
}
