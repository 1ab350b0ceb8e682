/* SPDX-License-Identifier: BSD-3-Clause */
#include "graphs.h"

#include <string.h>

static void drop(tess__recorded *r, const tess__device *d) {
    tess__device_graph_end(d, r->graph);
    *r = (tess__recorded){ .known = 0 };
}

tess__recorded *tess__graphs_find(tess__graphs *g, const tess__device *d, const tess__graph_key *key) {
    tess__recorded *r = NULL, *oldest = &g->list[0];
    for (int i = 0; i < TESS__GRAPHS; i++) {
        if (g->list[i].known && memcmp(&g->list[i].key, key, sizeof *key) == 0)
            r = &g->list[i];
        if (g->list[i].used < oldest->used)
            oldest = &g->list[i];
    }
    if (!r) {
        r = oldest;
        drop(r, d);
        r->key = *key;
    }
    r->used = ++g->used;
    return r;
}

void tess__graphs_drop(tess__graphs *g, const tess__device *d) {
    for (int i = 0; i < TESS__GRAPHS; i++)
        drop(&g->list[i], d);
    g->recording = 0;
    g->used = 0;
}
