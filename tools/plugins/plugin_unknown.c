/* SPDX-License-Identifier: BSD-3-Clause */
#include "plugin_unknown.h"

#include <stdio.h>

#include "plugin_known.h"
#include "tools/support/options.h"
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

/* Keeps NAME and KIND-NAME, because `info` and `check` take both. */
static void take(void *user, uint32_t kind, const char *name, const char *path) {
    (void)path;
    keep(user, "", "", name);
    keep(user, plugin_kind_word(kind), "-", name);
}

int plugin_unknown(const char *name) {
    name_list l = { .n = 0 };
    plugin_each_known(take, &l);
    const char *near = tool_nearest(name, l.names, l.n);
    if (near)
        fprintf(stderr, "tessera: no plugin '%s' found; did you mean '%s'?\n", name, near);
    else
        fprintf(stderr, "tessera: no plugin '%s' found; `tessera plugins list` shows what there is\n", name);
    return TOOL_CONFIG;
}
