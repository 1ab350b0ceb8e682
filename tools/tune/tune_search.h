/* SPDX-License-Identifier: BSD-3-Clause */
/* The search behind `tessera tune`: plans and simulates every combination of the options that the user left open. */
#ifndef TOOL_TUNE_SEARCH_H
#define TOOL_TUNE_SEARCH_H
#include "tools/machine/machine.h"
#include "tools/plan/plan.h"

enum {
    TUNE_WRAP,
    TUNE_STRATEGY,
    TUNE_ACTIVATIONS,
    TUNE_OFFLOAD,
    TUNE_PRECISION,
    TUNE_PREFETCH,
    TUNE_KNOBS,
    TUNE_VALUE = 256,
    TUNE_DOMAINS = TESS_DOMAIN_DISK + 1
};
extern const char *const tune_keys[TUNE_KNOBS]; /* "wrap" …: options of the same name */

typedef struct {
    char value[TUNE_KNOBS][TUNE_VALUE];
    double seconds;                    /* of a step */
    uint64_t peak_bytes[TUNE_DOMAINS]; /* planned, by domain */
    int fits;
} tune_candidate;

typedef struct {
    tune_candidate *all; /* combinations that fit come first, then faster ones; defaults win ties */
    int32_t n, n_fit;
    int is_model;
} tune_result;

/** Options that are set stay as they are; the budgets are those of the environment, which is as before afterwards.
 * Combinations that cannot be are passed over; a failure is one that no other value would cure. */
tess_status tune_search(const char *word, int32_t ranks, const machine_desc *, tune_result *out);
void tune_result_free(tune_result *);
/** "tessera train gpt -n 2 --wrap none": what differs from the defaults, and every option that was set, for a shell.
 * `names`: a model, a file, or with `is_program` a program and its arguments. The caller frees it; null: no memory. */
char *tune_command(const tune_result *, const tune_candidate *, char *const *names, int is_program, int32_t ranks);
#endif
