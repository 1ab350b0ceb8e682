/* SPDX-License-Identifier: BSD-3-Clause */
/* A span: what ran when, in which track. The engine measures them (runtime/trace.c), the simulator predicts them. */
#ifndef TESS_SPAN_H
#define TESS_SPAN_H
#include "plan/program.h"

enum { TESS__TRACK_COMPUTE, TESS__TRACK_COMM, TESS__TRACK_UP, TESS__TRACK_DOWN, TESS__TRACK_HOST, TESS__N_TRACKS };

typedef struct {
    uint8_t track, op, event; /* TESS__TRACK_…, TESS__GATHER …; of ENTER: TESS__FORWARD_BEGIN … */
    uint8_t critical;         /* simulated: on the critical path */
    int32_t index;            /* of the instruction: a group, a block; of ENTER: the scope */
    int32_t cause;            /* simulated: the span whose end let this one begin, or -1 */
    uint64_t step;            /* optimizer steps done before */
    double start, seconds;    /* start: measured on a clock of its own, simulated from the step's beginning */
} tess__span;

const char *tess__track_name(uint32_t track);  /* "transfer_up" */
const char *tess__span_op(const tess__span *); /* "all_gather"; a wait of the engine's thread: "wait_all_gather" */
int tess__span_is_wait(const tess__span *);    /* the engine's thread stands still for another track */
typedef struct {                               /* what a span is about; -1: none */
    int32_t scope, block, unit;
} tess__span_place;
tess__span_place tess__span_about(const tess__span *, const tess__model *, const tess__layout *);
const char *tess__span_unit(const tess__span *, const tess__model *, const tess__layout *); /* or the scope; "": none */
#endif
