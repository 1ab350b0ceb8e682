/* SPDX-License-Identifier: BSD-3-Clause */
/* How the updates of matrices lie where they travel in parts of their own lengths: in a rank's shard by owner, and with
 * the owner one matrix behind the other. */
#ifndef TESS_PARTS_H
#define TESS_PARTS_H
#include "step.h"

/** Lists what the rank's shards hold of whose matrices; tess__segments_make calls it. */
tess_status tess__parts_make(tess__step *, const tess__plan *, int32_t shard_rank);
void tess__parts_free(tess__step *);
/** The part of a group's shard that has element `first`, or null where updates do not travel in parts. */
const tess__part *tess__part_at(const tess__step *, const tess__setup *, int32_t group, uint64_t first);
/** The lengths of an exchange, to the owners or back from them. */
void tess__parts_exchanged(const tess__step *, int32_t group, int back, const uint64_t **send, const uint64_t **recv);
/** A state, from its place in the shard to where it is sent from, or back. */
void tess__parts_pack(const tess__step *, int32_t group, const float *shard, float *packed);
void tess__parts_unpack(const tess__step *, int32_t group, const float *packed, float *shard);
#endif
