/* SPDX-License-Identifier: BSD-3-Clause */
/* The simulated time of a planned step: `tessera plan --machine`, and what tune compares. */
#ifndef TOOL_PLAN_TIME_H
#define TOOL_PLAN_TIME_H
#include "simulate.h"
#include "plan.h"

/** Reads the options machine and from: 0 when no machine is wanted, 1 when *out is to be closed, -1 after one line
 * on standard error with the exit code in *code. */
int plan_time_machine(const char *command, machine_desc *out, int *code);
/** Simulates the step of a planned source. */
tess_status plan_time(const plan_source *, const machine_desc *, simulated_step *out);
/** Sets the machine whose spans plan_output.spans writes. */
void plan_time_use(const machine_desc *);
const machine_desc *plan_time_in_use(void); /* null: none */
tess_status plan_time_spans(const plan_source *, json_out *or_null, double *seconds);
/** A table of what plan_time_spans simulated last. */
void plan_time_print(FILE *);
#endif
