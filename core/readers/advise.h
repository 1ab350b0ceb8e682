/* SPDX-License-Identifier: BSD-3-Clause */
/* Advice on a step that does not fit its memory: each alternative is planned, by compiling the same model again,
 * and those that fit are named, the cheapest first. docs/advice.md states what is tried and the order of cost. */
#ifndef TESS_ADVISE_H
#define TESS_ADVISE_H
#include "plan/plan.h"
#include "plugin/selection.h"

enum { TESS__MOST_SETTINGS = 7, TESS__MOST_REMEDIES = 4 };

typedef struct { /* options to set, by their keys (option_table.c) */
    struct {
        const char *key; /* "offload" */
        char value[40];  /* "cpu" */
    } set[TESS__MOST_SETTINGS];
    int32_t n;
    int32_t cost; /* by the stated order; of the changes together */
} tess__option_set;

typedef struct {
    tess__option_set change;
    uint64_t bytes[TESS__DOMAINS]; /* planned */
    double seconds;                /* of a step, predicted; below 0: not known */
} tess__remedy;

typedef struct {
    tess__remedy list[TESS__MOST_REMEDIES]; /* those that fit, the quickest or cheapest first */
    int32_t n;
    int32_t n_planned; /* alternatives that were planned */
    tess__remedy
        least; /* when none fits: the one that needs least of what is short; its change is empty if none helps */
} tess__advice;

/** Plans with a change. TESS_OK and what it takes, or a failure when the change cannot be had. `seconds` is -1
 * before the call. */
typedef tess_status (*tess__replan_fn)(void *user, const tess__option_set *, uint64_t bytes[TESS__DOMAINS],
                                       double *seconds);

/** The value a change gives to `key`, or null. */
const char *tess__change_value(const tess__option_set *, const char *key);
/** "TESSERA_OFFLOAD=cpu and -n 4" */
void tess__change_text(const tess__option_set *, char *out, size_t n);

/** Advises on a plan that is over its budget. `fn` plans alternatives when the caller can do more than compile what
 * was declared, such as a model made anew for another precision. Null: the plan's own declarations. */
void tess__advise(const tess__plan *, const tess__selection *, tess__replan_fn fn, void *user, tess__advice *out);
/** Adds the advice to the message `failure`: "… With TESSERA_OFFLOAD=cpu: 498.0 MiB." */
void tess__advice_text(const tess__advice *, const char *failure, char *out, size_t n);
#endif
