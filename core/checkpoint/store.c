/* SPDX-License-Identifier: BSD-3-Clause */
#include "store.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "saved.h"

/* ---- names ----------------------------------------------------------------------------------------- */
static tess_status too_long(const char *dir) {
    return tess__fail(TESS_E_DATA, "%.60s…: the path is longer than %d bytes", dir, PATH_MAX);
}

tess_status tess__step_dir(const char *dir, uint64_t step, char out[PATH_MAX]) {
    return (size_t)snprintf(out, PATH_MAX, "%s/step-%06" PRIu64, dir, step) < PATH_MAX - 128 ? TESS_OK : too_long(dir);
}

void tess__data_file_name(uint64_t generation, uint64_t writer, uint64_t n_writers, char out[TESS__FILE_NAME]) {
    snprintf(out, TESS__FILE_NAME, "data-%" PRIu64 "-%05" PRIu64 "-of-%05" PRIu64 ".safetensors", generation, writer,
             n_writers);
}

/* "data-3-00000-of-00004.safetensors" → generation 3; 0 for what no writer of ours made. */
static int generation_of(const char *name, uint64_t *generation) {
    uint64_t writer, of;
    int end = 0;
    return sscanf(name, "data-%" SCNu64 "-%" SCNu64 "-of-%" SCNu64 ".safetensors%n", generation, &writer, &of, &end) ==
               3 &&
           end && !name[end];
}

static void join_path(char out[PATH_MAX], const char *dir, const char *name) {
    snprintf(out, PATH_MAX, "%s/%s", dir, name);
}

/* ---- lists of names: nothing is removed while a directory is read ------------------------------------ */
typedef struct {
    char (*names)[256];
    size_t n, capacity;
    int failed;
} names;

static void take_name(void *user, const char *name) {
    names *l = user;
    if (l->n == l->capacity) {
        size_t capacity = l->capacity ? 2 * l->capacity : 32;
        void *grown = realloc(l->names, capacity * sizeof *l->names);
        if (!grown) {
            l->failed = 1;
            return;
        }
        l->names = grown;
        l->capacity = capacity;
    }
    snprintf(l->names[l->n++], sizeof l->names[0], "%s", name);
}

static tess_status list_dir(const tess__disk *d, const char *dir, names *out) {
    *out = (names){ 0 };
    int failed = d->list(d->self, dir, take_name, out);
    if (!failed && !out->failed)
        return TESS_OK;
    free(out->names);
    *out = (names){ 0 };
    return tess__fail(failed ? TESS_E_DATA : TESS_E_NOMEM, "%s: %s", dir, failed ? strerror(-failed) : "no memory");
}

