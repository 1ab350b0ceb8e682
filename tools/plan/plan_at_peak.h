/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TOOL_PLAN_ALIVE_H
#define TOOL_PLAN_ALIVE_H
#include "core/readers/ledger.h"
#include "plan.h"

typedef struct {            /* the point of a plan with the most memory alive */
    int32_t program, instr; /* TESS__P_… of the program, and the instruction; program -1: at rest */
    int32_t point;          /* the last ledger point before it in that program, or -1 */
} plan_fullest;
/** Finds it over all programs that the run may enter, for one domain. */
plan_fullest plan_fullest_find(const tess__plan *, uint32_t domain);

typedef struct { /* step buffers alive where a domain is fullest, largest first */
    uint32_t domain;
    int32_t instr, n;
    const tess__buffer **buffers;
} plan_alive;

/** Whether there are any; the result is freed by plan_alive_free in any case. */
int plan_alive_find(const tess__plan *, plan_fullest, uint32_t domain, plan_alive *out);
void plan_alive_free(plan_alive *);
const char *plan_alive_name(const tess__plan *, const tess__buffer *); /* name of its unit or block; null: none */
const char *plan_alive_what(const tess__buffer *);
void plan_alive_print(FILE *, const tess__plan *, const plan_alive *);
void plan_alive_json(json_out *, const tess__plan *, const plan_alive *); /* the member "alive" */
#endif
