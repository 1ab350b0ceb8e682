/* SPDX-License-Identifier: BSD-3-Clause */
/* Programs as things to plan; plan_program_run is in plan.h. */
#ifndef TOOL_PLAN_PROGRAM_H
#define TOOL_PLAN_PROGRAM_H
#include "plan.h"

/** The file of one engine of a program, the first being `path` itself. */
void plan_program_file(const char *path, int32_t number, char *out, size_t n);
/** Whether the file holds what plan_program_run left. */
int plan_program_is_description(const char *path);
/** Counts the engines of one program that are described there and beside it (plan_program_file); 0: no description.
 * *opened receives how many the program had opened by then. */
int32_t plan_program_engines(const char *path, int32_t *opened);
/** Plans it for `ranks` ranks; TESS_E_BUDGET leaves the engine too. */
tess_status plan_program_open(const char *path, int32_t ranks, tess **out);
#endif