int tess__is_checkpoint(const tess__disk *d, const char *path) {
    char manifest[PATH_MAX];
    join_path(manifest, path, "manifest.json");
    int file = d->open(d->self, manifest, TESS__DISK_READ);
    if (file >= 0)
        d->close(d->self, file);
    return file >= 0;
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

tess_status tess__store_list(const tess__disk *d, const char *dir, uint64_t **steps, uint64_t *n) {
    names all;
    char path[PATH_MAX];
    uint64_t found = 0, step;
    TRY(list_dir(d, dir, &all));
    uint64_t *list = calloc(all.n + 1, sizeof *list);
    for (size_t i = 0; list && i < all.n; i++)
        if (tess__step_of(all.names[i], &step) && tess__step_dir(dir, step, path) == TESS_OK &&
            tess__is_checkpoint(d, path))
            list[found++] = step;
    free(all.names);
    if (!list)
        return tess__fail(TESS_E_NOMEM, "%s: no memory to list it", dir);
    qsort(list, found, sizeof *list, ascending);
    *steps = list;
    *n = found;
    return TESS_OK;
}

/* ---- which belong together ---------------------------------------------------------------------------- */
static void read_entry(const tess__disk *d, const char *dir, tess__entry *e) {
    char path[PATH_MAX];
    tess__manifest m;
    if (tess__step_dir(dir, e->step, path) != TESS_OK)
        return;
    if (tess__saved_manifest(d, path, &m) != TESS_OK) {
        e->is_foreign = tess__saved_is_foreign(d, path);
        return;
    }
    e->reads = 1;
    e->not_finite = m.not_finite;
    e->has_score = m.has_score;
    e->score = m.score;
    e->order = m.order;
    e->lineage = m.lineage;
    tess__manifest_free(&m);
}

tess_status tess__store_entries(const tess__disk *d, const char *dir, tess__entry **out, uint64_t *n) {
    uint64_t *steps = NULL;
    TRY(tess__store_list(d, dir, &steps, n));
    tess__entry *all = calloc(*n + 1, sizeof *all);
    for (uint64_t i = 0; all && i < *n; i++) {
        all[i].step = steps[i];
        read_entry(d, dir, &all[i]);
    }
    free(steps);
    *out = all;
    return all ? TESS_OK : tess__fail(TESS_E_NOMEM, "%s: no memory to list it", dir);
}

const tess__entry *tess__store_last(const tess__entry *all, uint64_t n) {
    const tess__entry *last = NULL;
    for (uint64_t i = 0; i < n; i++)
        if (all[i].reads && (!last || all[i].order >= last->order)) /* without orders: the highest step */
            last = &all[i];
    return last;
}

static int belongs(const tess__entry *e, const tess__lineage *l) {
    return e->reads && tess__lineage_has(l, tess__lineage_id(&e->lineage), e->step);
}

tess_status tess__store_line(const tess__disk *d, const char *dir, uint64_t **steps, uint64_t *n) {
    tess__entry *all = NULL;
    uint64_t n_all = 0;
    TRY(tess__store_entries(d, dir, &all, &n_all));
    const tess__entry *last = tess__store_last(all, n_all);
    uint64_t *list = calloc(n_all + 1, sizeof *list);
    *n = 0;
    for (uint64_t i = 0; list && i < n_all; i++)
        if (!all[i].reads || belongs(&all[i], &last->lineage))
            list[(*n)++] = all[i].step;
    free(all);
    *steps = list;
    return list ? TESS_OK : tess__fail(TESS_E_NOMEM, "%s: no memory to list it", dir);
}

const tess__entry *tess__store_best(const tess__entry *all, uint64_t n, const tess__lineage *of, uint64_t step) {
    const tess__entry *best = NULL;
    for (uint64_t i = 0; i < n; i++) {
        const tess__entry *e = &all[i];
        int counts = e->has_score && !e->not_finite && e->step <= step && belongs(e, of);
        if (counts && (!best || e->score < best->score))
            best = e;
    }
    return best;
}

uint64_t tess__store_doomed(const tess__entry *all, uint64_t n, const tess__lineage *of, uint64_t step, uint64_t keep,
                            uint64_t *steps) {
    uint64_t doomed = 0, left[2] = { 0 }; /* finite ones, and others */
    const tess__entry *best = tess__store_best(all, n, of, step);
    for (uint64_t i = 0; i < n; i++)
        left[all[i].not_finite] += belongs(&all[i], of) && all[i].step <= step;
    for (uint64_t i = 0; i < n; i++) /* the oldest first */
        if (belongs(&all[i], of) && all[i].step <= step && left[all[i].not_finite]-- > keep && &all[i] != best)
            steps[doomed++] = all[i].step;
    return doomed;
}

/* ---- removing -------------------------------------------------------------------------------------- */
static int is_named(const tess__manifest *m, const char *name) {
    for (uint64_t i = 0; m && i < m->n_files; i++)
        if (strcmp(m->files[i].name, name) == 0)
            return 1;
    return 0;
}

/* Removes files of our writers in a step's directory that no manifest names; `m` null: all of them. */
static void remove_unnamed(const tess__disk *d, const char *dir, const tess__manifest *m) {
    names all;
    char path[PATH_MAX];
    uint64_t generation;
    if (list_dir(d, dir, &all) != TESS_OK)
        return;
    for (size_t i = 0; i < all.n; i++) {
        const char *name = all.names[i];
        int ours = generation_of(name, &generation) || strcmp(name, "manifest.json.tmp") == 0;
        join_path(path, dir, name);
        if (ours && !is_named(m, name))
            d->remove(d->self, path);
    }
    free(all.names);
}

tess_status tess__store_remove(const tess__disk *d, const char *dir, uint64_t step) {
    char path[PATH_MAX], manifest[PATH_MAX];
    TRY(tess__step_dir(dir, step, path));
    join_path(manifest, path, "manifest.json");
    int failed = d->remove(d->self, manifest);
    if (!failed)
        failed = tess__disk_sync_dir(d, path); /* without a manifest it is no checkpoint any more; then its data goes */
    if (failed)
        return tess__fail(TESS_E_DATA, "%s: cannot be removed: %s", path, strerror(-failed));
    remove_unnamed(d, path, NULL);
    d->remove(d->self, path);
    return TESS_OK;
}

/* Removes the files that a dead run left in one step's directory. One with a manifest that does not read is left for a
 * person to see. */
static void clean_step(tess__store *s, uint64_t step) {
    const tess__disk *d = s->disk;
    char path[PATH_MAX];
    tess__manifest m;
    if (tess__step_dir(s->dir, step, path) != TESS_OK)
        return;
    if (!tess__is_checkpoint(d, path)) {
        remove_unnamed(d, path, NULL);
        d->remove(d->self, path);
    } else if (tess__saved_manifest(d, path, &m) == TESS_OK) {
        remove_unnamed(d, path, &m);
        s->order = m.order > s->order ? m.order : s->order;
        tess__manifest_free(&m);
    }
}

static void clean_steps(tess__store *s) {
    names all;
    uint64_t step;
    if (list_dir(s->disk, s->dir, &all) != TESS_OK)
        return;
    for (size_t i = 0; i < all.n; i++)
        if (tess__step_of(all.names[i], &step))
            clean_step(s, step);
    free(all.names);
}

/* ---- the directory --------------------------------------------------------------------------------- */
static tess_status make_dir(const tess__disk *d, const char *dir) {
    char parent[PATH_MAX];
    int failed = d->make_dir(d->self, dir);
    if (failed == -EEXIST)
        return TESS_OK;
    if (failed)
        return tess__fail(TESS_E_DATA, "%s: cannot be made a directory: %s", dir, strerror(-failed));
    snprintf(parent, sizeof parent, "%s", dir);
    char *slash = strrchr(parent, '/');
    if (slash)
        slash[slash == parent] = 0;
    (void)tess__disk_sync_dir(d, slash ? parent : ".");
    return TESS_OK;
}

tess_status tess__store_open(const tess__disk *d, const char *dir, tess__store *out) {
    tess__store s = { .disk = d };
    if ((size_t)snprintf(s.dir, sizeof s.dir, "%s", dir) >= sizeof s.dir - 128)
        return too_long(dir);
    TRY(make_dir(d, dir));
    s.lock = d->open(d->self, dir, TESS__DISK_DIR);
    if (s.lock < 0)
        return tess__fail(TESS_E_DATA, "%s: cannot be made a directory: %s", dir,
                          s.lock == -ENOTDIR ? "a file is there" : strerror(-s.lock));
    int failed = d->lock(d->self, s.lock);
    if (failed == -EWOULDBLOCK) {
        d->close(d->self, s.lock);
        return tess__fail(TESS_E_DATA, "%s: another run saves there; give this one a directory of its own", dir);
    }
    if (failed)
        tess__log(TESS_LOG_WARNING, "%s: cannot be locked (%s): take care that no other run saves there", dir,
                  strerror(-failed));
    clean_steps(&s);
    *out = s;
    return TESS_OK;
}

void tess__store_close(tess__store *s) {
    if (s->disk && s->lock >= 0)
        s->disk->close(s->disk->self, s->lock);
    *s = (tess__store){ .lock = -1 };
}

tess_status tess__store_begin(tess__store *s, uint64_t step, uint64_t *generation) {
    char path[PATH_MAX];
    names all;
    uint64_t most = 0, g;
    TRY(tess__step_dir(s->dir, step, path));
    if (tess__saved_is_foreign(s->disk, path))
        return tess__fail(TESS_E_DATA, "%s: a newer tessera wrote it, or it was renamed: it is not replaced", path);
    int failed = s->disk->make_dir(s->disk->self, path);
    if (failed && failed != -EEXIST)
        return tess__fail(TESS_E_DATA, "%s: cannot be made a directory: %s", path, strerror(-failed));
    TRY(list_dir(s->disk, path, &all));
    for (size_t i = 0; i < all.n; i++)
        if (generation_of(all.names[i], &g) && g > most)
            most = g;
    free(all.names);
    *generation = most + 1;
    return TESS_OK;
}

static void prune_steps(const tess__store *s, const tess__manifest *m, uint64_t keep) {
    tess__entry *all = NULL;
    uint64_t n = 0;
    if (!keep || tess__store_entries(s->disk, s->dir, &all, &n) != TESS_OK)
        return;
    uint64_t *doomed = calloc(n + 1, sizeof *doomed);
    uint64_t n_doomed = doomed ? tess__store_doomed(all, n, &m->lineage, m->step, keep, doomed) : 0;
    for (uint64_t i = 0; i < n_doomed; i++)
        if (tess__store_remove(s->disk, s->dir, doomed[i]) != TESS_OK)
            tess__log(TESS_LOG_WARNING, "%s", tess_last_error());
    free(doomed);
    free(all);
}

static int put_manifest(const tess__disk *d, const char *dir, const char *text, size_t bytes) {
    char temporary[PATH_MAX], path[PATH_MAX];
    join_path(temporary, dir, "manifest.json.tmp");
    join_path(path, dir, "manifest.json");
    int file = d->open(d->self, temporary, TESS__DISK_CREATE);
    if (file < 0)
        return file;
    int failed = tess__disk_write_all(d, file, text, bytes, 0);
    if (!failed)
        failed = d->sync(d->self, file);
    d->close(d->self, file);
    if (!failed)
        failed = d->rename(d->self, temporary, path);
    if (failed)
        d->remove(d->self, temporary);
    return failed ? failed : tess__disk_sync_dir(d, dir);
}

tess_status tess__store_commit(tess__store *s, tess__manifest *m, uint64_t keep) {
    char dir[PATH_MAX];
    char *text = NULL;
    size_t bytes = 0;
    TRY(tess__step_dir(s->dir, m->step, dir));
    m->order = ++s->order;
    TRY(tess__manifest_write(m, dir, &text, &bytes));
    int failed = put_manifest(s->disk, dir, text, bytes);
    free(text);
    if (!failed)
        failed = tess__disk_sync_dir(s->disk, s->dir);
    if (failed)
        return tess__fail(TESS_E_DATA, "%s/manifest.json: cannot be written: %s", dir, strerror(-failed));
    remove_unnamed(s->disk, dir, m); /* files of an earlier save of the same step */
    prune_steps(s, m, keep);
    return TESS_OK;
}

void tess__store_abandon(tess__store *s, uint64_t step, uint64_t generation) {
    char dir[PATH_MAX], path[PATH_MAX];
    names all;
    uint64_t g;
    if (tess__step_dir(s->dir, step, dir) != TESS_OK || list_dir(s->disk, dir, &all) != TESS_OK)
        return;
    for (size_t i = 0; i < all.n; i++)
        if ((generation_of(all.names[i], &g) && g == generation) || strcmp(all.names[i], "manifest.json.tmp") == 0) {
            join_path(path, dir, all.names[i]);
            s->disk->remove(s->disk->self, path);
        }
    free(all.names);
    s->disk->remove(s->disk->self, dir); /* stays when it holds an earlier save */
}
