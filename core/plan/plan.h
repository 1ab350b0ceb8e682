/* SPDX-License-Identifier: BSD-3-Clause */
/* A plan is a model laid out in units for so many ranks, its compiled programs, and the bytes that they take. It is
 * made, compared and freed without an engine, a device or other ranks; an engine that trains holds one. */
#ifndef TESS_PLAN_H
#define TESS_PLAN_H
#include "compile.h"

enum { TESS__N_PROGRAMS = 8, TESS__MAX_USER = 256 };
enum { /* which program */
       TESS__P_TRAIN,
       TESS__P_NO_SYNC,
       TESS__P_EVAL,
       TESS__P_FUSED,
       TESS__P_STEP,
       TESS__P_NORM,
       TESS__P_CLIP,
       TESS__P_FULL
};

typedef struct {
    const tess_wrap_ops *ops;
    void *ctx;
    const char *text; /* that chose it, for messages */
} tess__plan_wrap;

typedef struct {
    tess__setup setup;
    tess__model model;
    tess__plan_wrap wrap;
    uint64_t user_bytes[TESS__MAX_USER]; /* device memory that the program took itself */
    int32_t n_user;
    int32_t holds; /* 1: the program holds memory of its own, which is not planned (tess_ledger_held) */
    tess__layout layout;
    tess__compiler compiler;
    tess__program resident, programs[TESS__N_PROGRAMS];
    uint8_t *modes;         /* setup.modes */
    char *activations_text; /* what auto chose, as a value of the option; else null */
} tess__plan;

/** Checks and finishes the declared model, chooses units, lays them out, compiles, and compares with the budget.
 * TESS_E_BUDGET leaves a plan that can be read. */
tess_status tess__plan_make(tess__plan *);
/** Sets up a second plan of the same declarations, to be changed and tried. Its texts are shared with `of`, which
 * must outlive it. */
tess_status tess__plan_try(const tess__plan *of, tess__plan *out);
tess_status tess__plan_remake(tess__plan *);    /* like tess__plan_make, of a finished model */
tess_status tess__plan_recompile(tess__plan *); /* the programs alone, in the declared order */
void tess__plan_drop(tess__plan *);             /* of tess__plan_try */
void tess__plan_free(tess__plan *);             /* all, declarations included */

/** TESS_E_BUDGET, with the bytes by category, when the plan takes more than is allowed. */
tess_status tess__plan_check_budget(const tess__plan *);
/** Planned bytes of a domain in all. */
uint64_t tess__planned_bytes(const tess__plan *, uint32_t domain);
uint64_t tess__planned_arena(const tess__plan *, uint32_t domain, uint32_t arena);
/** The program with the highest peak of a domain. */
const tess__program *tess__plan_fullest(const tess__plan *, uint32_t domain);
#endif
