/* SPDX-License-Identifier: BSD-3-Clause */
/* The words of `tessera plan` and `tessera tune`: a model, a file, or a program behind "--". */
#ifndef TOOL_PLAN_SUBJECT_H
#define TOOL_PLAN_SUBJECT_H
#include "tools/support/help.h"

/** `word` as plan_open takes it; `names`: as the user gave it, a program with its arguments, a null at the end. Returns
 * the exit code. */
typedef int (*plan_subject_fn)(const char *word, char *const *names, int32_t ranks);
/** Parses the command line and calls `use` once. A program is run up to tess_shard first. Returns the exit code. */
int plan_subject_run(const tool_page *, int argc, char **argv, plan_subject_fn use);
#endif
