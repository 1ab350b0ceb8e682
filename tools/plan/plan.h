/* SPDX-License-Identifier: BSD-3-Clause */
/* `tessera plan`: what its files share, and what other subcommands plan with. plan.c parses; plan_source.c turns words
 * and options into a planned engine; plan_program.c runs a program up to tess_shard; plan_report.c prints. */
#ifndef TOOL_PLAN_H
#define TOOL_PLAN_H
#include <math.h>
#include <stdio.h>
#include <tessera/inspect.h>

#include "tools/support/json_out.h"

typedef struct plan_source { /* a planned engine, and facts that the engine does not know */
    tess *t;                 /* plan_only, after tess_shard; readable even if it exceeds its budget */
    char name[256];          /* the model, file or program, as the user named it */
    uint32_t of;             /* TESS_LEDGER_STEP…: what one step is */
    int estimate;            /* activations come from a formula */
    char note[320];          /* explains the estimate to people; may be "" */
    double tokens;           /* tokens per microbatch in the plan; 0: unknown */
    double plan_seconds;     /* duration of planning */
    int is_model;            /* one of train's, so that its command line is "tessera train NAME" */
    void *state;             /* the source's own, freed by `close`, which may be null */
    void (*close)(void *state);
} plan_source;

/** Plans what `word` names (a model, a file) with the options in the environment, for `ranks` ranks. TESS_OK;
 * TESS_E_BUDGET, with *out filled in all the same, when it is over its budget; else a failure. May be called again and
 * again with other options: the environment is as before. */
tess_status plan_open(const char *word, int32_t ranks, plan_source *out);
void plan_close(plan_source *); /* all zero is fine */

/** The same for a program: runs `argv` up to tess_shard and takes what it has declared to a file of our own, whose path
 * goes to `path`; plan_open then takes that path as its word. The caller unlinks it. When the program fails before it
 * comes to tess_shard: what it wrote goes to standard error and *code is its exit code, else 0. */
tess_status plan_program_run(char *const *argv, int32_t ranks, char path[64], int *code);

typedef struct {    /* the destinations of a report */
    FILE *text;     /* tables; null: none */
    json_out *json; /* events; null: none */
    /** Writes span events, when there is something that simulates; sets *seconds. May be null. */
    tess_status (*spans)(const plan_source *, json_out *or_null, double *seconds);
} plan_output;

/** Tables and events of one plan; `over` is what plan_open returned: TESS_OK or TESS_E_BUDGET. The failures are those
 * of writing. */
tess_status plan_report(const plan_source *, tess_status over, const plan_output *);

/* ---- ledger_json.c: events that train writes too ------------------------------------------------- */
void ledger_json_units(json_out *, const tess *);
/** `source`: "planned" or "measured". */
void ledger_json_point(json_out *, const char *source, const tess_ledger_point *);
/** An object of the categories that are not 0. */
void ledger_json_bytes(json_out *, const char *key, const uint64_t bytes[16]);
/** "sharded_parameter" */
const char *ledger_json_category(uint32_t category, char out[32]);
#endif
