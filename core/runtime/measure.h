/* SPDX-License-Identifier: BSD-3-Clause */
/* The measuring side of the ledger: how many bytes a place must hold, by the engine's own reckoning from the layout,
 * the blocks and the comm plugin while it runs. It reads no size and no offset of a program, so that a plan that is
 * wrong by a byte does not agree with it. */
#ifndef TESS_MEASURE_H
#define TESS_MEASURE_H
#include "plan/plan.h"

typedef struct {                                  /* what the comm plugin wants for itself, asked once, in bytes */
    uint64_t *gather, *reduce, *replicate, *back; /* by group */
    uint64_t *collect, *give_back;                /* by group: of updates */
    uint64_t norm, stage, share, full;            /* share: of buffers; full: tess_each_full */
    uint64_t mirror;                              /* of images on their way */
    uint64_t chunk;                               /* of tess_each_full: its largest piece */
} tess__needs;

tess_status tess__needs_create(tess__needs *, const tess__setup *, const tess__layout *);
void tess__needs_free(tess__needs *);

/** The bytes that (role, index) must hold now. `in`, when not null, is the instruction of `program` that books it: what
 * follows it tells the uses of one place apart. `saved`: by block, whether its saved buffer is booked; or null. */
uint64_t tess__measure(const tess__plan *, const tess__needs *, const tess__program *program, const uint8_t *saved,
                       const tess__instr *in, int role, int32_t index);
#endif
