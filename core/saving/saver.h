/* SPDX-License-Identifier: BSD-3-Clause */
/* A save of a running engine, from the call that begins it to the manifest on disk. */
#ifndef TESS_SAVER_H
#define TESS_SAVER_H
#include "engine/finite.h"

#include "checkpoint/base_files.h"
#include "checkpoint/store.h"
#include "saving.h"
#include "shard_pieces.h"

#include <time.h>

enum { MESSAGE_BYTES = 480 };

typedef struct { /* what a rank tells the leader, and the leader all ranks; a rank's checksums follow it */
    int32_t status, not_finite;
    uint64_t value, n_sums; /* bytes of its file; the leader: the generation */
    char message[MESSAGE_BYTES];
} save_report;

typedef struct tess__saver {
    tess *t;
    struct tess__proof *proof; /* ledger that names the checkpoint; null: none */
    tess__store store;         /* of the leader: held from the first save on */
    uint64_t sequence, step, generation, keep;
    int has_score;
    double score;
    tess__loss_scale loss_scale; /* at `step`: the run goes on while files are written */
    char dir[PATH_MAX];
    char common[TESS_CHECKPOINT_BYTES], own[TESS_CHECKPOINT_BYTES];
    tess__shard_pieces pieces;
    tess__base_files base; /* [leader] */
    int base_apart;        /* frozen parameters are left out: they are in the base's files */
    int not_finite; /* what this rank writes holds NaN or infinity; on the leader, at the end, what any rank writes */
    const char *image; /* the snapshot; null: written from where the pieces lie */
    int pending;       /* a save whose outcome nobody has asked for */
    atomic_int cancel;
    tess_status status;
    char message[MESSAGE_BYTES];
    tess_checkpoint_info info;
} tess__saver;

static inline double tess__saver_seconds(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static inline int is_leader(const tess__saver *s) {
    return s->t->comms.world.rank == 0;
}

/** saver_write.c: writes this rank's file and meets the others, beside training if the pieces lie in a snapshot. Its
 * outcome is in `status` and `message`. The argument is a tess__saver. */
void tess__saver_write(void *saver);
#endif
