/* SPDX-License-Identifier: BSD-3-Clause */
/* The bytes of a block's audit (TESSERA_AUDIT): those that each rank sends, and the room in which another rank computes
 * the block again. */
#ifndef TESS_AUDIT_H
#define TESS_AUDIT_H
#include "layout/layout.h"

enum { TESS__AUDIT_HEAD = 64, TESS__AUDIT_FOUND_BYTES = 64 /* of one rank: digests, audit.c of the engine */ };

typedef struct { /* offsets, and bytes in all */
    /* In the bytes that one rank sends, behind a head: */
    uint64_t batch, input, grad_output, sums, sent_bytes;
    /* The room of the rank that computes it again: */
    uint64_t output, saved, scratch, grad_input, grads, work_bytes;
} tess__audit_room;

/** Whether a block's forward or backward is audited. Where backward writes the result, forward has nothing to compare.
 */
int tess__audit_covers(const tess__setup *, const tess__model *, int32_t block, int backward);
/** The sums are gradients that a later block has begun: of parameters that both have. Whether parameter k of the
 * block's scope is one. */
int tess__audit_adds(const tess__model *, int32_t block, int32_t k);
tess__audit_room tess__audit_room_of(const tess__setup *, const tess__model *, const tess__layout *, int32_t block,
                                     int backward);
/** Bytes before parameter k of the block's scope among its gradients, or its sums; k may be the number of
 * parameters. Two names of one parameter have one gradient. */
uint64_t tess__audit_grads_before(const tess__model *, const tess__layout *, int32_t block, int32_t k);
uint64_t tess__audit_sums_before(const tess__model *, const tess__layout *, int32_t block, int32_t k);
/** Bytes of a parameter's local gradient; 0: it has none. */
uint64_t tess__audit_grad_bytes(const tess__layout *, const tess__param *);
#endif
