/* SPDX-License-Identifier: BSD-3-Clause */
/* A directory of checkpoints, DIR/step-000020/, and the order of operations that makes a new one appear whole or not at
 * all: every writer writes, syncs and closes its file and syncs the directory; then the leader writes the manifest
 * under a temporary name, syncs, renames it, syncs both directories, and only then removes older checkpoints.
 * Data files carry a generation, so that a step saved twice never overwrites what the standing manifest names.
 * What a later version of the format has written stays as it is. */
#ifndef TESS_STORE_H
#define TESS_STORE_H
#include "disk.h"
#include "lineage.h"
#include "manifest.h"

#include <limits.h>

typedef struct {
    const tess__disk *disk;
    char dir[PATH_MAX];
    int lock;       /* handle of DIR; -1: not held */
    uint64_t order; /* of the newest save there */
} tess__store;

/** Makes DIR where there is none, takes its lock, removes what dead runs have left. TESS_E_DATA: another run holds the
 * lock, or the directory cannot be written. */
tess_status tess__store_open(const tess__disk *, const char *dir, tess__store *out);
void tess__store_close(tess__store *);

/** DIR/step-000020. */
tess_status tess__step_dir(const char *dir, uint64_t step, char out[PATH_MAX]);
/** Name of one writer's file within it. */
void tess__data_file_name(uint64_t generation, uint64_t writer, uint64_t n_writers, char out[TESS__FILE_NAME]);

/** [leader] Makes the step's directory; *generation is one that no file there has. */
tess_status tess__store_begin(tess__store *, uint64_t step, uint64_t *generation);
/** [leader] Writes the manifest, with its order; then the checkpoint exists. Then removes what it replaces, and what
 * tess__store_doomed chooses (0: all stay). */
tess_status tess__store_commit(tess__store *, tess__manifest *, uint64_t keep);
/** [leader] Removes the files of a save that failed. */
void tess__store_abandon(tess__store *, uint64_t step, uint64_t generation);
/** Removes one checkpoint, manifest first. */
tess_status tess__store_remove(const tess__disk *, const char *dir, uint64_t step);

/** The steps of which DIR has a manifest, ascending; the caller frees *steps. TESS_E_DATA: DIR cannot be read. */
tess_status tess__store_list(const tess__disk *, const char *dir, uint64_t **steps, uint64_t *n);

typedef struct { /* a step of which there is a manifest */
    uint64_t step, order;
    int reads;      /* the manifest is whole, and of this step */
    int is_foreign; /* of a later version of the format, or of another step */
    int not_finite; /* it holds NaN or infinity */
    int has_score;
    double score; /* lowest is best */
    tess__lineage lineage;
} tess__entry;
/** The steps of DIR, ascending; the caller frees *out. TESS_E_DATA: DIR cannot be read. */
tess_status tess__store_entries(const tess__disk *, const char *dir, tess__entry **out, uint64_t *n);
/** The entry that was written last; null when no manifest reads. */
const tess__entry *tess__store_last(const tess__entry *, uint64_t n);
/** The steps to go on from, the best last: those of the lineage that was written last, and those of which the manifest
 * does not tell. The caller frees *steps. */
tess_status tess__store_line(const tess__disk *, const char *dir, uint64_t **steps, uint64_t *n);
/** The best of the checkpoints that belong to `of`, up to `step`: the lowest score, of equal ones the first; null: none
 * of them has a score. One that is not finite is not asked. */
const tess__entry *tess__store_best(const tess__entry *, uint64_t n, const tess__lineage *of, uint64_t step);
/** Chooses what a save of `step` by `of` prunes. Of its lineage and up to that step it keeps the newest `keep` that
 * are finite, as many of the others, and the best. A checkpoint that is newer, another's or unreadable neither counts
 * nor goes. Returns how many; `steps` has room for all n. */
uint64_t tess__store_doomed(const tess__entry *, uint64_t n, const tess__lineage *of, uint64_t step, uint64_t keep,
                            uint64_t *steps);

/** Whether PATH is itself a checkpoint: it has a manifest. */
int tess__is_checkpoint(const tess__disk *, const char *path);
#endif
