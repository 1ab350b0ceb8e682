/* SPDX-License-Identifier: BSD-3-Clause */
/* Runs a command again, up to a step, with a ledger and digests in detail in a folder of its own. */
#ifndef TOOL_PROOF_AGAIN_H
#define TOOL_PROOF_AGAIN_H
#include <limits.h>

#include "proof.h"

typedef struct { /* a temporary folder */
    char dir[PATH_MAX - 32], ledger[PATH_MAX];
} again_place;
tess_status again_place_make(again_place *);
void again_place_remove(const again_place *); /* and all in it; never made is fine */

typedef struct {
    uint64_t step;      /* the command ends after it */
    uint64_t every;     /* of its ledger */
    const char *from;   /* checkpoint, or "none"; null: as the command says */
    int saves;          /* checkpoints, in the folder */
    int detail;         /* digests of that step in detail, in the folder */
    const char *values; /* key of the tensor whose elements are written too; null: none */
} again_how;
/** Runs the command, whose output goes to standard error. *code: how it exited. */
tess_status again_run(char **command, const again_place *, const again_how *, int *code);

/** Tells whether a command that ran again is the ledger's run: TESS_E_DATA when its words are others, or the ledger
 * begins behind a checkpoint and it does not, so that its steps are others. Warns of other steps when `warns`. */
tess_status again_check(const proof_ledger *, const proof_ledger *again, int warns);
/** Compares the steps that both have, up to `step`, and tells the same. */
tess_status again_compare(const proof_ledger *, const proof_ledger *again, uint64_t step, proof_finding *out);
/** Says what is done to `step`, from where, and which later checkpoints before that step are gone. */
void again_say_start(const proof_ledger *, const char *what, uint64_t step, const proof_checkpoint *from);
/** Warns of all that makes a ledger doubtful. */
void again_say_doubts(const proof_ledger *);

/** The newest checkpoint before `step` that the ledger names and the disk has; null: none. */
const proof_checkpoint *again_start(const proof_ledger *, uint64_t step);
#endif
