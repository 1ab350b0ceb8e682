/* The measuring side of the ledger: how many bytes a place must hold, by the engine's own reckoning from the layout,
 * the blocks and the comm plugin while it runs. It reads no size and no offset of a program, so that a plan that is
 * wrong by a byte does not agree with it. */
#ifndef TESS_MEASURE_H
#define TESS_MEASURE_H
#include "program.h"

typedef struct {                           /* what the comm plugin wants for itself, asked once, in bytes */
    uint64_t *gather, *reduce, *replicate; /* by group */
    uint64_t norm, stage, share, full;     /* share: of buffers; full: tess_each_full */
    uint64_t chunk;                        /* of tess_each_full: its largest piece */
} tess__needs;

tess_status tess__needs_create(tess__needs *, const tess__setup *, const tess__layout *);
void tess__needs_free(tess__needs *);

/** What (role, index) must hold now. `in`, when not null, is the instruction of the running program that books it: what
 * comes behind it tells the uses of one place apart. */
uint64_t tess__measure(const tess *, const tess__instr *in, int role, int32_t index);
/** The place handed out for the buffer lies, as far as it is needed, in memory that was obtained. */
tess_status tess__measure_place(const tess *, const tess__buffer *);
#endif
