/* SPDX-License-Identifier: BSD-3-Clause */
/* A checkpoint's lineage: the run that wrote it and those that it went on from, each until a step. A run that goes back
 * behind newer steps begins a lineage of its own, so that nobody goes on from what it left behind. */
#ifndef TESS_LINEAGE_H
#define TESS_LINEAGE_H
#include <stdint.h>

enum { TESS__LINEAGE_MOST = 64 }; /* the oldest are forgotten */

typedef struct {
    uint64_t n; /* 0: none; checkpoints of before there were any are all one, with id 0 */
    struct {
        uint64_t id, until;     /* its steps up to this one belong here */
    } runs[TESS__LINEAGE_MOST]; /* oldest first; the last is the one that writes, until INT64_MAX */
} tess__lineage;

/** The run that writes; 0: a checkpoint from before lineages. */
uint64_t tess__lineage_id(const tess__lineage *);
/** Whether a checkpoint that `id` wrote after `step` is of its past, or its own. */
int tess__lineage_has(const tess__lineage *, uint64_t id, uint64_t step);
/** Begins a run of its own after `step`, with an id that no other has. */
void tess__lineage_branch(tess__lineage *, uint64_t step);
#endif
