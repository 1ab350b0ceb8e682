/* SPDX-License-Identifier: BSD-3-Clause */
/* Digests of one step in detail (TESSERA_DETAIL): each rank writes a line after each instruction for each tensor that
 * it made, and on request a tensor's elements. tessera bisect compares the files of two runs. */
#ifndef TESS_DETAIL_H
#define TESS_DETAIL_H
#include "engine/state.h"

#include <stdio.h>

typedef struct {
    FILE *lines, *values; /* null: not open */
    uint64_t n;           /* instructions and calls of blocks so far */
    int backward;         /* the pass is in its backward */
    char *chunk;          /* a piece of a device's memory; null: none was needed */
} tess__detail;

/** Before a pass: opens the file at the step's first, and digests what rests. */
tess_status tess__detail_pass(tess *, tess__detail *, uint32_t pass_kind);
/** After an instruction of the running program, on the engine's thread; waits for one that was handed over. */
tess_status tess__detail_instr(tess *, tess__detail *, const tess__instr *);
/** After the program's own code for an event: outputs of a block, gradients of a scope. */
tess_status tess__detail_event(tess *, tess__detail *, const tess__event *);
void tess__detail_end(tess__detail *);
#endif
