/* SPDX-License-Identifier: BSD-3-Clause */
#include "settle.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"

static uint64_t begins_after(const tess__past *p) {
    return p->of.n ? p->of.runs[p->of.n - 1].until : 0;
}

/* Tells whether a checkpoint is not of this run's past. Of a foreign one only the number is known. */
static int is_strange(const tess__entry *e, const tess__past *p) {
    uint64_t id = tess__lineage_id(&e->lineage);
    if (e->is_foreign)
        return !p->settled && (!p->of.n || e->step > begins_after(p));
    if (!e->reads || (p->of.n && tess__lineage_has(&p->of, id, e->step)))
        return 0;
    return !p->of.n || id != tess__lineage_id(&p->of) || e->step > p->passed;
}

static tess_status refuse(const tess__store *s, const tess__entry *e, uint64_t n) {
    char others[48] = "";
    if (n > 1)
        snprintf(others, sizeof others, " and %" PRIu64 " other%s", n - 1, n > 2 ? "s" : "");
    return tess__fail(TESS_E_DATA,
                      "%s: step %" PRIu64 "%s there would be left behind: go on from the directory itself (--resume), "
                      "or move what is newer aside (--on-newer aside, TESSERA_ON_NEWER), or save elsewhere",
                      s->dir, e->step, others);
}

/* Makes a new folder each time, so that no two checkpoints of one step meet. */
static tess_status make_aside(const tess__store *s, char out[PATH_MAX]) {
    int failed = -EEXIST;
    for (int i = 1; failed == -EEXIST; i++) {
        if ((size_t)snprintf(out, PATH_MAX, "%s/aside-%d", s->dir, i) >= PATH_MAX - 128)
            return tess__fail(TESS_E_DATA, "%.60s…: the path is too long", s->dir);
        failed = s->disk->make_dir(s->disk->self, out);
    }
    return failed ? tess__fail(TESS_E_DATA, "%s: cannot be made a directory: %s", out, strerror(-failed)) : TESS_OK;
}

static tess_status move_aside(const tess__store *s, const tess__entry *all, uint64_t n, const tess__past *p) {
    char aside[PATH_MAX], from[PATH_MAX], to[PATH_MAX];
    TRY(make_aside(s, aside));
    for (uint64_t i = n; i-- > 0;) {
        if (!is_strange(&all[i], p))
            continue;
        TRY(tess__step_dir(s->dir, all[i].step, from));
        TRY(tess__step_dir(aside, all[i].step, to));
        int failed = s->disk->rename(s->disk->self, from, to);
        if (failed)
            return tess__fail(TESS_E_DATA, "%s: cannot be moved to %s: %s", from, aside, strerror(-failed));
        tess__log(TESS_LOG_INFO, "%s is now %s", from, to);
    }
    int failed = tess__disk_sync_dir(s->disk, aside);
    if (!failed)
        failed = tess__disk_sync_dir(s->disk, s->dir);
    return failed ? tess__fail(TESS_E_DATA, "%s: cannot be synced: %s", aside, strerror(-failed)) : TESS_OK;
}

/* A run goes on with the directory's lineage when its beginning is there and nothing newer is left. */
static void choose_lineage(const tess__entry *all, uint64_t n, tess__past *p, int left_behind) {
    uint64_t id = tess__lineage_id(&p->of), step = begins_after(p);
    int found = 0;
    for (uint64_t i = 0; id && i < n; i++)
        found |= all[i].reads && all[i].step == step && tess__lineage_id(&all[i].lineage) == id;
    if (found && !left_behind)
        p->of.runs[p->of.n - 1].until = INT64_MAX;
    else
        tess__lineage_branch(&p->of, step);
    p->settled = 1;
}

tess_status tess__store_settle(const tess__store *s, tess__past *p, int aside) {
    tess__entry *all = NULL;
    const tess__entry *newest = NULL;
    uint64_t n = 0, strange = 0;
    TRY(tess__store_entries(s->disk, s->dir, &all, &n));
    for (uint64_t i = 0; i < n; i++)
        if (is_strange(&all[i], p)) {
            newest = &all[i];
            strange++;
        }
    tess_status status = TESS_OK;
    if (strange)
        status = aside ? move_aside(s, all, n, p) : refuse(s, newest, strange);
    if (!status && !p->settled)
        choose_lineage(all, n, p, strange > 0);
    free(all);
    return status;
}
