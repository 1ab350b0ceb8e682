/* SPDX-License-Identifier: BSD-3-Clause */
/* A directory of checkpoints, DIR/step-000020/, and the order of operations that makes a new one appear whole or not at
 * all: every writer writes, syncs and closes its file and syncs the directory; then the leader writes the manifest
 * under a temporary name, syncs, renames it, syncs both directories, and only then removes older checkpoints.
 * Data files carry a generation, so that a step saved twice never overwrites what the standing manifest names. */
#ifndef TESS_STORE_H
#define TESS_STORE_H
#include "disk.h"
#include "manifest.h"

#include <limits.h>

typedef struct {
    const tess__disk *disk;
    char dir[PATH_MAX];
    int lock; /* handle of DIR; -1: not held */
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
/** [leader] Writes the manifest; then the checkpoint exists. Then removes what it replaces, and the oldest of more than
 * `keep` checkpoints up to this step (0: all stay); those that are not finite are counted by themselves. */
tess_status tess__store_commit(tess__store *, const tess__manifest *, uint64_t keep);
/** [leader] Removes the files of a save that failed. */
void tess__store_abandon(tess__store *, uint64_t step, uint64_t generation);
/** Removes one checkpoint, manifest first. */
tess_status tess__store_remove(const tess__disk *, const char *dir, uint64_t step);

/** The steps of which DIR has a manifest, ascending; the caller frees *steps. TESS_E_DATA: DIR cannot be read. */
tess_status tess__store_list(const tess__disk *, const char *dir, uint64_t **steps, uint64_t *n);
/** Whether PATH is itself a checkpoint: it has a manifest. */
int tess__is_checkpoint(const tess__disk *, const char *path);
#endif
