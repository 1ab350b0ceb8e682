/* SPDX-License-Identifier: BSD-3-Clause */
/* The ledger of digests of a running engine (TESSERA_LEDGER): each owner digests what its shards hold, by an element's
 * place in its parameter, so that the sum over ranks depends on values alone. Rank 0 writes a line per step. */
#ifndef TESS_PROOF_H
#define TESS_PROOF_H
#include "engine/state.h"

/** [C] Before a pass: opens the ledger, if there is one, and forgets the gradients of a step that broke off. */
tess_status tess__proof_pass(tess *, uint32_t pass_kind);
tess_status tess__proof_gradient(tess *, int32_t group, const tess__executor *); /* on the executor's thread */
tess_status tess__proof_pass_end(tess *);
tess_status tess__proof_step(tess *); /* [C] */
/** Before values are read otherwise: checks parameters, copies and states that rest. */
tess_status tess__proof_rest(tess *);
tess_status tess__proof_instr(tess *, const tess__instr *);
tess_status tess__proof_event(tess *, const tess__event *);
void tess__proof_end(tess *);
/** Writes that a checkpoint is whole on disk. Any thread, rank 0; null is fine. */
void tess__proof_saved(struct tess__proof *, const char *dir, uint64_t step);
/** Notes the checkpoint that the run goes on from, so that the ledger can name it. */
tess_status tess__proof_loaded(tess *, const char *dir, uint64_t step);
#endif
