/* SPDX-License-Identifier: BSD-3-Clause */
#include "plugin_unknown.h"

#include <stdio.h>

#include "tools/support/options.h"
#include "core/builtin/builtins.h"
#include "core/plugin/open.h"
#include "core/plugin/plugin_search.h"
#include "tools/commands.h"

typedef struct {
    char kept[256][64];
    const char *names[256];
    size_t n;
} name_list;

static void keep(name_list *l, const char *kind, const char *dash, const char *name) {
    if (l->n == 256)
        return;
    snprintf(l->kept[l->n], sizeof l->kept[0], "%s%s%s", kind, dash, name);
    l->names[l->n] = l->kept[l->n];
    l->n++;
}

/* NAME, and KIND-NAME, which is a name here as well. */
static tess_status take(void *user, uint32_t kind, const char *name, const char *path) {
    (void)path;
    keep(user, "", "", name);
    keep(user, tess__kind_name(kind), "-", name);
    return TESS_OK;
}

int plugin_unknown(const char *name) {
    name_list l = { .n = 0 };
    tess__plugin_search dirs;
    for (const tess__builtin *b = tess__builtins; b->kind; b++)
        take(&l, b->kind, b->name, "");
    if (tess__plugin_search_init(&dirs) == TESS_OK) {
        tess__plugin_search_each(&dirs, take, &l);
        tess__plugin_search_finish(&dirs);
    }
    const char *near = tool_nearest(name, l.names, l.n);
    if (near)
        fprintf(stderr, "tessera: no plugin '%s' found; did you mean '%s'?\n", name, near);
    else
        fprintf(stderr, "tessera: no plugin '%s' found; `tessera plugins list` shows what there is\n", name);
    return TOOL_CONFIG;
}
