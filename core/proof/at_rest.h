/* SPDX-License-Identifier: BSD-3-Clause */
/* Digests of shards at rest (TESSERA_AT_REST_DIGESTS): what a step leaves is checked when it is read next, so that
 * memory that changes by itself ends the run before it spreads. Each rank keeps its own. */
#ifndef TESS_AT_REST_H
#define TESS_AT_REST_H
#include "engine/state.h"

typedef struct {
    int32_t n_groups;
    uint64_t *sum; /* by group, then by what rests there; null before the first step */
    int known;     /* they are of what rests now */
    int32_t n_left;
    uint64_t *left; /* by buffer of the resident plan: of what a pass or a step left; null before the first */
    int left_known;
} tess__at_rest;

/** After a step: digests parameters, low-precision copies and states, and what tess__at_rest_take_pass does. */
tess_status tess__at_rest_take(tess *, tess__at_rest *, tess__pool *);
/** Before they are read: checks parameters and copies of all groups, and with `states` these, unless something else
 * than a step has written them. */
tess_status tess__at_rest_check(tess *, tess__at_rest *, tess__pool *, int states);
/** After a pass: digests gradients and running statistics. */
tess_status tess__at_rest_take_pass(tess *, tess__at_rest *, tess__pool *);
/** Before a pass: checks them, unless the program has written values. */
tess_status tess__at_rest_check_pass(const tess *, tess__at_rest *, tess__pool *);
/** Before a group's step, on its executor's thread: checks its gradient, parameters and states. */
tess_status tess__at_rest_check_group(const tess *, const tess__at_rest *, tess__pool *, int32_t group);
void tess__at_rest_free(tess__at_rest *);
#endif
