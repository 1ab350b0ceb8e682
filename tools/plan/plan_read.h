/* SPDX-License-Identifier: BSD-3-Clause */
/* Subcommands read this of a plan, beyond tessera.h. plan_report.c, plan_at_peak.c and plan_time.c go through it
 * instruction by instruction, and so read it themselves. */
#ifndef TOOL_PLAN_READ_H
#define TOOL_PLAN_READ_H
#include <tessera/tessera.h>

/** "sharded parameter", of TESS_CAT_… */
const char *plan_category_name(uint32_t category);
/** "before_pre_forward", of tess_ledger_point.point. */
const char *plan_point_name(uint32_t point);
/** Fails if no scope contains a declared parameter; the message names it. */
tess_status plan_check_homes(const tess *);
/** Returns the share of its forward that the block's backward recomputes itself. */
double plan_made_again(const tess *, int32_t block);
#endif
